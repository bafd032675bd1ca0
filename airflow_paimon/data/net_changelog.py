"""What streaming readers have to get of a commit that replaces whole buckets: a correction, an upsert, a publish.

Such a commit is an OVERWRITE, of which readers of a table with a changelog producer get nothing, unless it has a
changelog: then they read that, as of any other commit. It is the net difference of two states of a bucket, of each key
+I, or -U and +U, or -D. A state is the rows that have been emitted, before or by this commit: with ``lookup`` the files
above level 0, with ``full-compaction`` those on the top level, with ``input`` all. So rows that no compaction has
emitted are emitted once: by this commit if it moves them to such a level, else by a later compaction. See
docs/contributing/format.md, Changelogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.written_files import delete_unused
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.features import check_file, check_index, check_mergeable
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import ALL_BUCKETS, StoredPartitions
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_plan import top_level
from airflow_paimon.data.files.arrow_types import VALUE_KIND, replaced
from airflow_paimon.data.files.write import FileTarget, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.engine import Deduplicate, MergeRules
from airflow_paimon.data.merge.runs import align_runs
from airflow_paimon.data.merge.sections import plan_sections
from airflow_paimon.data.merge_changelog import (
    AFTER,
    BEFORE,
    UPDATE_BEFORE,
    Changelog,
    changes_between,
    marked,
    producer_of,
    states_of,
)
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fitting_rows
from airflow_paimon.data.write import TableWrite

BucketState = tuple[TableRead, ReadSplit]
"""All files of a bucket with their deletion vectors, as ``live_bucket`` of ``data/rewrite.py`` returns them."""

Told = Callable[[pa.RecordBatch], pa.RecordBatch]

_BUCKET = internal_column("bucket")
_MEMORY = 256 << 20


def with_net_changelog(
    write: TableWrite, message: CommitMessage, before: BucketState | None, told: Told | None = None
) -> CommitMessage:
    """Return a written bucket's message with the changelog files that its commit needs; without a changelog producer
    the message as it is.

    ``before``: all live files of the bucket (None: it had none), read by the table's own schema. After the commit it
    holds those but the message's ``replaced`` ones, and its ``new_files``. Both states are read, in bounded memory,
    and what differs is written. To be called where the message was made, in the task; ``discard_files`` of the returned
    message deletes the changelog files as well.

    Raises:
        FormatError: a file is missing or corrupt. The changelog files are deleted, those of the message are not.
    """
    if producer_of(write.schema) is None:
        return message
    states = [] if before is None else [before]
    found = net_changelog(write.store, write.schema, states, [_after(write, message, before)], told)
    return replace(message, changelog=found.get(message.bucket, ()))


def _after(write: TableWrite, message: CommitMessage, before: BucketState | None) -> BucketState:
    """Return the state of a bucket after the commit of a message."""
    own = {write.schema.id: write.schema}
    if before is None:
        values = StoredPartitions(write.schema).values(message.partition)
        read = TableRead(
            store=write.store,
            label=write.label,
            schema=write.schema,
            schemas=own,
            columns=write.schema.field_names,
        )
        bucket = BucketSplit(message.partition, values, message.bucket, message.total_buckets, ())
        return read, ReadSplit(bucket=bucket, sections=tuple(plan_sections(message.new_files, read.schema)))
    read, split = before
    read = replace(read, schemas={**read.schemas, **own})
    gone = {f.file_name for f in message.replaced}
    files = (*(f for f in split.files if f.file_name not in gone), *message.new_files)
    return read, split.of(plan_sections(files, read.schema))


def net_changelog(
    store: Store,
    schema: TableSchema,
    before: Sequence[BucketState],
    after: Sequence[BucketState],
    told: Told | None = None,
) -> Mapping[int, tuple[DataFile, ...]]:
    """Write the net difference of two states of a partition's buckets, one file a bucket; a key may have moved from one
    of them to another. The changes of a key are in the bucket that it lives in now, or lived in last.

    ``schema``: of the table, which has a changelog producer. All reads have the same columns. ``told``: which of the
    rows before are compared, None = all. Raises as ``with_net_changelog``.
    """
    producer = producer_of(schema)
    assert producer is not None
    levels = TableOptions(schema.options).num_levels
    emitted_before, emitted_after = _without_common(*(_emitted(producer, levels, s) for s in (before, after)))
    split = (*before, *after)[0][1].bucket
    writers: dict[int, RollingWriter] = {}
    with abandoned_on_failure(writers.values()):
        for changes in _changes(schema, producer, emitted_before, emitted_after, told):
            buckets = changes.column(_BUCKET).to_numpy()
            for bucket in np.unique(buckets).tolist():
                if bucket not in writers:
                    target = FileTarget(
                        store=store,
                        schema=schema,
                        values=split.values,
                        bucket=bucket,
                        level=0 if producer.producer == "input" else levels - 1,
                        is_changelog=True,
                    )
                    writers[bucket] = RollingWriter(target)
                writers[bucket].write(changes.filter(pa.array(buckets == bucket)).drop_columns([_BUCKET]))
        return {bucket: writer.finish() for bucket, writer in writers.items()}


def _emitted(producer: Changelog, levels: int, states: Sequence[BucketState]) -> list[BucketState]:
    """Return the parts of the states that readers of the changelog know."""
    out = []
    for read, split in states:
        files = [f for f in split.files if producer.known(f, top_level(split.files, levels))]
        if files:
            out.append((fitting_rows(read, files, _MEMORY), split.of(plan_sections(files, read.schema))))
    return out


def _without_common(*sides: list[BucketState]) -> list[list[BucketState]]:
    """Leave out what two states have in common: sections of the same files, with the same deletion vectors."""
    common = set.intersection(*({_content(part) for _, s in side for part in s.divided()} for side in sides))
    out = []
    for side in sides:
        left = [(read, split, [p for p in split.divided() if _content(p) not in common]) for read, split in side]
        out.append([(read, split.of([s for p in parts for s in p.sections])) for read, split, parts in left if parts])
    return out


def _content(part: ReadSplit) -> object:
    return part.bucket.bucket, frozenset(f.file_name for f in part.files), part.deletions


def _changes(
    schema: TableSchema,
    producer: Changelog,
    before: Sequence[BucketState],
    after: Sequence[BucketState],
    told: Told | None,
) -> Iterator[pa.RecordBatch]:
    keys = schema.trimmed_primary_keys
    apart = [*keys, _BUCKET, *producer.not_compared]
    rules = MergeRules(keys=keys, engine=Deduplicate())
    runs = [_run(state, AFTER, None) for state in after] + [_run(state, BEFORE, told) for state in before]
    for slices, own in align_runs(runs, rules):
        changes = changes_between(*states_of(slices, own), apart, skips_equal=True)
        if changes is not None:
            changes = producer.told(_with_updates_together(changes))
        if changes is not None:
            yield changes


def _run(state: BucketState, side: int, told: Told | None) -> Iterator[pa.RecordBatch]:
    read, split = state
    found = read_versions(read, split)
    for batch in marked(found if told is None else map(told, found), side):
        yield batch.append_column(_BUCKET, pa.array(np.full(batch.num_rows, split.bucket.bucket, np.int32)))


def _with_updates_together(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Give a row that was updated the bucket of the row after it, which is what it became."""
    kinds, buckets = changes.column(VALUE_KIND).to_numpy(), changes.column(_BUCKET).to_numpy().copy()
    updated = np.flatnonzero(kinds == UPDATE_BEFORE)
    buckets[updated] = buckets[updated + 1]
    return replaced(changes, _BUCKET, buckets)


_States = tuple[list[BucketState], list[BucketState]]


def write_changelog(target: Table, schema: TableSchema, before: BucketFiles, after: BucketFiles) -> list[ManifestEntry]:
    """Write the net changes of buckets of a branch, a file for each bucket with changes; in this process, one bucket
    after the other, in bounded memory. Both sides are read.

    Raises:
        FormatError: a file is missing or corrupt; the written files are deleted. UnsupportedFeatureError: a table that
            this engine can't merge.
    """
    if producer_of(schema) is None:
        return []
    check_mergeable(schema, table=target.label, branch=target.branch_name)
    out: list[ManifestEntry] = []
    try:
        for old, new in _groups(target, schema, (before, after)):
            places = {s.bucket.bucket: s.bucket for _, s in (*old, *new)}
            for bucket, files in net_changelog(target.store, schema, old, new).items():
                place = places[bucket]
                out += [
                    ManifestEntry(FileKind.ADD.value, place.partition, bucket, place.total_buckets, f) for f in files
                ]
    except BaseException:
        delete_unused(target, out)
        raise
    return out


def _groups(target: Table, schema: TableSchema, sides: tuple[BucketFiles, BucketFiles]) -> list[_States]:
    """Return the buckets one by one, or, where a key may move from one to another, those of a partition together."""
    splits = [side.splits(schema) for side in sides]
    bucket_of = StoredPartitions(schema).compared_by(s for buckets in splits for s in buckets)
    apart = TableOptions(schema.options).bucket > 0
    groups: dict[BucketKey, _States] = {}
    for at, (side, buckets) in enumerate(zip(sides, splits, strict=True)):
        states = bucket_states(target, schema, buckets, side)
        for split, state in zip(buckets, states, strict=True):
            bucket = bucket_of(split) if apart else bucket_of(split)._replace(bucket=ALL_BUCKETS)
            if split.bucket >= 0:  # postponed rows are told when they have got their bucket
                groups.setdefault(bucket, ([], []))[at].append(state)
    return [groups[key] for key in sorted(groups)]


def bucket_states(
    table: Table, schema: TableSchema, buckets: Sequence[BucketSplit], files: BucketFiles
) -> list[BucketState]:
    """Return how all files of buckets are read by a schema; ``files`` has their schemas and deletion vectors.

    Raises:
        UnsupportedFeatureError: a file or an index that is not read here.
    """
    label = table.label
    check_index(files.index, table=label)
    deletions = tuple(find_deletion_vectors(files.index, schema))
    read = TableRead(store=table.store, label=label, schema=schema, schemas=files.schemas, columns=schema.field_names)

    def state(split: BucketSplit) -> BucketState:
        for file in split.files:
            check_file(file, files.schemas[file.schema_id], table=label)
        return read, ReadSplit(bucket=split, sections=(), deletions=deletions).of(plan_sections(split.files, schema))

    return [state(split) for split in buckets]
