"""The buckets that a publish replaces, and their new files (pure).

Per (partition, bucket): changed only on the branch: the branch's files; only on main: main's files; on both: merged by
key (``key_merge``) where rows can be read, else a conflict. Files are taken by reference; no data is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.errors import UnsafeOperationError, first_few
from airflow_paimon.core.format.manifest import DataFile, FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.row_tracking.row_ids_plan import origin
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import PartitionScope
from airflow_paimon.core.table.partitions import BucketOf, StoredPartitions
from airflow_paimon.core.table.paths import MAIN, POSTPONED_BUCKET
from airflow_paimon.core.table.visibility import hides_level_zero

MAX_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both sides' changes since the base, which may be another one for each bucket.

    ``theirs_changed``: the buckets that the branch changed other than by compaction; ``ours_changed``: those that main
    did. ``main_entries_by_origin``: those of main's files that the branch point lacks, by what the files are on the
    branch: a publish gives them main's schema and row ids.
    """

    theirs: Difference
    ours: Difference
    theirs_changed: set[BucketKey]
    ours_changed: set[BucketKey]
    main_entries_by_origin: Mapping[FileId, ManifestEntry] = field(default_factory=dict)

    def only(self, scope: PartitionScope) -> Sides:
        """Return what concerns some partitions."""
        if scope.is_whole:
            return self
        return Sides(
            theirs=self.theirs.only(scope.holds),
            ours=self.ours.only(scope.holds),
            theirs_changed={b for b in self.theirs_changed if scope.holds(b.partition)},
            ours_changed={b for b in self.ours_changed if scope.holds(b.partition)},
            main_entries_by_origin=self.main_entries_by_origin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """The change of one bucket of the target branch: ADD entries to delete and to add (schema ids not mapped yet).

    If both are empty, only its index entries change (``merged_index``).
    """

    bucket: BucketKey
    delete: tuple[ManifestEntry, ...]
    add: tuple[ManifestEntry, ...]


def bucket_names(schema: TableSchema, buckets: Iterable[BucketKey]) -> list[str]:
    """Return the names of buckets for people, sorted."""
    return sorted(map(StoredPartitions(schema).bucket_text, buckets))


def key_group(schema: TableSchema) -> Callable[[BucketKey], object]:
    """Return a function that maps buckets between which a key may move to the same value: a change of one concerns all.

    With fixed buckets, or without keys, that is a single bucket. With dynamic or postponed buckets each writer picks
    a new key's bucket itself, and a key without the partition columns may even change its partition.
    """
    buckets = TableOptions(schema.options).bucket
    if not schema.primary_keys or buckets > 0:
        return lambda bucket: bucket
    if not schema.crosses_partitions:
        return lambda bucket: bucket.partition
    return lambda bucket: None


def sharing_keys(ours: set[BucketKey], theirs: set[BucketKey], schema: TableSchema) -> set[BucketKey]:
    """Return the buckets of ours that may share keys with the buckets that theirs changed."""
    group_of = key_group(schema)
    reached = {group_of(b) for b in theirs}
    return {b for b in ours if group_of(b) in reached}


def neutral_kinds(schema: TableSchema) -> tuple[CommitKind, ...]:
    """Commit kinds that change no row of a bucket; compaction moves rows out of a postponed bucket into others."""
    postponed = TableOptions(schema.options).bucket == POSTPONED_BUCKET
    return (CommitKind.ANALYZE,) if postponed else (CommitKind.ANALYZE, CommitKind.COMPACT)


def compactions_show_nothing(schema: TableSchema) -> bool:
    """Whether readers get the same from a table's files before and after a compaction: batch reads the same rows, and
    streaming readers no changes.
    """
    options = TableOptions(schema.options)
    producer = options.text("changelog-producer", "none").lower()
    drops_rows = bool(options.text("record-level.expire-time"))
    return producer in ("none", "input") and not (drops_rows or hides_level_zero(schema))


def overlapping_buckets(sides: Sides, schema: TableSchema) -> set[BucketKey]:
    """Return the buckets that both sides changed, and all between which one of their keys may have moved."""
    group_of = key_group(schema)
    ours = {group_of(b) for b in _ours(sides)}
    theirs = {b for b in sides.theirs_changed if not sides.theirs.same_in(b, sides.ours)}
    both = {group_of(b) for b in theirs} & ours
    return {b for b in sides.theirs.buckets | sides.ours.buckets if group_of(b) in both}


def changes_of_branch(sides: Sides, overlapping: Collection[BucketKey]) -> list[BucketChange]:
    """Choose the buckets of a three-way merge that the branch alone changed."""
    return _changes(sides, sides.theirs_changed.difference(overlapping))


def _ours(sides: Sides) -> set[BucketKey]:
    """Buckets that main and the branch changed differently."""
    return {b for b in sides.ours_changed if not sides.theirs.same_in(b, sides.ours)}


def fast_forward_buckets(
    table: str, sides: Sides, schema: TableSchema, *, discard_main: bool, what: str
) -> list[BucketChange]:
    """Take the branch's whole state.

    Raises:
        UnsafeOperationError: main changed since the branch point and ``discard_main`` is not given.
    """
    lost = bucket_names(schema, _ours(sides))
    if lost and not discard_main:
        raise UnsafeOperationError(
            f"{table}: main changed {listed(lost)} since the branch point, and {what} would drop that. Use "
            "merge_branch to keep both, or discard_main (--discard-main) to drop main's changes",
            code="main-changed",
            details={"would_discard": lost[:MAX_LISTED], "would_discard_count": len(lost)},
        )
    return _changes(sides, sides.theirs.buckets | sides.ours.buckets)


def state_buckets(change: Difference) -> list[BucketChange]:
    """Take an earlier state as a whole: ``change`` leads from the current head to it."""
    return _changes(
        Sides(theirs=change, ours=Difference(), theirs_changed=change.buckets, ours_changed=set()), change.buckets
    )


def _changes(sides: Sides, buckets: set[BucketKey]) -> list[BucketChange]:
    out = []
    for bucket in sorted(buckets):
        their_added, their_removed = sides.theirs.added.get(bucket, {}), sides.theirs.removed.get(bucket, {})
        our_added, our_removed = sides.ours.added.get(bucket, {}), sides.ours.removed.get(bucket, {})
        delete = _without(our_added, their_added) + _without(their_removed, our_removed)
        add = _without(their_added, our_added) + _without(our_removed, their_removed)
        delete = [sides.main_entries_by_origin.get(origin(e.identifier), e) for e in delete]
        if delete or add or not sides.theirs.same_index_in(bucket, sides.ours):
            out.append(BucketChange(bucket=bucket, delete=tuple(delete), add=tuple(add)))
    return out


def left_on_their_levels(changes: Sequence[BucketChange], schema: TableSchema) -> list[BucketChange]:
    """Leave files where they are that a compaction has only moved up to another level since.

    Else each would be deleted on that level and added on its former one. Paimon's readers leave out a file of which a
    manifest holds a DELETE on the same level, whatever was added after it: once Paimon's next compaction had moved it
    up again, they would not find its rows any more.
    """
    if hides_level_zero(schema):  # rows would be shown that waited for a compaction, beside what its vectors delete
        return list(changes)
    return [_left_on_their_levels(c) for c in changes]


def _left_on_their_levels(change: BucketChange) -> BucketChange:
    """Leave a bucket's moved files, unless a file that is added must stand above, or beside them: they are older than
    what is added to level 0.
    """
    here = {e.file.file_name: e.file.level for e in change.delete}
    moved = {e.file.file_name for e in change.add if here.get(e.file.file_name, 0) > e.file.level}
    others = [e.file for e in change.add if e.file.file_name not in moved]
    newest = max((e.file.max_sequence_number for e in change.add if e.file.file_name in moved), default=0)
    if not moved or any(f.level > 0 or f.min_sequence_number <= newest for f in others):
        return change
    delete, add = ([e for e in es if e.file.file_name not in moved] for es in (change.delete, change.add))
    return replace(change, delete=tuple(delete), add=tuple(add))


def _without(entries: Mapping[FileId, ManifestEntry], other: Mapping[FileId, ManifestEntry]) -> list[ManifestEntry]:
    """``other`` may hold the same file, written again with other row ids when the branch was published."""
    there = set(map(origin, other))
    return [e for k, e in entries.items() if origin(k) not in there]


def highest_sequence(files: Sequence[DataFile]) -> int:
    """The highest sequence number of a bucket's files; -1 for an empty bucket, as Paimon's writers start at 0."""
    return max((f.max_sequence_number for f in files), default=-1)


def mapped_entries(
    changes: Sequence[BucketChange], schema_ids: Mapping[int, int], own: Collection[FileId] = ()
) -> list[ManifestEntry]:
    """Return the delta of the publish: deletions verbatim, then additions with main's schema ids.

    ``own``: files of main that come back; their entries have main's schema ids already.
    """
    deletes = [e.deleted() for c in changes for e in c.delete]
    adds = []
    for change in changes:
        for entry in change.add:
            schema_id = entry.file.schema_id
            file = entry.file
            if entry.identifier not in own:
                file = file._replace(schema_id=schema_ids.get(schema_id, schema_id))
            adds.append(entry._replace(kind=FileKind.ADD.value, file=file))
    return [*deletes, *adds]


def merged_index(
    head: Sequence[IndexEntry],
    theirs: Sequence[IndexEntry],
    taken: Collection[BucketKey],
    bucket_of: BucketOf,
) -> list[IndexEntry]:
    """Take the index entries (deletion vectors, hash indexes) of each bucket from the same side as its files.
    ``taken``: the buckets of theirs.
    """
    mine = [i for i in head if bucket_of(i) not in taken]
    return mine + [i for i in theirs if bucket_of(i) in taken]


def summarize(changes: Sequence[BucketChange]) -> dict[str, Any]:
    """Return the counts of a publish, as plain JSON values."""
    return {
        "buckets": len(changes),
        "partitions": len({c.bucket.partition for c in changes}),
        "files_added": sum(len(c.add) for c in changes),
        "files_deleted": sum(len(c.delete) for c in changes),
        "rows_added": sum(e.file.row_count for c in changes for e in c.add),
        "rows_deleted": sum(e.file.row_count for c in changes for e in c.delete),
    }


def ways_out(names: Sequence[str], target: str = MAIN) -> str:
    """Say what helps where both sides changed the buckets of these names (``StoredPartitions.bucket_text``)."""
    partitioned = any("/" in name for name in names)
    return (
        f"Create a new branch from {target}'s head and correct it again; stop a job that writes there all the time "
        f"before that. Or run the statement on {target} itself"
        + (", or publish the other partitions alone (merge_branch, partitions)" if partitioned else "")
    )


def listed(names: Sequence[str]) -> str:
    return first_few(names, MAX_LISTED)
