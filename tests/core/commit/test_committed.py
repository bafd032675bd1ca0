"""What a commit makes of doubt: read-backs, foreign snapshots, expired history, branches made anew meanwhile."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.committed import find_committed, take_back_misplaced, verified_commits
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions, Draft
from airflow_paimon.core.commit.files import commit_append, commit_overwrite
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.commit.restore import restore_partitions
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot, SnapshotRef
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions
from tests.core.tables import append, cut_off, files, make_table, message, names, rewrite, run
from tests.stores import FaultStore, _Wrapper


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "wh")


class Meddler(_Wrapper):
    """Somebody acts after (or instead of) our calls: ``after`` gets method and path, and may raise."""

    def __init__(self, inner: Store, after: Callable[[str, str], None]) -> None:
        super().__init__(inner)
        self._after = after

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        result = action()
        self._after(method, path)
        return result


def seen_by(table: Table, after: Callable[[str, str], None]) -> Table:
    return Table(Meddler(table.store, after), table.name, table.branch_name)


def replace_by_foreign(table: Table, snapshot_id: int) -> None:
    """What another engine's rename does: its own snapshot lands on top of ours."""
    ours = table.snapshot(snapshot_id)
    table.store.replace(table.paths.snapshot(snapshot_id), replace(ours, uuid="f" * 36).to_bytes())


def replaced_after_hint(table: Table) -> Table:
    """The newest snapshot is replaced after it was published, read back and named in the hint."""

    def after(method: str, path: str) -> None:
        if method == "replace" and path.endswith("LATEST"):
            replace_by_foreign(table, table.latest_snapshot_id() or 0)

    return seen_by(table, after)


# -- no path skips the second read-back --------------------------------------------------------------------------------


def test_any_commit_is_read_back_at_its_end(table: Table) -> None:
    with pytest.raises(OutcomeUnknownError, match="another engine's commit replaced it"):
        append(replaced_after_hint(table), "a")


def test_a_commit_that_can_not_be_read_back_at_its_end_is_not_reported_as_the_storages_error(table: Table) -> None:
    """It is in the table, and a retry has to look for it."""
    ended: list[bool] = []

    def after(method: str, path: str) -> None:
        if ended and method == "read" and path == table.paths.snapshot(1):
            raise StorageError("503 Slow Down")
        if method == "replace" and path.endswith("LATEST"):
            ended.append(True)

    with pytest.raises(OutcomeUnknownError, match="it was committed, but could not be read back") as raised:
        append(seen_by(table, after), "a")
    assert raised.value.details["snapshot"] == table.latest_snapshot_id() == 1


def test_whatever_fails_after_the_put_leaves_it_unknown(table: Table) -> None:
    """After other errors callers delete the files that they wrote."""
    append(table, "a")
    for fails_at in range(1, 100):
        put = (table.latest_snapshot_id() or 0) + 1
        left: list[int] = []

        def after(method: str, path: str, put: int = put, fails_at: int = fails_at, left: list[int] = left) -> None:
            if left:
                left.append(1)
                if len(left) == fails_at + 1:
                    raise StorageError("503 Slow Down")
            elif method == "create" and path == table.paths.snapshot(put):
                left.append(1)

        try:
            append(seen_by(table, after), "a")
        except OutcomeUnknownError as raised:
            assert raised.details["snapshot"] == table.latest_snapshot_id() == put
        assert len(names(table)) == put
        if len(left) <= fails_at:
            break
    assert fails_at > 5


def test_an_operation_of_several_commits_is_read_back_at_its_end(table: Table) -> None:
    with pytest.raises(OutcomeUnknownError, match="snapshot 1"), verified_commits():
        append(table, "a")
        append(table, "b")
        replace_by_foreign(table, 1)


@pytest.mark.parametrize(
    ("when", "is_back"), [("before the end", 3), ("after the end", 3), ("rolled back", 2), ("rolled back beyond", 3)]
)
def test_a_retry_does_not_report_a_commit_as_done_that_another_engine_has_taken_away(
    table: Table, when: str, is_back: int
) -> None:
    """Jobs, and CALL in Spark, read commits back only after the operation itself has ended."""
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "a")
    new = min(names(table.branch("fix")) - names(table))

    def replaced() -> None:
        theirs = replace(table.snapshot(1), id=2, uuid="f" * 36, commit_user="other")
        table.store.replace(table.paths.snapshot(2), theirs.to_bytes())

    if when == "before the end":
        with pytest.raises(OutcomeUnknownError, match="snapshot 2"), verified_commits():
            run(table, "merge_branch", branch="fix", operation_id="op")
            replaced()
    else:
        run(table, "merge_branch", branch="fix", operation_id="op")
        if when == "after the end":
            replaced()
        else:
            table.store.delete(table.paths.snapshot(2))
            for tag in table.tags():
                if tag.snapshot.id == 2:
                    table.store.delete(table.paths.tag(tag.name))
            table.store.replace(table.paths.latest_hint, b"1")
        if when == "rolled back beyond":
            append(table, "c")
    again = run(table, "merge_branch", branch="fix", operation_id="op")
    assert (again.changed, again.snapshot_after, new in names(table)) == (True, is_back, True)
    append(table, "b")
    assert run(table, "merge_branch", branch="fix", operation_id="op").snapshot_after == is_back


def test_a_retry_reports_a_commit_as_done_that_has_expired(table: Table) -> None:
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "a")
    first = run(table, "merge_branch", branch="fix", operation_id="op")
    append(table, "b")
    for number in (1, 2):
        table.store.delete(table.paths.snapshot(number))
    again = run(table, "merge_branch", branch="fix", operation_id="op")
    assert (again.snapshot_after, table.snapshot_ids()) == (first.snapshot_after, [3])


def test_a_failing_operation_keeps_its_own_error(table: Table) -> None:
    with pytest.raises(FormatError, match="mine"), verified_commits():
        append(table, "a")
        replace_by_foreign(table, 1)
        raise FormatError("mine")


def test_dropped_partitions_are_read_back(table: Table) -> None:
    append(table, "a")
    with pytest.raises(OutcomeUnknownError, match="snapshot 2"):
        drop_partitions(replaced_after_hint(table), [{"dt": "a"}])


def test_restored_files_are_read_back(table: Table) -> None:
    before = append(table, "a").snapshot
    dropped = commit_overwrite(table, [], partitions=[{"dt": "a"}]).snapshot
    with pytest.raises(OutcomeUnknownError, match="snapshot 3"):
        restore_partitions(replaced_after_hint(table), before, dropped, only(table, "a"), beside_appends=True)


# -- restoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meanwhile", "beside_appends", "is_back"),
    [
        (None, False, True),
        ("append", False, False),
        ("append", True, True),
        ("expired append", True, False),  # nothing says any more that it was one
        ("overwrite", True, False),
    ],
)
def test_restored_files_lie_beside_appended_ones_only(
    table: Table, meanwhile: str | None, beside_appends: bool, is_back: bool
) -> None:
    before = append(table, "a").snapshot
    append(table, "b")
    (old,) = names(table) - names_of(table, "b")
    dropped = commit_overwrite(table, [], partitions=[{"dt": "a"}]).snapshot
    new = set()
    if meanwhile is not None:
        added = message(table, "a", seq=9)
        new = {f.file_name for f in added.new_files}
        if meanwhile == "overwrite":
            commit_overwrite(table, [added], partitions=[{"dt": "a"}])
        else:
            committed = commit_append(table, [added], planned_on=table.latest_snapshot()).snapshot
        if meanwhile == "expired append":
            append(table, "c")
            table.store.delete(table.paths.snapshot(committed.id))
    receipt = restore_partitions(table, before, dropped, only(table, "a"), beside_appends=beside_appends)
    assert receipt.changed is is_back
    assert names_of(table, "a") == new | ({old} if is_back else set())
    assert len(names_of(table, "b")) == 1
    if is_back:  # Java drops each file that a manifest of the base says is deleted, whatever comes later
        assert not any(m.num_deleted_files for m in all_manifests(table, receipt.snapshot))


@pytest.mark.parametrize(
    ("kind", "dt", "bucket", "fits"),
    [
        ("DELETION_VECTORS", "a", 0, False),
        ("DELETION_VECTORS", "a", 1, True),
        ("DELETION_VECTORS", "b", 0, True),
        ("HASH", "a", 1, False),
        ("HASH", "b", 0, True),
    ],
)
def test_restored_files_bring_no_second_index(table: Table, kind: str, dt: str, bucket: int, fits: bool) -> None:
    """Readers take one file of deletion vectors, so rows that the other one deletes would be back; and two hash indexes
    of a partition could claim one key. What is new in another partition, or of another bucket's vectors, is no matter.
    """
    append(table, "a")
    append(table, "b")
    with_index(table, "b", "index-b", kind)
    before = with_index(table, "a", "index-old", kind)
    dropped = commit_overwrite(table, [], partitions=[{"dt": "a"}]).snapshot
    append(table, dt, bucket, seq=9)
    with_index(table, dt, "index-new", kind, bucket)
    restoring = partial(restore_partitions, table, before, dropped, only(table, "a"), beside_appends=True)
    others = {"index-new"} if dt == "b" else {"index-new", "index-b"}
    if fits:
        assert restoring().changed
        assert indexes(table) == {"index-old", *others}
        return
    with pytest.raises(ConflictError, match=rf"1 of the partitions to restore got a new index \({kind}\)"):
        restoring()
    assert indexes(table) == others


def test_an_index_that_stayed_when_its_files_were_dropped_stays_the_only_one(table: Table) -> None:
    append(table, "a")
    before = with_index(table, "a", "index-old")
    dropped = commit_overwrite(table, [], partitions=[{"dt": "a"}]).snapshot
    with_index(table, "a", "index-old")
    assert restore_partitions(table, before, dropped, only(table, "a"), beside_appends=True).changed
    assert [i.file_name for i in read_index_entries(table, table.latest_snapshot())] == ["index-old"]


def test_nothing_is_restored_into_a_table_without_a_snapshot(table: Table, tmp_path: Path) -> None:
    before = append(table, "a").snapshot
    dropped = commit_overwrite(table, [], partitions=[{"dt": "a"}]).snapshot
    anew = make_table(tmp_path / "anew")
    assert not restore_partitions(anew, before, dropped, only(table, "a"), beside_appends=True).changed
    assert anew.latest_snapshot() is None


def with_index(table: Table, dt: str, name: str, kind: str = "DELETION_VECTORS", bucket: int = 0) -> Snapshot:
    """Give a bucket an index, instead of the one of its kind that it has: what a compaction leaves, or an upsert."""
    table.store.replace(f"index/{name}", b"anything")
    entry = IndexEntry(FileKind.ADD.value, partition_of(table, dt), bucket, kind, name, 8, 1, ())
    others = [i for i in read_index_entries(table, table.latest_snapshot()) if _bucket_of(i) != _bucket_of(entry)]
    draft = Draft(kind=CommitKind.COMPACT, entries=[], index_entries=[*others, entry], schema=table.schema())
    committed = commit(table, lambda head: draft).snapshot
    assert committed is not None
    return committed


def _bucket_of(index: IndexEntry) -> tuple[bytes, int, str]:
    return index.partition, index.bucket, index.index_type


def indexes(table: Table) -> set[str]:
    return {i.file_name for i in read_index_entries(table, table.latest_snapshot())}


def only(table: Table, dt: str) -> Selection:
    return StoredPartitions(table.schema()).selection([{"dt": dt}])


def partition_of(table: Table, dt: str) -> bytes:
    return message(table, dt).partition


def names_of(table: Table, dt: str) -> set[str]:
    wanted = partition_of(table, dt)
    return {name for (partition, _), group in files(table).items() for name in group if partition == wanted}


# -- a failing clean-up hides nothing ----------------------------------------------------------------------------------


def test_a_full_disk_under_a_manifest_is_a_storage_error(table: Table) -> None:
    """The manifest may be there or not; the snapshot was not tried, so the outcome is known."""
    append(table, "a")
    full = OSError(errno.ENOSPC, "No space left on device")
    new = message(table, "b")
    for fail_at in (1, 2, 3):
        faulty = Table(FaultStore(table.store, fail_at, error=full, after=True), table.name)
        with pytest.raises(StorageError, match="nothing was published"):
            commit_append(faulty, [new], planned_on=table.latest_snapshot())
    assert table.snapshot_ids() == [1]


def test_a_failing_clean_up_does_not_hide_the_cause(table: Table) -> None:
    append(table, "a")
    new = message(table, "b")
    before = set(table.store.names("manifest"))

    def fail(method: str, path: str) -> None:
        if method == "create" and "snapshot-" in path:
            raise StorageError("No space left on device")
        if method == "delete":
            raise OutcomeUnknownError("connection lost")

    with pytest.raises(StorageError, match="No space left"):
        commit_append(
            Table(FaultStore(table.store, on_mutation=fail), table.name), [new], planned_on=table.latest_snapshot()
        )
    assert set(table.store.names("manifest")) > before  # not cleaned up, and nobody minds


# -- an unknown outcome, and a foreign snapshot under the id -----------------------------------------------------------


def test_manifests_stay_when_the_outcome_is_unknown_and_the_id_is_somebody_elses(table: Table) -> None:
    append(table, "a")
    staged: list[str] = []

    def compete(method: str, path: str) -> None:
        if method == "create" and path.startswith("manifest/"):
            staged.append(path)
        if method == "create" and path.endswith("snapshot-2") and len(table.snapshot_ids()) == 1:
            append(table, "b")
            raise OutcomeUnknownError("connection lost")

    view = Table(FaultStore(table.store, on_mutation=compete), table.name)
    receipt = commit_append(view, [message(table, "c")], planned_on=table.latest_snapshot())
    assert (receipt.snapshot.id, receipt.attempts) == (3, 2)
    assert len(names(table)) == 3
    assert all(table.store.exists(path) for path in staged), "the first attempt's manifests were deleted"


@pytest.mark.parametrize("compacted", [False, True])
def test_what_a_newer_snapshot_holds_already_is_not_committed_again(table: Table, compacted: bool) -> None:
    """Ours landed, somebody committed on top of it, then another engine's rename replaced ours.

    Compacted: our rows are there, and our file is not live any more.
    """
    append(table, "a")

    def after(method: str, path: str) -> None:
        if method == "create" and path.endswith("snapshot-2"):
            rewrite(table, "c") if compacted else append(table, "b")
            replace_by_foreign(table, 2)
            raise OutcomeUnknownError("connection lost")

    with pytest.raises(OutcomeUnknownError, match="a newer one has its files"):
        commit_append(seen_by(table, after), [message(table, "c")], planned_on=table.latest_snapshot())
    assert table.latest_snapshot_id() == 3
    assert len(names(table)) == (2 if compacted else 3)
    assert all(table.store.exists(f"manifest/{m.file_name}") for m in all_manifests(table, table.snapshot(3)))


# -- one answer about expired history ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tried_twice", [False, True])
def test_the_committer_and_a_retry_agree_about_expired_history(table: Table, tried_twice: bool) -> None:
    """Only where no other try of the operation was made is it certain that none has landed in what is expired."""
    for dt in "abc":
        append(table, dt)
    table.store.delete("snapshot/snapshot-2")
    mine = CommitIdentity(user="op", identifier=7, since=SnapshotRef(1), retry_mark="_airflow_paimon/retried/op")
    if tried_twice:
        put_new(table, "_airflow_paimon/retried/op", b"")
        with pytest.raises(OutcomeUnknownError, match="snapshot 2"):
            find_committed(table, mine, SnapshotRef(1))
        with pytest.raises(OutcomeUnknownError, match="snapshot 2"):
            commit_append(
                table, [message(table, "d")], CommitOptions(identity=mine), planned_on=table.latest_snapshot()
            )
        assert table.latest_snapshot_id() == 3
    else:
        assert find_committed(table, mine, SnapshotRef(1)) is None
        done = commit_append(
            table, [message(table, "d")], CommitOptions(identity=mine), planned_on=table.latest_snapshot()
        )
        assert done.snapshot.id == 4
    # what is still there is found whatever else is expired
    anew = replace(mine, since=None)
    found = commit_append(
        table, [message(table, "e")], CommitOptions(identity=anew), planned_on=table.latest_snapshot()
    )
    assert find_committed(table, mine, SnapshotRef(0)).id == found.snapshot.id


def test_what_has_expired_since_a_rollback_by_another_engine_is_unknown(table: Table) -> None:
    for dt in "abcd":
        append(table, dt)
    known = SnapshotRef.of(table.latest_snapshot())
    for number in (3, 4):
        table.store.delete(table.paths.snapshot(number))
    mine = CommitIdentity(user="op", identifier=7)
    assert find_committed(table, mine, known) is None  # the first snapshot is there
    table.store.delete(table.paths.snapshot(1))
    assert find_committed(table, mine, known) is None  # snapshot 2 is older than the one that was known
    append(table, "c")
    table.store.delete(table.paths.snapshot(2))
    late = replace(table.snapshot(3), time_millis=known.time_millis + 1)
    table.store.replace(table.paths.snapshot(3), late.to_bytes())
    with pytest.raises(OutcomeUnknownError, match="snapshot 2"):
        find_committed(table, mine, known)


def test_a_commit_far_back_is_found(table: Table) -> None:
    mine = CommitIdentity(user="op", identifier=7)
    commit_append(table, [message(table, "a")], CommitOptions(identity=mine), planned_on=None)
    base = append(table, "b").snapshot
    assert base is not None
    for number in range(3, 150):
        table.store.create(table.paths.snapshot(number), replace(base, id=number, commit_user="other").to_bytes())
    assert find_committed(table, mine, SnapshotRef(0)).id == 1
    assert find_committed(table, mine, SnapshotRef(1)) is None


# -- an id that an expiry has made free --------------------------------------------------------------------------------


def stopped_before_its_put(table: Table, others: int) -> Table:
    """The table as a writer sees it that is stopped right before the put of its snapshot, while others commit and
    expire all but the newest snapshot.
    """
    acts = [others]

    def meanwhile(method: str, path: str) -> None:
        if method == "create" and path.startswith("snapshot/snapshot-") and acts:
            for number in range(acts.pop()):
                append(table, f"other{number}")
            run(table, "expire_snapshots", older_than="0 s", retain_min=1)

    return Table(FaultStore(table.store, on_mutation=meanwhile), table.name)


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_commit_put_under_an_expired_id_is_made_again(table: Table, earlier: int, others: int) -> None:
    for _ in range(earlier):
        append(table, "a")
    late = stopped_before_its_put(table, others)
    new = message(table, "late")
    committed = commit_append(late, [new], planned_on=late.latest_snapshot()).snapshot
    assert committed is not None
    assert (committed.id, table.latest_snapshot_id()) == (earlier + others + 1, earlier + others + 1)
    assert table.snapshot_ids() == [earlier + others, earlier + others + 1]
    assert new.new_files[0].file_name in names(table)
    assert len(names(table)) == earlier + others + 1


def test_a_retry_does_not_take_a_commit_under_an_expired_id_for_its_own(table: Table) -> None:
    """The writer was killed between its put and the look behind it."""
    mine = CommitIdentity(user="op", identifier=7)
    lost = replace(append(table, "a").snapshot, id=2, commit_user=mine.user, commit_identifier=mine.identifier)
    append(table, "b")
    append(table, "c")
    run(table, "expire_snapshots", older_than="0 s", retain_min=1, retry_window="0 s")
    table.store.create(table.paths.snapshot(2), lost.to_bytes())
    assert find_committed(table, mine, SnapshotRef(1)) is None


def test_a_commit_whose_predecessor_has_expired_is_found(table: Table) -> None:
    mine = CommitIdentity(user="op", identifier=7)
    append(table, "a")
    commit_append(table, [message(table, "b")], CommitOptions(identity=mine), planned_on=table.latest_snapshot())
    rewrite(table, "b", seq=5)
    run(table, "expire_snapshots", older_than="0 s", retain_min=2)
    assert table.snapshot_ids() == [2, 3]
    found = find_committed(table, mine, SnapshotRef(1))
    assert found is not None and found.id == 2


# -- a branch that is deleted, and made anew, while a writer plans -----------------------------------------------------


def late_writer(table: Table, meanwhile: Callable[[], object], before: str = "manifest/") -> Table:
    """The branch as a writer sees it, with somebody who acts right before its first file in a folder is written."""
    acts = [meanwhile]

    def compete(method: str, path: str) -> None:
        if method == "create" and path.startswith(before) and acts:
            acts.pop()()

    return Table(FaultStore(table.store, on_mutation=compete), table.name, "fix")


SNAPSHOTS = "branch/branch-fix/snapshot/"


@pytest.fixture
def branched(table: Table) -> Table:
    """Branch ``fix`` was made from snapshot 1 and has written snapshot 2."""
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "old")
    return table


def test_a_late_writer_does_not_revive_the_rows_of_a_branch_made_anew(branched: Table) -> None:
    fix = branched.branch("fix")

    def anew() -> None:
        run(branched, "delete_branch", branch="fix")
        run(branched, "create_branch", branch="fix", snapshot=1)

    new = message(fix, "late")
    receipt = commit_append(late_writer(branched, anew), [new], planned_on=fix.latest_snapshot())
    assert (receipt.before.id, receipt.snapshot.id) == (1, 2)
    assert len(names_of(fix, "old")) == 0
    assert (len(names_of(fix, "a")), len(names_of(fix, "late"))) == (1, 1)


def test_a_late_writer_leaves_no_snapshot_in_a_branch_that_is_gone(branched: Table) -> None:
    fix = branched.branch("fix")
    new, schema = message(fix, "late"), fix.schema()

    def draft(head: Snapshot | None) -> Draft:
        if head is None:
            fix.schema()
        return Draft(kind=CommitKind.APPEND, entries=new.entries(), schema=schema)

    gone = late_writer(branched, lambda: run(branched, "delete_branch", branch="fix"))
    with pytest.raises(NotFoundError, match="no branch 'fix'"):
        commit(gone, draft)
    assert not branched.store.walk("branch/branch-fix")


def test_a_snapshot_that_a_deleted_branch_got_is_taken_back_with_its_manifests(branched: Table) -> None:
    fix = branched.branch("fix")
    new, head = message(fix, "late"), fix.latest_snapshot()
    gone = partial(run, branched, "delete_branch", branch="fix")
    before = set(branched.store.names("manifest"))
    with pytest.raises(ConflictError, match="renamed or deleted during the commit; nothing was written"):
        commit_append(late_writer(branched, gone, SNAPSHOTS), [new], planned_on=head)
    assert not branched.store.walk("branch/branch-fix")
    assert set(branched.store.names("manifest")) <= before


def test_a_snapshot_stays_that_a_branch_got_while_it_was_deleted(branched: Table) -> None:
    """That may have been interrupted, and be taken back: who has read the snapshot may have gone on from it."""
    fix = branched.branch("fix")
    new, head = message(fix, "late"), fix.latest_snapshot()
    half_gone = partial(cut_off, branched, 2, "delete_branch", branch="fix")
    with pytest.raises(OutcomeUnknownError, match="its branch is being renamed or deleted"):
        commit_append(late_writer(branched, half_gone, SNAPSHOTS), [new], planned_on=head)
    assert new.new_files[0].file_name in names(fix)
    run(branched, "delete_branch", branch="fix")
    assert not branched.store.walk("branch/branch-fix")


# -- right after the put -----------------------------------------------------------------------------------------------


class AtPut(_Wrapper):
    """What happens at the put of snapshot 2, by the name of the case."""

    def __init__(self, inner: Store, case: str) -> None:
        super().__init__(inner)
        self._case: str | None = case
        self._unreadable = False

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if path.endswith("snapshot-2") and method in ("read", "read_many") and self._unreadable:
            raise StorageError("503 Slow Down")
        if not path.endswith("snapshot-2") or method != "create" or self._case is None:
            return action()
        case, self._case = self._case, None
        if case == "another one is first, and is rolled back":
            self.inner.create(path, self.inner.read(path.replace("-2", "-1")))
            with pytest.raises(AlreadyExistsError):
                action()
            self.inner.delete(path)
            raise AlreadyExistsError(f"{path} exists already")
        action()
        if case == "it was deleted at once":
            self.inner.delete(path)
        self._unreadable = case == "it can't be read"


def test_a_put_that_lost_to_one_that_is_gone_again_is_made_again(table: Table) -> None:
    append(table, "a")
    met = Table(AtPut(table.store, "another one is first, and is rolled back"), table.name)
    receipt = append(met, "b")
    assert (receipt.attempts, receipt.snapshot.id) == (2, 2)
    assert len(names_of(table, "b")) == 1


@pytest.mark.parametrize(
    ("case", "said"),
    [("it was deleted at once", "it is missing when it is read back"), ("it can't be read", "503 Slow Down")],
)
def test_a_put_that_can_not_be_seen_has_an_unknown_outcome(table: Table, case: str, said: str) -> None:
    append(table, "a")
    with pytest.raises(OutcomeUnknownError, match=said):
        append(Table(AtPut(table.store, case), table.name), "b")


class AfterPut(_Wrapper):
    """Somebody acts right before one of the calls that come after the put of snapshot 3, the first of which is 1."""

    def __init__(self, inner: Store, number: int, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.number, self._act, self._acting = number, act, False
        self.calls: int | None = None

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if self.calls is not None:
            self.calls += 1
            if self.calls == self.number:
                self._act()
        result = action()
        if method == "create" and path.endswith("/snapshot-3"):
            self.calls = 0
        return result


@pytest.mark.parametrize("how", ["rename_branch", "renamed folder", "an error", "a refusal"])
def test_no_error_after_the_put_says_that_nothing_was_written(how: str) -> None:
    """Whatever happens at whichever call: what has landed is acknowledged, or its outcome is unknown."""
    number, acted = 0, True
    while acted:
        number += 1
        table = make_table(f"memory://{uuid.uuid4()}/wh")
        append(table, "a")
        run(table, "create_branch", branch="fix", snapshot=1)
        fix = table.branch("fix")
        append(fix, "old")
        new = message(fix, "new")

        def act(table: Table = table) -> None:
            match how:
                case "rename_branch":
                    run(table, "rename_branch", branch="fix", to_branch="alt")
                case "renamed folder":
                    for path in table.store.walk("branch/branch-fix"):
                        table.store.create(path.replace("branch-fix", "branch-alt"), table.store.read(path))
                        table.store.delete(path)
                case "an error":
                    raise NotFoundError("the folder is not there")
                case _:
                    raise UnsafeOperationError("a symbolic link")

        met = AfterPut(table.store, number, act)
        with suppress(OutcomeUnknownError):
            commit_append(Table(met, table.name, "fix"), [new], planned_on=fix.latest_snapshot())
        now = table.branch("alt" if table.branch("alt").exists() else "fix")
        assert new.new_files[0].file_name in names(now), number
        acted = met.calls is not None and met.calls >= number
    assert number > 4


class Far(FaultStore):
    """A storage where each look costs, so that few are made."""

    remote = True


def test_a_branch_that_is_deleted_before_the_hint_is_written_does_not_consist_of_it(branched: Table) -> None:
    def gone(method: str, path: str) -> None:
        if method == "replace" and path.endswith("LATEST"):
            run(branched, "delete_branch", branch="fix")

    with suppress(OutcomeUnknownError):  # nor can the snapshot be verified at the end
        append(Table(Far(branched.store, on_mutation=gone), branched.name, "fix"), "late")
    assert not branched.branch("fix").exists()
    assert not branched.store.walk("branch/branch-fix")


@pytest.mark.parametrize("error", [StorageError("503 Slow Down"), OutcomeUnknownError("no answer")])
def test_a_commit_stands_whose_hint_fails(table: Table, error: Exception) -> None:
    class NoHint(_Wrapper):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            if method == "replace" and path.endswith("LATEST"):
                raise error
            return action()

    append(Table(NoHint(table.store), table.name), "a")
    assert table.snapshot_ids() == [1]


# -- a snapshot whose head is gone right after its put ---------------------------------------------------------------


def put_on(table: Table) -> tuple[Snapshot, Snapshot]:
    """Five commits: the newest is the one that was just put, on the fourth."""
    for _ in range(5):
        append(table, "a")
    return table.snapshot(4), table.snapshot(5)


def test_a_commit_on_what_another_engine_rolled_back_is_taken_back(table: Table) -> None:
    head, committed = put_on(table)
    for number in (3, 4):
        table.store.delete(table.paths.snapshot(number))
    assert take_back_misplaced(table, committed, head, None)
    assert table.snapshot_ids() == [1, 2]


def test_a_commit_stays_after_an_expiry_that_left_a_snapshot_file(table: Table) -> None:
    """Paimon's expiry to one snapshot deletes manifests first, then snapshot files, and goes on where one stays."""
    head, committed = put_on(table)
    for name in (table.snapshot(2).base_manifest_list, table.snapshot(2).delta_manifest_list):
        table.store.delete(manifest_path(name))
    for number in (1, 3, 4):
        table.store.delete(table.paths.snapshot(number))
    assert not take_back_misplaced(table, committed, head, None)
    assert table.snapshot_ids() == [2, 5] and table.snapshot(5) == committed
