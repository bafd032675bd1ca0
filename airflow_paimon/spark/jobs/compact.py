"""compact with Spark: each group of files is written, or merged, by a task of its own; no row leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.data import compact as compact_files
from airflow_paimon.data.compaction_tasks import TaskOutput, Work
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, TASK_BYTES, cores_of, map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4
"""Groups of files of one Spark job, and so of one commit, for each core."""
_BYTES_PER_CORE = 2 * TASK_BYTES
"""As much of what is small goes into one job."""


def compact(spark: SparkSession, context: Context, request: Compact) -> OperationResult:
    """Compact small files; what one Spark job has written is one commit.

    Raises:
        PaimonError: as ``airflow_paimon.data.compact`` says.
    """
    cores = cores_of(spark)

    def run(works: Sequence[Work]) -> list[TaskOutput]:
        files = sum(len(w.files) for w in works)
        frame = map_tasks(spark, _groups(works, cores), lambda work: ship(lambda: [work.run()]), SCHEMA)
        with task_errors(context.table.name), progress(spark, f"compact {context.table.name}: {files} files"):
            return collect(frame)

    return compact_files.compact(
        context, request, run, tasks_at_once=_TASKS_PER_CORE * cores, bytes_at_once=_BYTES_PER_CORE * cores
    )


def _groups(works: Sequence[Work], cores: int) -> list[list[Work]]:
    """Return the work of each task: large groups of files first, small ones together."""

    def weight(work: Work) -> int:
        return sum(f.file_size + OPEN_COST_BYTES for f in work.files)

    total = sum(map(weight, works))
    return pack(sorted(works, key=weight, reverse=True), weight, max(1, min(TASK_BYTES, total // (2 * cores))))
