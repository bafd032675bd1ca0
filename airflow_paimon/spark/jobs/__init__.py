"""Operations that read or write rows, as Spark jobs run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.operations import function_on_rows
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.spark.versions import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@same_versions()
@reading_once()
def run_spark_operation(spark: SparkSession, request: Request) -> OperationResult:
    """Run an operation that reads or writes rows.

    Raises:
        PaimonError: see each operation. What tasks raise comes as the error that it is.
    """
    require_spark()
    return function_on_rows(request)(spark, open_context(request), request)
