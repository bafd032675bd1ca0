"""Operations that read or write rows, as Spark jobs run them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import OperationResult, open_context, running_in_spark
from airflow_paimon.core.requests.operations import function_on_rows, names_several, run_each
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.spark.versions import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@same_versions()
@reading_once()
@running_in_spark()
def run_spark_operation(spark: SparkSession, request: Request) -> OperationResult:
    """Run an operation that reads or writes rows.

    Raises:
        PaimonError: see each operation. What tasks raise comes as the error that it is.
    """
    require_spark()
    if names_several(request):
        return run_each(request, partial(run_spark_operation, spark))
    return function_on_rows(request)(spark, open_context(request), request)
