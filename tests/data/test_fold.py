"""merge_branch --rewrite: what another engine upserted is folded, so that open writers of main go on winning."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.build import build_request
from airflow_paimon.core.requests.operations import run_operation
from airflow_paimon.core.table.scan import BucketKey, plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.fold import fold_buckets
from tests.spark.jobs.operations import make_branch, put, rows_of, values


def highest(table: Table) -> dict[BucketKey, int]:
    return {
        BucketKey(s.partition, s.bucket): max(f.max_sequence_number for f in s.files) for s in plan_scan(table).splits
    }


def test_rewrite_publishes_an_upsert_that_open_writers_win_over(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    put(fix, [(k, "upserted", "a") for k in range(5)])
    put(fix, [(9, None, "a", "-D"), (50, "new", "d", "+I")])
    merge = values(tmp_path, branch="fix")
    with pytest.raises(UnsafeOperationError, match="--rewrite"):
        run_operation(build_request("merge_branch", merge))
    before, expected, files = highest(main), rows_of(fix), {f for s in plan_scan(fix).splits for f in s.files}
    run_operation(build_request("merge_branch", {**merge, "rewrite": True}), fold=fold_buckets)
    assert rows_of(main) == expected
    assert all(number <= before.get(key, -1) for key, number in highest(main).items())
    untouched = {f for s in plan_scan(main).splits for f in s.files if s.values[0] in "bc"}
    assert untouched <= files
    put(main, [(1, "later", "a"), (50, "later", "d")])
    assert (1, "later", "a") in rows_of(main) and (50, "later", "d") in rows_of(main)


def test_fold_commits_once_and_nothing_for_nothing(tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    put(fix, [(k, "upserted", "a") for k in range(5)])
    rows, head = rows_of(fix), fix.latest_snapshot_id()
    fold_buckets(fix, {})
    assert fix.latest_snapshot_id() == head
    fold_buckets(fix, dict.fromkeys(highest(fix), 3))
    assert rows_of(fix) == rows and max(highest(fix).values()) == 3
    assert fix.latest_snapshot_id() == (head or 0) + 1
