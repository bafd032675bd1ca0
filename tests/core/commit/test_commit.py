"""The committer: one winner per snapshot id, retries, conflicts, replays, nothing cleaned up after doubt."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.commit.committed import find_committed, verify_committed
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Draft
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_overwrite, drop_partitions
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    UnsupportedStorageError,
)
from airflow_paimon.core.format.snapshot import CommitKind, SnapshotRef
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.table import Table, open_table
from tests.core.tables import append, files, make_table, message, names, overwrite, rewrite
from tests.stores import RivalledStore


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "wh")


def test_append_publishes_the_next_snapshot(table: Table) -> None:
    first = append(table, "a")
    second = append(table, "b")
    assert (first.snapshot.id, second.snapshot.id) == (1, 2)
    assert second.snapshot.commit_kind is CommitKind.APPEND
    assert second.snapshot.total_record_count == 2
    assert table.latest_snapshot() == second.snapshot
    assert table.store.read("snapshot/LATEST") == b"2"
    assert len(names(table)) == 2


def test_nothing_to_append_commits_nothing(table: Table) -> None:
    receipt = commit_append(table, [], planned_on=None)
    assert not receipt.changed
    assert table.snapshot_ids() == []


def test_static_overwrite_replaces_only_its_partition(table: Table) -> None:
    append(table, "a")
    append(table, "b")
    before = files(table)
    receipt = overwrite(table, "a", rows=5)
    after = files(table)
    assert receipt.snapshot.commit_kind is CommitKind.OVERWRITE
    assert receipt.snapshot.delta_record_count == 4
    changed = {k for k in before if before[k] != after.get(k)}
    assert len(changed) == 1
    assert len(after) == 2


def test_dynamic_overwrite_without_rows_does_nothing(table: Table) -> None:
    append(table, "a")
    assert not commit_overwrite(table, [], partitions="dynamic").changed
    dynamic = commit_overwrite(table, [message(table, "a", rows=3)], partitions="dynamic")
    assert dynamic.snapshot.total_record_count == 3


def test_static_overwrite_without_rows_empties_the_partition(table: Table) -> None:
    append(table, "a")
    append(table, "b")
    commit_overwrite(table, [], partitions=[{"dt": "a"}])
    assert len(names(table)) == 1


def test_rows_outside_the_overwritten_partition_are_refused(table: Table) -> None:
    append(table, "a")
    with pytest.raises(InvalidInputError, match="dt=b"):
        commit_overwrite(table, [message(table, "b")], partitions=[{"dt": "a"}])
    assert table.snapshot_ids() == [1]


def test_drop_partitions(table: Table) -> None:
    append(table, "a")
    append(table, "b")
    assert drop_partitions(table, [{"dt": "a"}]).changed
    assert not drop_partitions(table, [{"dt": "a"}]).changed
    assert len(names(table)) == 1
    with pytest.raises(InvalidInputError):
        drop_partitions(table, [{"nope": "a"}])


def test_a_rewritten_bucket_that_changed_meanwhile_is_a_conflict(table: Table) -> None:
    append(table, "a")
    stale = message(table, "a", level=5)
    seen = tuple(e.file for e in live_entries(table, table.latest_snapshot()).values())
    append(table, "a", seq=5)
    late = CommitMessage(partition=stale.partition, bucket=0, total_buckets=2, new_files=stale.new_files, replaced=seen)
    with pytest.raises(ConflictError, match="dt=a"):
        commit_buckets(table, [late])
    assert table.snapshot_ids() == [1, 2]


def test_an_empty_bucket_of_a_partition_that_was_rescaled_meanwhile_is_a_conflict(table: Table) -> None:
    """Its fence holds, as it is empty before and after; its rows would be in two buckets."""
    append(table, "a")
    mine = message(table, "a", 1)
    theirs = replace(message(table, "a", 3), total_buckets=4)
    commit_overwrite(table, [theirs], partitions=[{"dt": "a"}])
    with pytest.raises(ConflictError, match="rescaled to 4 buckets"):
        commit_buckets(table, [mine])
    assert commit_buckets(table, [replace(mine, total_buckets=4)]).changed


def test_equal_sequence_numbers_of_two_writers_are_a_conflict(table: Table) -> None:
    append(table, "a", seq=0)
    planned = table.latest_snapshot()
    mine = message(table, "a", seq=1)
    append(table, "a", seq=1)
    with pytest.raises(ConflictError, match="sequence numbers"):
        commit_append(table, [mine], planned_on=planned)
    other_bucket = message(table, "a", 1, seq=1)
    assert commit_append(table, [other_bucket], planned_on=planned).changed


def test_a_lost_race_is_planned_again_on_the_new_head(table: Table) -> None:
    seen: list[int] = []

    def draft(head):
        seen.append(head.id if head else 0)
        if len(seen) == 1:
            append(table, "b")  # somebody is faster
        entries = [e for m in [message(table, "a")] for e in m.entries()]
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=table.schema())

    receipt = commit(table, draft)
    assert seen == [0, 1]
    assert receipt.snapshot.id == 2
    assert len(names(table)) == 2
    manifests = {m.file_name for s in table.snapshots() for m in all_manifests(table, s)}
    on_disk = {n for n in table.store.names("manifest") if not n.startswith("manifest-list")}
    assert on_disk == manifests, "the manifests of the lost attempt are gone, those of the winners are there"


def test_attempts_are_bounded(table: Table) -> None:
    late = Table(RivalledStore(table.store, lambda number: append(table, f"b{number}"), 3), table.name)
    draft = Draft(kind=CommitKind.APPEND, entries=message(table, "a").entries(), schema=table.schema())

    with pytest.raises(ConflictError, match="3 attempts"):
        commit(late, lambda _: draft, CommitOptions(max_attempts=3))
    assert len(names(table)) == 3
    named = {n for s in table.snapshots() for n in (s.base_manifest_list, s.delta_manifest_list)}
    named |= {m.file_name for s in table.snapshots() for m in all_manifests(table, s)}
    assert set(table.store.names("manifest")) == named, "nothing of the lost attempts stays"


def test_find_landed_and_expired_history(table: Table) -> None:
    mine = CommitIdentity(user="op-1", identifier=7)
    commit_append(table, [message(table, "a")], CommitOptions(identity=mine), planned_on=None)
    append(table, "b")
    assert find_committed(table, mine, after=SnapshotRef(0)).id == 1
    assert find_committed(table, CommitIdentity(user="op-2", identifier=7), after=SnapshotRef(0)) is None
    table.store.delete("snapshot/snapshot-1")
    with pytest.raises(OutcomeUnknownError, match="op-1"):
        find_committed(table, mine, after=SnapshotRef(0))
    assert find_committed(table, mine, after=SnapshotRef(1)) is None


def test_a_snapshot_that_another_engine_replaced_is_reported(table: Table) -> None:
    receipt = append(table, "a")
    verify_committed(table, receipt.snapshot)
    foreign = receipt.snapshot.to_bytes().replace(receipt.snapshot.uuid.encode(), b"0" * 36)
    table.store.replace("snapshot/snapshot-1", foreign)
    with pytest.raises(OutcomeUnknownError, match="another engine"):
        verify_committed(table, receipt.snapshot)


def test_storage_without_put_if_absent_refuses_by_name(tmp_path: Path) -> None:
    make_table(tmp_path / "wh")
    (tmp_path / "wh2").mkdir()
    remote = open_table(path=f"file://{tmp_path}/wh/d.db/t")
    assert remote.store.commits_refused is None
    simple = open_table(path="ftp://example.invalid/d.db/t")
    with pytest.raises(UnsupportedStorageError, match="ftp"):
        commit_append(simple, [message(remote, "a")], planned_on=None)


@pytest.mark.parametrize("hint", [b"99", b"1", b"", b"garbage", b"-1", None])
def test_a_lying_latest_hint_changes_nothing(table: Table, hint: bytes | None) -> None:
    append(table, "a")
    append(table, "b")
    if hint is None:
        table.store.delete("snapshot/LATEST")
    else:
        table.store.replace("snapshot/LATEST", hint)
    assert table.latest_snapshot().id == 2
    assert table.hinted_snapshot().id == 2
    assert append(table, "c").snapshot.id == 3


def test_a_gap_hides_nothing_and_is_not_filled(table: Table) -> None:
    for dt in "abcd":
        append(table, dt)
    table.store.delete("snapshot/snapshot-3")
    table.store.replace("snapshot/LATEST", b"2")
    assert table.latest_snapshot().id == 4
    assert append(table, "e").snapshot.id == 5


def test_many_small_manifests_are_merged_and_nothing_is_lost(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", **{"manifest.merge-min-count": "5"})
    expected: set[str] = set()
    for i in range(23):
        receipt = overwrite(table, "x", seq=i) if i % 3 == 0 else append(table, f"p{i}", seq=i)
        assert receipt.changed
    expected = names(table)
    assert len(expected) == 16
    assert len(all_manifests(table, table.latest_snapshot())) < 8


def test_compaction_kind_and_totals(table: Table) -> None:
    append(table, "a", rows=3)
    receipt = rewrite(table, "a", kind=CommitKind.COMPACT)
    assert receipt.snapshot.commit_kind is CommitKind.COMPACT
    assert receipt.snapshot.total_record_count == 1


def test_threads_share_a_store(table: Table) -> None:
    threads = [threading.Thread(target=append, args=(table, f"p{i}")) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(table)) == 6
