"""compact_chain_table with Spark: buckets of many partitions and groups are tasks of one job; no row leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.data.chain import compact as compact_chain
from airflow_paimon.data.chain.compact_bucket import (
    ChainBucketOutput,
    ChainBucketTask,
    CompactionSettings,
    compact_bucket,
)
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, TASK_BYTES, cores_of, map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4
"""Buckets of one Spark job for each core: enough to keep them busy, few enough to commit often."""
_BYTES_PER_CORE = 2 * TASK_BYTES
"""As much of what is small goes into one job."""


def compact_chain_table(spark: SparkSession, context: Context, request: CompactChainTable) -> OperationResult:
    """Make partitions full; each is committed as soon as the job that wrote its buckets is done.

    Raises:
        PaimonError: as ``airflow_paimon.data.chain.compact`` says.
    """
    cores = cores_of(spark)

    def run(compaction: CompactionSettings, works: Sequence[ChainBucketTask]) -> list[ChainBucketOutput]:
        partitions = len({w.values for w in works})
        what = f"compact_chain_table {compaction.label}: {len(works)} buckets of {partitions} partitions"
        frame = map_tasks(
            spark, _groups(works, cores), lambda work: ship(lambda: [compact_bucket(compaction, work)]), SCHEMA
        )
        with task_errors(), progress(spark, what):
            return collect(frame)

    return compact_chain.compact_chain_table(
        context, request, run, tasks_at_once=_TASKS_PER_CORE * cores, bytes_at_once=_BYTES_PER_CORE * cores
    )


def _groups(works: Sequence[ChainBucketTask], cores: int) -> list[list[ChainBucketTask]]:
    """Return the buckets of each task: large ones alone and first, small ones together."""

    def weight(work: ChainBucketTask) -> int:
        return work.size + OPEN_COST_BYTES * len(work.split.files)

    ordered = sorted(works, key=weight, reverse=True)
    target = min(TASK_BYTES, sum(map(weight, works)) // (2 * cores))
    return pack(ordered, weight, max(1, target))
