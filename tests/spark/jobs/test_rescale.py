"""rescale in Spark tasks: each share of a partition in a task, all of them in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.spark import compaction
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.read import read_table
from tests import replay_kills
from tests.core.tables import forget_results
from tests.data.test_compact_keyed import rows
from tests.data.test_rescale import assert_in_their_buckets, counts, option
from tests.spark.jobs.test_compact import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def asked(warehouse: Path, **more: object) -> Request:
    return build_request("rescale", {"warehouse": str(warehouse), "table": "d.t", "bucket_num": 20, **more})


def test_shares_in_tasks_in_one_commit(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "fits_in_process", lambda files: False)
    table = waiting(tmp_path)
    expected, head = rows(table), table.latest_snapshot_id() or 0
    planned = run_spark_operation(spark, asked(tmp_path, dry_run=True))
    assert (planned.details["tasks"], planned.details["files_before"]) == (8, 34)
    result = run_spark_operation(spark, asked(tmp_path, operation_id="op"))
    assert (result.details["partitions"], result.details["rows"], result.snapshot_after) == (2, 78, head + 1)
    assert rows(table) == expected
    assert sorted(map(tuple, read_table(spark, str(tmp_path), "d.t").collect())) == expected
    assert (counts(table), option(table)) == ({"a": {20}, "b": {20}}, "20")
    assert_in_their_buckets(table)
    forget_results(table)
    assert run_spark_operation(spark, asked(tmp_path, operation_id="op")).details == result.details


def test_a_task_that_fails_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "fits_in_process", lambda files: False)
    table = waiting(tmp_path)
    next(tmp_path.rglob("p=b/bucket-1/data-*")).unlink()
    with pytest.raises(FormatError, match="data-"):
        run_spark_operation(spark, asked(tmp_path, operation_id="op"))
    assert (table.latest_snapshot_id(), option(table)) == (9, "2")
    assert counts(table) == {"a": {2}, "b": {2}}


@pytest.mark.thorough
def test_a_rescale_that_is_killed_when_it_has_written_files(spark: SparkSession, tmp_path: Path) -> None:
    """Run again with the same operation id: the same rows, rescaled once."""
    table = waiting(tmp_path / "warehouse")
    expected, head = rows(table), table.latest_snapshot_id() or 0
    before = set(tmp_path.rglob("data-*"))
    options = {"table": "d.t", "bucket_num": 20, "operation_id": "op"}
    job = replay_kills.start_program("rescale", tmp_path / "warehouse", options, as_if_large=True)
    replay_kills.kill_when_it_has_written(job, tmp_path, before)
    assert rows(table) == expected
    result = run_spark_operation(spark, asked(tmp_path / "warehouse", operation_id="op"))
    assert (result.changed, result.details["files_before"], table.latest_snapshot_id()) == (True, 34, head + 1)
    assert rows(table) == expected
    assert (counts(table), option(table)) == ({"a": {20}, "b": {20}}, "20")
