"""Reads the changes of a stream: which files each task reads, and their rows with the kind of each.

Of a primary-key table all units of one bucket go to one task, in the order of their snapshots: the changes of a key
keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.streaming.stream import StepUnits, Stream
from airflow_paimon.core.streaming.stream_plan import Content, Position, Unit
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.diff.keyed import ComparisonUnit, KeyedComparison, differing_rows
from airflow_paimon.data.diff.unkeyed import COUNT, surplus
from airflow_paimon.data.files.arrow_types import ROW_KIND, SEQUENCE_FIELD, VALUE_KIND, VALUE_KIND_FIELD
from airflow_paimon.data.files.char_values import as_read
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.sections import plan_sections, unmerged
from airflow_paimon.data.merge.versions import drop_retracts
from airflow_paimon.data.read import read_split, read_stored
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = ROW_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRead:
    """What one task reads in one go; ``before``: only for ``Content.STATES``. Picklable.

    ``from_changelog``: ``Content.CHANGES`` of changelog files, which are returned as they are; those of data files are
    merged and filtered as the rows of the table.
    """

    content: Content
    read: TableRead
    splits: tuple[ReadSplit, ...]
    from_changelog: bool = False
    before: TableRead | None = None
    splits_before: tuple[ReadSplit, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for s in (*self.splits, *self.splits_before) for f in s.files)


def plan_changes(
    stream: Stream, start: Position, end: Position, columns: Sequence[str]
) -> list[tuple[ChangeRead, ...]]:
    """Plan the reads between two positions, in groups: the reads of a group belong into one task, in this order.

    ``columns``: those of the table to return. More are read where rows are compared by key.

    Raises:
        UnsafeOperationError, NotFoundError: see ``Stream.read``. UnsupportedFeatureError: a table that can't be read.
    """
    groups: dict[Any, list[ChangeRead]] = {}
    steps = stream.read(start, end)
    keys = stream.schema.primary_keys if any(step.before for step in steps) else ()
    columns = tuple(dict.fromkeys((*columns, *keys)))
    splits = (s for step in steps for u in step.units for s in (*u.after, *u.before))
    bucket_of = StoredPartitions(stream.schema).compared_by(splits)
    for step in steps:
        for number, (unit, read) in enumerate(zip(step.units, _reads(stream, step, columns), strict=True)):
            key: Any = (id(step), number)
            if stream.rules.keyed:
                key = bucket_of((*unit.after, *unit.before)[0])
            groups.setdefault(key, []).append(read)
    return [tuple(_merged(reads, stream)) for reads in groups.values()]


def _reads(stream: Stream, step: StepUnits, columns: Sequence[str]) -> list[ChangeRead]:
    read, by_bucket = _side(stream, step.after, [s for u in step.units for s in u.after], columns)
    before, by_bucket_before = _side(stream, step.before, [s for u in step.units for s in u.before], columns)
    out = []
    for unit in step.units:
        out.append(
            ChangeRead(
                content=unit.content,
                read=read,
                splits=(_as_stored(unit),) if unit.content is Content.CHANGES else _of(unit.after, by_bucket),
                from_changelog=stream.rules.has_changelog,
                before=before if unit.content is Content.STATES else None,
                splits_before=_of(unit.before, by_bucket_before),
            )
        )
    return out


def _side(
    stream: Stream, snapshot: Snapshot | None, splits: Sequence[BucketSplit], columns: Sequence[str]
) -> tuple[TableRead, dict[int, ReadSplit]]:
    index = tuple(read_index_entries(stream.table, snapshot)) if snapshot is not None and splits else ()
    scan = ScanPlan(stream.table, snapshot, stream.schema, tuple(splits), index)
    read, planned = plan_read(scan, columns=columns, layered=True, in_key_order=True)
    return read, {id(s.bucket): s for s in planned}


def _of(buckets: Sequence[BucketSplit], planned: dict[int, ReadSplit]) -> tuple[ReadSplit, ...]:
    return tuple(planned[id(b)] for b in buckets if id(b) in planned)


def _as_stored(unit: Unit) -> ReadSplit:
    """Each file by itself: changelog files hold several changes of a key, in order."""
    bucket = unit.after[0]
    return ReadSplit(bucket=bucket, sections=tuple(unmerged(bucket.files)))


def _merged(reads: Sequence[ChangeRead], stream: Stream) -> list[ChangeRead]:
    """Merge the new files of a bucket where there is no changelog: of each key its newest change is left."""
    out: list[ChangeRead] = []
    for read in reads:
        last = out[-1] if out else None
        if last is None or stream.rules.has_changelog or not _go_together(last, read):
            out.append(read)
            continue
        schemas = {**last.read.schemas, **read.read.schemas}
        sections = (*last.splits[0].sections, *read.splits[0].sections)
        out[-1] = replace(
            read, read=replace(read.read, schemas=schemas), splits=(replace(read.splits[0], sections=sections),)
        )
    if stream.rules.has_changelog:
        return out
    return [
        replace(r, splits=(r.splits[0].of(plan_sections(r.files, stream.schema)),))
        if r.content is Content.CHANGES
        else r
        for r in out
    ]


def _go_together(one: ChangeRead, other: ChangeRead) -> bool:
    """Whether the sequence numbers of both tell which change of a key is newer: a full compaction in between drops
    deletes, and with them the highest numbers, so that the next writer counts from lower ones.
    """
    both = one.content is other.content is Content.CHANGES
    if not both or one.splits[0].bucket.bucket != other.splits[0].bucket.bucket:
        return False
    highest = max((f.max_sequence_number for f in one.files), default=-1)
    return all(f.min_sequence_number > highest for f in other.files)


def rows_of_changes(found: ChangeRead, columns: Sequence[str], row_kind: bool) -> Iterator[pa.RecordBatch]:
    """Read the rows, CHARs filled up; with ``row_kind`` the column ``_row_kind`` comes last.

    Raises:
        FormatError: a file is missing or corrupt.
    """
    types = {f.name: f.type for f in found.read.fields}
    for kinds, rows in _kinds_and_rows(found):
        if not rows.num_rows:
            continue
        filled = [as_read(rows.column(name), types[name]) for name in columns]
        chosen = pa.RecordBatch.from_arrays(filled, names=list(columns))
        if row_kind:
            column = pa.repeat(kinds, rows.num_rows) if isinstance(kinds, str) else kinds
            chosen = chosen.append_column(ROW_KIND, column)
        yield chosen


Kinds: TypeAlias = str | pa.Array


def _kinds_and_rows(found: ChangeRead) -> Iterator[tuple[Kinds, pa.RecordBatch]]:
    match found.content:
        case Content.ROWS:
            for split in found.splits:
                yield from ((INSERT, batch) for batch in read_split(found.read, split))
        case Content.CHANGES:
            yield from _stored_changes(found)
        case Content.STATES if found.read.is_keyed:
            yield from _keyed_difference(found)
        case Content.STATES:
            yield from _plain_difference(found)


def _stored_changes(found: ChangeRead) -> Iterator[tuple[Kinds, pa.RecordBatch]]:
    read = found.read
    rules = merge_rules(read.schema)
    needed = dict.fromkeys((*read.columns, *rules.keys, *rules.sequence))
    fields = (*(read.schema.field(n) for n in needed), SEQUENCE_FIELD, VALUE_KIND_FIELD)
    skips_retracts = rules.engine.skips_retracts and not found.from_changelog
    texts = pa.array(ROW_KINDS)
    for split in found.splits:
        for batch in read_stored(read, split, fields):
            for offset in range(0, batch.num_rows, read.batch_rows):
                part = batch.slice(offset, read.batch_rows)
                part = drop_retracts(part) if skips_retracts else part
                yield (
                    texts.take(part.column(VALUE_KIND)),
                    pa.RecordBatch.from_arrays([part.column(n) for n in read.columns], schema=read.output_schema),
                )


def _keyed_difference(found: ChangeRead) -> Iterator[tuple[Kinds, pa.RecordBatch]]:
    assert found.before is not None
    keys = found.read.schema.trimmed_primary_keys
    unit = ComparisonUnit(values=(), before=found.splits_before, after=found.splits)
    comparison = KeyedComparison(keys=keys, before=found.before, after=found.read, sample=0)
    for change, rows, before in differing_rows(comparison, unit):
        if before is not None and change == "changed":
            yield UPDATE_BEFORE, before
            yield UPDATE_AFTER, rows
        else:
            yield INSERT if change == "added" else DELETE, rows


def _plain_difference(found: ChangeRead) -> Iterator[tuple[Kinds, pa.RecordBatch]]:
    assert found.before is not None
    rows = surplus((found.before, found.splits_before), (found.read, found.splits))
    for batch in [] if rows is None else rows.to_batches(max_chunksize=found.read.batch_rows):
        counts = np.asarray(batch.column(COUNT))
        times = np.repeat(np.arange(len(counts)), np.abs(counts))
        kinds = pc.if_else(pa.array(counts[times] > 0), INSERT, DELETE)
        yield kinds, batch.drop_columns([COUNT]).take(pa.array(times))
