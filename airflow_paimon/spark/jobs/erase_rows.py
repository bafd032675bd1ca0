"""erase_rows with Spark: what is large is written again by tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import EraseRows
from airflow_paimon.data.erasure import erase_rows as erasure
from airflow_paimon.spark.compaction import in_tasks_if_large

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def erase_rows(spark: SparkSession, context: Context, request: EraseRows) -> OperationResult:
    """Erase rows; raises as ``airflow_paimon.data.erasure.erase_rows`` says."""
    return erasure.erase_rows(context, request, in_tasks_if_large(spark, context.table.name))
