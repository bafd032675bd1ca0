"""compact and compact_chain_table with Spark: each group of files, or bucket, is written by a task of its own; no row
leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact, CompactChainTable
from airflow_paimon.data import compact as compact_files
from airflow_paimon.data.chain import compact as compact_chain
from airflow_paimon.spark.compaction import in_tasks
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
    cores = cores_of(spark)

    return compact_files.compact(
        context,
        request,
        in_tasks(spark, context.table.name),
        tasks_at_once=_TASKS_PER_CORE * cores,
        bytes_at_once=_BYTES_PER_CORE * cores,
    )


def compact_chain_table(spark: SparkSession, context: Context, request: CompactChainTable) -> OperationResult:
    """Make partitions full; each is committed as soon as the job that wrote its buckets is done.

    Raises:
        PaimonError: as ``airflow_paimon.data.chain.compact`` says.
    """
    cores = cores_of(spark)
    return compact_chain.compact_chain_table(
        context,
        request,
        in_tasks(spark, context.table.name, request.operation),
        tasks_at_once=_TASKS_PER_CORE * cores,
        bytes_at_once=_BYTES_PER_CORE * cores,
    )
