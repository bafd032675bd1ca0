"""Commits of data files: append, overwrite (static, dynamic), drop partitions, replace whole buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_paimon.core.commit.bucket_vectors import check_vectors
from airflow_paimon.core.commit.committer import CommitIdentity, Draft, Receipt, RetryPolicy, commit
from airflow_paimon.core.commit.since import (
    check_assigned,
    entries_since,
    replaced_hash_indexes,
    with_hash_indexes_of,
)
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import DataFile, FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.row_tracking.row_ids_plan import refuse_without_ids
from airflow_paimon.core.table.features import check_index
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import PartitionSpec, parse_partition_spec
from airflow_paimon.core.table.scan import BucketKey, BucketSplit, live_entries, read_index
from airflow_paimon.core.table.stored_partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMessage:
    """The output of one write task: the files of one (partition, bucket).

    ``replaced``: the bucket's live files that the task has read and whose rows are in ``new_files``. In a dynamic
    bucket, ``hashes`` are the new keys' (as ``write_hash_index`` writes them), which the driver puts into ``index``,
    the bucket's new hash index. ``changelog``: files with changes for streaming readers; empty: none of their rows
    changes; None: nobody has looked.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    new_files: tuple[DataFile, ...]
    replaced: tuple[DataFile, ...] = ()
    hashes: bytes = b""
    index: IndexEntry | None = None
    changelog: tuple[DataFile, ...] | None = None

    @property
    def key(self) -> BucketKey:
        return BucketKey(self.partition, self.bucket)

    def entries(self) -> list[ManifestEntry]:
        return self._added(self.new_files)

    def changelog_entries(self) -> list[ManifestEntry]:
        return self._added(self.changelog or ())

    def _added(self, files: Sequence[DataFile]) -> list[ManifestEntry]:
        return [ManifestEntry(FileKind.ADD.value, self.partition, self.bucket, self.total_buckets, f) for f in files]


Overwrite = Literal["dynamic"] | Sequence[PartitionSpec] | None


def commit_append(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    planned_on: Snapshot | None,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    watermark: int | None = None,
    guard_options: object = None,
    retry: RetryPolicy | None = None,
) -> Receipt:
    """Add files. ``planned_on``: the snapshot from which the writer took bucket counts and sequence numbers.

    Raises:
        ConflictError: since then a bucket got the same sequence numbers, or a partition another bucket count: write the
            rows again on the new head.
        UnsafeOperationError: with row tracking, the table holds rows without row ids.
    """
    entries = [e for m in messages for e in m.entries()]

    def draft(head: Snapshot | None) -> Draft | None:
        if not entries:
            return None
        schema = table.schema()
        check_assigned(table, schema, messages, planned_on, head)
        _check_moved(table, schema, messages, planned_on, head)
        _check_row_ids(table, schema, head)
        return Draft(
            kind=CommitKind.APPEND,
            entries=entries,
            changelog=[e for m in messages for e in m.changelog_entries()] or None,
            index_entries=with_hash_indexes_of(table, schema, head, messages),
            schema=schema,
            properties=properties or {},
            watermark=watermark,
            operation=Operation.WRITE,
            guard_options=guard_options,
        )

    return commit(table, draft, identity, retry)


def _check_row_ids(table: Table, schema: TableSchema, head: Snapshot | None) -> None:
    """Refuse rows with ids beside rows without, which no engine updates or compacts.

    The option can't be switched on in a table with data, so files are looked at only if an older schema is without it.
    """
    if head is None or schema.id == 0 or not TableOptions(schema.options).row_tracking:
        return
    if all(TableOptions(s.options).row_tracking for s in table.schemas()):
        return
    refuse_without_ids(
        table.name,
        table.label,
        (e.file for e in live_entries(table, head).values()),
        "the table holds",
        "Give their rows ids first: read them and overwrite their partitions (or the table) with them",
    )


def _check_moved(
    table: Table,
    schema: TableSchema,
    messages: Sequence[CommitMessage],
    planned: Snapshot | None,
    head: Snapshot | None,
) -> None:
    if head is None or (planned is not None and planned.identity == head.identity):
        return
    stored = StoredPartitions(schema)
    values = stored.identity
    since = entries_since(table, planned, head, stored.those(m.partition for m in messages))
    counts = {values(m.partition): m.total_buckets for m in messages}
    lowest = {
        (values(m.partition), m.bucket): min(f.min_sequence_number for f in m.new_files)
        for m in messages
        if m.new_files
    }
    for entry in since:
        partition = values(entry.partition)
        if entry.kind != FileKind.ADD:
            continue
        if entry.total_buckets > 0 and counts[partition] not in (entry.total_buckets, -1):
            raise _rescaled(table, stored, entry)
        low = lowest.get((partition, entry.bucket))
        if schema.primary_keys and low is not None and entry.file.max_sequence_number >= low:
            raise ConflictError(
                f"{table.label}: bucket {entry.bucket} of partition {stored.text(entry.partition) or '()'} got rows "
                f"with the same sequence numbers meanwhile; write the rows again",
                table=table.name,
            )


def commit_overwrite(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    partitions: Overwrite = None,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    guard_options: object = None,
    retry: RetryPolicy | None = None,
    read: tuple[Snapshot | None] | None = None,
) -> Receipt:
    """Replace partitions by new files in one OVERWRITE snapshot.

    ``read``: the snapshot of this branch that the files were computed from; None = whatever is there is replaced.

    ``partitions``: None = the whole table; "dynamic" = those in ``messages``, including messages without
    files (its rows were all deletes: the partition becomes empty); specs = these, full or partial
    (``{"dt": "2025-01-01"}``), also when no row is written to them.

    Raises:
        InvalidInputError: a spec names an unknown partition column, or a message lies outside the specs.
        ConflictError: the branch has another snapshot than ``read``.
    """
    added = [e for m in messages for e in m.entries()]

    def draft(head: Snapshot | None) -> Draft | None:
        if read is not None and _identity(head) != _identity(read[0]):
            raise ConflictError(f"{table.label}: another writer committed what would be overwritten", table=table.name)
        schema = table.schema()
        hit = _overwritten(table, schema, messages, partitions)
        gone = [e.deleted() for e in live_entries(table, head, hit).values()]
        if not gone and not added:
            return None
        index = None
        if head is not None and head.index_manifest:
            index = [] if hit is None else [i for i in read_index(table, head) if not hit(i.partition)]
        new = [m.index for m in messages if m.index is not None]
        return Draft(
            kind=CommitKind.OVERWRITE,
            entries=[*gone, *added],
            index_entries=[*(index or []), *new] if new else index,
            schema=schema,
            properties=properties or {},
            operation=Operation.OVERWRITE,
            guard_options=guard_options,
        )

    return commit(table, draft, identity, retry)


def _identity(snapshot: Snapshot | None) -> object:
    return None if snapshot is None else (snapshot.id, snapshot.identity)


def drop_partitions(
    table: Table,
    specs: Sequence[PartitionSpec],
    *,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    guard_options: object = None,
    retry: RetryPolicy | None = None,
) -> Receipt:
    """Delete all files of the given partitions (full or partial specs). If there are none, nothing is committed."""
    if not specs:
        raise InvalidInputError(f"{table.label}: name at least one partition to drop", table=table.name)
    return commit_overwrite(
        *(table, ()),
        partitions=specs,
        identity=identity,
        properties=properties,
        guard_options=guard_options,
        retry=retry,
    )


def _overwritten(
    table: Table, schema: TableSchema, messages: Sequence[CommitMessage], partitions: Overwrite
) -> Selection | None:
    if partitions is None:
        return None
    stored = StoredPartitions(schema)
    if isinstance(partitions, str):
        return stored.those(m.partition for m in messages)
    if not schema.partition_keys:
        raise InvalidInputError(f"{table.label} is not partitioned; leave partition out", table=table.name)
    selection = stored.selection(parse_partition_spec(s, stored.keys, stored.types) for s in partitions)
    for message in messages:
        if not selection(message.partition):
            raise InvalidInputError(
                f"{table.label}: rows of partition {stored.text(message.partition)} lie outside the partitions "
                f"to overwrite; name that partition too, or filter the rows",
                table=table.name,
            )
    return selection


def commit_buckets(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    kind: CommitKind = CommitKind.OVERWRITE,
    operation: Operation = Operation.OVERWRITE,
    retry: RetryPolicy | None = None,
    assigned: tuple[Snapshot | None] | None = None,
    vectors: Sequence[IndexEntry] = (),
    guard_options: object = None,
) -> Receipt:
    """Replace each message's bucket by its new files: copy-on-write of whole buckets, in one snapshot.

    ``assigned``: the snapshot that dynamic buckets were chosen on; None = the buckets' rows have stayed in them.
    ``vectors``: the index entries of the snapshot that the buckets were read from. Their deletion vectors go.

    Raises:
        ConflictError: a bucket's live files are no longer the ``replaced`` ones, or rows of them were deleted: read and
            rewrite it again. UnsupportedFeatureError: indexes of a type that isn't known.
    """

    def draft(head: Snapshot | None) -> Draft | None:
        changed = [m for m in messages if m.new_files or m.replaced]
        if not changed:
            return None
        schema = table.schema()
        stored = StoredPartitions(schema)
        values = stored.identity
        keys = {(values(m.partition), m.bucket) for m in changed}
        live: dict[tuple[Any, int], list[ManifestEntry]] = {}
        for entry in live_entries(table, head, stored.those(m.partition for m in changed)).values():
            live.setdefault((values(entry.partition), entry.bucket), []).append(entry)
        entries: list[ManifestEntry] = []
        for message in changed:
            now = live.get((values(message.partition), message.bucket), [])
            _check_fence(table, stored, message, now)
            entries += [e.deleted() for e in now]
        if assigned is not None:
            check_assigned(table, schema, changed, assigned[0], head)
        _check_bucket_counts(table, stored, changed, (e for key, es in live.items() if key not in keys for e in es))
        entries += [e for m in changed for e in m.entries()]
        index = None
        if (head is not None and head.index_manifest) or any(m.index for m in changed):
            own = read_index(table, head)
            check_index(own, table=table.label)
            check_vectors(table, stored, keys, vectors, own)
            kept = [i for i in own if i.index_type == INDEX_TYPE or (values(i.partition), i.bucket) not in keys]
            index = replaced_hash_indexes(schema, kept, changed)
        return Draft(
            kind=kind,
            entries=entries,
            changelog=_net_changelog(changed),
            index_entries=index,
            schema=schema,
            properties=properties or {},
            operation=operation,
            guard_options=guard_options,
        )

    return commit(table, draft, identity, retry)


def _net_changelog(changed: Sequence[CommitMessage]) -> list[ManifestEntry] | None:
    """An empty changelog says that no row changes; without one, streams don't know what the commit has replaced."""
    if all(m.changelog is None for m in changed):
        return None
    return [e for m in changed for e in m.changelog_entries()]


def _check_bucket_counts(
    table: Table, stored: StoredPartitions, changed: Sequence[CommitMessage], kept: Iterable[ManifestEntry]
) -> None:
    """Refuse new files in a partition that another commit has given another bucket count: a key would be in two."""
    counts = {stored.identity(m.partition): m.total_buckets for m in changed if m.new_files}
    for entry in kept:
        count = counts.get(stored.identity(entry.partition), -1)
        if entry.total_buckets > 0 and count not in (entry.total_buckets, -1):
            raise _rescaled(table, stored, entry)


def _rescaled(table: Table, stored: StoredPartitions, entry: ManifestEntry) -> ConflictError:
    return ConflictError(
        f"{table.label}: partition {stored.text(entry.partition) or '()'} was meanwhile rescaled to "
        f"{entry.total_buckets} buckets; write the rows again",
        table=table.name,
    )


def commit_partition(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    replaced: Sequence[BucketSplit],
    check: Callable[[Snapshot | None], None],
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    guard_options: object = None,
    retry: RetryPolicy | None = None,
) -> Receipt:
    """Replace a partition by these new files, in one snapshot. ``replaced``: all its files; empty: it doesn't exist.

    ``check`` gets the head of every attempt and raises ``ConflictError`` if the partition or another input of the
    caller has changed.
    """
    added = [e for m in messages for e in m.entries()]

    def draft(head: Snapshot | None) -> Draft | None:
        check(head)
        dropped = StoredPartitions(table.schema()).those(s.partition for s in replaced)
        gone = [e.deleted() for e in live_entries(table, head, dropped).values()] if replaced else []
        if not added and not gone:
            return None
        index = None
        if gone and head is not None and head.index_manifest:
            index = [i for i in read_index(table, head) if not dropped(i.partition)]
        return Draft(
            kind=CommitKind.OVERWRITE if gone else CommitKind.APPEND,
            entries=[*gone, *added],
            index_entries=index,
            schema=table.schema(),
            properties=properties or {},
            operation=Operation.OVERWRITE if gone else Operation.WRITE,
            guard_options=guard_options,
        )

    return commit(table, draft, identity, retry)


def _check_fence(table: Table, stored: StoredPartitions, message: CommitMessage, now: Sequence[ManifestEntry]) -> None:
    expected = {_file_id(message, f) for f in message.replaced}
    if {e.identifier._replace(partition=message.partition) for e in now} != expected:
        raise ConflictError(
            f"{table.label}: bucket {message.bucket} of partition {stored.text(message.partition) or '()'} changed "
            f"while it was being rewritten; run it again",
            table=table.name,
        )


def _file_id(message: CommitMessage, file: DataFile) -> FileId:
    return ManifestEntry(0, message.partition, message.bucket, message.total_buckets, file).identifier
