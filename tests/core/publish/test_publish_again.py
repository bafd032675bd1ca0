"""A branch that was published, changed or rolled back, and is published again."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.publish.undoable_publishes import verify_publish
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, files, names, rewrite, run


def publish(table: Table, fix: Table, operation: str = "merge_branch", **values: object) -> None:
    """Publish, and let the verification of the runbook compare main with the branch."""
    result = run(table, operation, branch="fix", **values)
    assert result.changed
    branch_head = fix.latest_snapshot_id()
    assert result.snapshot_after is not None and branch_head is not None
    verify_publish(table, snapshot_id=result.snapshot_after, branch="fix", branch_snapshot=branch_head)


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward"])
def test_what_the_branch_rolled_back_leaves_main_with_the_next_publish(
    table: Table, fix: Table, operation: str
) -> None:
    before = files(table)
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, fix)
    withdrawn = names(fix) - {n for group in before.values() for n in group}
    run(table, "rollback_to", branch="fix", snapshot=3)
    assert files(fix) == before
    publish(table, fix, operation)
    assert files(table) == before
    assert not withdrawn & names(table)
    assert not run(table, operation, branch="fix").changed


def test_a_rollback_of_one_bucket_and_a_change_of_another_go_together(table: Table, fix: Table) -> None:
    before = files(table)
    rewrite(fix, "a")
    publish(table, fix)
    run(table, "rollback_to", branch="fix", snapshot=3)
    rewrite(fix, "b")
    append(table, "z")
    publish(table, fix)
    assert len(files(table)) == 4
    for key, wanted in files(fix).items():
        assert files(table)[key] == wanted
    (a,) = (k for k in before if b"a" in k[0][-8:])
    assert files(table)[a] == before[a]


def test_rolled_back_rows_that_main_changed_since_are_a_conflict(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    publish(table, fix)
    append(table, "a", seq=9)
    run(table, "rollback_to", branch="fix", snapshot=3)
    now = files(table)
    with pytest.raises(ConflictError) as caught:
        run(table, "merge_branch", branch="fix")
    assert caught.value.details["conflicts"] == ["dt=a/bucket-0"]
    with pytest.raises(UnsafeOperationError):
        run(table, "fast_forward", branch="fix")
    assert files(table) == now


@pytest.mark.parametrize("back", [True, False])
def test_compaction_of_main_after_a_publish_is_not_a_change_of_it(table: Table, fix: Table, back: bool) -> None:
    rewrite(fix, "a")
    publish(table, fix)
    rewrite(table, "a", kind=CommitKind.COMPACT)
    if back:
        run(table, "rollback_to", branch="fix", snapshot=3)
    else:
        rewrite(fix, "a")
    publish(table, fix)
    assert files(table) == files(fix)


def test_after_an_undo_on_main_a_rolled_back_branch_has_nothing_to_publish(table: Table, fix: Table) -> None:
    before = files(table)
    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    run(table, "rollback_to", tag=undo)
    run(table, "rollback_to", branch="fix", snapshot=3)
    assert not run(table, "merge_branch", branch="fix").changed
    assert files(table) == before


def test_what_main_never_took_is_not_withdrawn_from_it(table: Table, fix: Table) -> None:
    """The branch only compacted b, so main kept its own files there, and has changed them since."""
    rewrite(fix, "a")
    rewrite(fix, "b", kind=CommitKind.COMPACT)
    publish(table, fix)
    append(table, "b", seq=9)
    main_b = {k: v for k, v in files(table).items() if b"b" in k[0][-8:]}
    run(table, "rollback_to", branch="fix", snapshot=3)
    publish(table, fix)
    assert {k: files(table)[k] for k in main_b} == main_b


def test_a_withdrawal_can_be_undone(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    publish(table, fix)
    published = files(table)
    run(table, "rollback_to", branch="fix", snapshot=3)
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    append(table, "z")
    run(table, "rollback_to", tag=undo, keep_later=True)
    assert {k: v for k, v in files(table).items() if k in published} == published
    assert run(table, "check_table").details["errors"] == 0
