"""What a plan says in Airflow besides the table's own metadata: a backend's lineage, a form filled in, the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon import settings
from airflow_paimon._compat import AirflowNotFoundException, BaseHook, conf
from airflow_paimon.downstream_plan import pipeline_form, tables_downstream
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.shown.urls import plan_page_url

_MOST_SQL = 1000
"""Characters of SQL that a link carries."""


def with_downstream(
    details: Mapping[str, Any], conn_id: str, table: str, correction: Mapping[str, Any]
) -> dict[str, Any]:
    """Add ``lineage``, ``pipeline`` and ``page`` to a plan's details, see ``cli/correction_text.py``. Never fails.

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
    from airflow_paimon.lineage_backend import ask_downstream

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
