"""compact, compact_chain_table, rescale and erase_rows with Spark: no row leaves the task that reads it.

Each group of files, each bucket of a chain and each share of a partition is written by a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact, CompactChainTable, EraseRows, Rescale
from airflow_paimon.data.compaction_tasks import CompactionTask, RunTasks, TaskOutput, Workers, run_here
from airflow_paimon.data.local import REWRITES
from airflow_paimon.data.read_splits import fits_in_process
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, SCHEMA, TASK_BYTES, collect, cores_of, map_tasks, pack, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TASKS_PER_CORE = 4
"""Groups of files, or buckets, of one Spark job for each core: enough to keep them busy, few enough to commit often."""
_BYTES_PER_CORE = 2 * TASK_BYTES
"""As much of what is small goes into one job."""


def rewrite_files(
    spark: SparkSession, context: Context, request: Compact | CompactChainTable | EraseRows | Rescale
) -> OperationResult:
    """Do one of the ``REWRITES``; raises as that does. What one Spark job has written is committed before the next."""
    run, cores = in_tasks(spark, context.table.name, request.operation), cores_of(spark)
    workers = Workers(run, _TASKS_PER_CORE * cores, _BYTES_PER_CORE * cores)
    return REWRITES[request.operation](context, request, workers)


def in_tasks(spark: SparkSession, name: str, what: str = "compact") -> RunTasks:
    """Return what runs each work in a task, or what is little in this process. ``name``: the table's; ``what`` is done
    with it, for people.
    """

    def run(works: Sequence[CompactionTask]) -> Iterable[TaskOutput]:
        files = [f for w in works for f in w.files]
        if fits_in_process(files):
            return run_here(works)
        frame = map_tasks(spark, _groups(works, cores_of(spark)), lambda work: ship(lambda: [work.run()]), SCHEMA)
        with task_errors(), progress(spark, f"{what} {name}: {len(files)} files"):
            return collect(frame)

    return run


def _groups(works: Sequence[CompactionTask], cores: int) -> list[list[CompactionTask]]:
    """Return the work of each task: large groups of files first, small ones together."""

    def weight(work: CompactionTask) -> int:
        return sum(f.file_size + OPEN_COST_BYTES for f in work.files)

    total = sum(map(weight, works))
    return pack(sorted(works, key=weight, reverse=True), weight, max(1, min(TASK_BYTES, total // (2 * cores))))
