"""Whether a publication stands on a newer head, so that it keeps up with writers that never pause.

Planning reads all changes since the branch point, or the publish, and a merge by key the rows of its buckets: a writer
that commits faster than that would win every race for the next snapshot id. So of a newer head only what the other
commits changed is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.errors import FormatError, LostMetadataError, NotFoundError
from airflow_paimon.core.format.manifest import FileId, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    compactions_show_nothing,
    key_group,
    neutral_kinds,
    sharing_keys,
)
from airflow_paimon.core.table.history import snapshots_between
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_deltas
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBuckets:
    """Buckets that were merged by key, on the head on which the publication is to be based.

    ``buckets``: all that were read; ``changes``: of those that get new files. ``later``: the files that others have
    added to these since, all on level 0, so above the new ones. ``meets``: whether such files hold a key that the
    branch changed. ``copy``: copies a file of level 0; None: it is gone, or can't be copied.
    """

    buckets: frozenset[BucketKey]
    changes: Mapping[BucketKey, BucketChange]
    meets: Callable[[Sequence[ManifestEntry]], bool]
    copy: Callable[[ManifestEntry], ManifestEntry | None]
    later: Mapping[FileId, ManifestEntry] = field(default_factory=dict)

    def after(
        self, rows: Sequence[ManifestEntry], moved: Sequence[ManifestEntry], schema: TableSchema
    ) -> MergedBuckets | None:
        """Take in rows of other keys, and compactions of the buckets; None: something else was changed. See
        ``Unchanged.after``.

        What a compaction made goes with the files that were merged. Its rows are in the new files already, but for
        those of later files that it has taken in: copies of these come back to level 0.
        """
        if any(e.kind == FileKind.DELETE or e.file.level > 0 for e in rows) or (rows and self.meets(rows)):
            return None
        bucket_of = StoredPartitions(schema).bucket
        later = {**self.later, **{e.identifier: e for e in rows if bucket_of(e) in self.changes}}
        moved = [e for e in moved if bucket_of(e) in self.changes]
        if not moved:
            return replace(self, later=later)
        if not compactions_show_nothing(schema):
            return None
        replaced = {e.identifier: e for c in self.changes.values() for e in c.delete}
        taken_in: list[ManifestEntry] = []
        for entry in moved:
            key = entry.identifier
            if entry.kind == FileKind.ADD:
                replaced[key] = entry
            elif key in later:
                taken_in.append(later.pop(key))
            elif replaced.pop(key, None) is None:
                return None
        copies = [self.copy(e) for e in taken_in]
        if None in copies:
            return None
        return replace(self, later=later, changes={
            b: replace(
                c,
                delete=tuple(e for e in replaced.values() if bucket_of(e) == b),
                add=(*c.add, *(e for e in copies if e is not None and bucket_of(e) == b)),
            )
            for b, c in self.changes.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """What a commit must not change for a publication to stand on top of it.

    A merge by file: the ``files`` that it deletes or marks, and the ``partitions`` in which nothing may be added. Else
    the ``buckets`` that it changes, None for a merge by file; and those of them that were ``merged`` by key.
    """

    files: frozenset[str] = frozenset()
    partitions: frozenset[bytes] = frozenset()
    buckets: frozenset[BucketKey] | None = None
    merged: MergedBuckets | None = None

    def after(
        self, rows: Sequence[ManifestEntry], moved: Sequence[ManifestEntry], schema: TableSchema
    ) -> Unchanged | None:
        """Return it on top of later commits; None: they change something of it. ``rows``: the entries of those that
        changed rows; ``moved``: of those that changed files, but no row.
        """
        bucket_of, group_of = StoredPartitions(schema).bucket, key_group(schema)
        keyed = set() if self.merged is None else {group_of(b) for b in self.merged.buckets}
        touched = set[BucketKey]()
        for entry in (*rows, *moved):
            bucket = bucket_of(entry)
            is_gone = entry.kind == FileKind.DELETE
            if entry.file.file_name in self.files if is_gone else bucket.partition in self.partitions:
                return None
            if group_of(bucket) not in keyed:
                touched.add(bucket)
        if sharing_keys(touched, set(self.buckets or ()), schema):
            return None
        if self.merged is None:
            return self
        own, own_moved = ([e for e in entries if group_of(bucket_of(e)) in keyed] for entries in (rows, moved))
        merged = self.merged.after(own, own_moved, schema)
        return None if merged is None else replace(self, merged=merged)


def unchanged_until(
    view: Table, old: Snapshot, new: Snapshot, unchanged: Unchanged, schema: TableSchema
) -> Unchanged | None:
    """Return what must not change, on the head ``new`` instead of ``old``; None: plan the publication again.

    ``schema``: the branch's, after the publication.
    """
    if new.index_manifest != old.index_manifest or new.schema_id != old.schema_id:
        return None
    if view.schema().identity != schema.identity:  # also if another writer has put one of this id
        return None
    if TableOptions(schema.options).row_tracking and unchanged.buckets is not None:
        return None
    try:
        if view.snapshot(old.id).identity != old.identity:
            return None
        between = snapshots_between(view, old.id, new.id)
        if between is None or any(map(_moves_base, between)):
            return None
        rows, moved = list[ManifestEntry](), list[ManifestEntry]()
        for snapshot, delta in zip(between, read_deltas(view, between), strict=True):
            (moved if snapshot.commit_kind in neutral_kinds(schema) else rows).extend(delta)
        return unchanged.after(rows, moved, schema)
    except (NotFoundError, LostMetadataError, FormatError):  # expired meanwhile, if a new plan can read it
        return None


def _moves_base(snapshot: Snapshot) -> bool:
    """Whether it is a publish, a rollback or an undo: both sides may have another base then."""
    return not snapshot.properties.keys().isdisjoint((BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY))
