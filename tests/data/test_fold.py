"""The fold of a publish: what was upserted into the branch is folded, so that open writers of main go on winning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.rewrite import fold_buckets
from airflow_paimon.execution import row_functions, run_operation
from tests.spark.jobs.operations import make_branch, put, rows_of, run, values


def highest(table: Table) -> dict[BucketKey, int]:
    return {
        BucketKey(s.partition, s.bucket): max(f.max_sequence_number for f in s.files) for s in plan_scan(table).splits
    }


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward", "replace_main"])
def test_a_publish_brings_an_upsert_that_open_writers_win_over(tmp_path: Path, operation: str) -> None:
    main, fix = make_branch(tmp_path)
    put(fix, [(k, "upserted", "a") for k in range(5)])
    put(fix, [(9, None, "a", "-D"), (50, "new", "d", "+I")])
    publish, head = values(tmp_path, branch="fix"), fix.latest_snapshot_id()
    run(tmp_path, "create_tag", branch="fix", tag="done")
    publish |= {} if operation == "replace_main" else {"tags": True}
    plan = run_operation(build_request(operation, {**publish, "dry_run": True}))
    assert len(plan.details["folds"]) == 3
    assert fix.latest_snapshot_id() == head
    before, expected, files = highest(main), rows_of(fix), {f for s in plan_scan(fix).splits for f in s.files}
    done = run_operation(build_request(operation, {**publish, "expected_branch_snapshot": head}))
    assert rows_of(main) == rows_of(main, version="done") == expected
    assert (done.details["tags"], main.tag("done").snapshot.id) == (["done"], done.snapshot_after)
    assert not run_operation(build_request(operation, publish)).changed, "its tag is there"
    assert all(number <= before.get(key, -1) for key, number in highest(main).items())
    untouched = {f for s in plan_scan(main).splits for f in s.files if s.values[0] in "bc"}
    assert untouched <= files
    put(main, [(1, "later", "a"), (50, "later", "d")])
    assert (1, "later", "a") in rows_of(main) and (50, "later", "d") in rows_of(main)


@pytest.mark.parametrize("options", [{}, {"merge-engine": "partial-update"}, {"deletion-vectors.enabled": "true"}])
def test_what_is_upserted_after_a_publish_is_published_as_well(tmp_path: Path, options: dict[str, str]) -> None:
    main, fix = make_branch(tmp_path, **options)
    before = highest(main)
    for number in range(3):
        put(fix, [(number, f"upserted-{number}", "a"), (60 + number, "new", "b")])
        expected = {0: "a0", 1: "a1", 2: "a2"} | {k: f"upserted-{k}" for k in range(number + 1)}
        run_operation(build_request("merge_branch", values(tmp_path, branch="fix")))
        found = {k: v for k, v, dt in rows_of(main) if dt == "a" and k < 3}
        assert found == expected
        assert rows_of(main) == rows_of(fix)
        assert all(number <= before.get(key, -1) for key, number in highest(main).items())


def test_a_publish_that_is_refused_anyway_folds_nothing(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    put(fix, [(1, "upserted", "a")])
    put(main, [(1, "meanwhile", "a")])
    head = fix.latest_snapshot_id()
    with pytest.raises(ConflictError, match="both changed"):
        run_operation(build_request("merge_branch", values(tmp_path, branch="fix")))
    assert fix.latest_snapshot_id() == head


def test_what_cannot_be_folded_asks_for_the_word(tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)

    def refuse(branch: Table, limits: Mapping[BucketKey, int]) -> None:
        raise UnsupportedFeatureError("a feature")

    put(fix, [(1, "upserted", "a")])
    head = main.latest_snapshot_id()
    request = MergeBranch(**values(tmp_path, branch="fix"))
    with pytest.raises(UnsafeOperationError, match=r"a feature.*--writers-stopped"):
        publish_branch(open_context(request), request, replace(row_functions(), fold=refuse))
    assert main.latest_snapshot_id() == head
    run_operation(build_request("merge_branch", values(tmp_path, branch="fix", writers_stopped=True)))
    assert rows_of(main) == rows_of(fix)


def test_fold_commits_once_and_nothing_for_nothing(tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    put(fix, [(k, "upserted", "a") for k in range(5)])
    rows, head = rows_of(fix), fix.latest_snapshot_id()
    fold_buckets(fix, {})
    assert fix.latest_snapshot_id() == head
    fold_buckets(fix, dict.fromkeys(highest(fix), 3))
    assert rows_of(fix) == rows and max(highest(fix).values()) == 3
    assert fix.latest_snapshot_id() == (head or 0) + 1
