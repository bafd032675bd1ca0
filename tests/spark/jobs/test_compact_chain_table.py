"""compact_chain_table in Spark tasks: the same partitions as in one process, committed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.spark.jobs import run_spark_operation
from tests.core.tables import forget_results
from tests.data.chain.compactions import compact, full, outcomes
from tests.data.chain.tables import PARTIAL_DELETES, TWO_VALUES, chain_table, seen
from tests.spark.jobs.operations import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _tasks() -> Iterator[None]:
    with in_tasks():
        yield


def run(spark: SparkSession, warehouse: Path, *partition: str, **more: Any) -> OperationResult:
    values = {"warehouse": str(warehouse), "table": "d.t", "partition": partition, **more}
    return run_spark_operation(spark, build_request("compact_chain_table", values))


def test_groups_in_parallel_and_days_in_order(spark: SparkSession, tmp_path: Path) -> None:
    writes: list[tuple[str, str, list[Any]]] = []
    for region in ("CN", "UK", "US"):
        writes.append(("snapshot", f"{region}/20260201", [(k, 1, region) for k in range(50)]))
        for day in (2, 3, 4):
            writes.append(("delta", f"{region}/202602{day:02}", [(k, day, str(day)) for k in range(day, 60, day)]))
    tables = [
        chain_table(tmp_path / n, writes, partitions={"region": "STRING", "dt": "STRING"}, chain_keys="dt", buckets=3)
        for n in ("a", "b")
    ]
    expected = seen(tables[0])
    dry = run(spark, tmp_path / "a", pending=True, max_chain_length=1, dry_run=True)
    assert dry.details["counts"] == {"compact": 3} and dry.changed
    result = run(spark, tmp_path / "a", pending=True, max_chain_length=1, operation_id="op")
    assert result.details["counts"] == {"compacted": 3}
    assert (result.snapshot_before, result.snapshot_after) == (3, 6)
    forget_results(tables[0])
    again = run(spark, tmp_path / "a", pending=True, max_chain_length=1, operation_id="op")
    assert outcomes(again) == outcomes(result) and again.snapshot_after == 6
    ranged = run(spark, tmp_path / "a", from_="dt=20260202", to="dt=20260204")
    assert ranged.details["counts"] == {"compacted": 6, "exists": 3}
    compact(tables[1], from_="dt=20260202", to="dt=20260204")
    assert seen(tables[0]) == seen(tables[1]) == full(tables[0]) == expected


def test_a_refusal_of_a_task_is_the_operations(spark: SparkSession, tmp_path: Path) -> None:
    chain_table(tmp_path, PARTIAL_DELETES, values=TWO_VALUES, merge_engine="partial-update")
    with pytest.raises(UnsupportedFeatureError, match="remove-record-on-delete"):
        run(spark, tmp_path, "dt=20250811")
