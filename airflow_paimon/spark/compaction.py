"""Runs the work of a compaction, or of a rescale, in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_paimon.data.compaction_tasks import CompactionTask, RunTasks, TaskOutput, run_here
from airflow_paimon.data.scan import fits_in_process
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, SCHEMA, TASK_BYTES, collect, cores_of, map_tasks, pack, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_tasks(spark: SparkSession, name: str, what: str = "compact") -> RunTasks:
    """Return what runs each work in a task. ``name``: the table's; ``what`` is done with it, for people."""

    def run(works: Sequence[CompactionTask]) -> list[TaskOutput]:
        files = sum(len(w.files) for w in works)
        frame = map_tasks(spark, _groups(works, cores_of(spark)), lambda work: ship(lambda: [work.run()]), SCHEMA)
        with task_errors(), progress(spark, f"{what} {name}: {files} files"):
            return collect(frame)

    return run


def in_tasks_if_large(spark: SparkSession, name: str, what: str = "compact") -> RunTasks:
    """The same, but small work is done in this process."""
    distributed = in_tasks(spark, name, what)

    def run(works: Sequence[CompactionTask]) -> Iterable[TaskOutput]:
        return (run_here if fits_in_process(f for w in works for f in w.files) else distributed)(works)

    return run


def _groups(works: Sequence[CompactionTask], cores: int) -> list[list[CompactionTask]]:
    """Return the work of each task: large groups of files first, small ones together."""

    def weight(work: CompactionTask) -> int:
        return sum(f.file_size + OPEN_COST_BYTES for f in work.files)

    total = sum(map(weight, works))
    return pack(sorted(works, key=weight, reverse=True), weight, max(1, min(TASK_BYTES, total // (2 * cores))))
