"""What the log says while a long Spark job runs."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.spark.progress import Counted, _number, describe, progress
from airflow_paimon.spark.tasks import map_in_arrow, map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("found", "elapsed", "step", "text"),
    [
        (Counted(finished=0, tasks=8), 3.0, 3.0, "0 % of step 1; 0 of 8 tasks after 3 s"),
        (Counted(finished=2, tasks=8), 30.0, 30.0, "25 % of step 1, about 90 s left; 2 of 8 tasks after 30 s"),
        (Counted(finished=8, tasks=8), 30.0, 30.0, "99 % of step 1; 8 of 8 tasks after 30 s"),
        (
            Counted(finished=0, tasks=2, step=2, rows=2_000_000, total=5_000_000),
            190.0,
            100.0,
            "40 % of step 2, 2,000,000 of 5,000,000 rows, 20,000 rows/s, about 150 s left; 0 of 2 tasks after 190 s",
        ),
        (
            Counted(finished=1, tasks=2, rows=500),
            10.0,
            10.0,
            "50 % of step 1, 500 rows, 50 rows/s, about 10 s left; 1 of 2 tasks after 10 s",
        ),
    ],
)
def test_the_estimate(found: Counted, elapsed: float, step: float, text: str) -> None:
    assert describe(found, elapsed, step) == text


@pytest.mark.parametrize(("shown", "number"), [("1,200,000", 1_200_000), ("", 0), ("total (min, med)\n12", 0)])
def test_a_metric_as_spark_shows_it(shown: str, number: int) -> None:
    assert _number(shown) == number


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "airflow_paimon.spark.progress"]


@contextmanager
def noticed(pattern: str, file: Path) -> Iterator[None]:
    """Make the file when a line of the progress has been written; tasks wait for it."""

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if re.search(pattern, record.getMessage()):
                file.touch()

    logger, handler = logging.getLogger("airflow_paimon.spark.progress"), Notice()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def waiting_for(file: str) -> Callable[[], None]:
    """A function that Spark takes along to its workers."""

    def wait() -> None:
        end = time.monotonic() + 300
        while not os.path.exists(file) and time.monotonic() < end:
            time.sleep(0.02)

    return wait


def test_a_running_job_says_how_far_it_is(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    wait = waiting_for(str(tmp_path / "said"))

    def work(number: int) -> Iterator[pa.RecordBatch]:
        if number == 5:
            wait()
        yield pa.RecordBatch.from_pydict({"n": pa.array([number], pa.int32())})

    with (
        caplog.at_level(logging.INFO, "airflow_paimon"),
        noticed(" of 6 tasks after ", tmp_path / "said"),
        progress(spark, "a job", interval_s=0.05),
    ):
        assert map_tasks(spark, [[n] for n in range(6)], work, "n int").count() == 6
    lines = said(caplog)
    assert lines[0] == "a job: started" and lines[-1].startswith("a job: done in ")
    shown = [line for line in lines[1:-1] if " of 6 tasks after " in line]
    assert shown and all(re.match(r"\d+ % of step 1", line) and line.endswith("(a job)") for line in shown), lines


def test_rows_are_counted_inside_the_tasks_of_a_step(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Rows that Spark's own tasks have read are in its metrics when a step has ended, if not before."""
    wait = waiting_for(str(tmp_path / "said"))
    line = r"\d+ % of step 2, [\d,]+ of 4,000 rows, [\d,]+ rows/s, about"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context and context.partitionId() == 1:
            wait()  # the other task is done before this one
        yield from batches

    with (
        caplog.at_level(logging.INFO, "airflow_paimon"),
        noticed(line, tmp_path / "said"),
        progress(spark, "a job", interval_s=0.05),
    ):
        moved = spark.range(0, 4000, 1, 2).repartition(2)
        assert map_in_arrow(moved, slowly, "id bigint").count() == 4000
    lines = said(caplog)
    assert any(re.match(line, one) for one in lines), lines
