"""Which buckets a streaming writer of another engine may still have open, as far as the snapshots show.

A Flink job closes its writer of a bucket once two of its checkpoints brought no rows of that bucket. After a restart it
opens the bucket again, if its last checkpoint had it open, and its first commit closes nothing; the snapshots don't
show restarts. Until then it goes on from the files that it knew, whatever has replaced them. Measured with Flink 2.0.1
and Paimon 1.4.2 (docs/howto/flink-tables.md, Open writers): in tables whose compactions look rows up, the replaced rows
come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.merge_options import looks_up
from airflow_paimon.core.table.options import TableOptions

CLOSED_AFTER = 3
"""Commits of a job without rows of a bucket, after which its writer of the bucket is closed, also if it was restarted
once.
"""
LOOKED_BACK = 10
"""Commits of a job that tell since when it has left a bucket alone."""
ENDED_AFTER_INTERVALS = 10
ENDED_AFTER_MS = 10 * 60_000
"""A job that has not committed for ten of its intervals, and for ten minutes, has ended."""
WATCHED_MS = 24 * 3_600_000
"""Nothing is known of a job that commits less often than once a day. Whoever has not for so long has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCommits:
    """A streaming writer that may be running, and its commits, one tuple for each identifier, the newest first.

    What the first ``CLOSED_AFTER`` of them changed may still be open. ``is_complete``: as many are known, or there are
    no others, so nothing else is.
    """

    user: str
    commits: tuple[tuple[Snapshot, ...], ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterAtBuckets:
    """A running job, and some buckets.

    ``open``: those of them that it may have open, with its last commit that changed each; None: that has expired.
    ``quiet_since_ms``: no later than then it had closed all of them (epoch milliseconds); None: it has not.
    """

    user: str
    newest: Snapshot
    open: Mapping[BucketKey, Snapshot | None]
    quiet_since_ms: int | None


def writer_at(
    writer: WriterCommits, buckets: Collection[BucketKey], changed: Mapping[int, Collection[BucketKey] | None]
) -> WriterAtBuckets:
    """Return which of some buckets a job may have open.

    ``changed``: the buckets that its commits changed, by snapshot id, None where that can't be known: of
    ``CLOSED_AFTER`` identifiers at least, and of those before that are to tell since when it left the buckets alone.
    """
    wanted = frozenset(buckets)

    def touched(snapshot: Snapshot) -> frozenset[BucketKey]:
        found = changed[snapshot.id]
        return wanted if found is None else wanted.intersection(found)

    known = [commits for commits in writer.commits if all(s.id in changed for s in commits)]
    still_open: dict[BucketKey, Snapshot | None] = {} if writer.is_complete else dict.fromkeys(wanted)
    for snapshot in sorted((s for commits in known[:CLOSED_AFTER] for s in commits), key=lambda s: s.id):
        still_open |= dict.fromkeys(touched(snapshot), snapshot)
    last = next((n for n, commits in enumerate(known) if any(map(touched, commits))), len(known))
    closed = max(s.time_millis for s in known[max(0, last - CLOSED_AFTER)])
    return WriterAtBuckets(
        user=writer.user,
        newest=max(writer.commits[0], key=lambda s: s.id),
        open=still_open,
        quiet_since_ms=None if still_open else closed,
    )


def remembers_replaced_rows(schema: TableSchema) -> bool:
    """Whether an open writer of the table merges later rows with what it remembers of replaced files.

    That is so where compactions look rows up (Java's ``CoreOptions.needLookup``).
    """
    first_row = TableOptions(schema.options).merge_engine == "first-row"
    return bool(schema.primary_keys) and (first_row or looks_up(schema))


def is_streamed(snapshot: Snapshot) -> bool:
    """Whether a checkpoint of another engine's streaming job has made a snapshot."""
    return snapshot.commit_identifier != BATCH_COMMIT_IDENTIFIER and not snapshot.is_by_this_package


def running_writers(
    snapshots: Iterable[Snapshot], *, now_ms: int, is_cut: bool, write_only: bool = False
) -> list[WriterCommits]:
    """Return the streaming writers of other engines that may be running, with their commits.

    A batch writer (identifier 2^63 - 1) has closed its buckets with its commit, and so has this package. A streaming
    job over a source with an end commits its last rows so, too (Java's ``END_INPUT_CHECKPOINT_ID``): it has ended.
    Writers of a ``write_only`` table look nothing up: only those that compact count.

    Args:
        snapshots: of the branch, those of the last ``WATCHED_MS`` at least.
        now_ms: epoch milliseconds.
        is_cut: whether earlier snapshots have expired.
    """
    by_user: dict[str, list[Snapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda s: s.id):
        if snapshot.commit_identifier == BATCH_COMMIT_IDENTIFIER:
            by_user.pop(snapshot.commit_user, None)
        elif not snapshot.is_by_this_package:
            by_user.setdefault(snapshot.commit_user, []).append(snapshot)
    found = []
    for user, own in by_user.items():
        if _has_ended(own, now_ms) or (write_only and all(s.commit_kind != CommitKind.COMPACT for s in own)):
            continue
        identifiers = sorted({s.commit_identifier for s in own}, reverse=True)
        commits = tuple(tuple(s for s in own if s.commit_identifier == i) for i in identifiers[:LOOKED_BACK])
        is_complete = len(identifiers) >= CLOSED_AFTER or not is_cut
        found.append(WriterCommits(user=user, commits=commits, is_complete=is_complete))
    return found


def _has_ended(own: Sequence[Snapshot], now_ms: int) -> bool:
    age = now_ms - own[-1].time_millis
    times = sorted({s.commit_identifier: s.time_millis for s in own}.values())
    longest = max((later - earlier for earlier, later in pairwise(times)), default=None)
    if longest is None:  # its interval isn't known yet
        return age > WATCHED_MS
    return age > min(WATCHED_MS, max(ENDED_AFTER_MS, ENDED_AFTER_INTERVALS * longest))
