"""Asks a backend of OpenLineage what is made from a table: ``GET /api/v1/lineage`` as Marquez documents it.

It answers within seconds or not at all, and whatever goes wrong is a sentence: a plan never fails for it.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from airflow_paimon.dataset_names import dataset_of, table_of
from airflow_paimon.downstream_plan import downstream_of

PATIENCE_S = 3.0
_MOST_BYTES = 8 << 20
_DEPTH = 10
"""How many steps from the table the backend is asked for, jobs and datasets alike."""


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
