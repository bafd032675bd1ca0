"""Buckets that a running job of another engine may have open, so that nobody should replace their files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.errors import UnsafeOperationError, first_few
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store.base import batches
from airflow_paimon.core.table.history import greatest_shared, snapshots_there, touched
from airflow_paimon.core.table.lineage import verified_lineage
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers_plan import WATCHED_MS, remembers_replaced_rows, running_writers
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
        last = self.last
        time = None if last is None else datetime.fromtimestamp(last.time_millis / 1000, UTC).isoformat()
        return {"bucket": name, "commit_user": self.user, "snapshot": last.id if last else None, "time": time}


def open_buckets(
    view: Table, schema: TableSchema, buckets: Collection[BucketKey], head: Snapshot, now_ms: int
) -> list[OpenBucket]:
    """Return those of some buckets that a job may have open as of a snapshot of the branch, with the job.

    It is empty where open writers do no harm (``remembers_replaced_rows``). Reads the snapshots of one day, and the
    changes of each running job's last two commits. ``schema``: the branch's; ``now_ms``: epoch milliseconds.
    """
    if not buckets or not remembers_replaced_rows(schema):
        return []
    snapshots, is_cut = _recent(view, head, now_ms)
    write_only = TableOptions(schema.options).flag("write-only")
    found: dict[tuple[BucketKey, str], OpenBucket] = {}
    for writer in running_writers(snapshots, now_ms=now_ms, is_cut=is_cut, write_only=write_only):
        if not writer.is_complete:
            found |= {(b, writer.user): OpenBucket(bucket=b, user=writer.user, last=None) for b in buckets}
        for snapshot in writer.newest:
            changed = touched(view, [snapshot])
            for bucket in buckets if changed is None else changed.intersection(buckets):
                found[bucket, writer.user] = OpenBucket(bucket=bucket, user=writer.user, last=snapshot)
    return sorted(found.values(), key=lambda b: (b.bucket, b.user))


def _recent(view: Table, head: Snapshot, now_ms: int) -> tuple[list[Snapshot], bool]:
    """Read the branch's own snapshots of the last day; and whether earlier ones of that time have expired."""
    began = began_with(view)
    ids = [i for i in view.snapshot_ids() if began < i <= head.id]
    found: list[Snapshot] = []
    for some in batches(sorted(ids, reverse=True), _READ_AT_ONCE):
        found += snapshots_there(view, list(some))
        if any(s.time_millis < now_ms - WATCHED_MS for s in found):
            return found, False
    return found, min((s.id for s in found), default=began + 1) > began + 1


def began_with(view: Table) -> int:
    """Return the snapshot with which a branch began, 0 for none: the jobs up to it write the branch it came from."""
    if view.branch_name == MAIN:
        return 0
    main = view.branch(MAIN)
    lineage = verified_lineage(main, view.branch_name)
    if lineage is not None:
        return lineage.snapshot_id or 0
    shared = greatest_shared(main, view)  # another engine has made the branch
    return shared.id if shared is not None else 0


def refuse_open(
    view: Table, schema: TableSchema, buckets: Collection[BucketKey], head: Snapshot, now_ms: int, done: str
) -> None:
    """Refuse to replace files of buckets that a running job may have open. ``done``: such as ``published``.

    Raises:
        UnsafeOperationError: lists the buckets with the job's commit user and its last commit there.
    """
    found = open_buckets(view, schema, buckets, head, now_ms)
    if not found:
        return
    text = StoredPartitions(schema).text
    names = {b.bucket: f"{text(b.bucket.partition)}/bucket-{b.bucket.bucket}".lstrip("/") for b in found}
    users = first_few(sorted({b.user for b in found}), _LISTED)
    listed = first_few(sorted(names.values()), _LISTED)
    raise UnsafeOperationError(
        f"{view.label}: a running job may have {listed} open (commit user {users}), "
        f"and would merge its next rows with those that it remembers, so nothing was {done}. Wait until the job has "
        f"committed twice without rows of them; or stop it, and use writers_stopped (--writers-stopped)",
        details={
            "open_buckets": [b.to_json(names[b.bucket]) for b in found[:_LISTED]],
            "open_bucket_count": len(names),
        },
    )
