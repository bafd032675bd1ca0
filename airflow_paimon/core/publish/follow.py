"""Carries a planned merge, or undo, over to a newer head, so that it keeps up with continuous writers.

Planning reads all changes since the branch point, or the publish; a writer that commits faster than that would win
every race for the next snapshot id. Only what the other commits changed is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from airflow_paimon.core.commit.committer import Draft
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import within_reach
from airflow_paimon.core.table.history import snapshots_between
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY
from airflow_paimon.core.table.scan import BucketKey, read_delta_lists, read_entries
from airflow_paimon.core.table.table import Table

Moved = Callable[[Snapshot], None]
"""Called with the new head on which the merge is now to be based: holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReach:
    """A merge by bucket: the buckets that it changes."""

    buckets: frozenset[BucketKey]

    def meets(self, entries: Iterable[ManifestEntry], schema: TableSchema) -> bool:
        form = StoredPartitions(schema).canonical
        touched = {BucketKey(form(e.partition), e.bucket) for e in entries}
        return bool(within_reach(touched, set(self.buckets), schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReach:
    """A merge by file: the files that it deletes or marks, and the partitions in which nothing may be added."""

    files: frozenset[str]
    partitions: frozenset[bytes]

    def meets(self, entries: Iterable[ManifestEntry], schema: TableSchema) -> bool:
        form = StoredPartitions(schema).canonical
        return any(
            e.file.file_name in self.files
            if e.kind == FileKind.DELETE
            else bool(self.partitions) and form(e.partition) in self.partitions
            for e in entries
        )


Follows = BucketReach | FileReach
"""What a commit must not change for a decision to stay valid on top of it."""


def with_follow(
    view: Table, planned: Draft, head: Snapshot, reach: Follows, moved: Moved, ids_from: int | None = None
) -> Draft:
    """Return the draft with its ``follow``. ``ids_from``: the first row id that it gives; None: it gives none."""

    def follow(newer: Snapshot) -> Draft | None:
        if ids_from is not None and (newer.next_row_id or 0) > ids_from:
            return None
        if not leaves_untouched(view, head, newer, reach, planned.schema):
            return None
        moved(newer)
        next_row_id = max(planned.next_row_id or 0, newer.next_row_id or 0)
        on_newer = replace(planned, next_row_id=next_row_id)
        return with_follow(view, on_newer, newer, reach, moved, ids_from)

    return replace(planned, follow=follow)


def leaves_untouched(view: Table, old: Snapshot, new: Snapshot, reach: Follows, schema: TableSchema) -> bool:
    """Whether the commits from ``old`` to ``new`` change none of the inputs of a three-way merge."""
    if new.index_manifest != old.index_manifest or new.schema_id != old.schema_id:
        return False
    if view.schema().id != schema.id:
        return False
    if TableOptions(schema.options).row_tracking and isinstance(reach, BucketReach):
        return False
    try:
        if view.snapshot(old.id).identity != old.identity:
            return False
    except NotFoundError:
        return False
    between = snapshots_between(view, old.id, new.id)
    if between is None:
        return False
    if isinstance(reach, FileReach) and any(_is_publish(s) for s in between):
        return False  # it may have brought, or taken back, the very same files
    entries = (e for part in read_entries(view, read_delta_lists(view, between)) for e in part)
    return not reach.meets(entries, schema)


def _is_publish(snapshot: Snapshot) -> bool:
    """Whether it is a publish, a rollback or an undo."""
    return not snapshot.properties.keys().isdisjoint((BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY))
