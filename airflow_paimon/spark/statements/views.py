"""Further tables that a statement or a query can name: temporary views for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.table import open_table, split_version
from airflow_paimon.data.layers import Layer, plan_table_read
from airflow_paimon.data.read_schema import read_schema
from airflow_paimon.spark.statements.statement_plan import Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def registered(spark: SparkSession, views: Mapping[str, DataFrame]) -> Iterator[None]:
    """Give DataFrames names in SQL inside the context.

    Raises:
        InvalidInputError: the session has a view of such a name.
    """
    made: list[str] = []
    try:
        for name, frame in views.items():
            _register(spark, name, frame)
            made.append(name)
        yield
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


@contextmanager
def named_ctes(spark: SparkSession, statement: Statement) -> Iterator[None]:
    """Give the queries of a statement's WITH their names inside the context; a later one may use an earlier one."""
    # A correction is checked before PySpark is imported, with this module.
    from airflow_paimon.spark.statements.evaluate import Evaluation

    with ExitStack() as stack:
        for name, plan in statement.ctes:
            stack.enter_context(registered(spark, {name: Evaluation.frame_of(spark, plan.node)}))
        yield


def _register(spark: SparkSession, name: str, frame: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        frame.createTempView(name)
    except AnalysisException:
        raise InvalidInputError(f"The Spark session has a temporary view {name!r} already; drop it first") from None


def plan_view(
    warehouse: str,
    text: str,
    storage_options: Mapping[str, Any] | None,
    columns_of: Callable[[TableSchema], Sequence[str] | None] = lambda schema: None,
) -> Sequence[Layer]:
    """Plan the read of ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``; ``columns_of`` gives its columns.

    Raises:
        NotFoundError: no such table, branch or version. InvalidInputError: not of that form.
    """
    name, version = split_version(text)
    table = open_table(warehouse, name, storage_options=storage_options).require()
    return plan_table_read(table, version=version, columns=columns_of(read_schema(table, version, None)))
