"""Buttons of a task in Airflow's UI. They are stored before the work begins, so a task that is killed has them, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

from airflow_paimon._compat import conf
from airflow_paimon.arguments import is_rendered
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.paths import MAIN

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["ApprovalLink", "AssetLink", "FlinkLink", "SparkLink", "TableLink", "UndoLink", "store_links"]


class TableLink(BaseOperatorLink):
    """The table's page, at the branch that the task is about."""

    name = "Paimon table"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty while the table's name is a template."""
        branch = getattr(operator, "branch", None)
        return _table_page(operator, branch=branch if is_rendered(branch) and branch else MAIN)


class UndoLink(BaseOperatorLink):
    """What to give the form of the DAG that undoes publishes of this table."""

    name = "Undo"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty while the table's name is a template."""
        return _table_page(operator, tab="corrections")


class AssetLink(BaseOperatorLink):
    """The assets of the table and its branches, with their events."""

    name = "Asset"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the list: a worker doesn't know an asset's number."""
        from airflow_paimon.assets import paimon_asset_uri

        def spell(connection: str, table: str) -> str:
            return f"{_base_url()}/assets?{urlencode({'name_pattern': paimon_asset_uri(connection, table)})}"

        return _of_table(operator, spell)


class SparkLink(BaseOperatorLink):
    """The Spark application: the history server's page where ``spark_conf`` names one, else what Spark's log names."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty when the task has submitted nothing, or nowhere that has a UI."""
        return str(operator.spark_url or "")


class FlinkLink(BaseOperatorLink):
    """The job's page in Flink."""

    name = "Flink job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty when the task knows no job yet."""
        return str(operator.flink_url or "")


class ApprovalLink(BaseOperatorLink):
    """The page on which the question is answered."""

    name = "Approval"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        return approval_url(ti_key)


def approval_url(ti: Any) -> str:
    """Spell the address of the page on which a task's question is answered."""
    return f"{task_url(ti)}/required_actions"


def task_url(ti: Any) -> str:
    """Spell the address of a task's page in its run."""
    path = "/".join(quote(part, safe="") for part in ("dags", ti.dag_id, "runs", ti.run_id, "tasks", ti.task_id))
    mapped = "" if ti.map_index in (None, -1) else f"/mapped/{ti.map_index}"
    return f"{_base_url()}/{path}{mapped}"


def store_links(operator: Any, context: Context) -> None:
    """Store the links now. Airflow itself does it when a task has ended, unless the task was killed."""
    ti = context["ti"]
    for link in operator.operator_extra_links:
        if url := link.get_link(operator, ti_key=ti):
            ti.xcom_push(key=link.xcom_key, value=url)


def _table_page(operator: Any, *, tab: str | None = None, branch: str = MAIN) -> str:
    from airflow_paimon.shown.urls import table_page_url

    return _of_table(operator, partial(table_page_url, tab=tab, branch=branch, base_url=_base_url()))


def _of_table(operator: Any, spell: Callable[[str, str], str]) -> str:
    """Spell an address from an operator's connection and table; empty while a name is a template, or is none."""
    connection, table = operator.paimon_conn_id, operator.table
    if not (connection and table and is_rendered(connection) and is_rendered(table)):
        return ""
    try:
        return spell(connection, table)
    except InvalidInputError:
        return ""


def _base_url() -> str:
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
