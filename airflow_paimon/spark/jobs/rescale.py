"""rescale with Spark: each share of a partition is written by a task of its own; no row is shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Rescale
from airflow_paimon.data import rescale as rescale_files
from airflow_paimon.spark.compaction import in_tasks_if_large

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rescale(spark: SparkSession, context: Context, request: Rescale) -> OperationResult:
    """Rescale the chosen partitions in one commit.

    Raises:
        PaimonError: as ``airflow_paimon.data.rescale`` says.
    """
    return rescale_files.rescale(context, request, in_tasks_if_large(spark, context.table.name, "rescale"))
