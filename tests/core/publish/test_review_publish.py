"""What a review of the publish found: deletion vectors, field ids, retries, tags that keep files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import execution
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitMessage, Draft
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import ConflictError, OutcomeUnknownError, StorageError, UnsafeOperationError
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.paths import STAGED_TAG_PREFIX
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, cut_off, files, make_table, message, rewrite, run
from tests.randomness import moments
from tests.stateful.paimon_expiry import delete_tag, expire_snapshots
from tests.stores import FaultStore


def delete_rows(view: Table, dt: str, name: str, kind: CommitKind = CommitKind.OVERWRITE) -> None:
    """A DELETE by deletion vector: the index manifest changes, no data file does."""
    partition = message(view, dt).partition
    view.store.create(f"index/{name}", b"vector")
    entry = IndexEntry(FileKind.ADD.value, partition, 0, "DELETION_VECTORS", name, 6, 1, ())

    def draft(head: Snapshot | None) -> Draft:
        others = [i for i in read_index_entries(view, head) if i.partition != partition]
        return Draft(kind=kind, entries=[], index_entries=[*others, entry], schema=view.schema())

    commit(view, draft)


def vectors(view: Table) -> set[str]:
    return {i.file_name for i in read_index_entries(view, view.latest_snapshot())}


def test_rows_that_main_deleted_by_vector_are_a_change_of_main(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    delete_rows(table, "a", "index-1")
    with pytest.raises(ConflictError, match="dt=a"):
        run(table, "merge_branch", branch="fix")
    with pytest.raises(UnsafeOperationError, match="dt=a"):
        run(table, "fast_forward", branch="fix")
    assert vectors(table) == {"index-1"}


def test_rows_that_the_branch_deleted_by_vector_are_published(table: Table, fix: Table) -> None:
    delete_rows(fix, "a", "index-1")
    append(table, "b", seq=5)
    result = run(table, "merge_branch", branch="fix")
    assert result.changed
    assert result.details["buckets"] == 1
    assert vectors(table) == {"index-1"}
    assert not run(table, "merge_branch", branch="fix").changed
    delete_rows(table, "a", "index-2")
    delete_rows(fix, "a", "index-3")
    with pytest.raises(ConflictError, match="dt=a"):
        run(table, "merge_branch", branch="fix")


def test_rollback_brings_back_rows_that_were_deleted_by_vector(table: Table) -> None:
    delete_rows(table, "a", "index-1")
    result = run(table, "rollback_to", tag="base")
    assert result.changed
    assert vectors(table) == set()
    run(table, "rollback_to", tag=result.details["undo_tag"])
    assert vectors(table) == {"index-1"}
    assert "airflow-paimon-keep-4" in table.tag_names()


def test_vectors_that_compaction_moved_are_no_change(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    append(table, "b", seq=5)
    delete_rows(table, "a", "index-1", kind=CommitKind.COMPACT)
    assert run(table, "merge_branch", branch="fix").changed


def test_a_replayed_publish_protects_what_is_shared(tmp_path: Path) -> None:
    for step in moments(40):
        table = make_table(tmp_path / f"wh{step}")
        append(table, "a")
        run(table, "create_branch", branch="fix", snapshot=1)
        rewrite(table.branch("fix"), "a")
        crashed = cut_off(table, step, "merge_branch", operation_id="op", branch="fix")
        run(table, "merge_branch", operation_id="op", branch="fix")
        assert "airflow-paimon-branch-fix.2" in table.tag_names(), step
        if not crashed:
            return
    raise AssertionError("40 steps were not enough")


def test_a_column_id_that_main_used_meanwhile_is_not_used_again(table: Table, fix: Table) -> None:
    """Main's files written with the dropped column would show its values as the branch's new column."""
    alter_table(table, [AddColumn(name="x", type="INT")])
    append(table, "a", seq=5)
    alter_table(table, [DropColumn(name="x")])
    alter_table(fix, [AddColumn(name="y", type="INT")])
    rewrite(fix, "b")
    run(table, "merge_branch", branch="fix")
    dropped, added = table.schema(1).field("x"), table.schema().field("y")
    assert (dropped.id, fix.schema().field("y").id, added.id) == (3, 3, 4)
    written = {e.file.schema_id for e in live_entries(table, table.latest_snapshot()).values()}
    assert [f.id for i in written for f in table.schema(i).fields if f.name == "y"] == [4]


def test_each_publish_may_bring_a_column(table: Table, fix: Table) -> None:
    for number, column in enumerate(("x", "y")):
        alter_table(fix, [AddColumn(name=column, type="INT")])
        rewrite(fix, "abc"[number])
        run(table, "merge_branch", branch="fix")
    assert table.schema().field_names == ("k", "v", "dt", "x", "y")


def test_a_rewrite_does_not_publish_what_came_in_after_the_approval(table: Table, fix: Table) -> None:
    append(fix, "a", seq=9)
    approved = fix.latest_snapshot_id()

    def fold(branch: Table, high: Any) -> None:
        rewrite(branch, "a")
        append(branch, "b", seq=2)  # a writer that nobody approved

    warehouse = str(Path(table.store.uri.removeprefix("file://")).parents[1])
    request = MergeBranch(warehouse=warehouse, table="d.t", branch="fix", expected_branch_snapshot=approved)
    before = files(table)
    with pytest.raises(ConflictError, match="branch"):
        publish_branch(open_context(request), request, replace(execution.row_functions(), fold=fold))
    assert files(table) == before


def upgrade(view: Table, dt: str) -> None:
    """Compaction that only moves a bucket's files to the top level, as Paimon does with files nothing overlaps."""
    now = [e for e in live_entries(view, view.latest_snapshot()).values() if e.partition == message(view, dt).partition]
    up = tuple(e.file._replace(level=5) for e in now)
    commit_buckets(view, [CommitMessage(partition=now[0].partition, bucket=0, total_buckets=2, new_files=up,
                   replaced=tuple(e.file for e in now))], kind=CommitKind.COMPACT)  # fmt: skip


def test_a_file_that_comes_back_on_another_level_is_kept(table: Table, fix: Table) -> None:
    upgrade(fix, "a")
    append(fix, "a", seq=1)
    rewrite(table, "a", kind=CommitKind.COMPACT)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    run(table, "delete_branch", branch="fix")
    run(table, "delete_tag", tag="base")
    append(table, "b", seq=7)
    expire_snapshots(table, 1)
    assert run(table, "check_table").details["errors"] == 0


def test_a_keep_tag_stays_until_no_tag_can_take_its_files(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    append(table, "b", seq=7)
    run(table, "rollback_to", tag=undo, keep_later=True)
    run(table, "delete_branch", branch="fix")
    run(table, "delete_tag", tag="base")
    expire_snapshots(table, 2)
    run(table, "repair_table")
    delete_tag(table, undo)
    assert run(table, "check_table").details["errors"] == 0


UNDO = "airflow-paimon-undo-op"


def merge_on(table: Table, store: Store) -> OperationResult:
    """One try of the same merge."""
    values = {"warehouse": table.store.uri.removeprefix("file://").rsplit("/", 2)[0], "table": "d.t", "branch": "fix"}
    context = open_context(build_request("merge_branch", {**values, "operation_id": "op"}))
    return perform(replace(context, table=Table(store, "d.t")), context.request)


def test_a_refused_try_deletes_what_it_held_and_nothing_of_another_try_that_lands(table: Table, fix: Table) -> None:
    """The other one lands right before the refused one deletes what it holds."""
    rewrite(fix, "a")
    head = table.latest_snapshot()
    done: list[OperationResult] = []

    def interfere(method: str, path: str) -> None:
        if (method, path) == ("create", table.paths.snapshot(head.id + 1)) and not done:
            raise StorageError("403 Forbidden")
        if method == "delete" and STAGED_TAG_PREFIX in path and not done:
            done.append(merge_on(table, table.store))

    with pytest.raises(StorageError, match="403"):
        merge_on(table, FaultStore(table.store, on_mutation=interfere))
    assert done[0].snapshot_after == head.id + 1
    assert table.tag(UNDO).snapshot.identity == head.identity
    assert not [t for t in table.tag_names() if t.startswith(STAGED_TAG_PREFIX)]


def test_a_publish_whose_tags_fail_after_it_landed_is_not_reported_as_the_storages_error(
    table: Table, fix: Table
) -> None:
    rewrite(fix, "a")
    head = table.latest_snapshot()
    tag = f"airflow-paimon-branch-fix.{head.id + 1}"

    def interfere(method: str, path: str) -> None:
        if (method, path) == ("create", table.paths.tag(tag)):
            raise StorageError("503 Slow Down")

    with pytest.raises(OutcomeUnknownError, match=f"snapshot {head.id + 1} was committed, but not all") as raised:
        merge_on(table, FaultStore(table.store, on_mutation=interfere))
    assert raised.value.details["snapshot"] == table.latest_snapshot_id() == head.id + 1
    assert merge_on(table, table.store).snapshot_after == head.id + 1
    assert tag in table.tag_names()


def test_an_undo_tag_whose_publish_was_refused_undoes_nothing(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    head = table.latest_snapshot()
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    table.store.delete(f"snapshot/snapshot-{head.id + 1}")  # the publish never landed, an append did
    append(table, "b", seq=3)
    before = files(table)
    with pytest.raises(UnsafeOperationError, match="publish"):
        run(table, "rollback_to", tag=undo, keep_later=True)
    assert files(table) == before
