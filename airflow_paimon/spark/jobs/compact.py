"""compact, compact_chain_table, rescale and erase_rows with Spark: no row leaves the task that reads it.

Each group of files, each bucket of a chain and each share of a partition is written by a task of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact, CompactChainTable, EraseRows, Rescale
from airflow_paimon.data import compact as compact_files
from airflow_paimon.data import rescale as rescale_files
from airflow_paimon.data.chain import compact as compact_chain
from airflow_paimon.data.erasure import erase_rows as erasure
from airflow_paimon.spark.compaction import in_tasks, in_tasks_if_large
from airflow_paimon.spark.tasks import TASK_BYTES, cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4
"""Groups of files, or buckets, of one Spark job for each core: enough to keep them busy, few enough to commit often."""
_BYTES_PER_CORE = 2 * TASK_BYTES
"""As much of what is small goes into one job."""


def compact(spark: SparkSession, context: Context, request: Compact) -> OperationResult:
    """Compact small files; what one Spark job has written is one commit.

    Raises:
        PaimonError: as ``airflow_paimon.data.compact`` says.
    """
    return compact_files.compact(context, request, in_tasks(spark, context.table.name), **_at_once(spark))


def compact_chain_table(spark: SparkSession, context: Context, request: CompactChainTable) -> OperationResult:
    """Make partitions full; each is committed as soon as the job that wrote its buckets is done.

    Raises:
        PaimonError: as ``airflow_paimon.data.chain.compact`` says.
    """
    run = in_tasks(spark, context.table.name, request.operation)
    return compact_chain.compact_chain_table(context, request, run, **_at_once(spark))


def _at_once(spark: SparkSession) -> dict[str, int]:
    """Return how much one Spark job may write."""
    cores = cores_of(spark)
    return {"tasks_at_once": _TASKS_PER_CORE * cores, "bytes_at_once": _BYTES_PER_CORE * cores}


def rescale(spark: SparkSession, context: Context, request: Rescale) -> OperationResult:
    """Rescale the chosen partitions in one commit; raises as ``airflow_paimon.data.rescale`` says."""
    return rescale_files.rescale(context, request, in_tasks_if_large(spark, context.table.name, "rescale"))


def erase_rows(spark: SparkSession, context: Context, request: EraseRows) -> OperationResult:
    """Erase rows; raises as ``airflow_paimon.data.erasure.erase_rows`` says."""
    return erasure.erase_rows(context, request, in_tasks_if_large(spark, context.table.name))
