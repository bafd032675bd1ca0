"""A replay job whose process is killed half-way: run again it gives every row once.

``make stream-kills`` kills many, of streams too; here is one, as each takes a JVM of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.spark.jobs import run_spark_operation
from tests import replay_kills

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.thorough
def test_a_killed_batch_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Meanwhile the source gets rows: the next try reads what the first one has read, and writes what it has not."""
    warehouse = tmp_path / "warehouse"
    replay_kills.make_tables(warehouse)
    job = replay_kills.start_job(warehouse, "batch")
    branch = replay_kills.target(warehouse, "batch")
    try:
        replay_kills.wait_for_snapshot(branch, job, 2)
    finally:
        code = replay_kills.kill_job(job)
    assert code == -9
    assert 2 <= (branch.latest_snapshot_id() or 0) <= replay_kills.WRITES, "half-way"
    replay_kills.feed(warehouse, 100)
    request = build_request("replay_branch", {"warehouse": str(warehouse), **replay_kills.asked("batch")})
    result = run_spark_operation(spark, request)
    assert (result.details["resumed"], result.snapshot_after) == (True, 1 + replay_kills.WRITES)
    assert replay_kills.rows_of(branch) == [-1, *range(40)]
