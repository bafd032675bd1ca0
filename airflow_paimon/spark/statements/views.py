"""Further tables that a statement or a query can name: temporary views for as long as it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.chain.read_plan import ChainReadMode
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.table import viewed_table as viewed_table
from airflow_paimon.data.chain.scan import is_chain_read
from airflow_paimon.data.planner import plan_rows, read_schema
from airflow_paimon.data.read_groups import IN_SPARK, ReadPlan
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.spark.statements.analysed import bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_view_names(views: Mapping[str, Any]) -> None:
    """Refuse names that SQL can't write plainly, and views that are neither a table's name nor a DataFrame.

    Raises:
        InvalidInputError: names the view.
    """
    if not isinstance(views, Mapping):
        raise InvalidInputError(f"views is a dict of names and tables, e.g. {{'fixes': 'sales.fixes'}}, not {views!r}")
    for name, view in views.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidInputError(f"A view needs a plain name, such as fixes, not {name!r}")
        if not isinstance(view, str) and not hasattr(view, "createTempView"):
            raise InvalidInputError(f"The view {name!r} has to be a table such as db.t, or a DataFrame, not {view!r}")
    lower = [n.lower() for n in views]
    if len(set(lower)) < len(lower):
        raise InvalidInputError("Two views have the same name but for case; give each another name")


@contextmanager
def registered(spark: SparkSession, views: Mapping[str, DataFrame], *, marked: bool = False) -> Iterator[None]:
    """Give DataFrames names in SQL inside the context. ``marked``: restricted SQL may read them.

    Raises:
        InvalidInputError: the session has a view of such a name.
    """
    with ExitStack() as made:  # each goes, also when another one can't be dropped
        for name, frame in views.items():
            _register(spark, name, bound(frame) if marked else frame)
            made.callback(spark.catalog.dropTempView, name)
        yield


def _register(spark: SparkSession, name: str, frame: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        frame.createTempView(name)
    except AnalysisException:
        raise InvalidInputError(f"The Spark session has a temporary view {name!r} already; drop it first") from None


def plan_view(warehouse: str, text: str, storage_options: Mapping[str, Any] | None, statement: str | None) -> ReadPlan:
    """Plan the read of ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``, for a statement or a query.

    Raises:
        NotFoundError: no such table, branch or version. InvalidInputError: not of that form.
    """
    table, version = viewed_table(warehouse, text, storage_options)
    return plan_read_for(table, statement, version)


def plan_read_for(
    table: Table, statement: str | None, version: int | str | None = None, timestamp: int | None = None
) -> ReadPlan:
    """Plan the read of all columns that a statement can mean."""
    columns = view_columns(read_schema(table, version, timestamp), statement)
    mode: ChainReadMode | None = "full" if is_chain_read(table, version) else None
    return plan_rows(table, ReadRequest(version=version, timestamp=timestamp, columns=columns, mode=mode), IN_SPARK)


def view_columns(schema: TableSchema, sql: str | None) -> tuple[str, ...] | None:
    """Return the columns of a view: with row id and version of each row where the query names one of them; None = all
    of the table's.
    """
    named = sql is not None and any(name.lower() in sql.lower() for name in ROW_COLUMNS)
    return with_row_columns(schema).field_names if named else None
