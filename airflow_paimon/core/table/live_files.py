"""Live files as values: manifest entries merged, grouped by bucket, compared between two snapshots. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile, EntryColumns, FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.row_tracking.row_ids_plan import origin, origin_name

SMALL_FILE_RATIO = 0.7
"""A file is small below this part of the target size, as for Paimon (``compaction.small-file-ratio``)."""


class BucketKey(NamedTuple):
    """A (partition, bucket); ``partition`` is a BinaryRow, in its canonical form where two sides are compared."""

    partition: bytes
    bucket: int


@dataclass(frozen=True, slots=True)
class BucketSplit:
    """All live files of one bucket. ``values`` are the decoded partition values, in partition-key order."""

    partition: bytes
    values: tuple[Any, ...]
    bucket: int
    total_buckets: int
    files: tuple[DataFile, ...]


@dataclass(slots=True)
class NetChange:
    """The net effect of a sequence of entries: files that stay added, and deletions of files added before it."""

    added: dict[FileId, ManifestEntry]
    deleted: dict[FileId, ManifestEntry]


def net_change(entries: Iterable[ManifestEntry], where: str = "manifests") -> NetChange:
    """Merge entries in order (docs/contributing/format.md, Manifests): a DELETE removes an earlier ADD, or is kept.

    Raises:
        FormatError: the same file is added twice.
    """
    added: dict[FileId, ManifestEntry] = {}
    deleted: dict[FileId, ManifestEntry] = {}
    for entry in entries:
        key = entry.identifier
        if entry.kind == FileKind.ADD:
            if key in added:
                raise added_twice(where, entry.file.file_name)
            added[key] = entry
        elif added.pop(key, None) is None:
            deleted[key] = entry
    return NetChange(added, deleted)


def live_files_of(entries: Iterable[ManifestEntry], where: str) -> dict[FileId, ManifestEntry]:
    """Merge all entries of some files, in order, and return those of the live files.

    Raises:
        FormatError: the same file is added twice, or deleted without having been added.
    """
    change = net_change(entries, where)
    if change.deleted:
        raise never_added(where, next(iter(change.deleted.values())).file.file_name)
    return change.added


def live_columns_of(columns: EntryColumns, where: str) -> EntryColumns:
    """Return what ``live_files_of`` does, of columns; raises as that does."""
    if not any(columns.kinds) and len(set(columns.file_names)) == len(columns.file_names):
        return columns  # the usual case: after a compaction, or where rows are only appended
    live: dict[FileId, int] = {}
    for at, (kind, key) in enumerate(zip(columns.kinds, columns.identifiers(), strict=True)):
        if kind == FileKind.ADD:
            if key in live:
                raise added_twice(where, key.file_name)
            live[key] = at
        elif live.pop(key, None) is None:
            raise never_added(where, key.file_name)
    kept = list(live.values())
    return EntryColumns._make([column[at] for at in kept] for column in columns)


def live_buckets_of(parts: Iterable[EntryColumns]) -> dict[BucketKey, Counter[int]]:
    """Merge entries in order, and return the buckets that have live files, as they are stored, with how many of these
    are for which number of buckets.

    A bucket whose entries contradict each other is among them: reading its files raises.
    """
    counts: dict[BucketKey, Counter[int]] = {}
    left: Counter[BucketKey] = Counter()  # sums of hashes: an addition and a deletion of one file leave nothing
    for columns in parts:
        for kind, total, file in zip(columns.kinds, columns.total_buckets, columns.identifiers(), strict=True):
            bucket, by = BucketKey(file.partition, file.bucket), 1 if kind == FileKind.ADD else -1
            counts.setdefault(bucket, Counter())[total] += by
            left[bucket] += by * hash(file)
    return {bucket: +totals or totals for bucket, totals in counts.items() if left[bucket]}


def added_twice(where: str, file_name: str) -> FormatError:
    """Return the error for an addition of a file that is live already."""
    return FormatError(f"{where}: file {file_name} is added twice")


def never_added(where: str, file_name: str) -> FormatError:
    """Return the error for a deletion of a file that is not live."""
    return FormatError(f"{where} deletes file {file_name}, which it never added; run check_table")


def count_sorted_runs(levels: Iterable[int]) -> int:
    """Count the runs of a bucket as Paimon does, by its files' levels: each file of level 0, each higher level."""
    files = Counter(levels)
    return files[0] + len(files.keys() - {0})


@dataclass(frozen=True, slots=True)
class Difference:
    """Files that only one of two snapshots has, by bucket. ``added`` are in the later one only.

    ``index``: the later one's index entries, of the buckets where they differ: a deletion vector deletes rows without
    changing a data file.
    """

    added: dict[BucketKey, dict[FileId, ManifestEntry]] = field(default_factory=dict)
    removed: dict[BucketKey, dict[FileId, ManifestEntry]] = field(default_factory=dict)
    index: dict[BucketKey, frozenset[IndexEntry]] = field(default_factory=dict)

    @property
    def buckets(self) -> set[BucketKey]:
        return self.added.keys() | self.removed.keys() | self.index.keys()

    def only(self, holds: Callable[[bytes], bool]) -> Difference:
        """Return what differs in some partitions."""
        return self.within({bucket for bucket in self.buckets if holds(bucket.partition)})

    def within(self, buckets: Collection[BucketKey]) -> Difference:
        """Return what differs in some buckets."""
        return Difference(
            {b: files for b, files in self.added.items() if b in buckets},
            {b: files for b, files in self.removed.items() if b in buckets},
            {b: entries for b, entries in self.index.items() if b in buckets},
        )

    def since(self, then: Difference, index: Mapping[BucketKey, frozenset[IndexEntry]]) -> Difference:
        """Compare with the state that ``then`` leads to. Both start from the same snapshot, whose index is ``index``.

        Files that a publish has written again with other row ids count as the same.
        """
        none: frozenset[IndexEntry] = frozenset()
        ends = [{b: d.index.get(b, index.get(b, none)) for b in self.index | then.index} for d in (then, self)]
        return Difference(
            _joined(_without(self.added, then.added), _without(then.removed, self.removed)),
            _joined(_without(self.removed, then.removed), _without(then.added, self.added)),
            {b: end for b, end in ends[1].items() if _origins(end) != _origins(ends[0][b])},
        )

    def same_in(self, bucket: BucketKey, other: Difference) -> bool:
        """Whether both end with the same files and vectors in this bucket (both start from the same snapshot)."""
        mine, theirs = (
            [set(map(origin, files.get(bucket, ()))) for files in (d.added, d.removed)] for d in (self, other)
        )
        return mine == theirs and self.same_index_in(bucket, other)

    def same_index_in(self, bucket: BucketKey, other: Difference) -> bool:
        """Whether both end with the same vectors in this bucket."""
        return _origins(self.index.get(bucket)) == _origins(other.index.get(bucket))


def together(parts: Iterable[Difference]) -> Difference:
    """Return the differences of parts that have no bucket in common as one."""
    found = Difference()
    for part in parts:
        found.added.update(part.added)
        found.removed.update(part.removed)
        found.index.update(part.index)
    return found


_Files = Mapping[BucketKey, Mapping[FileId, ManifestEntry]]


def _without(files: _Files, others: _Files) -> dict[BucketKey, dict[FileId, ManifestEntry]]:
    """Return the files that are not among the others, and their buckets."""
    known = {b: set(map(origin, others.get(b, ()))) for b in files}
    found = {b: {i: e for i, e in group.items() if origin(i) not in known[b]} for b, group in files.items()}
    return {b: group for b, group in found.items() if group}


def _joined(one: _Files, other: _Files) -> dict[BucketKey, dict[FileId, ManifestEntry]]:
    return {b: {**one.get(b, {}), **other.get(b, {})} for b in one.keys() | other.keys()}


def _origins(index: frozenset[IndexEntry] | None) -> frozenset[IndexEntry] | None:
    return None if index is None else frozenset(map(index_origin, index))


def index_origin(entry: IndexEntry, names: Mapping[str, str] | None = None) -> IndexEntry:
    """Return an index entry with the names of data files as on the branch that they were published from, or as
    ``names`` gives them.
    """
    ranges = entry.deletion_vector_ranges
    if not ranges:
        return entry

    def renamed(name: str) -> str:
        return origin_name(name) if names is None else names.get(name, name)

    return entry._replace(
        deletion_vector_ranges=tuple(r and r._replace(data_file=renamed(r.data_file)) for r in ranges)
    )
