"""Buckets of a table with deletion vectors that a Flink job seems to have open, by the commits of the snapshots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_paimon import compact, create_branch, open_table, rollback_to
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.table import Table
from tests.data.test_compact_keyed import keyed, upsert


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Its two commits and their compactions look like those of a job."""
    table = keyed(tmp_path, bucket="1", deletion_vectors__enabled="true", write_only="false")
    for number in (1, 2):
        upsert(table, ("a", number, "x"))
    for path in tmp_path.rglob("snapshot-[0-9]"):
        found = json.loads(path.read_text())
        found |= {"commitUser": "flink", "commitIdentifier": (found["id"] + 1) // 2, "writerVersion": "1.4.2"}
        path.write_text(json.dumps(found))
    return open_table(str(tmp_path), table.name)


@pytest.mark.parametrize("by_another_engine", [False, True])
def test_a_branch_that_begins_with_a_jobs_commit_is_not_open(
    table: Table, tmp_path: Path, by_another_engine: bool
) -> None:
    head = table.latest_snapshot_id()
    create_branch(table, "fix", snapshot=head)
    if by_another_engine:
        shutil.rmtree(next(tmp_path.rglob("_airflow_paimon")))
    fix = table.branch("fix")
    upsert(fix, ("a", 1, "y"))
    assert "open_buckets" not in compact(table, branch="fix").details
    rollback_to(table, branch="fix", snapshot=head)
    with pytest.raises(UnsafeOperationError, match=r"p=a/bucket-0 open \(commit user flink\)"):
        rollback_to(table, snapshot=2)
