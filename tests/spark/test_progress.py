"""What the log says while a long Spark job runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.spark.progress import describe, progress
from airflow_paimon.spark.tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("finished", "total", "elapsed", "text"),
    [
        (0, 8, 3.0, "0 of 8 tasks after 3 s"),
        (2, 8, 30.0, "2 of 8 tasks after 30 s, about 90 s to go"),
        (8, 8, 30.0, "8 of 8 tasks after 30 s, about 0 s to go"),
    ],
)
def test_the_estimate(finished: int, total: int, elapsed: float, text: str) -> None:
    assert describe(finished, total, elapsed) == text


def test_a_running_job_says_how_far_it_is(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    def work(number: int) -> Iterator[pa.RecordBatch]:
        time.sleep(0.4)  # long enough to be seen at work
        yield pa.RecordBatch.from_pydict({"n": pa.array([number], pa.int32())})

    with caplog.at_level(logging.INFO, "airflow_paimon"), progress(spark, "a job", interval_s=0.05):
        assert map_tasks(spark, [[n] for n in range(6)], work, "n int").count() == 6
    said = [r.getMessage() for r in caplog.records if r.name == "airflow_paimon.spark.progress"]
    assert said[0] == "a job: started" and said[-1].startswith("a job: done in ")
    assert any(" of 6 tasks after " in line for line in said[1:-1]), said
