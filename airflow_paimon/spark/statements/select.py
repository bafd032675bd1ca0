"""A SELECT on the tables of a warehouse, as a DataFrame: each table in one state, however often it is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jvm import kind_of, planned_frame, sequence_items
from airflow_paimon.spark.statements.sql_request import SqlRequest
from airflow_paimon.spark.statements.tables import NamedTables
from airflow_paimon.spark.statements.views import check_view_names, registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITES = ("InsertIntoDir", "InsertIntoStatement")


def query(request: SqlRequest, plan: Any) -> tuple[DataFrame, Sequence[Table]]:
    """Return the rows of a parsed query, and the tables that it names.

    The tables' states are chosen now, their rows are read when Spark asks.

    Raises:
        InvalidInputError: what Spark says is wrong, with its position. NotFoundError: no such table, branch or version.
    """
    check_view_names(request.views)
    spark, views = request.spark, request.views
    tables = NamedTables(spark, request, request.statement, database=request.database, is_query=True)

    def planned() -> DataFrame:
        frames = {name: tables.view(view) if isinstance(view, str) else view for name, view in views.items()}
        with registered(spark, frames):
            return planned_frame(spark, tables.plan(plan))

    hint = f"; tables of the warehouse {request.warehouse} are named db.table, and SHOW TABLES lists them"
    with query_errors("SELECT", NotFoundError, hint):
        frame = planned()
        return (planned() if tables.learn(frame) else frame), tables.named


def is_query(plan: Any) -> bool:
    """Whether a plan that is no command writes nothing either: INSERT OVERWRITE DIRECTORY is no command to Spark."""
    return kind_of(plan) not in _WRITES and all(is_query(child) for child in sequence_items(plan.children()))
