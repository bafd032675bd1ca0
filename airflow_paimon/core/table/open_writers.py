"""Buckets that a running job of another engine may have open, so that nobody should replace their files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_paimon.core.errors import UnsafeOperationError, first_few
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.store.base import batches, run_parallel
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.core.table.history import existing_snapshots, last_shared_snapshot, touched_buckets
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers_plan import (
    CLOSED_AFTER,
    LOOKED_BACK,
    WATCHED_MS,
    WriterAtBuckets,
    is_streamed,
    remembers_replaced_rows,
    running_writers,
    writer_at,
)
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

_LISTED = 20
_READ_AT_ONCE = 64
"""Snapshots: most histories of a day are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBucket:
    """A bucket that a running job may have open. ``last``: the job's newest commit that changed it; None: not known,
    as the job's earlier commits have expired.
    """

    bucket: BucketKey
    user: str
    last: Snapshot | None

    def to_json(self, name: str) -> dict[str, Any]:
        """Return it as JSON values, with the bucket's name for people and the time of the commit in UTC."""
        return {"bucket": name, "commit_user": self.user, **_commit_json(self.last)}


def open_buckets(
    view: Table,
    schema: TableSchema,
    buckets: Collection[BucketKey],
    head: Snapshot,
    now_ms: int,
    stopped_at: SnapshotRef | None = None,
) -> list[OpenBucket]:
    """Return those of some buckets that a job may have open as of a snapshot of the branch, with the job.

    It is empty where open writers do no harm (``remembers_replaced_rows``). Reads the snapshots of one day, and the
    changes of each running job's last commits. ``schema``: the branch's; ``now_ms``: epoch milliseconds.
    ``stopped_at``: all jobs were stopped at this head, so only those that have committed since are running.
    """
    if not buckets or not remembers_replaced_rows(schema):
        return []
    if stopped_at is not None and stopped_at.is_of(head):
        return []
    writers = _writers(view, schema, buckets, head, now_ms, look_back=CLOSED_AFTER)
    if stopped_at is not None and stopped_at.id <= head.id:
        there = view.find_snapshot(stopped_at.id) if stopped_at.id > 0 else None
        if there is None or stopped_at.is_of(there):  # else the branch was rolled back below it
            writers = [w for w in writers if w.newest.id > stopped_at.id]
    return _opened(writers)


def describe_writers(
    view: Table, schema: TableSchema, buckets: Collection[BucketKey], head: Snapshot | None, now_ms: int
) -> dict[str, Any]:
    """Say, as JSON values, which running jobs may have some buckets open whose files are to be replaced, and what that
    means; or since when (at least) they have left these alone. Reads snapshots and some of their changes.

    ``effect``: ``refused`` (see ``refuse_open``), ``restart`` (the job's next compaction fails), or None. ``note``: a
    sentence for people, empty if no job is running. ``now_ms``: epoch milliseconds.
    """
    writers = [] if head is None else _writers(view, schema, buckets, head, now_ms, look_back=LOOKED_BACK)
    found, names = _opened(writers), StoredPartitions(schema).bucket_text
    users = [w.user for w in writers if w.open]
    if not schema.primary_keys and TableOptions(schema.options).bucket == -1:
        users = [w.user for w in writers]  # its job looks at the files of all partitions, and remembers them
    harm = "refused" if remembers_replaced_rows(schema) else "restart"
    quiet = max((w.quiet_since_ms or 0 for w in writers), default=0) if not users else 0
    return {
        "effect": harm if users else None,
        "note": _note(harm, users, sorted({names(b.bucket) for b in found}), writers, quiet),
        "quiet_since": utc_text(quiet) if quiet else None,
        "jobs": [
            {"commit_user": w.user, **_commit_json(w.newest)}
            | {"quiet_since": None if w.quiet_since_ms is None else utc_text(w.quiet_since_ms)}
            for w in writers
        ],
        "open_buckets": [b.to_json(names(b.bucket)) for b in found[:_LISTED]],
        "open_bucket_count": len({b.bucket for b in found}),
    }


def _note(
    harm: str, users: Sequence[str], names: Sequence[str], writers: Sequence[WriterAtBuckets], quiet_ms: int
) -> str:
    if not writers:
        return ""
    if not users:
        jobs = first_few(sorted(w.user for w in writers), _LISTED)
        return (
            f"running jobs (commit user {jobs}) have left these buckets alone since {utc_text(quiet_ms)}, or longer; "
            f"rows that they have read and not committed yet don't show"
        )
    who, what = first_few(sorted(users), _LISTED), first_few(names, _LISTED) if names else "these files"
    if harm == "refused":
        return (
            f"a running job (commit user {who}) may have {what} open: as long as it does, their files can't be "
            f"replaced, unless it is stopped (writers_stopped)"
        )
    return (
        f"a running job (commit user {who}) may have {what} open: its next compaction fails with 'File deletion "
        f"conflicts detected', and it restarts from its last checkpoint. Nothing is lost, but it needs a restart "
        f"strategy. With the table option write-only and a separate batch compaction that does not happen"
    )


def _opened(writers: Sequence[WriterAtBuckets]) -> list[OpenBucket]:
    found = (OpenBucket(bucket=b, user=w.user, last=last) for w in writers for b, last in w.open.items())
    return sorted(found, key=lambda b: (b.bucket, b.user))


def _commit_json(snapshot: Snapshot | None) -> dict[str, Any]:
    time = None if snapshot is None else utc_text(snapshot.time_millis)
    return {"snapshot": snapshot.id if snapshot else None, "time": time}


def _writers(
    view: Table,
    schema: TableSchema,
    buckets: Collection[BucketKey],
    head: Snapshot,
    now_ms: int,
    *,
    look_back: int,
) -> list[WriterAtBuckets]:
    """``look_back``: of how many commits of each job the changes are read."""
    snapshots, is_cut = _recent(view, head, now_ms, whole=remembers_replaced_rows(schema))
    write_only = TableOptions(schema.options).write_only
    running = running_writers(snapshots, now_ms=now_ms, is_cut=is_cut, write_only=write_only)
    looked_at = [s for writer in running for commits in writer.commits[:look_back] for s in commits]
    changes = run_parallel(view.store, [partial(touched_buckets, view, [s]) for s in looked_at])
    changed = dict(zip((s.id for s in looked_at), changes, strict=True))
    return [writer_at(writer, buckets, changed) for writer in running]


def streaming_users(view: Table, since: Snapshot, head: Snapshot) -> list[str]:
    """Return the commit users of other engines' streaming jobs among a branch's newest snapshots, after ``since``."""
    ids = range(max(since.id + 1, head.id - _READ_AT_ONCE), head.id)
    return sorted({s.commit_user for s in [*existing_snapshots(view, list(ids)), head] if is_streamed(s)})


def _recent(view: Table, head: Snapshot, now_ms: int, *, whole: bool) -> tuple[list[Snapshot], bool]:
    """Read the branch's own snapshots of the last day; and whether earlier ones of that time have expired.

    Not ``whole``: some of the newest, where a job that is overlooked does no harm.
    """
    began = began_with(view)
    ids = [i for i in view.snapshot_ids() if began < i <= head.id]
    found: list[Snapshot] = []
    for some in batches(sorted(ids, reverse=True), _READ_AT_ONCE):
        found += existing_snapshots(view, list(some))
        if not whole or any(s.time_millis < now_ms - WATCHED_MS for s in found):
            return found, False
    return found, min((s.id for s in found), default=began + 1) > began + 1


def began_with(view: Table) -> int:
    """Return the snapshot with which a branch began, 0 for none: the jobs up to it write the branch it came from."""
    if view.branch_name == MAIN:
        return 0
    main = view.branch(MAIN)
    record = matching_branch_record(main, view.branch_name)
    if record is not None:
        return record.snapshot_id or 0
    shared = last_shared_snapshot(main, view)  # another engine has made the branch
    return shared.id if shared is not None else 0


def refuse_open(
    view: Table,
    schema: TableSchema,
    buckets: Collection[BucketKey],
    head: Snapshot,
    now_ms: int,
    done: str,
    stopped_at: SnapshotRef | None = None,
) -> None:
    """Refuse to replace files of buckets that a running job may have open. ``done``: such as ``published``;
    ``stopped_at``: see ``open_buckets``.

    Raises:
        UnsafeOperationError: lists the buckets with the job's commit user and its last commit there.
    """
    found = open_buckets(view, schema, buckets, head, now_ms, stopped_at)
    if not found:
        return
    way_out = (
        "Wait until the job has committed three times without rows of them; or stop it, and use writers_stopped "
        "(--writers-stopped), or wait ten of its commit intervals, at least ten minutes"
        if stopped_at is None
        else f"It is not stopped: it has committed since this operation began with snapshot {stopped_at.id}. Stop it, "
        f"and run this again, as a new operation"
    )
    name = StoredPartitions(schema).bucket_text
    names = {b.bucket: name(b.bucket) for b in found}
    users = first_few(sorted({b.user for b in found}), _LISTED)
    listed = first_few(sorted(names.values()), _LISTED)
    raise UnsafeOperationError(
        f"{view.label}: a running job may have {listed} open (commit user {users}), and its next commit could undo "
        f"this, so nothing was {done}. {way_out}",
        code="open-writer",
        details={
            "open_buckets": [b.to_json(names[b.bucket]) for b in found[:_LISTED]],
            "open_bucket_count": len(names),
        },
    )
