"""A three-way merge of two sides by file, for tables without keys (pure).

Nothing merges on read there, so each file is decided on its own: what one side adds, removes or marks with a deletion
vector stands beside whatever the other side does to other files. Both sides changed the same file: a conflict.

Files are told apart by their name, which is unique in a table. A file that a publish had to write again has another
name on main, from which the branch's own can be told (``origin_name``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DeletionVectorRange, FileId, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, BucketChange, listed, ways_out
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.table.global_indexes import without_global_indexes
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketOf

Name = Callable[[BucketKey], str]


def merges_by_file(schema: TableSchema) -> bool:
    """Whether the order of a bucket's files means nothing: no keys, and no bucket whose order is kept."""
    options = TableOptions(schema.options)
    return not schema.primary_keys and (options.bucket < 1 or not options.flag("bucket-append-ordered", True))


class Vector(NamedTuple):
    """A data file's deletion vector. ``content`` is the same for two vectors that delete the same rows."""

    entry: IndexEntry
    range: DeletionVectorRange
    content: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one commit did to one bucket, or several that share files (``_joined``). ``marked``: the files that got
    another deletion vector, or lost it.

    ``compacts``: no row changed. ``replaces``: it replaced the partition as a whole, whatever rows it held.
    ``snapshot``: its id.
    """

    bucket: BucketKey
    added: Mapping[str, ManifestEntry]
    removed: Mapping[str, ManifestEntry]
    marked: frozenset[str] = frozenset()
    compacts: bool = False
    replaces: bool = False
    snapshot: int = 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset({*self.added, *self.removed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one side changed since the base. ``vectors``: those of its files at the end; ``commits`` None: unknown, as
    the history has expired.
    """

    difference: Difference
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    commits: Sequence[Commit] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSides:
    """The input of a merge. ``vectors``: those of the base. ``published``: what the source had changed when it was
    last published, if the target still stands on that publish. ``ours.commits`` are read on demand: ``needs_history``.
    """

    theirs: Change
    ours: Change
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    published: Change | None = None


class Cause(StrEnum):
    """Why a file that the source changed is not on the target as the source had seen it."""

    ROWS = "rows"
    COMPACTION = "compaction"
    APPENDED = "appended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMerge:
    """``index``: the target's index entries from then on; None: as they are. ``kept``: the files that the target got in
    partitions that the source replaced, and keeps. ``reverted_compactions``: how many compactions of the target are
    taken back, and ``restored_files``: the files that they had merged. ``relies_on``: the target's files that must not
    change meanwhile; ``replaced``: the partitions to which nothing may be added meanwhile.
    """

    changes: list[BucketChange]
    index: list[IndexEntry] | None
    kept: Mapping[BucketKey, Sequence[ManifestEntry]]
    reverted_compactions: int
    restored_files: frozenset[FileId]
    relies_on: frozenset[str]
    replaced: frozenset[bytes]


def merge_files(
    table: str,
    sides: FileSides,
    head: Sequence[IndexEntry],
    name_bucket: Name,
    bucket_of: BucketOf,
    *,
    keep_appended: bool = False,
    revert_compaction: bool = False,
    one_file: bool = False,
) -> FileMerge:
    """Choose the files to add and to delete on the target. ``head``: its index entries. ``keep_appended``: rows that
    the target got in a partition that the source replaced stay beside its rows. ``revert_compaction``: a compaction of
    the target that is in the way is taken back: its inputs are live again, but for those that the source changed.
    ``one_file``: Paimon keeps one index file for each bucket.

    Raises:
        ConflictError: both sides changed the same file; lists the buckets, and what is in the way.
    """
    merge = _FileMerger(sides, bucket_of, keep_appended, revert_compaction)
    merge.decide()
    result = None if merge.conflicts else merge.result(head)
    if result is not None and one_file:
        merge.conflicts |= dict.fromkeys(_with_two_files(result.index or (), bucket_of), Cause.ROWS)
    if result is None or merge.conflicts:
        raise _conflict(table, merge.conflicts, name_bucket)
    return result


def appended_files(sides: FileSides, bucket_of: BucketOf) -> Mapping[BucketKey, Sequence[ManifestEntry]]:
    """Return the files that the target got in partitions that the source replaces, whatever else is in the way."""
    merge = _FileMerger(sides, bucket_of, keep_appended=True, revert_compaction=False)
    merge.decide()
    return merge.kept


def describe_appended(files: Mapping[BucketKey, Sequence[ManifestEntry]], name_bucket: Name) -> dict[str, Any]:
    """Count what main got in partitions that the branch replaces, for ``appended_on_main`` of a plan and of a diff."""
    entries = [e for group in files.values() for e in group]
    return {
        "buckets": sorted(map(name_bucket, files))[:MAX_LISTED],
        "files": len(entries),
        "rows": sum(e.file.row_count for e in entries),
    }


def needs_history(sides: FileSides, bucket_of: BucketOf) -> bool:
    """Whether the merge needs the target's commits: only they tell why a file is gone."""
    merge = _FileMerger(sides, bucket_of, keep_appended=True, revert_compaction=False)
    merge.decide()
    return bool(merge.conflicts)


class _FileMerger:
    """One merge, as it is being decided. Each method decides one kind of file; nothing here is kept between merges."""

    def __init__(self, sides: FileSides, bucket_of: BucketOf, keep_appended: bool, revert_compaction: bool) -> None:
        self.sides, self.bucket_of = sides, bucket_of
        self.keep_appended, self.revert_compaction = keep_appended, revert_compaction
        theirs, ours = _Net.of(sides.theirs), _Net.of(sides.ours, whole=True)
        self.live = {**ours.added, **{origin_name(n): e for n, e in ours.added.items()}}
        self.expected: Mapping[str, Vector] = sides.vectors
        if sides.published is not None:
            then = _Net.of(sides.published)
            theirs, ours = theirs.since(then), ours.since(then)
            gone = {n for files in sides.published.difference.removed.values() for n in _names(files)}
            compacted = gone - then.removed.keys()  # by the source alone, which is not published: as at the base
            self.expected = {n: v for n, v in sides.published.vectors.items() if n not in compacted} | {
                n: v for n, v in sides.vectors.items() if n in compacted
            }
        self.theirs, self.ours = theirs, ours
        self.ours_vectors = {**sides.ours.vectors, **{origin_name(n): v for n, v in sides.ours.vectors.items()}}
        self.adds: dict[str, ManifestEntry] = {}
        self.deletes: dict[str, ManifestEntry] = {}
        self.vectors: dict[str, Vector | None] = {}
        self.conflicts: dict[BucketKey, Cause] = {}
        self.kept: dict[BucketKey, list[ManifestEntry]] = {}
        self.restored_files: set[FileId] = set()
        self.reverted: set[frozenset[str]] = set()
        self.brought: set[str] = set()

    def decide(self) -> None:
        for name, entry in self.theirs.removed.items():
            if name in self.ours.removed:
                self._gone_in(self.bucket_of(entry), name)
            else:
                self._delete(name, self.live.get(origin_name(name), entry))
        for name, entry in self.theirs.added.items():
            if origin_name(name) not in self.live and name not in self.ours.added:
                self.adds[name] = entry
                self.brought.add(name)
                vector = self.sides.theirs.vectors.get(name)
                self.vectors |= {} if vector is None else {name: vector}
        self._marks()
        self._appended()

    def _delete(self, name: str, entry: ManifestEntry) -> None:
        if not _same(self.ours_vectors.get(origin_name(name)), self.expected.get(name)):
            self.conflicts[self.bucket_of(entry)] = Cause.ROWS
            return
        self.deletes[entry.file.file_name] = entry

    def _marks(self) -> None:
        """Deletion vectors of files that stay."""
        theirs = self.sides.theirs
        dropped = {n for files in theirs.difference.removed.values() for n in _names(files)}
        dropped |= self.theirs.removed.keys()
        known_names = theirs.vectors.keys() | self.sides.vectors.keys() | self.expected.keys()
        for name in sorted(known_names - dropped - self.brought):
            wanted, expected = theirs.vectors.get(name), self.expected.get(name)
            if _same(wanted, expected):
                continue
            entry = self.live.get(origin_name(name))
            have = self.ours_vectors.get(origin_name(name))
            known = wanted or expected
            assert known is not None
            if name in self.ours.removed:
                self._gone_in(self.bucket_of(known.entry), name)
                self.vectors[name] = wanted
            elif _same(have, expected):
                self.vectors[entry.file.file_name if entry is not None else name] = wanted
            elif not _same(have, wanted):
                self.conflicts[self.bucket_of(known.entry)] = Cause.ROWS

    def _gone_in(self, bucket: BucketKey, name: str) -> None:
        """The target has removed a file that the source changed as well."""
        compaction = _compacted(self.sides.ours.commits, name)
        if compaction is None:
            self.conflicts[bucket] = Cause.ROWS
        elif not self.revert_compaction:
            self.conflicts.setdefault(bucket, Cause.COMPACTION)
        elif not self._revert_compaction(compaction):
            self.conflicts[bucket] = Cause.ROWS

    def _revert_compaction(self, compaction: Commit) -> bool:
        """Replace what a compaction has written by the files it was written from, but for those the source removed."""
        if compaction.names in self.reverted:
            return True
        marked = {*self.ours_vectors, *self.sides.vectors}
        if any(n not in self.ours.added or n in marked for n in compaction.added) or marked & compaction.removed.keys():
            return False
        self.reverted.add(compaction.names)
        self.deletes |= {n: self.ours.added[n] for n in compaction.added}
        for name, entry in compaction.removed.items():
            self.restored_files.add(entry.identifier)
            if not {name, origin_name(name)} & self.theirs.removed.keys():
                self.adds[name] = entry
        return True

    @property
    def replaced(self) -> frozenset[bytes]:
        """The partitions that the source replaced as a whole; all in which it removed files, if that isn't known."""
        commits = self.sides.theirs.commits
        if commits is None:
            found = {self.bucket_of(e).partition for e in self.theirs.removed.values()}
        else:
            found = {c.bucket.partition for c in commits if c.replaces}
        entries = [*self.adds.values(), *self.deletes.values()]
        return frozenset(found & {self.bucket_of(e).partition for e in entries})

    def _appended(self) -> None:
        """Files that the target got in partitions that the source replaced, without knowing of them."""
        replaced = self.replaced
        if not replaced:
            return
        own = self.theirs.added.keys()
        restored = {
            n: e for n, e in self.adds.items() if e.identifier in self.restored_files and n not in self.ours.removed
        }
        for name, entry in {**self.ours.added, **restored}.items():
            bucket = self.bucket_of(entry)
            if bucket.partition not in replaced or origin_name(name) in own or name in self.deletes:
                continue
            if not self.keep_appended:
                self.conflicts.setdefault(bucket, Cause.APPENDED)
            self.kept.setdefault(bucket, []).append(entry)

    def _index(self, head: Sequence[IndexEntry]) -> list[IndexEntry] | None:
        merged = merged_vectors(head, self.vectors, self.deletes.keys())
        kept = list(head) if merged is None else merged
        changed = {self.bucket_of(e).partition for e in self.deletes.values()}
        left = without_global_indexes(kept, changed, self.bucket_of)
        return merged if len(left) == len(kept) else left

    def result(self, head: Sequence[IndexEntry]) -> FileMerge:
        buckets: dict[BucketKey, tuple[list[ManifestEntry], list[ManifestEntry]]] = {}
        for at, files in enumerate((self.deletes, self.adds)):
            for entry in files.values():
                buckets.setdefault(self.bucket_of(entry), ([], []))[at].append(entry)
        for name, vector in self.vectors.items():
            known = vector or self.ours_vectors.get(name)
            if known is not None:
                buckets.setdefault(self.bucket_of(known.entry), ([], []))
        return FileMerge(
            changes=[BucketChange(bucket=b, delete=tuple(d), add=tuple(a)) for b, (d, a) in sorted(buckets.items())],
            index=self._index(head),
            kept=self.kept,
            reverted_compactions=len(self.reverted),
            restored_files=frozenset(self.restored_files),
            relies_on=frozenset(self.deletes.keys() | self.vectors.keys()),
            replaced=frozenset() if self.keep_appended else self.replaced,
        )


def merged_vectors(
    head: Sequence[IndexEntry], vectors: Mapping[str, Vector | None], deleted: Collection[str]
) -> list[IndexEntry] | None:
    """Return the index entries with these vectors (None: without), and without those of deleted files; None: no change.

    Vectors that lie in one index file are one entry: Paimon tells entries apart by the file's name.
    """
    gone = {*vectors, *deleted}
    out: list[IndexEntry] = []
    for entry in head:
        ranges = entry.deletion_vector_ranges
        left = tuple(r for r in ranges or () if r is None or r.data_file not in gone)
        if not ranges or len(left) == len(ranges):
            out.append(entry)
        elif left:
            out.append(entry._replace(deletion_vector_ranges=left, row_count=len(left)))
    for name, vector in sorted(vectors.items()):
        if vector is not None:
            _put(out, vector, vector.range._replace(data_file=name))
    return None if out == list(head) else out


def _with_two_files(entries: Sequence[IndexEntry], bucket_of: BucketOf) -> list[BucketKey]:
    """Each stored form of a partition may have a file, as Paimon takes it for a partition of its own."""
    vectors = [e for e in entries if e.deletion_vector_ranges]
    number = Counter((e.partition, e.bucket) for e in vectors)
    return sorted({bucket_of(e) for e in vectors if number[e.partition, e.bucket] > 1})


def _put(entries: list[IndexEntry], vector: Vector, where: DeletionVectorRange) -> None:
    for at, entry in enumerate(entries):
        same = (entry.file_name, entry.partition, entry.bucket)
        if same == (vector.entry.file_name, vector.entry.partition, vector.entry.bucket):
            ranges = (*(entry.deletion_vector_ranges or ()), where)
            entries[at] = entry._replace(deletion_vector_ranges=ranges, row_count=len(ranges))
            return
    entries.append(vector.entry._replace(deletion_vector_ranges=(where,), row_count=1))


@dataclass(slots=True)
class _Net:
    """Files by name, without compactions of nothing but files of the base: those change no row."""

    added: dict[str, ManifestEntry] = field(default_factory=dict)
    removed: dict[str, ManifestEntry] = field(default_factory=dict)

    @classmethod
    def of(cls, change: Change, *, whole: bool = False) -> _Net:
        added, removed = (
            {key.file_name: e for files in side.values() for key, e in files.items()}
            for side in (change.difference.added, change.difference.removed)
        )
        if whole or change.commits is None:
            return cls(added, removed)
        groups = [c for c in _joined(change.commits) if c.compacts and c.removed.keys() <= removed.keys()]
        neutral = {n for c in groups for n in c.names}
        return cls(
            {n: e for n, e in added.items() if n not in neutral},
            {n: e for n, e in removed.items() if n not in neutral},
        )

    def since(self, then: _Net) -> _Net:
        """Compare with the state that ``then`` leads to; both start from the same one."""
        mine, others = ({origin_name(n) for n in net.added} for net in (self, then))
        return _Net(
            {n: e for n, e in self.added.items() if origin_name(n) not in others}
            | {n: e for n, e in then.removed.items() if n not in self.removed},
            {n: e for n, e in self.removed.items() if n not in then.removed}
            | {n: e for n, e in then.added.items() if origin_name(n) not in mine},
        )


def _joined(commits: Sequence[Commit]) -> list[Commit]:
    """Make one commit of those that share files: what they started from, what they ended with, and whether no row
    changed. A commit that only adds files is no part of what becomes of them.
    """
    rewriting = [c for c in commits if c.removed or c.marked]
    parent = list(range(len(rewriting)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    owner: dict[str, int] = {}
    for at, commit in enumerate(rewriting):
        for name in {*commit.added, *commit.removed, *commit.marked}:
            if name in owner:
                parent[root(at)] = root(owner[name])
            owner[name] = at
    members: dict[int, list[Commit]] = {}
    for at, commit in enumerate(rewriting):
        members.setdefault(root(at), []).append(commit)
    return [_as_one(group) for group in members.values()]


def _as_one(commits: Sequence[Commit]) -> Commit:
    added = {n: e for c in commits for n, e in c.added.items()}
    removed = {n: e for c in commits for n, e in c.removed.items()}
    return Commit(
        bucket=commits[0].bucket,
        removed={n: e for n, e in removed.items() if n not in added},
        added={n: e for n, e in added.items() if n not in removed},
        compacts=all(c.compacts for c in commits),
    )


def _compacted(commits: Sequence[Commit] | None, name: str) -> Commit | None:
    """Return the compaction that has taken a file in, whose rows are otherwise as they were."""
    for commit in _joined(commits or ()):
        if commit.compacts and (name in commit.removed or any(origin_name(n) == name for n in commit.removed)):
            return commit
    return None


def _names(files: Mapping[FileId, ManifestEntry]) -> set[str]:
    return {key.file_name for key in files}


def _same(one: Vector | None, other: Vector | None) -> bool:
    return (one and one.content) == (other and other.content)


_REASONS = {
    Cause.ROWS: "main and the branch both changed the same files of {where} since the branch point; nothing was "
    "published. {ways_out}",
    Cause.COMPACTION: "a compaction, not rows, is in the way: main has merged files of {where} that the branch "
    "changed; nothing was published. Revert that compaction by revert_compaction (--revert-compaction), or create a "
    "new branch from main's head and correct it again",
    Cause.APPENDED: "main got rows in {where} after the branch was made, and the branch replaces those partitions; "
    "nothing was published. Keep both by keep_appended (--keep-appended), or create a new branch from main's head and "
    "correct it again",
}


_CODES = {Cause.ROWS: "not-mergeable", Cause.COMPACTION: "compaction-conflict", Cause.APPENDED: "appended-rows"}


def _conflict(table: str, found: Mapping[BucketKey, Cause], name_bucket: Name) -> ConflictError:
    cause = next(c for c in (Cause.ROWS, Cause.COMPACTION, Cause.APPENDED) if c in found.values())
    names = {c: sorted(name_bucket(b) for b, why in found.items() if why == c) for c in Cause}
    others = [f"{len(names[c])} by {c}" for c in Cause if c != cause and names[c]]
    more = f" (further conflicts: {', '.join(others)})" if others else ""
    all_names = sorted(n for group in names.values() for n in group)
    details: dict[str, Any] = {
        "conflicts": all_names[:MAX_LISTED],
        "conflict_count": len(all_names),
        "cause": cause.value,
        "causes": {c.value: group[:MAX_LISTED] for c, group in names.items() if group},
    }
    reason = _REASONS[cause].format(where=listed(names[cause]), ways_out=ways_out(names[cause]))
    return ConflictError(f"{table}: {reason}{more}", code=_CODES[cause], details=details)
