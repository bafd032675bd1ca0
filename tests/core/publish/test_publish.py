"""Publishing a branch, on metadata: what main's buckets hold, what is refused, what a crash leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_buckets, commit_overwrite
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.publish.fold import FOLD
from airflow_paimon.core.publish.undoable_publishes import last_publish
from airflow_paimon.core.schema.schema_plan import AddColumn, CommentColumn, WidenColumn
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from tests.core.tables import (
    alter_table,
    append,
    cut_off,
    files,
    forget_results,
    make_table,
    message,
    names,
    overwrite,
    rewrite,
    run,
)
from tests.randomness import moments

# -- merge ------------------------------------------------------------------------------------------------------------


def test_merging_takes_only_what_the_branch_changed(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    overwrite(table, "b", seq=9)
    append(table, "z")
    wanted = files(table)
    key = next(k for k in files(fix) if k[0] == _partition(fix, "a"))
    wanted[key] = files(fix)[key]
    result = run(table, "merge_branch", branch="fix", approved_by="ana")
    assert files(table) == wanted
    head = table.latest_snapshot()
    assert (result.snapshot_before, result.snapshot_after) == (5, 6) == (head.id - 1, head.id)
    assert head.commit_kind is CommitKind.OVERWRITE
    assert head.properties["airflow-paimon.approved-by"] == "ana"
    assert result.details["files_added"] == 1
    assert result.details["kept_of_main"] == 2


def _partition(table: Table, dt: str) -> bytes:
    from airflow_paimon.core.format.binary_row import encode_row

    return encode_row((dt,), (table.schema().field("dt").type,))


def test_five_commits_publish_as_one_snapshot(table: Table, fix: Table) -> None:
    for _ in range(5):
        rewrite(fix, "a")
    run(table, "merge_branch", branch="fix")
    assert table.snapshot_ids() == [1, 2, 3, 4]
    assert files(table) == files(fix)


def test_both_changed_a_bucket(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    append(table, "a", seq=5)
    before = files(table)
    with pytest.raises(ConflictError) as caught:
        run(table, "merge_branch", branch="fix")
    assert caught.value.code == "not-mergeable"
    assert caught.value.details["conflicts"] == ["dt=a/bucket-0"]
    assert files(table) == before
    assert table.tag_names() == ["airflow-paimon-branch-fix", "base"]


def test_compaction_alone_is_not_a_change(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b", kind=CommitKind.COMPACT)
    rewrite(table, "a", kind=CommitKind.COMPACT)
    main_b = files(table)[_partition(table, "b"), 0]
    run(table, "merge_branch", branch="fix")
    assert files(table)[_partition(table, "a"), 0] == files(fix)[_partition(table, "a"), 0]
    assert files(table)[_partition(table, "b"), 0] == main_b


def test_nothing_to_publish(table: Table, fix: Table) -> None:
    result = run(table, "merge_branch", branch="fix", operation_id="op")
    assert not result.changed
    assert table.snapshot_ids() == [1, 2, 3]
    assert not run(table, "merge_branch", branch="fix", operation_id="op").changed


def test_expected_heads(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    with pytest.raises(ConflictError, match="main is at snapshot 3"):
        run(table, "merge_branch", branch="fix", expected_main_snapshot=2)
    with pytest.raises(ConflictError, match="is at snapshot 4"):
        run(table, "merge_branch", branch="fix", expected_branch_snapshot=3)
    run(table, "merge_branch", branch="fix", expected_main_snapshot=3, expected_branch_snapshot=4)


def test_a_plan_names_the_buckets_of_a_branch_that_a_publish_folds(table: Table, fix: Table) -> None:
    append(fix, "a", seq=2)
    plan = run(table, "merge_branch", branch="fix", dry_run=True)
    assert (plan.changed, plan.details["folds"]) == (True, ["dt=a/bucket-0"])
    assert run(table, "merge_branch", branch="fix", writers_stopped=True).changed


def test_an_approved_snapshot_stays_approved_after_a_fold(table: Table, fix: Table) -> None:
    """A try that was killed between its fold and its publish leaves the fold on the branch."""
    append(fix, "a", seq=2)
    approved = fix.latest_snapshot_id()
    new = message(fix, "a", seq=0, level=5)
    live = tuple(e.file for e in live_entries(fix, fix.latest_snapshot()).values() if e.partition == new.partition)
    commit_buckets(fix, [replace(new, replaced=live)], CommitOptions(properties={"airflow-paimon.operation": FOLD}))
    with pytest.raises(ConflictError, match="not at 1 as approved"):
        run(table, "merge_branch", branch="fix", expected_branch_snapshot=1)
    assert run(table, "merge_branch", branch="fix", expected_branch_snapshot=approved).changed
    assert files(table) == files(fix)


def test_a_table_with_a_sequence_field_takes_any_number(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", **{"sequence.field": "v"})
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "a", seq=7)
    assert run(table, "merge_branch", branch="fix").changed


def test_a_branch_can_be_published_again(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    run(table, "merge_branch", branch="fix")
    rewrite(fix, "b")
    run(table, "merge_branch", branch="fix")
    rewrite(fix, "a")
    run(table, "merge_branch", branch="fix")
    assert files(table) == files(fix)
    rewrite(fix, "a")
    append(table, "a", seq=9)
    with pytest.raises(ConflictError):
        run(table, "merge_branch", branch="fix")


def test_a_branch_can_be_published_again_after_main_s_history_expired(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    published = run(table, "merge_branch", branch="fix").snapshot_after
    append(table, "c")
    append(table, "c", seq=5)
    base, head = table.tag("airflow-paimon-branch-fix").snapshot.id, table.latest_snapshot_id()
    for number in table.snapshot_ids()[:-1]:  # the tags stay
        table.store.delete(table.paths.snapshot(number))
    assert published is not None and head is not None and base < published < head
    rewrite(fix, "a")
    assert run(table, "merge_branch", branch="fix").changed
    (key,) = (k for k in files(fix) if k[0].endswith(b"a\0\0\0\0\0\0\x81") and k[1] == 0)
    assert files(table)[key] == files(fix)[key]
    rewrite(fix, "a")
    append(table, "a", seq=9)
    with pytest.raises(ConflictError):
        run(table, "merge_branch", branch="fix")


def test_rows_numbered_by_snapshot_are_not_published_above_main(tmp_path: Path) -> None:
    """Main's next commit would get a lower number, and lose to a row of the branch."""
    table = make_table(tmp_path, **{"sequence.snapshot-ordering": "true", "write-only": "true"})
    append(table, "a", seq=1)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    append(fix, "a", seq=2)
    assert run(table, "merge_branch", branch="fix", writers_stopped=True, dry_run=True).changed
    append(fix, "a", seq=3)
    with pytest.raises(UnsafeOperationError, match="snapshots up to 3, and the publish would be snapshot 2"):
        run(table, "merge_branch", branch="fix", writers_stopped=True)
    append(table, "b", seq=2)
    assert run(table, "merge_branch", branch="fix", writers_stopped=True).snapshot_after == 3


@pytest.mark.parametrize("expired", [False, True])
def test_a_partition_that_main_dropped_after_a_publish_does_not_come_back(
    table: Table, fix: Table, expired: bool
) -> None:
    append(fix, "new")
    append(fix, "stays")
    published = run(table, "merge_branch", branch="fix", writers_stopped=True).snapshot_after
    commit_overwrite(table, [], partitions=[{"dt": "new"}])
    dropped = files(table)
    append(fix, "c")
    if expired:
        assert published is not None
        append(table, "d")
        table.store.delete(table.paths.snapshot(published + 1))
        dropped = files(table)
    with pytest.raises(UnsafeOperationError, match="dt=new"):
        run(table, "fast_forward", branch="fix", writers_stopped=True)
    assert files(table) == dropped
    if expired:  # an undo can't be told any more, which would ask for the partition again
        with pytest.raises(ConflictError, match="dt=new"):
            run(table, "merge_branch", branch="fix", writers_stopped=True)
    else:
        run(table, "merge_branch", branch="fix", writers_stopped=True)
        dropped |= {key: held for key, held in files(fix).items() if b"c" in key[0]}
    assert files(table) == dropped
    run(table, "fast_forward", branch="fix", discard_main=True, writers_stopped=True)
    assert files(table) == files(fix)


def test_what_an_undo_took_away_comes_back_with_the_next_publish(table: Table, fix: Table) -> None:
    append(fix, "new")
    undo = run(table, "merge_branch", branch="fix", writers_stopped=True).details["undo_tag"]
    append(table, "new", bucket=1)
    run(table, "rollback_to", tag=undo)
    append(fix, "c")
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    assert files(table) == files(fix)


def test_a_published_branch_stays_readable_and_its_tags_go_with_it(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    after = run(table, "merge_branch", branch="fix").snapshot_after
    assert table.tag(f"airflow-paimon-branch-fix.{after}").snapshot.id == after
    run(table, "delete_branch", branch="fix")
    assert [n for n in table.tag_names() if "branch" in n] == []


def test_a_dry_run_changes_nothing_and_says_what_it_would(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    before = table.store.walk("")
    first = run(table, "merge_branch", branch="fix", dry_run=True, operation_id="op")
    second = run(table, "merge_branch", branch="fix", dry_run=True, operation_id="op")
    assert table.store.walk("") == before
    assert first.changed
    assert first.plan_id == second.plan_id
    assert [(a["action"], a["path"]) for a in first.details["plan"]["actions"]] == [
        ("SetTag", "tag/tag-airflow-paimon-undo-op"),
        ("ReplaceBucket", "dt=a/bucket-0"),
        ("PutSnapshot", "snapshot/snapshot-4"),
    ]


def test_a_missing_file_is_not_published(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    before = files(table)
    name = next(iter(files(fix)[_partition(fix, "a"), 0]))
    fix.store.delete(f"dt=a/bucket-0/{name}")
    with pytest.raises(FormatError, match="missing"):
        run(table, "merge_branch", branch="fix")
    assert files(table) == before


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_a_new_column_of_the_branch_reaches_main_without_its_options(table: Table, fix: Table) -> None:
    alter_table(fix, [AddColumn(name="price", type="DOUBLE")])
    rewrite(fix, "a")
    result = run(table, "merge_branch", branch="fix")
    schema = table.schema()
    assert schema.field_names == ("k", "v", "dt", "price")
    assert "write-only" not in schema.options
    assert result.details["new_schemas"] == [schema.id] == [1]
    entry = next(e for e in _live(table) if e.file.file_name in names(fix) and e.partition == _partition(fix, "a"))
    assert entry.file.schema_id == schema.id
    assert table.latest_snapshot().schema_id == schema.id


def _live(table: Table) -> list[Any]:
    from airflow_paimon.core.table.live_entries import live_entries

    return list(live_entries(table, table.latest_snapshot()).values())


def test_two_columns_of_one_name_conflict(table: Table, fix: Table) -> None:
    alter_table(fix, [AddColumn(name="price", type="DOUBLE")])
    rewrite(fix, "a")
    alter_table(table, [AddColumn(name="price", type="STRING")])
    with pytest.raises(ConflictError, match="price"):
        run(table, "merge_branch", branch="fix")
    assert [f"{f.name} {f.type}" for f in table.schema().fields][3:] == ["price STRING"]


def test_the_same_change_on_both_sides_is_fine(table: Table, fix: Table) -> None:
    for view in (table, fix):
        alter_table(view, [AddColumn(name="price", type="DOUBLE")])
    rewrite(fix, "a")
    run(table, "merge_branch", branch="fix")
    assert table.schema_ids() == [0, 1]


def test_main_altered_alone_keeps_its_columns(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    alter_table(table, [AddColumn(name="price", type="DOUBLE"), WidenColumn(name="v", type="STRING")])
    run(table, "merge_branch", branch="fix")
    assert table.schema().field_names == ("k", "v", "dt", "price")
    assert {e.file.schema_id for e in _live(table)} == {0}


def test_two_schema_steps_of_the_branch_both_reach_main(table: Table, fix: Table) -> None:
    alter_table(fix, [AddColumn(name="x", type="INT")])
    rewrite(fix, "a")
    alter_table(fix, [AddColumn(name="y", type="INT")])
    rewrite(fix, "b")
    run(table, "merge_branch", branch="fix")
    assert table.schema_ids() == [0, 1, 2]
    assert sorted(e.file.schema_id for e in _live(table)) == [0, 1, 2]


# -- fast-forward, rollback, undo ------------------------------------------------------------------------------------


def test_fast_forward_is_strict(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    append(table, "z")
    with pytest.raises(UnsafeOperationError) as caught:
        run(table, "fast_forward", branch="fix")
    assert caught.value.details["would_discard"] == ["dt=z/bucket-0"]
    run(table, "fast_forward", branch="fix", discard_main=True)
    assert files(table) == files(fix)
    assert table.snapshot_ids() == [1, 2, 3, 4, 5]


def test_rollback_is_one_new_snapshot(table: Table) -> None:
    before = files(table)
    overwrite(table, "a", seq=5)
    append(table, "z")
    result = run(table, "rollback_to", tag="base")
    assert files(table) == before
    assert (result.snapshot_before, result.snapshot_after) == (5, 6)
    undo = result.details["undo_tag"]
    run(table, "rollback_to", tag=undo)
    assert len(files(table)) == 4
    assert not run(table, "rollback_to", tag=undo).changed


def test_undo_takes_back_the_publish_and_keeps_what_came_in(table: Table, fix: Table) -> None:
    before = files(table)
    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    append(table, "z")
    run(table, "rollback_to", tag=undo, keep_later=True)
    now = files(table)
    assert now.pop((_partition(table, "z"), 0))
    assert now == before


def test_undo_refuses_where_rows_came_in_after_the_publish(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    append(table, "a", seq=9)
    now = files(table)
    with pytest.raises(ConflictError, match="dt=a"):
        run(table, "rollback_to", tag=undo, keep_later=True)
    assert files(table) == now


def test_properties_of_another_program_are_named(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    undone = run(table, "rollback_to", tag=run(table, "merge_branch", branch="fix").details["undo_tag"])
    path = table.paths.snapshot(undone.snapshot_after)
    said = json.loads(table.store.read(path))
    said["properties"]["airflow-paimon.target-snapshot"] = "the third"
    table.store.replace(path, json.dumps(said).encode())
    with pytest.raises(FormatError, match=r"Snapshot 5: its property airflow-paimon\.target-snapshot is not a num"):
        last_publish(table)


def test_files_that_come_back_leave_no_deletion_behind_and_are_kept(table: Table, fix: Table) -> None:
    """Java drops every ADD that any DELETE of the same list names, and its expiry deletes what a DELETE names."""
    from airflow_paimon.core.table.manifest_entries import read_entries
    from airflow_paimon.core.table.manifest_lists import all_manifests

    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    before = {m.file_name for m in all_manifests(table, table.snapshot(4))}
    run(table, "rollback_to", tag=undo)
    manifests = all_manifests(table, table.snapshot(5))
    assert len(before) == 4 and len(before - {m.file_name for m in manifests}) == 2, "only those that named the file"
    entries = [e for part in read_entries(table, manifests) for e in part]
    deleted = {e.file.file_name for e in entries if e.kind == 1}
    assert not deleted & names(table)
    assert "airflow-paimon-keep-3" in table.tag_names()
    with pytest.raises(UnsafeOperationError, match="keep"):
        run(table, "delete_tag", tag="airflow-paimon-keep-3")
    run(table, "merge_branch", branch="fix")  # and forth again: the branch's files come back, too
    assert files(table) == files(fix)


def test_replay_by_operation_id(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    first = run(table, "merge_branch", branch="fix", operation_id="dag/run/publish")
    append(table, "z")
    forget_results(table)
    again = run(table, "merge_branch", branch="fix", operation_id="dag/run/publish")
    assert (again.changed, again.snapshot_after) == (True, first.snapshot_after)
    assert again.details["replayed"]
    assert table.latest_snapshot_id() == first.snapshot_after + 1
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, "merge_branch", branch="fix", operation_id="dag/run/publish", writers_stopped=True)


@pytest.mark.parametrize("operation", ["merge_branch", "rollback_to"])
def test_a_publish_can_be_cut_off_anywhere(tmp_path: Path, operation: str) -> None:
    values: dict[str, Any] = {"branch": "fix"} if operation == "merge_branch" else {"snapshot": 1}
    for step in moments(40):
        table = make_table(tmp_path / f"{operation}{step}")
        append(table, "a")
        run(table, "create_branch", branch="fix", snapshot=1)
        fix = table.branch("fix")
        alter_table(fix, [AddColumn(name="x", type="INT")])
        rewrite(fix, "a")
        append(table, "b")
        before = files(table)
        crashed = cut_off(table, step, operation, operation_id="op", **values)
        halfway = files(table)
        result = run(table, operation, operation_id="op", **values)
        after = files(table)
        assert result.changed
        assert halfway in (before, after)
        assert table.snapshot_ids() == [1, 2, 3], "the work is done once"
        if not crashed:
            return
    raise AssertionError("40 steps were not enough")


# -- comments of columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward"])
def test_changed_comments_of_columns_are_published(table: Table, fix: Table, operation: str) -> None:
    def comments() -> dict[str, str | None]:
        return {f.name: f.description for f in table.schema().fields}

    columns = [f.name for f in fix.schema().fields]
    first, other = columns[0], columns[-1]
    alter_table(fix, [CommentColumn(name=first, comment="in euros")])
    discard = {"discard_main": True} if operation == "fast_forward" else {}
    assert run(table, operation, branch="fix", dry_run=True).changed
    assert run(table, operation, branch="fix").changed, "a comment alone is a change"
    assert comments()[first] == "in euros"
    assert not run(table, operation, branch="fix", **discard).changed
    # with a new column beside it, and with a comment that main has changed itself
    alter_table(table, [CommentColumn(name=other, comment="of main")])
    alter_table(fix, [CommentColumn(name=first, comment="in cents"), AddColumn(name="new", type="INT")])
    alter_table(fix, [CommentColumn(name=other, comment="of the branch"), CommentColumn(name="new", comment="n")])
    rewrite(fix, "a")
    run(table, operation, branch="fix", **discard)
    assert comments() | {first: "in cents", other: "of main", "new": "n"} == comments()
    assert run(table, "check_table").details["ok"]
    # both sides add columns
    alter_table(table, [AddColumn(name="mine", type="INT"), CommentColumn(name=other, comment="of main again")])
    alter_table(fix, [AddColumn(name="theirs", type="INT", comment="t"), CommentColumn(name="new", comment=None)])
    rewrite(fix, "a")
    run(table, operation, branch="fix", **discard)
    assert comments() | {other: "of main again", "new": None, "theirs": "t", "mine": None} == comments()
