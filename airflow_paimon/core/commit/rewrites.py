"""Commits of files that replace others: some of a bucket (UPDATE, DELETE, MERGE, compaction), or all of a partition
(rescale).

Everything else in the bucket stays. So two of them that go row by row and touch different files are both committed, and
a compaction of a table with keys is committed beside new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import (
    BucketsAreClosed,
    CountsAreKept,
    HeadState,
    RunsAreAsRead,
    SchemaIs,
    VectorsAreAsRead,
    closed,
    file_and_level,
)
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Draft, Receipt
from airflow_paimon.core.commit.files import overwriting
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.table.global_indexes import check_updatable, without_global_indexes
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketOf, Selection
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table

FileKey = tuple[bytes, int, str]
"""A live file: its partition in canonical form, its bucket and name."""

_HASH = "HASH"
_UPDATES = (Operation.UPDATE, Operation.MERGE)
_LISTED = 5
_AGAIN = "nothing was written. Run it again"


def commit_rewrite(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    read: ScanPlan,
    kind: CommitKind = CommitKind.OVERWRITE,
    operation: Operation | None,
) -> Receipt:
    """Add ``new_files`` and delete ``replaced`` of the messages, in one snapshot; nothing else changes.

    An ``index`` with deletion vectors takes the place of the vectors of the files that it names.

    ``read``: the scan that the replaced files and their deletion vectors were read from. ``operation``: UPDATE, DELETE,
    MERGE, or None for a compaction. Without replaced files the snapshot is an APPEND.

    Raises:
        ConflictError: another commit has replaced one of these files, or deleted rows of it, or changed the columns:
            read the new head and compute the rows again.
        UnsupportedFeatureError: a global index covers rows that an UPDATE or a MERGE changes.
    """
    added = [e for m in messages for e in m.entries()]
    replaced = [(m, f) for m in messages for f in m.replaced]
    new_vectors = [m.index for m in messages if m.index is not None]

    def draft(at: HeadState) -> Draft | None:
        if not added and not replaced and not new_vectors:
            return None
        files = {(*at.stored.bucket(m), f.file_name) for m, f in replaced}
        changed = files | _marked(at, messages)
        live = _live(at, [m.partition for m, _ in replaced])
        kept, vectors = _without(at.index, changed, at.stored.bucket)
        touched = {partition for partition, _, _ in changed}
        if operation in _UPDATES:
            options_of = TableOptions(at.schema.options)
            check_updatable(kept, touched, at.stored.bucket, options_of, table=table.label)
        index = without_global_indexes(kept, touched, at.stored.bucket)
        return Draft(
            kind=kind if changed else CommitKind.APPEND,
            only_new=True,
            entries=[*(live[k].deleted() for k in sorted(files & live.keys(), key=lambda k: k[1:])), *added],
            index_entries=[*index, *new_vectors] if vectors or new_vectors or len(index) < len(kept) else None,
            schema=at.schema,
            operation=operation,
            conditions=(
                SchemaIs(schema=read.schema, why=f"the table was altered while its rows were computed; {_AGAIN}"),
                FilesAreAsRead(read=read, messages=messages),
                CountsAreKept(messages=messages),
                closed(messages),
            ),
        )

    return commit_at(table, draft, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesAreAsRead:
    """The files that the messages replace or delete rows of are live, with the deletion vectors that were read."""

    read: ScanPlan
    messages: Sequence[CommitMessage]

    def check(self, at: HeadState) -> None:
        files = {(*at.stored.bucket(m), f.file_name) for m in self.messages for f in m.replaced}
        files |= _marked(at, self.messages)
        gone = files - _live(at, [m.partition for m in self.messages if m.replaced or m.index]).keys()
        vectors = _without(at.index, files, at.stored.bucket)[1]
        if not gone and vectors != _without(self.read.index_entries, files, at.stored.bucket)[1]:
            gone = files & vectors.keys() or files
        if gone:
            names = sorted(k[2] for k in gone)[:_LISTED]
            raise at.conflict(
                f"another commit changed files that were being rewritten ({', '.join(names)}); {_AGAIN}", files=names
            )


def _marked(at: HeadState, messages: Sequence[CommitMessage]) -> set[FileKey]:
    """Return the files that get new deletion vectors."""
    return {
        (*at.stored.bucket(m), r.data_file)
        for m in messages
        if m.index is not None
        for r in m.index.deletion_vector_ranges or ()
        if r is not None
    }


def _live(at: HeadState, partitions: Sequence[bytes]) -> dict[FileKey, ManifestEntry]:
    return {(*place, e.file.file_name): e for place, entries in at.buckets(partitions).items() for e in entries}


def _without(
    index: Sequence[IndexEntry], files: set[FileKey], bucket_of: BucketOf
) -> tuple[list[IndexEntry], dict[FileKey, tuple[str, DeletionVectorRange]]]:
    """Return the index entries without the deletion vectors of these files, and those vectors."""
    kept: list[IndexEntry] = []
    taken: dict[FileKey, tuple[str, DeletionVectorRange]] = {}
    for entry in index:
        ranges = entry.deletion_vector_ranges
        if not ranges:
            kept.append(entry)
            continue
        bucket = bucket_of(entry)
        own = {r.data_file: r for r in ranges if r is not None and (*bucket, r.data_file) in files}
        taken |= {(*bucket, name): (entry.file_name, r) for name, r in own.items()}
        left = tuple(r for r in ranges if r is None or r.data_file not in own)
        if own and left:
            kept.append(entry._replace(deletion_vector_ranges=left, row_count=len(left)))
        elif left:
            kept.append(entry)
    return kept, taken


def commit_compaction(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    read: ScanPlan,
    kind: CommitKind = CommitKind.COMPACT,
    operation: Operation | None = None,
) -> Receipt:
    """Replace files of some buckets by the rows that are left of them, in one snapshot: a COMPACT, or an OVERWRITE
    where rows go.

    ``read``: the scan of these buckets, with all their live files. Files that writers have added to level 0 since stay
    above the new ones. All deletion vectors of the buckets go: the new files are without their rows. The hash index
    stays, as it may name keys that are gone. ``operation``: of the write that the compaction follows.

    Raises:
        ConflictError: another commit has replaced files of a bucket or deleted rows of it, or changed the columns:
            plan the compaction again.
        UnsafeOperationError: a running job may have a bucket open.
    """
    changelog = [e for m in messages for e in m.changelog_entries()]
    # An empty one of an OVERWRITE says that no other row changes; a COMPACT without any says the same.
    has_changelog = changelog or (kind == CommitKind.OVERWRITE and any(m.changelog is not None for m in messages))

    def draft(at: HeadState) -> Draft | None:
        if not messages:
            return None
        places = {at.stored.bucket(s) for s in read.splits}
        live = at.buckets(s.partition for s in read.splits)
        files = {place: {file_and_level(e.file): e for e in live.get(place, ())} for place in places}
        taken = [(at.stored.bucket(m), file_and_level(f)) for m in messages for f in m.replaced]
        kept = [i for i in at.index if at.stored.bucket(i) not in places or i.index_type.upper() == _HASH]
        return Draft(
            kind=kind,
            only_new=True,
            entries=[
                *(files[place][file].deleted() for place, file in taken if file in files[place]),
                *(e for m in messages for e in m.entries()),
            ],
            changelog=changelog if has_changelog else None,
            index_entries=kept if len(kept) < len(at.index) else None,
            schema=at.schema,
            operation=operation,
            conditions=(
                SchemaIs(schema=read.schema, why="the table was altered while it was compacted"),
                RunsAreAsRead(read=read),
                VectorsAreAsRead(places=places, read=read.index_entries),
                closed(messages),
            ),
        )

    return commit_at(table, draft, options)


def commit_rescale(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions,
    *,
    read: ScanPlan,
    chosen: Selection | None,
    bucket_num: int,
    tells: bool,
) -> Receipt:
    """Put the files of the messages in place of all that the partitions of ``read`` hold, deletion vectors too.

    After it, every chosen partition has ``bucket_num`` buckets. The rows stay the same, so streaming readers are told
    nothing but what the messages' changelogs hold: what no compaction had told them yet. ``tells``: the table has a
    changelog, in which an empty one says so.

    Raises:
        ConflictError: another commit has changed one of the partitions, or the table was altered, or a chosen partition
            has come meanwhile that has another number of buckets: plan again. Commits to other partitions don't matter.
    """
    added = [e for m in messages for e in m.entries()]
    changelog = [e for m in messages for e in m.changelog_entries()]

    def draft(at: HeadState) -> Draft | None:
        rewritten = at.stored.those(s.partition for s in read.splits)
        live = list(at.live(chosen))
        gone = [e for e in live if rewritten(e.partition)]
        _check_files(at, read, gone)
        for entry in live:
            if entry.total_buckets != bucket_num and not rewritten(entry.partition):
                raise at.conflict(
                    f"partition {at.stored.text(entry.partition) or '()'} was written meanwhile, in "
                    f"{entry.total_buckets} buckets; run it again"
                )
        places = {at.stored.bucket(i) for i in (*read.index_entries, *at.index) if rewritten(i.partition)}
        conditions = (
            SchemaIs(schema=read.schema, why="the table was altered while it was rescaled"),
            VectorsAreAsRead(places=places, read=read.index_entries),
            BucketsAreClosed(replaced=gone),
        )
        return replace(overwriting(at, rewritten, gone, added, conditions), changelog=changelog if tells else None)

    return commit_at(table, draft, options)


def _check_files(at: HeadState, read: ScanPlan, live: Sequence[ManifestEntry]) -> None:
    then = {(*at.stored.bucket(s), *file_and_level(f)) for s in read.splits for f in s.files}
    now = {(*at.stored.bucket(e), *file_and_level(e.file)) for e in live}
    for partition, *_ in then ^ now:
        where = at.stored.text(partition) or "()"
        raise at.conflict(f"another commit changed partition {where} while it was rescaled; run it again")
