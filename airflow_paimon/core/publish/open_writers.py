"""What must not be done to buckets that writers of other engines may have open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.format.hash_index import read_hash_index, same_hashes
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    bucket_namer,
    listed,
    other_keys,
    replaced_hash_indexes,
)
from airflow_paimon.core.publish.open_writers_plan import WATCHED_MS, remembers_replaced_rows, running_writers
from airflow_paimon.core.store.base import batches
from airflow_paimon.core.table.history import snapshots_there, touched
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import read_index
from airflow_paimon.core.table.table import Table

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


def open_buckets(view: Table, buckets: Collection[BucketKey], head: Snapshot, now_ms: int) -> list[OpenBucket]:
    """Return those of some buckets that a job may have open as of a snapshot of the branch, with the job.

    None where the table's writers may be open all the same (``remembers_replaced_rows``). Reads the snapshots of one
    day, and the changes of each running job's last two commits. ``now_ms``: epoch milliseconds.
    """
    schema = view.schema()
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
    """Read the snapshots of the last day; and whether earlier ones of that time have expired."""
    ids = [i for i in view.snapshot_ids() if i <= head.id]
    found: list[Snapshot] = []
    for some in batches(sorted(ids, reverse=True), _READ_AT_ONCE):
        found += snapshots_there(view, list(some))
        if any(s.time_millis < now_ms - WATCHED_MS for s in found):
            return found, False
    return found, min((s.id for s in found), default=1) > 1


def refuse_open(view: Table, changes: Iterable[BucketChange], head: Snapshot, now_ms: int, done: str) -> None:
    """Refuse to replace files of buckets that a running job may have open. ``done``: such as ``published``.

    Raises:
        UnsafeOperationError: lists the buckets with the job's commit user and its last commit there.
    """
    found = open_buckets(view, {c.bucket for c in changes if c.delete}, head, now_ms)
    if not found:
        return
    name = bucket_namer(view.schema())
    names = sorted({name(b.bucket) for b in found})
    users = sorted({b.user for b in found})
    raise UnsafeOperationError(
        f"{view.label}: a running job may have {listed(names)} open (commit user {listed(users)}), and would merge its "
        f"next rows with those that it remembers, so nothing was {done}. Wait until the job has committed twice "
        f"without rows of them; or stop it, and use writers_stopped (--writers-stopped)",
        details={
            "open_buckets": [b.to_json(name(b.bucket)) for b in found[:MAX_LISTED]],
            "open_bucket_count": len(names),
        },
    )


def refuse_other_keys(
    target: Table, changes: Sequence[BucketChange], theirs: Difference, head: Snapshot, whose: str = "the branch"
) -> None:
    """Refuse changes that give dynamic buckets other keys than they have in ``head``, the target's newest snapshot.

    ``whose``: where the changes come from, for people. Reads the hash indexes that the changes replace.

    Raises:
        UnsafeOperationError: lists the buckets.
    """
    schema = target.schema()
    replaced = replaced_hash_indexes(changes, theirs, read_index(target, head), schema)
    other = [bucket for bucket, (new, old) in replaced.items() if not _same_keys(target, new, old)]
    if other:
        raise other_keys(target.label, other, schema, whose)


def _same_keys(table: Table, new: IndexEntry | None, old: IndexEntry | None) -> bool:
    if new is None or old is None or new.row_count != old.row_count:
        return False
    entries = (new, old)
    data = table.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])
    one, other = (read_hash_index(d, e.row_count, name=e.file_name) for d, e in zip(data, entries, strict=True))
    return same_hashes(one, other)
