"""merge_branch --partitions: some partitions of a branch reach main, the others stay on it, and a later publish of the
branch goes on from there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_paimon.core.commit.files import commit_append, commit_overwrite
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.publish.undoable_publishes import (
    is_fully_published,
    publishes_still_on_main,
    undoable_publishes,
    verify_publish,
)
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from tests.core.publish.test_publish_killed import killed_at
from tests.core.tables import COLUMNS, alter_table, append, files, forget_results, make_table, message, rewrite, run


def in_day(view: Table, dt: str) -> set[str]:
    """The files of one partition."""
    return {n for (partition, _), group in files(view).items() if partition[-8:].startswith(dt.encode()) for n in group}


def publish(table: Table, *days: str, **values: object) -> dict[str, object]:
    result = run(table, "merge_branch", branch="fix", partitions=[f"dt={d}" for d in days], **values)
    assert result.changed
    assert result.snapshot_after is not None
    theirs = table.branch("fix").latest_snapshot_id()
    assert theirs is not None
    verify_publish(table, snapshot_id=result.snapshot_after, branch="fix", branch_snapshot=theirs)
    return result.details


@pytest.fixture(params=[True, False], ids=["by bucket", "by file"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Main with partitions a, b, c; with a primary key, or without keys."""
    made = make_table(tmp_path / "wh", primary=request.param)
    for dt in "abc":
        append(made, dt, rows=2, seq=0)
    return made


@pytest.fixture
def fix(table: Table) -> Table:
    run(table, "create_branch", branch="fix", snapshot=3)
    return table.branch("fix")


def test_one_partition_is_published_and_the_others_stay_on_the_branch(table: Table, fix: Table) -> None:
    before = {dt: in_day(table, dt) for dt in "abc"}
    for dt in "abc":
        rewrite(fix, dt)
    details = publish(table, "a", "b")
    assert [in_day(table, dt) == in_day(fix, dt) for dt in "abc"] == [True, True, False]
    assert in_day(table, "c") == before["c"]
    assert details["only_partitions"] == ["dt=a", "dt=b"]
    assert (details["left_partitions"], details["left_partition_count"]) == (["dt=c"], 1)
    head = table.latest_snapshot()
    assert head is not None
    assert json.loads(head.properties["airflow-paimon.only-partitions"]) == ["dt=a", "dt=b"]
    assert head.properties["airflow-paimon.left-partition-count"] == "1"
    rest = run(table, "merge_branch", branch="fix")
    assert rest.details["published_partitions"] == ["dt=a", "dt=b"]
    assert rest.details["partitions"] == 1
    assert files(table) == files(fix)
    assert not run(table, "merge_branch", branch="fix").changed
    assert not run(table, "merge_branch", branch="fix", partitions=["dt=a"]).changed
    assert run(table, "check_table").details["errors"] == 0


def test_what_main_changed_since_in_a_published_partition_stands(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    append(table, "a", seq=9)
    moved = in_day(table, "a")
    assert run(table, "merge_branch", branch="fix").changed
    assert in_day(table, "a") == moved
    assert in_day(table, "b") == in_day(fix, "b")
    rewrite(fix, "c")
    assert run(table, "merge_branch", branch="fix").changed, "the same after a publish of all"
    assert in_day(table, "a") == moved
    assert in_day(table, "c") == in_day(fix, "c")


def test_what_the_branch_changes_after_a_publish_of_its_partition_is_published(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    rewrite(fix, "a")
    assert in_day(table, "a") != in_day(fix, "a")
    publish(table, "a")
    assert in_day(table, "a") == in_day(fix, "a")
    rewrite(fix, "a")
    assert run(table, "merge_branch", branch="fix").changed
    assert files(table) == files(fix)


def test_changes_on_both_sides_after_a_publish_are_a_conflict_of_that_partition_alone(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    rewrite(table, "a")
    rewrite(fix, "a")
    before = files(table)
    for asked in ({}, {"partitions": ["dt=a", "dt=b"]}):
        with pytest.raises(ConflictError, match=r"dt=a.*the other partitions alone") as caught:
            run(table, "merge_branch", branch="fix", **asked)
        assert caught.value.details["conflicts"] == ["dt=a/bucket-0"]
        assert files(table) == before
    publish(table, "b")
    assert in_day(table, "b") == in_day(fix, "b")
    assert in_day(table, "a") != in_day(fix, "a")


@pytest.mark.parametrize("keep_later", [True, False])
def test_an_undone_publish_of_a_partition_can_be_published_again(table: Table, fix: Table, keep_later: bool) -> None:
    before = files(table)
    rewrite(fix, "a")
    rewrite(fix, "b")
    undo = publish(table, "a")["undo_tag"]
    run(table, "rollback_to", tag=undo, keep_later=keep_later)
    assert files(table) == before
    publish(table, "a")
    assert in_day(table, "a") == in_day(fix, "a")
    assert run(table, "merge_branch", branch="fix").changed
    assert files(table) == files(fix)


def test_one_of_two_publishes_is_undone_and_comes_again_alone(table: Table, fix: Table) -> None:
    before = in_day(table, "a")
    rewrite(fix, "a")
    rewrite(fix, "b")
    undo = publish(table, "a")["undo_tag"]
    publish(table, "b")
    append(table, "b", seq=9)
    moved = in_day(table, "b")
    undone = run(table, "rollback_to", tag=undo, keep_later=True).details["undo_tag"]
    assert in_day(table, "a") == before
    assert run(table, "merge_branch", branch="fix", dry_run=True).details["published_partitions"] == ["dt=b"]
    assert run(table, "merge_branch", branch="fix").details["partitions"] == 1
    assert (in_day(table, "a"), in_day(table, "b")) == (in_day(fix, "a"), moved)
    run(table, "rollback_to", tag=undoable_publishes(table)[-1].undo_tag, keep_later=True)
    run(table, "rollback_to", tag=undone, keep_later=True)
    assert in_day(table, "a") == in_day(fix, "a"), "the undo of the undo"
    assert not run(table, "merge_branch", branch="fix").changed
    rewrite(fix, "a")
    assert run(table, "merge_branch", branch="fix").changed
    assert (in_day(table, "a"), in_day(table, "b")) == (in_day(fix, "a"), moved)


def test_an_undone_second_publish_of_a_partition_comes_again(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    publish(table, "a")
    first = in_day(table, "a")
    rewrite(fix, "a")
    undo = publish(table, "a")["undo_tag"]
    run(table, "rollback_to", tag=undo, keep_later=True)
    assert in_day(table, "a") == first
    publish(table, "a")
    assert files(table) == files(fix)


def test_what_the_branch_rolled_back_is_withdrawn_by_partition(table: Table, fix: Table) -> None:
    before = {dt: in_day(table, dt) for dt in "ab"}
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    publish(table, "b")
    assert is_on_main(table, fix)
    run(table, "rollback_to", branch="fix", snapshot=3)
    assert not is_on_main(table, fix)
    publish(table, "b")
    assert not is_on_main(table, fix), "main has what the branch took back in a"
    assert (in_day(table, "a") == before["a"], in_day(table, "b") == before["b"]) == (False, True)
    assert run(table, "merge_branch", branch="fix").changed
    assert in_day(table, "a") == before["a"]
    assert not run(table, "merge_branch", branch="fix").changed
    assert is_on_main(table, fix)


def is_on_main(table: Table, fix: Table) -> bool:
    base, head = fix.snapshot(3), fix.latest_snapshot()
    assert head is not None
    return is_fully_published(table, fix, base, head, [p.snapshot for p in publishes_still_on_main(table)])


def test_a_branch_that_took_back_what_another_one_published_leaves_it_on_main(table: Table, fix: Table) -> None:
    """Tables without keys are refused: what main has of such a publish can't be told."""
    append(fix, "d", rows=2, seq=0)
    run(table, "create_branch", branch="kid", from_branch="fix", snapshot=4)
    run(table, "rollback_to", branch="fix", snapshot=3, writers_stopped=True)
    run(table, "merge_branch", branch="kid", writers_stopped=True)
    published = files(table)
    if table.schema().primary_keys:
        assert not run(table, "merge_branch", branch="fix").changed
    else:
        with pytest.raises(ConflictError, match="cannot determine what main still has"):
            run(table, "merge_branch", branch="fix")
    assert files(table) == published and in_day(table, "d")


def test_compactions_of_main_after_a_publish_stay(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    rewrite(table, "a", kind=CommitKind.COMPACT)
    compacted = in_day(table, "a")
    assert run(table, "merge_branch", branch="fix").changed
    assert in_day(table, "a") == compacted


def test_a_partition_that_main_dropped_after_its_publish_does_not_come_back(table: Table, fix: Table) -> None:
    append(fix, "new")
    append(fix, "also")
    publish(table, "new", writers_stopped=True)
    commit_overwrite(table, [], partitions=[{"dt": "new"}])
    assert run(table, "merge_branch", branch="fix", writers_stopped=True).changed
    assert not in_day(table, "new")
    assert in_day(table, "also") == in_day(fix, "also")


def test_main_s_expired_history_is_no_reason_to_bring_or_to_refuse_other_partitions(table: Table, fix: Table) -> None:
    """Tags keep the publishes of both partitions."""
    for dt in "abc":
        rewrite(fix, dt)
    publish(table, "a")
    publish(table, "b")
    append(table, "d")
    append(table, "d", seq=5)
    for number in table.snapshot_ids()[:-1]:
        table.store.delete(table.paths.snapshot(number))
    rewrite(fix, "a")
    publish(table, "c")
    publish(table, "a")
    assert [in_day(table, dt) == in_day(fix, dt) for dt in "abc"] == [True] * 3
    assert not run(table, "merge_branch", branch="fix").changed
    append(table, "b", seq=9)
    for number in table.snapshot_ids()[:-1]:
        table.store.delete(table.paths.snapshot(number))
    rewrite(fix, "c")
    publish(table, "c")
    assert in_day(table, "c") == in_day(fix, "c")


@pytest.mark.parametrize("killed", [[], ["dt=a", "dt=b"]], ids=["whole", "two partitions"])
def test_a_killed_publish_whose_partitions_were_published_since_is_no_reason_to_refuse(
    tmp_path: Path, killed: list[str]
) -> None:
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    append(fix, "a")
    append(fix, "b")
    killed_at(table, table.paths.snapshot(2), "merge_branch", branch="fix", operation_id="killed", partitions=killed)
    publish(table, "a")
    publish(table, "b")
    append(table, "d")
    append(table, "d")
    for number in table.snapshot_ids()[:-1]:
        table.store.delete(table.paths.snapshot(number))
    append(fix, "b")
    append(fix, "c")
    publish(table, "b")
    assert run(table, "merge_branch", branch="fix").changed
    assert [in_day(table, dt) == in_day(fix, dt) for dt in "abc"] == [True] * 3


def test_files_are_not_doubled_where_a_lost_publish_was_of_a_partition(tmp_path: Path) -> None:
    """Only the note beside the branch is left of it; the other partition was never published, and can be."""
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    append(fix, "a")
    append(fix, "b")
    publish(table, "a")
    append(table, "d")
    rewrite(table, "a", kind=CommitKind.COMPACT)
    for number in table.snapshot_ids()[:-1]:
        table.store.delete(table.paths.snapshot(number))
    for tag in table.tag_names():
        if tag != "airflow-paimon-branch-fix":
            table.store.delete(table.paths.tag(tag))
    before = files(table)
    for asked in ({}, {"partitions": ["dt=a"]}):
        with pytest.raises(ConflictError, match="cannot determine"):
            run(table, "merge_branch", branch="fix", **asked)
        assert files(table) == before
    assert run(table, "merge_branch", branch="fix", partitions=["dt=b"]).changed
    assert in_day(table, "b") == in_day(fix, "b")
    with pytest.raises(ConflictError, match="cannot determine"):
        run(table, "merge_branch", branch="fix")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("dt", "not of the form"),
        ("day=a", "'day' is not a partition column"),
        ("dt=zz", "has changed nothing in dt=zz.*It has changed dt=a"),
    ],
)
def test_what_can_not_be_published_is_refused_before_anything_is_changed(
    table: Table, fix: Table, asked: str, why: str
) -> None:
    rewrite(fix, "a")
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=why):
        run(table, "merge_branch", branch="fix", partitions=["dt=a", asked])
    assert table.store.walk("") == before


def test_refused_where_partitions_can_not_be_told_apart(tmp_path: Path) -> None:
    plain = create_table(str(tmp_path), "d.plain", COLUMNS, options={"bucket": "-1"})
    keyed = create_table(
        str(tmp_path), "d.keyed", COLUMNS, partition_keys=["dt"], primary_keys=["k"], options={"bucket": "-1"}
    )
    commit_append(keyed, [message(keyed, "a")], planned_on=None)
    run(keyed, "create_branch", branch="fix", snapshot=1)
    run(plain, "create_branch", branch="fix")
    with pytest.raises(UnsupportedFeatureError, match="primary key lacks partition columns"):
        run(keyed, "merge_branch", branch="fix", partitions=["dt=a"])
    with pytest.raises(Exception, match=r"the table is not partitioned|is empty"):
        run(plain, "merge_branch", branch="fix", partitions=["dt=a"])


def test_the_branch_s_tags_do_not_come_with_some_partitions(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    with pytest.raises(InvalidInputError, match="--tags"):
        run(table, "merge_branch", branch="fix", partitions=["dt=a"], tags=True)


def test_columns_of_the_branch_come_along(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    alter_table(fix, [AddColumn(name="price", type="DOUBLE")])
    rewrite(fix, "b")
    publish(table, "b")
    assert table.schema().field_names == ("k", "v", "dt", "price")
    assert run(table, "merge_branch", branch="fix").changed
    assert files(table) == files(fix)
    assert table.schema_ids() == [0, 1]


def test_a_retry_returns_the_first_result_and_another_request_is_refused(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    first = run(table, "merge_branch", branch="fix", partitions=["dt=a"], operation_id="op")
    forget_results(table)
    again = run(table, "merge_branch", branch="fix", partitions=["dt=a"], operation_id="op")
    assert again.snapshot_after == first.snapshot_after == table.latest_snapshot_id()
    assert again.details["replayed"]
    assert again.details["only_partitions"] == ["dt=a"]
    assert again.details["left_partition_count"] == 1
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, "merge_branch", branch="fix", partitions=["dt=b"], operation_id="op")
    assert in_day(table, "b") != in_day(fix, "b")


def test_a_fast_forward_after_a_publish_of_a_partition_loses_nothing(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    rewrite(fix, "b")
    publish(table, "a")
    assert run(table, "fast_forward", branch="fix", writers_stopped=True).changed
    assert files(table) == files(fix)


def test_what_was_approved_is_looked_at_in_the_published_partitions_only(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    for dt in "ab":
        append(table, dt)
    run(table, "create_branch", branch="fix", snapshot=2)
    for dt in "ab":
        rewrite(table.branch("fix"), dt)
    append(table, "b", seq=9)
    asked = {"branch": "fix", "approved_main_snapshot": 2, "expected_branch_snapshot": 4}
    assert run(table, "merge_branch", partitions=["dt=a"], **asked).changed
    with pytest.raises(ConflictError):
        run(table, "merge_branch", partitions=["dt=b"], **asked)
