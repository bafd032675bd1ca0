"""Branches of a chain table's snapshot and delta branch: made, written, kept from expiry, and published onto them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import ConflictError, StorageError, UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions
from airflow_paimon.data.rewrite import new_bucket_number
from airflow_paimon.execution import perform
from tests.core.tables import forget_results, run
from tests.data.chain.compactions import compact
from tests.data.chain.tables import TWO_VALUES, Row, Writes, chain_table, on, seen, write
from tests.data.chain.tables import day_is as at
from tests.stores import _Wrapper

SIMPLE: Writes = [
    ("snapshot", "20250810", [(1, 1, "a"), (2, 1, "a"), (3, 1, "a")]),
    ("delta", "20250811", [(1, 2, "b"), (2, 2, "", "-D")]),
    ("delta", "20250812", [(4, 2, "c")]),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return chain_table(tmp_path, SIMPLE, buckets=1)


def branch_of(table: Table, part: str = "delta", **more: Any) -> Table:
    run(
        table, "create_branch", branch="fix", from_branch=part, snapshot=table.branch(part).latest_snapshot_id(), **more
    )
    return table.branch("fix")


def put(branch: Table, day: str, *rows: Row, mode: str = "append") -> None:
    write(branch, ["k", "s", "v"], ["dt"], day, rows, mode)


def of(table: Table, day: str) -> list[Row]:
    return seen(table, where=at(day))


def test_it_is_read_and_written_as_it_is_stored(table: Table) -> None:
    fix = branch_of(table)
    options = fix.schema().options
    assert options["chain-table.enabled"] == "true", "so that no engine's compaction drops deletes"
    assert not {k for k in options if k.startswith("scan.fallback")}, "so that no engine reads it as a chain"
    before = seen(table)
    put(fix, "20250811", (1, 3, "", "-D"), (5, 1, "new"))
    assert seen(fix) == sorted([*on("20250811", (5, 1, "new")), *on("20250812", (4, 2, "c"))], key=repr)
    assert seen(table) == before
    result = run(table, "merge_branch", branch="fix")
    assert (result.branch, result.details["base_snapshot"]) == ("delta", result.snapshot_before)
    assert of(table, "20250811") == on("20250811", (3, 1, "a"), (5, 1, "new"))
    assert table.latest_snapshot_id() is None
    assert not run(table, "merge_branch", branch="fix").changed


def test_what_is_published_hides_and_is_reported(table: Table) -> None:
    compact(table, "dt=20250811")
    fix = branch_of(table)
    put(fix, "20250811", (3, 9, "new"))
    looked = run(table, "merge_branch", branch="fix", dry_run=True)
    assert looked.changed and "stale" not in looked.details
    result = run(table, "merge_branch", branch="fix", operation_id="op")
    (stale,) = result.details["stale"]
    assert stale["partition"] == "dt=20250811"
    assert run(table, "merge_branch", branch="fix", operation_id="op").details["stale"] == [stale]
    forget_results(table)
    run(table, "delete_branch", branch="fix")
    again = run(table, "merge_branch", branch="fix", operation_id="op")
    assert (again.branch, again.snapshot_after, again.details["replayed"]) == ("delta", result.snapshot_after, True)
    compact(table, pending=True, max_chain_length=9)
    assert of(table, "20250811") == on("20250811", (1, 2, "b"), (3, 9, "new"))
    run(table, "rollback_to", branch="delta", tag=result.details["undo_tag"])
    assert run(table, "check_chain_table").details["stale"] == ["dt=20250811"]
    compact(table, pending=True, max_chain_length=9)
    assert of(table, "20250811") == on("20250811", (1, 2, "b"), (3, 1, "a"))


def test_a_committed_publish_fails_for_no_report_and_no_audit_record(table: Table) -> None:
    """Retried, it would look as if nothing had been published."""
    committed: list[str] = []

    class Away(_Wrapper):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            if committed and path.startswith(("branch/branch-snapshot/", AUDIT.folder)):
                raise StorageError("the storage is away")
            found = action()
            committed.extend([path] if method == "create" and path.startswith("branch/branch-delta/snapshot/") else [])
            return found

    put(branch_of(table), "20250811", (3, 9, "new"))
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request("merge_branch", {"warehouse": warehouse, "table": table.name, "branch": "fix"})
    result = perform(replace(open_context(request), table=replace(table, store=Away(table.store))), request)
    assert committed and result.changed and result.snapshot_after == table.branch("delta").latest_snapshot_id()
    assert "the storage is away" in result.details["warnings"][0]
    found = f"unrecorded-publish:delta/{result.snapshot_after}"
    assert found in {f["id"] for f in run(table, "check_table").details["findings"]}
    run(table, "repair_table")
    assert found not in {f["id"] for f in run(table, "check_table").details["findings"]}


def test_a_bucket_that_both_changed_is_a_conflict(table: Table) -> None:
    fix = branch_of(table)
    put(fix, "20250811", (1, 3, "fix"))
    put(table.branch("delta"), "20250812", (6, 1, "beside"))
    run(table, "merge_branch", branch="fix")
    assert of(table, "20250812") == on("20250812", (1, 3, "fix"), (3, 1, "a"), (4, 2, "c"), (6, 1, "beside"))
    put(fix, "20250812", (4, 3, "fix"))
    put(table.branch("delta"), "20250812", (4, 4, "beside"))
    before = seen(table)
    with pytest.raises(ConflictError, match=r"delta and the branch both changed dt=20250812.* from delta's head"):
        run(table, "merge_branch", branch="fix")
    with pytest.raises(ConflictError, match="delta is at snapshot 5, not at 1 as expected"):
        run(table, "merge_branch", branch="fix", expected_main_snapshot=1)
    assert seen(table) == before


def test_partial_updates_are_corrected_by_the_columns_that_change(tmp_path: Path) -> None:
    """Appended under the row's own sequence they win over it, and over no newer version in a later partition."""
    writes: Writes = [
        ("snapshot", "20250810", [(1, 1, "a", "A"), (2, 1, "b", "B")]),
        ("delta", "20250811", [(1, 2, None, "A1")]),
        ("delta", "20250812", [(1, 4, None, "A2")]),
    ]
    table = chain_table(tmp_path, writes, values=TWO_VALUES, merge_engine="partial-update", buckets=1)
    compact(table, "dt=20250811")
    fix = branch_of(table)
    write(fix, ["k", "s", "v1", "v2"], ["dt"], "20250811", [(1, 2, "fixed", "A1 fixed")])
    before = seen(table)
    result = run(table, "merge_branch", branch="fix")
    assert [s["partition"] for s in result.details["stale"]] == ["dt=20250811"]
    compact(table, pending=True, max_chain_length=9)
    assert of(table, "20250811") == on("20250811", (1, 2, "fixed", "A1 fixed"), (2, 1, "b", "B"))
    assert of(table, "20250812") == on("20250812", (1, 4, "fixed", "A2"), (2, 1, "b", "B"))
    run(table, "rollback_to", branch="delta", tag=result.details["undo_tag"])
    compact(table, pending=True, max_chain_length=9)
    assert seen(table) == before


def test_an_anchor_that_is_needed_stays(table: Table) -> None:
    fix = branch_of(table, "snapshot")
    drop_partitions(fix, [{"dt": "20250810"}])
    before = seen(table)
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        run(table, "merge_branch", branch="fix")
    assert seen(table) == before
    put(fix, "20250810", (1, 1, "loaded"), (3, 1, "again"))
    run(table, "merge_branch", branch="fix")
    assert of(table, "20250811") == on("20250811", (1, 2, "b"), (3, 1, "again"))
    assert of(table, "20250810") == on("20250810", (1, 1, "loaded"), (3, 1, "again"))


@pytest.mark.parametrize("operation", ["fast_forward", "replace_main"])
def test_only_a_merge_publishes_it(table: Table, operation: str) -> None:
    put(branch_of(table), "20250811", (1, 3, "fix"))
    with pytest.raises(UnsafeOperationError, match="by merge_branch alone"):
        run(table, operation, branch="fix")


def test_the_columns_stay_those_of_the_chain(table: Table) -> None:
    put(branch_of(table), "20250811", (1, 3, "fix"))
    run(table, "alter_chain_table", change=["set target-file-size=64 mb"])
    run(table, "merge_branch", branch="fix", dry_run=True)
    run(table, "alter_chain_table", change=["add column w INT"])
    with pytest.raises(UnsafeOperationError, match="alter the three of them with alter_chain_table"):
        run(table, "merge_branch", branch="fix")


def test_expiry_of_the_delta_keeps_what_its_branch_needs(table: Table) -> None:
    delta, fix = table.branch("delta"), branch_of(table)
    put(fix, "20250812", (7, 1, "fix"))
    expected = seen(fix)
    for number in range(4):
        put(delta, "20250811", (1, 2, f"b{number}"), (2, 2, "", "-D"), mode="dynamic_overwrite")
    expire(table)
    assert seen(fix) == expected
    run(table, "merge_branch", branch="fix")
    assert of(table, "20250812") == on("20250812", (1, 2, "b3"), (3, 1, "a"), (4, 2, "c"), (7, 1, "fix"))
    put(delta, "20250812", (8, 1, "other"), mode="dynamic_overwrite")
    expire(table)
    assert seen(fix) == expected, "the delta has replaced these files since"
    run(table, "delete_branch", branch="fix")
    assert all(t.time_retained is not None for t in delta.tags()), "no tag keeps files for ever"
    expire(table)
    assert of(table, "20250812") == on("20250812", (1, 2, "b3"), (3, 1, "a"), (8, 1, "other"))
    assert [f for f in find_all(table, 0, verify_files=True) if f.severity != "info"] == []


def test_new_buckets_of_a_delta_win_over_those_of_full_partitions(table: Table) -> None:
    """By the internal number, where sequence.field is equal: Paimon's readers go by that."""
    of_delta = branch_of(table)
    assert [new_bucket_number(b) for b in (table.branch("delta"), of_delta)] == [0, 0]
    assert [new_bucket_number(b) for b in (table.branch("snapshot"), table)] == [-1, -1]


def test_it_begins_with_a_tag_of_the_delta(table: Table) -> None:
    run(table, "create_tag", branch="delta", tag="before")
    put(table.branch("delta"), "20250812", (5, 1, "later"))
    run(table, "create_branch", branch="fix", from_branch="delta", tag="before")
    fix = table.branch("fix")
    assert seen(fix) == sorted([*on("20250811", (1, 2, "b")), *on("20250812", (4, 2, "c"))], key=repr)
    put(fix, "20250811", (1, 3, "fix"))
    assert run(table, "merge_branch", branch="fix").branch == "delta"
    assert of(table, "20250812") == on("20250812", (1, 3, "fix"), (3, 1, "a"), (4, 2, "c"), (5, 1, "later"))


def test_it_expires_when_it_is_published(table: Table) -> None:
    put(branch_of(table, retention="1 d"), "20250811", (1, 3, "fix"))
    asked = {"now": "2099-01-01T00:00:00+00:00"}
    assert run(table, "expire_branches", **asked).details["expired"] == []
    published = run(table, "merge_branch", branch="fix")
    run(table, "rollback_to", branch="delta", tag=published.details["undo_tag"])
    assert run(table, "expire_branches", **asked).details["expired"] == [], "it was undone"
    run(table, "merge_branch", branch="fix")
    assert [b["branch"] for b in run(table, "expire_branches", **asked).details["expired"]] == ["fix"]
    assert of(table, "20250811") == on("20250811", (1, 3, "fix"), (3, 1, "a"))


def expire(table: Table) -> None:
    few = {"retain_max": 1, "retain_min": 1, "keep_undo": False, "retry_window": "0 s"}
    run(table, "expire_snapshots", branch="delta", grace="0 s", writers_stopped=True, **few)
    assert len(table.branch("delta").snapshot_ids()) == 1
