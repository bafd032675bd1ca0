"""Who is downstream of a table in Airflow: what a backend of OpenLineage knows, a form filled in, the page.

The backend is asked by ``GET /api/v1/lineage``, as Marquez documents it. It answers within seconds or not at all, and
whatever goes wrong is a sentence: a plan never fails for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from airflow_paimon import settings
from airflow_paimon._compat import AirflowNotFoundException, BaseHook, conf
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.lineage.datasets import dataset_of, table_of
from airflow_paimon.lineage.downstream_plan import downstream_of, pipeline_form, tables_downstream
from airflow_paimon.shown.urls import plan_page_url

_MOST_SQL = 1000
"""Characters of SQL that a link carries."""
PATIENCE_S = 3.0
_MOST_BYTES = 8 << 20
_DEPTH = 10
"""How many steps from the table the backend is asked for, jobs and datasets alike."""


def with_downstream(
    details: Mapping[str, Any], conn_id: str, table: str, correction: Mapping[str, Any]
) -> dict[str, Any]:
    """Add ``lineage``, ``pipeline`` and ``page`` to a plan's details, see ``shown/correction_text.py``. Never fails.

    :param correction: the form's ``sql`` or ``function``, ``mode``, ``partitions`` and ``views``
    """
    lineage = ask_backend(PaimonHook(conn_id).warehouse, table)
    found = {**details, "lineage": lineage}
    downstream = tables_downstream(found, table)
    default = conn_id == PaimonHook.default_conn_name
    found["pipeline"] = pipeline_form(table, correction, downstream, None if default else conn_id)
    if not downstream:
        found["pipeline"] = None
    sql = str(correction.get("sql") or "")
    values = {"sql": sql if len(sql) <= _MOST_SQL else "", "mode": correction.get("mode") or "",
             "partitions": "\n".join(correction.get("partitions") or ())}  # fmt: skip
    base = str(conf.get("api", "base_url", fallback="") or "")
    return found | {"page": plan_page_url(conn_id, table, values, base_url=base)}


def ask_backend(
    warehouse: str, table: str, connection_of: Callable[[str], Any] = BaseHook.get_connection
) -> dict[str, Any] | None:
    """Ask the backend of ``[paimon] lineage_conn_id`` who is downstream; None where none is set."""
    name = settings.LINEAGE_CONN_ID
    if not name:
        return None
    try:
        return ask_downstream(connection_of(name), warehouse, table)
    except AirflowNotFoundException:
        problem = f"there is no Airflow connection {name!r}"
    except Exception as error:  # such as a connection that can't be parsed: its settings may be in the message
        problem = f"connection {name!r} can't be used ({type(error).__name__})"
    return {"asked": name, "datasets": [], "jobs": [], "problem": problem}


class _NoRedirect(HTTPRedirectHandler):
    """The token is for the backend alone."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def ask_downstream(connection: Any, warehouse: str, table: str) -> dict[str, Any]:
    """Return ``asked`` (the backend's address), ``datasets`` and ``jobs`` downstream, and ``problem``, if any.

    :param connection: Airflow's connection: host, port, ``https`` in the schema; the password is sent as a token
    """
    namespace, name = dataset_of(warehouse, table)
    base = _address(connection)
    found: dict[str, Any] = {"asked": base, "datasets": [], "jobs": [], "problem": None}
    query = urlencode({"nodeId": f"dataset:{namespace}:{name}", "depth": _DEPTH})
    try:
        graph = _get(f"{base}/api/v1/lineage?{query}", connection.password)
        downstream = downstream_of(graph, namespace, name, partial(table_of, warehouse))
        others = [one for one in downstream["datasets"] if one["table"] != table]  # its own branches are no others
        return found | downstream | {"datasets": others}
    except HTTPError as error:
        if error.code == 404:
            return found  # it has heard nothing of the table yet
        return found | {"problem": f"it answered {error.code}"}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return found | {"problem": _reason(error)}


def _address(connection: Any) -> str:
    """Return the address without what may be a secret."""
    host = str(connection.host or "localhost").strip().rstrip("/")
    parts = urlsplit(host if "://" in host else f"{connection.schema or 'http'}://{host}")
    where = parts.netloc.rpartition("@")[2]
    port = f":{connection.port}" if connection.port and ":" not in where.rpartition("]")[2] else ""
    return f"{parts.scheme}://{where}{port}{parts.path}"


def _get(url: str, token: str | None) -> Any:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("its address must begin with http or https")
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    until, body = time.monotonic() + PATIENCE_S, bytearray()
    with build_opener(_NoRedirect).open(Request(url, headers=headers), timeout=PATIENCE_S) as answer:
        while chunk := answer.read1(1 << 16):
            body += chunk
            if len(body) > _MOST_BYTES:
                raise ValueError(f"its answer has more than {_MOST_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
    return json.loads(bytes(body))


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
        return f"it did not answer within {PATIENCE_S:g} s"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "its answer is not JSON"
    if isinstance(error, ValueError):
        return str(error)
    return str(getattr(error, "reason", None) or type(error).__name__)
