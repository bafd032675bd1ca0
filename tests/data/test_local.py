"""Operations on rows without Spark, in this process and in several."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.errors import (
    FormatError,
    InvalidInputError,
    PaimonError,
    StorageError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.local_execution import NONE, READS
from airflow_paimon.data import local, memory_plan
from airflow_paimon.data.compaction_tasks import TaskOutput
from airflow_paimon.execution import run_here
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.data.test_compact import add, names, partitioned, rows_of, wrong_count


def asked(folder: Path, operation: str = "compact", table: str = "d.p", **values: Any) -> Any:
    return build_request(operation, {"warehouse": str(folder / "wh"), "table": table, **values})


def test_many_small_partitions_are_one_commit(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    for i in range(5):
        add(table, *((10 * i + day, f"d{day}") for day in range(9)))
    before = rows_of(table)
    result = run_here(asked(tmp_path))
    assert (result.details["partitions"], result.details["snapshots"]) == (9, [6])
    assert (rows_of(table), len(names(table))) == (before, 9)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_refusal_changes_nothing_and_is_the_operations(tmp_path: Path, processes: int) -> None:
    table = wrong_count(tmp_path)
    with pytest.raises(FormatError, match="have 6 rows instead of the 7 in their manifest"):
        run_here(asked(tmp_path, table=table.name), processes)
    assert table.latest_snapshot_id() == 6


@dataclass(frozen=True)
class Killed:
    """Work in which the process dies."""

    files: tuple[DataFile, ...] = ()

    def run(self) -> TaskOutput:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_process_that_is_killed_is_an_error_that_says_so() -> None:
    with pytest.raises(StorageError, match="One of 2 processes was killed"):
        list(local._outputs(2, [Killed(), Killed()]))


@pytest.mark.parametrize("processes", [0, -1, True, "2"])
def test_processes_is_a_number(tmp_path: Path, processes: Any) -> None:
    with pytest.raises(InvalidInputError, match="processes is a number from 1 on"):
        run_here(asked(tmp_path), processes)


def test_what_needs_spark_says_so_before_anything_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="python -m airflow_paimon job"):
        run_here(asked(tmp_path, "correct_branch", branch="b", sql="x.sql"))


def test_the_job_starts_no_spark_for_a_small_compaction(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    for i in range(5):
        add(table, (i, "a"))
    before = rows_of(table)
    assert run_before_spark(asked(tmp_path), NONE) is None
    assert len(names(table)) == 5
    done = run_before_spark(asked(tmp_path, operation_id="op"))
    assert done is not None and done.details["files_before"] == 5
    assert (rows_of(table), len(names(table))) == (before, 1)
    again = run_before_spark(asked(tmp_path, operation_id="op"))
    assert again is not None and again.details == {**done.details, "replayed": True}


@pytest.mark.parametrize(
    ("operation", "values"), [("compact", {}), ("rescale", {"bucket_num": 2}), ("erase_rows", {"where": "id = 1"})]
)
def test_the_retry_of_an_operation_on_rows_that_has_ended_returns_its_result(
    tmp_path: Path, operation: str, values: dict[str, Any]
) -> None:
    table = partitioned(tmp_path, **({"bucket": "1", "bucket-key": "id"} if operation == "rescale" else {}))
    for i in range(5):
        add(table, (i, "a"))
    first = run_here(asked(tmp_path, operation, operation_id="op", **values)).to_json()
    assert first["changed"]
    for i in range(5):
        add(table, (i, "a"))
    before = list(table.store.walk(""))
    again = run_here(asked(tmp_path, operation, operation_id="op", **values)).to_json()
    assert again == {**first, "details": {**first["details"], "replayed": True}}
    assert list(table.store.walk("")) == before


def test_the_job_compacts_whatever_its_size_where_no_spark_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = partitioned(tmp_path)
    for i in range(5):
        add(table, (i, "a"))
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run_before_spark(asked(tmp_path), NONE, without_spark=True) is None, "the cluster has Spark"
    done = run_before_spark(asked(tmp_path), NONE)
    assert done is not None and done.details["files_before"] == 5
    assert len(names(table)) == 1


def test_a_diff_of_much_names_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = partitioned(tmp_path)
    add(table, (1, "a"))
    run_here(asked(tmp_path, "create_branch", branch="fix", snapshot=1))
    add(table.branch("fix"), (2, "a"))
    diff = asked(tmp_path, "diff_branches", branch="fix")
    assert run_here(diff).details["total"]["added"] == 1
    monkeypatch.setattr(memory_plan, "OPEN_BYTES", memory_plan.DEFAULT_BYTES)
    with pytest.raises(UnsupportedError, match="run the job diff_branches") as refused:
        run_here(diff)
    assert isinstance(refused.value, PaimonError)


def test_several_tables_are_compacted_one_after_the_other_and_none_keeps_another_from_it(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    for i in range(5):
        add(table, (i, "a"))
    wrong = wrong_count(tmp_path)
    several = asked(tmp_path, table=f"{wrong.name}, d.p", operation_id="op")
    assert run_before_spark(several, READS) is None, "they share a Spark application"
    says = rf"failed for 1 of 2 tables, the others are done: {wrong.name}: "
    with pytest.raises(FormatError, match=says) as failed, verified_commits():  # as a job does
        run_here(several)
    results = {one["table"]: one for one in failed.value.details["tables"]}
    assert "error" in results[wrong.name] and results["d.p"]["ran_on"] == "worker"
    assert len(names(table)) == 1 and wrong.latest_snapshot_id() == 6
    with pytest.raises(FormatError) as again:
        run_here(several)
    repeated = {one["table"]: one for one in again.value.details["tables"]}
    done = {**results["d.p"]["details"], "replayed": True}
    assert repeated["d.p"]["details"] == done, "the same id, so nothing is done again"
