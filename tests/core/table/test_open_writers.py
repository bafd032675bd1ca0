"""Which buckets a streaming writer may have open, as its commits show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_paimon.core.commit.metadata_files import WRITER_VERSION
from airflow_paimon.core.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers_plan import CLOSED_AFTER, WATCHED_MS, running_writers, writer_at

MINUTE = 60_000
NOW = 100 * WATCHED_MS


def commit(number: int, user: str, identifier: int, age_ms: int, kind: CommitKind = CommitKind.APPEND) -> Snapshot:
    return Snapshot(
        id=number,
        schema_id=0,
        base_manifest_list=f"base-{number}",
        delta_manifest_list=f"delta-{number}",
        commit_user=user,
        commit_identifier=identifier,
        commit_kind=kind,
        time_millis=NOW - age_ms,
    )


def open_ids(*snapshots: Snapshot, is_cut: bool = False, write_only: bool = False) -> dict[str, list[int]]:
    found = running_writers(snapshots, now_ms=NOW, is_cut=is_cut, write_only=write_only)
    return {w.user: sorted(s.id for commits in w.commits[:CLOSED_AFTER] for s in commits) for w in found}


def test_the_last_three_commits_of_a_running_job_are_open_with_their_compactions() -> None:
    job = [commit(n, "job", n // 2, (10 - n) * MINUTE, list(CommitKind)[n % 2]) for n in range(2, 10)]
    assert open_ids(*job) == {"job": [4, 5, 6, 7, 8, 9]}


def test_each_job_counts_by_itself() -> None:
    assert open_ids(*(commit(n, "fast", n, (9 - n) * MINUTE) for n in range(1, 9)), commit(9, "slow", 3, 0)) == {
        "fast": [6, 7, 8],
        "slow": [9],
    }


@pytest.mark.parametrize(
    ("interval", "age", "runs"),
    [(1, 9, True), (1, 11, False), (5, 49, True), (5, 51, False), (600, 23 * 60, True), (600, 25 * 60, False)],
)
def test_a_job_has_ended_when_it_is_silent_for_ten_of_its_intervals(interval: int, age: int, runs: bool) -> None:
    """Minutes. At least ten of them, and at most a day."""
    job = [commit(n, "job", n, (age + (3 - n) * interval) * MINUTE) for n in (1, 2, 3)]
    assert open_ids(*job) == ({"job": [1, 2, 3]} if runs else {})


def test_one_commit_says_nothing_of_the_interval() -> None:
    assert open_ids(commit(1, "job", 1, WATCHED_MS - 1)) == {"job": [1]}
    assert open_ids(commit(1, "job", 1, WATCHED_MS + 1)) == {}


def test_batch_writers_and_this_package_leave_nothing_open() -> None:
    ours = commit(2, "ann_0e3c", 5, 0)
    ours = replace(ours, writer_version=WRITER_VERSION)
    assert open_ids(commit(1, "spark", BATCH_COMMIT_IDENTIFIER, 0), ours) == {}


def test_a_job_whose_source_came_to_its_end_leaves_nothing_open_until_it_goes_on() -> None:
    job = [commit(1, "job", 7, 3 * MINUTE), commit(2, "job", BATCH_COMMIT_IDENTIFIER, 2 * MINUTE)]
    assert open_ids(*job, is_cut=True) == {}
    assert open_ids(*job, commit(3, "job", 8, MINUTE)) == {"job": [3]}


def test_only_those_who_compact_look_rows_up_in_a_write_only_table() -> None:
    writer = [commit(n, "writer", n, 0) for n in (1, 2)]
    compactor = [commit(n, "compactor", n, 0, CommitKind.COMPACT) for n in (3, 4)]
    assert open_ids(*writer, *compactor, write_only=True) == {"compactor": [3, 4]}


def test_what_expired_may_be_the_second_last_commit() -> None:
    for is_cut in (True, False):
        (one,) = running_writers([commit(9, "job", 7, 0)], now_ms=NOW, is_cut=is_cut)
        assert one.is_complete is not is_cut


@pytest.mark.parametrize(
    ("last", "is_open", "quiet_minutes"),
    [(9, True, None), (7, True, None), (6, False, 1), (5, False, 2), (None, False, 5)],
)
def test_since_when_a_job_has_left_buckets_alone(last: int | None, is_open: bool, quiet_minutes: int | None) -> None:
    """One commit a minute, the newest (9) a minute ago: three later ones have closed the bucket of commit 6 by then.
    What was not looked at (before 3) may have changed it.
    """
    job = [commit(n, "job", n, (10 - n) * MINUTE) for n in range(1, 10)]
    (writer,) = running_writers(job, now_ms=NOW, is_cut=False)
    bucket, other = BucketKey(b"p", 0), BucketKey(b"p", 1)
    changed = {n: {bucket, other} if n == last else {other} for n in range(3, 10)}
    found = writer_at(writer, {bucket}, changed)
    assert {b: s.id for b, s in found.open.items() if s is not None} == ({bucket: last} if is_open else {})
    since = None if quiet_minutes is None else NOW - quiet_minutes * MINUTE
    assert (found.newest.id, found.quiet_since_ms) == (9, since)


def test_what_is_not_known_of_a_job_may_be_open() -> None:
    bucket = BucketKey(b"p", 0)
    (cut,) = running_writers([commit(9, "job", 7, 0)], now_ms=NOW, is_cut=True)
    assert writer_at(cut, {bucket}, {9: set()}).open == {bucket: None}
    (whole,) = running_writers([commit(9, "job", 7, 0)], now_ms=NOW, is_cut=False)
    assert writer_at(whole, {bucket}, {9: set()}).quiet_since_ms == NOW
    assert writer_at(whole, {bucket}, {9: None}).open[bucket] is not None
