"""Work on all files of a table in Spark tasks: the same answers as in one process, and errors by their class."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.parallel.workers import Piece, Workers
from airflow_paimon.spark.whole_table import PiecesInTasks
from tests.core.metadata_expiry.test_whole_table import HERE, answers, random_table
from tests.core.parallel import pieces


@pytest.mark.damages_metadata  # planted files are no manifests
def test_the_same_answers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(tmp_path, 11)
    tasks = Workers(memory_bytes=4000, in_tasks=PiecesInTasks(lambda: spark, "d.t"), worth_it=0)
    assert answers(table, tasks, monkeypatch) == answers(table, HERE, monkeypatch)


def test_waves_of_tasks_give_all_results(spark: SparkSession) -> None:
    run = PiecesInTasks(lambda: spark, "d.t")
    numbers = [Piece([n], 10_000) for n in range(7)]
    assert sorted(run(pieces.squares, numbers, 1)) == [(n, n * n) for n in range(7)]
    with pytest.raises(FormatError, match="three is corrupt"):
        list(run(pieces.refuse_three, numbers, 1 << 20))
