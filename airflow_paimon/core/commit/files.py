"""Commits of data files: append, overwrite (static, dynamic), drop partitions, replace whole buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import (
    BucketsAreAsRead,
    BucketsAreAssigned,
    BucketsAreClosed,
    Condition,
    HeadState,
    NumbersAreFree,
    PartitionsAreAsPlanned,
    RowsHaveIds,
    VectorsAreAsRead,
    closed,
)
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Draft, Receipt
from airflow_paimon.core.errors import InvalidInputError, naming_table
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.table.features import check_index
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.partition_values import PartitionSpec, parse_partition_spec
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table

Overwrite = Literal["dynamic"] | Sequence[PartitionSpec] | None


def commit_append(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    planned_on: Snapshot | None,
) -> Receipt:
    """Add files. ``planned_on``: the snapshot from which the writer took bucket counts and sequence numbers.

    Raises:
        ConflictError: since then a bucket got the same sequence numbers, or a partition another bucket count: write the
            rows again on the new head.
        UnsafeOperationError: with row tracking, the table holds rows without row ids.
    """
    entries = [e for m in messages for e in m.entries()]
    conditions = (
        BucketsAreAssigned(messages=messages, planned_on=planned_on),
        NumbersAreFree(messages=messages, planned_on=planned_on),
        RowsHaveIds(),
    )

    def draft(at: HeadState) -> Draft | None:
        if not entries:
            return None
        indexed = any(m.index for m in messages)
        return Draft(
            kind=CommitKind.APPEND,
            only_new=True,
            entries=entries,
            changelog=[e for m in messages for e in m.changelog_entries()] or None,
            index_entries=_with_hash_indexes_of(at.schema, at.index, messages) if indexed else None,
            schema=at.schema,
            operation=Operation.WRITE,
            conditions=conditions,
        )

    return commit_at(table, draft, options)


def commit_overwrite(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    partitions: Overwrite = None,
    read: HeadIs | None = None,
) -> Receipt:
    """Replace partitions by new files in one OVERWRITE snapshot.

    ``read``: the snapshot of this branch that the files were computed from; None = whatever is there is replaced.

    ``partitions``: None = the whole table; "dynamic" = those in ``messages``, including messages without
    files (its rows were all deletes: the partition becomes empty); specs = these, full or partial
    (``{"dt": "2025-01-01"}``), also when no row is written to them.

    Raises:
        InvalidInputError: a spec names an unknown partition column, or a message lies outside the specs.
        ConflictError: the branch has another snapshot than ``read``.
        UnsafeOperationError: a running job may have a bucket open whose files are replaced.
    """
    added = [e for m in messages for e in m.entries()]

    def draft(at: HeadState) -> Draft | None:
        hit = _overwritten(table, at.schema, messages, partitions)
        gone = list(at.live(hit))
        if not gone and not added:
            return None
        conditions: list[Condition] = [*([] if read is None else [read]), BucketsAreClosed(replaced=gone)]
        draft, new = overwriting(at, hit, gone, added, conditions), [m.index for m in messages if m.index is not None]
        return replace(draft, index_entries=[*(draft.index_entries or []), *new]) if new else draft

    return commit_at(table, draft, options)


def drop_partitions(table: Table, specs: Sequence[PartitionSpec], options: CommitOptions | None = None) -> Receipt:
    """Delete all files of the given partitions (full or partial specs). If there are none, nothing is committed."""
    if not specs:
        raise InvalidInputError(f"{table.label}: name at least one partition to drop")
    return commit_overwrite(table, (), options, partitions=specs)


def drop_if_unchanged(
    view: Table,
    expected: Mapping[str, str],
    options: CommitOptions | None = None,
    *,
    conditions: Sequence[Condition] = (),
) -> Receipt:
    """Drop partitions in one OVERWRITE snapshot: ``expected`` gives each one's ``digest`` by its ``key``.

    Missing partitions are skipped; if all are missing, nothing is committed, and no condition is checked.

    Raises:
        ConflictError: a partition holds other files than expected, or another condition doesn't hold.
    """

    def draft(at: HeadState) -> Draft | None:
        found = [e for entries in at.buckets(map(bytes.fromhex, expected)).values() for e in entries]
        if not found:
            return None
        dropped = at.stored.those(e.partition for e in found)
        return overwriting(at, dropped, found, (), (*conditions, PartitionsAreAsPlanned(expected=expected)))

    return commit_at(view, draft, options)


def _overwritten(
    table: Table, schema: TableSchema, messages: Sequence[CommitMessage], partitions: Overwrite
) -> Selection | None:
    if partitions is None:
        return None
    stored = StoredPartitions(schema)
    if isinstance(partitions, str):
        return stored.those(m.partition for m in messages)
    if not schema.partition_keys:
        raise InvalidInputError(f"{table.label} is not partitioned; leave partition out")
    with naming_table(table.label):
        selection = stored.selection(parse_partition_spec(s, stored.keys, stored.types) for s in partitions)
    for message in messages:
        if not selection(message.partition):
            raise InvalidInputError(
                f"{table.label}: rows of partition {stored.text(message.partition)} lie outside the partitions "
                f"to overwrite; name that partition too, or filter the rows",
                code="rows-outside-partitions",
            )
    return selection


def overwriting(
    at: HeadState,
    selection: Selection | None,
    gone: Iterable[ManifestEntry],
    added: Iterable[ManifestEntry],
    conditions: Sequence[Condition],
) -> Draft:
    """Return the draft that puts files in the place of all of the selected partitions (None: all), ``gone``, with their
    indexes.
    """
    return Draft(
        kind=CommitKind.OVERWRITE,
        only_new=True,
        entries=[*(e.deleted() for e in gone), *added],
        index_entries=at.index_without(selection),
        schema=at.schema,
        operation=Operation.OVERWRITE,
        conditions=conditions,
    )


def commit_buckets(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    kind: CommitKind = CommitKind.OVERWRITE,
    operation: Operation = Operation.OVERWRITE,
    assigned: tuple[Snapshot | None] | None = None,
    vectors: Sequence[IndexEntry] = (),
) -> Receipt:
    """Replace each message's bucket by its new files: copy-on-write of whole buckets, in one snapshot.

    ``assigned``: the snapshot that dynamic buckets were chosen on; None = the buckets' rows have stayed in them.
    ``vectors``: the index entries of the snapshot that the buckets were read from. Their deletion vectors go.

    Raises:
        ConflictError: a bucket's live files are no longer the ``replaced`` ones, or rows of them were deleted: read and
            rewrite it again. UnsupportedFeatureError: indexes of a type that isn't known.
        UnsafeOperationError: a running job may have a bucket open.
    """
    changed = [m for m in messages if m.new_files or m.replaced]
    changelog = [e for m in changed for e in m.changelog_entries()]

    def draft(at: HeadState) -> Draft | None:
        if not changed:
            return None
        live = at.buckets(m.partition for m in changed)
        places = {at.stored.bucket(m) for m in changed}
        conditions: list[Condition] = [BucketsAreAsRead(messages=changed), closed(changed)]
        if assigned is not None:
            conditions.append(BucketsAreAssigned(messages=changed, planned_on=assigned[0]))
        index = None
        if (at.head is not None and at.head.index_manifest) or any(m.index for m in changed):
            check_index(at.index, table=table.label)
            conditions.append(VectorsAreAsRead(places=places, read=vectors))
            kept = [i for i in at.index if i.index_type == INDEX_TYPE or at.stored.bucket(i) not in places]
            index = _with_hash_indexes_of(at.schema, kept, changed)
        return Draft(
            kind=kind,
            only_new=True,
            entries=[
                *(e.deleted() for m in changed for e in live.get(at.stored.bucket(m), ())),
                *(e for m in changed for e in m.entries()),
            ],
            # an empty one says that no row changes; without one, streams don't know what the commit has replaced
            changelog=changelog if any(m.changelog is not None for m in changed) else None,
            index_entries=index,
            schema=at.schema,
            operation=operation,
            conditions=conditions,
        )

    return commit_at(table, draft, options)


def commit_partition(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    replaced: Sequence[BucketSplit],
    conditions: Sequence[Condition] = (),
) -> Receipt:
    """Replace a partition by these new files, in one snapshot. ``replaced``: all its files; empty: it doesn't exist."""
    added = [e for m in messages for e in m.entries()]

    def draft(at: HeadState) -> Draft | None:
        dropped = at.stored.those(s.partition for s in replaced)
        gone = list(at.live(dropped)) if replaced else []
        if not added and not gone:
            return None
        draft = overwriting(at, dropped, gone, added, conditions)
        return draft if gone else replace(draft, kind=CommitKind.APPEND, index_entries=None, operation=Operation.WRITE)

    return commit_at(table, draft, options)


def _with_hash_indexes_of(
    schema: TableSchema, index: Iterable[IndexEntry], messages: Sequence[CommitMessage]
) -> list[IndexEntry]:
    """Put the hash indexes of the messages in place of those of the same buckets."""
    bucket_of = StoredPartitions(schema).bucket
    new = {bucket_of(m): m.index for m in messages if m.index is not None}
    kept = [i for i in index if i.index_type != INDEX_TYPE or bucket_of(i) not in new]
    return [*kept, *new.values()]
