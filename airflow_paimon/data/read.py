"""Reads splits as streams of batches, merged where a key may have several versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.deletion_vectors import Positions, read_deletion_vectors
from airflow_paimon.core.format.manifest import DataFile, DeletionVectorRange, FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.data_file_paths import data_file_path, legacy_schema
from airflow_paimon.core.table.features import SNAPSHOT_ORDERING
from airflow_paimon.core.table.merge_options import looks_up
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.predicate import Bounds
from airflow_paimon.core.table.reachability import DeletionVectorPlace
from airflow_paimon.data.files.arrow_types import (
    SEQUENCE_FIELD,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    VALUE_KIND_FIELD,
    one_array,
    repeated,
    replaced,
)
from airflow_paimon.data.files.char_values import as_read
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.files.evolution import Mapping as Evolution
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.key_lookup import matching_rows
from airflow_paimon.data.files.pruning import Filter, keep, partition_bounds, row_group_bounds
from airflow_paimon.data.files.read import FileBatch, RowGroupFilter, read_data_file
from airflow_paimon.data.merge.column_files import beside, columns_of_files
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import MOST_RUNS, merge_runs
from airflow_paimon.data.merge.sections import Section
from airflow_paimon.data.merge.versions import LEVEL, drop_retracts
from airflow_paimon.data.read_splits import KIND_FIELD, ReadSplit, TableRead, fitting_rows
from airflow_paimon.data.row_columns import (
    POSITION_COLUMNS,
    ROW_COLUMNS,
    fill_row_columns,
    stored_row_fields,
    with_row_columns,
)


def read_split(read: TableRead, split: ReadSplit) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split in batches of at most ``batch_rows``, streamed: memory does not grow with the split.

    Raises:
        FormatError: a file is missing or corrupt.
    """
    reader = _SplitReader(read, split)
    for section in split.sections:
        for batch in reader.rows(section):
            result = reader.finished(batch)
            for offset in range(0, result.num_rows, read.batch_rows):
                yield result.slice(offset, read.batch_rows)


SeenRows = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Gets each batch of stored rows before they are merged, and returns those to merge."""


def read_versions(read: TableRead, split: ReadSplit, seen: SeenRows | None = None) -> Iterator[pa.RecordBatch]:
    """Read a whole bucket to rewrite it: all columns, and for a primary-key table ``_VALUE_KIND`` and
    ``_SEQUENCE_NUMBER`` of each key's merged row, including deletes. Sorted by key.

    For a split of ``plan_read(..., whole_buckets=True)`` that is what a full compaction reads: level 0 is included,
    deletion vectors are applied, and the table's merge engine has made one row of each key's versions. A row that is to
    replace it is merged with it by ``replacing_rules``, not by the table's own.
    """
    system = (SEQUENCE_FIELD, VALUE_KIND_FIELD) if read.is_keyed else ()
    yield from read_stored(read, split, (*read.schema.fields, *system), seen)


def read_stored(
    read: TableRead, split: ReadSplit, fields: Sequence[DataField], seen: SeenRows | None = None
) -> Iterator[pa.RecordBatch]:
    """Like ``read_versions``, for these columns only, which must include those that decide between versions."""
    reader = _SplitReader(read, split)
    for section in split.sections:
        yield from reader.stored(section, tuple(fields), seen)


_FULL_RUNS, _LEAST_ROWS = 8, 512
_MERGE_BYTES = 512 << 20
"""Of a merging read whose rows are wide; others need less."""


class _SplitReader:
    """The columns to read and the deleted positions of one split."""

    def __init__(self, read: TableRead, split: ReadSplit) -> None:
        self._read = read
        self._split = split
        self._constant = dict(zip(read.schema.partition_keys, split.bucket.values, strict=True))
        self._needed = self._needed_fields()
        self._deleted = load_deletions(read.store, split.deletions)
        self._numbers_by_snapshot = TableOptions(read.schema.options).flag(SNAPSHOT_ORDERING)

    def _needed_fields(self) -> tuple[DataField, ...]:
        """The output columns and those of the filters, without partition columns, which are constants."""
        names = {*self._read.columns, *self._read.rows.columns, *self._read.rows.points}
        stored = [f for f in self._read.schema.fields if f.name not in self._constant]
        found = [f for f in stored if f.name in names]
        found += [f for n, f in {**ROW_COLUMNS, **POSITION_COLUMNS}.items() if n in names]
        # a batch without columns has no number of rows
        return tuple(found or stored[:1] or self._read.schema.fields[:1])

    def rows(self, section: Section) -> Iterator[pa.RecordBatch]:
        """Read a section's rows, each in its newest version."""
        if section.side_by_side:
            return self.side_by_side(section)
        if self._read.kinds and self._read.is_keyed:
            return self.with_kinds(section)
        return self.merged(section) if section.needs_merge else self.plain(section)

    def with_kinds(self, section: Section) -> Iterator[pa.RecordBatch]:
        """Read the newest version of each key with its kind and sequence number, also if it is a delete."""
        schema = self._read.schema
        needed = [f.name for f in self._needed if f.name in schema.field_names]
        fields = [schema.field(n) for n in merge_rules(schema).columns(needed)]
        return self.stored(section, (*fields, SEQUENCE_FIELD, VALUE_KIND_FIELD))

    def merged(self, section: Section) -> Iterator[pa.RecordBatch]:
        """Merge the runs of a section."""
        schema = self._read.schema
        rules = merge_rules(schema)
        inner = [schema.field(n) for n in rules.columns([f.name for f in self._needed if f.name in schema.field_names])]
        # columns without effect are not read: arbitrary numbers take long to decode
        system = [] if section.in_order else [SEQUENCE_FIELD]
        system += [VALUE_KIND_FIELD] if section.may_hold_deletes else []
        fields = tuple(dict.fromkeys((*inner, *system, *self._needed)))
        return merge_runs(self._runs(section, fields, frozenset(rules.keys)), rules)

    def plain(self, section: Section) -> Iterator[pa.RecordBatch]:
        """Read a section of one run, which needs no merge; at most the row kinds are checked."""
        with_kinds = self._read.is_keyed and section.may_hold_deletes
        fields = (*self._needed, VALUE_KIND_FIELD) if with_kinds else self._needed
        for batch in self._run(section.runs[0], fields, None, self._read.batch_rows):
            yield drop_retracts(batch) if with_kinds else batch

    def side_by_side(self, section: Section) -> Iterator[pa.RecordBatch]:
        """Read column files of the same rows: without any skipping, as they have to stay aligned.

        Deletion vectors belong to the oldest file. A row counts as changed with the newest file, whatever is asked for.
        """
        files = section.files
        anchor = files[0]._replace(max_sequence_number=max(f.max_sequence_number for f in files))
        streams = [
            self._evolved(file, self._mapping(file, fields), None, self._read.batch_rows)
            for file, fields in columns_of_files(files, self._read.schemas, self._needed)
        ]
        for found in beside(streams, self._read.label):
            yield self._visible(anchor, found)

    def stored(
        self, section: Section, fields: tuple[DataField, ...], seen: SeenRows | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read these columns, merged where a key has several versions, without filter and constants."""
        runs = self._runs(section, fields, frozenset())
        if seen is not None:
            runs = [map(seen, run) for run in runs]
        if section.needs_merge:
            yield from merge_runs(runs, replace(merge_rules(self._read.schema), keep_deletes=True))
        else:
            yield from runs[0]

    def _runs(
        self, section: Section, fields: Sequence[DataField], prunable: frozenset[str]
    ) -> list[Iterator[pa.RecordBatch]]:
        rows = self._rows_at_once(section)
        levels = {f.level for f in section.files if f.level > 0}
        with_level = section.needs_merge and len(levels) > 1 and looks_up(self._read.schema)
        return [self._run(run, fields, prunable, rows, with_level=with_level) for run in section.runs]

    def _rows_at_once(self, section: Section) -> int:
        """The batch size: one batch of each run is in memory, so the more runs, the smaller the batches."""
        runs = max(_FULL_RUNS, min(len(section.runs), MOST_RUNS))
        rows = min(self._read.batch_rows, fitting_rows(self._read, section.files, _MERGE_BYTES).batch_rows)
        return max(rows * _FULL_RUNS // runs, min(rows, _LEAST_ROWS))

    def _run(
        self,
        files: Sequence[DataFile],
        fields: Sequence[DataField],
        prunable: frozenset[str] | None,
        batch_rows: int,
        *,
        with_level: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in self._file(file, fields, prunable, batch_rows):
                if with_level:
                    batch = batch.append_column(LEVEL, pa.array(np.full(batch.num_rows, file.level, np.int32)))
                yield batch

    def _file(
        self, file: DataFile, fields: Sequence[DataField], prunable: frozenset[str] | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read one file's visible rows. ``prunable``: filter to skip row groups."""
        evolution = self._mapping(file, fields)
        for found in self._evolved(file, evolution, self._row_group_filter(evolution, prunable), batch_rows):
            yield self._visible(file, found)

    def _mapping(self, file: DataFile, fields: Sequence[DataField]) -> Evolution:
        written = self._read.schemas[file.schema_id]
        return plan_mapping((*written.fields, *_stored_system_fields(file, self._read.is_keyed)), fields)

    def _evolved(
        self,
        file: DataFile,
        evolution: Evolution,
        keep_row_group: RowGroupFilter | None,
        batch_rows: int,
    ) -> Iterator[FileBatch]:
        bucket = self._split.bucket
        place = bucket.values, bucket.bucket, file
        return evolved_rows(self._read, place, evolution, batch_rows, keep_row_group)

    def _visible(self, file: DataFile, found: FileBatch) -> pa.RecordBatch:
        """Fill in the row-tracking columns, drop the deleted rows and those that a look-up of keys doesn't ask for."""
        rows = found.rows
        if not self._read.is_keyed:
            rows = fill_row_columns(rows, file, found.start)
        elif self._numbers_by_snapshot and SEQUENCE_NUMBER in rows.schema.names:
            rows = _numbered_by_snapshot(rows, file)
        rows = _without_deleted(FileBatch(found.start, rows), self._deleted.get(file.file_name))
        mask = matching_rows(self._read.rows.points, rows)
        return rows if mask is None else rows.filter(mask)

    def _row_group_filter(self, evolution: Evolution, prunable: frozenset[str] | None) -> RowGroupFilter | None:
        read = self._read
        if read.rows.where is None and read.rows.predicate is None:
            return None
        fixed = partition_bounds(read.schema, self._split.bucket.values)
        return row_group_filter(read.rows, evolution, fixed, with_row_columns(read.schema), prunable)

    def finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the partition columns, apply the filter, and return the columns in the requested order."""
        read = self._read
        columns = {}
        for f in (*read.schema.fields, *ROW_COLUMNS.values(), *POSITION_COLUMNS.values()):
            if f.name in self._constant:
                columns[f.name] = repeated(self._constant[f.name], f.type, batch.num_rows)
            elif f.name in batch.schema.names:
                columns[f.name] = batch.column(f.name)
            if (read.fills_chars or read.rows.where is not None) and f.name in columns:
                columns[f.name] = as_read(columns[f.name], f.type)
        if read.kinds:
            columns[KIND_FIELD.name] = _kind_texts(batch)
        if read.rows.where is not None:
            found = filtered(pa.RecordBatch.from_pydict(columns), read.rows.where)
            columns = {name: found.column(name) for name in read.columns}
        return pa.RecordBatch.from_arrays([columns[n] for n in read.columns], schema=read.output_schema)


def row_group_filter(
    rows: Filter,
    evolution: Evolution,
    fixed: Mapping[str, Bounds],
    schema: TableSchema,
    prunable: frozenset[str] | None = None,
) -> RowGroupFilter:
    """Return what tells whether a row group can have rows of a filter. ``fixed``: the bounds of partition columns.
    ``prunable``: the columns whose bounds count, None = all.
    """
    columns = {
        source.name: (target.name, target.type)
        for source, target in zip(evolution.sources, evolution.targets, strict=True)
        if source is not None and source.type == target.type and (prunable is None or target.name in prunable)
        if target.name != SEQUENCE_NUMBER  # a null stands for the file's highest
    }

    def may_match(metadata: pq.FileMetaData, group: int) -> bool:
        return keep(rows, [{**row_group_bounds(metadata, group, columns), **fixed}], schema)[0]

    return may_match


def evolved_rows(
    read: TableRead,
    place: tuple[Sequence[Any], int, DataFile],
    evolution: Evolution,
    batch_rows: int,
    keep_row_group: RowGroupFilter | None = None,
) -> Iterator[FileBatch]:
    """Read one file as stored, with the names and types of the read schema. ``place``: partition, bucket, file.

    An engine without partition.legacy-name (0.9) puts it in another folder.
    """
    legacy = legacy_schema(read.schema)
    written = TableOptions(read.schemas[place[2].schema_id].options)
    batches = read_data_file(
        read.store,
        data_file_path(read.schema, *place),
        evolution.file_fields,
        other_path=None if legacy is None else data_file_path(legacy, *place),
        legacy_ltz=written.flag("orc.timestamp-ltz.legacy.type", True),
        batch_rows=batch_rows,
        keep_row_group=keep_row_group,
    )
    return (FileBatch(found.start, evolution.apply(found.rows)) for found in batches)


def _kind_texts(batch: pa.RecordBatch) -> pa.Array:
    if VALUE_KIND not in batch.schema.names:
        return repeated("+I", KIND_FIELD.type, batch.num_rows)
    return pa.array(ROW_KINDS).take(batch.column(VALUE_KIND))


def filtered(rows: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    """Like ``Table.filter``, but in this thread: a task has one core, and rows keep their order."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.table(rows.columns, rows.schema.names)))
    condition = acero.Declaration("filter", acero.FilterNodeOptions(where))
    found = acero.Declaration.from_sequence([source, condition]).to_table(use_threads=False)
    return pa.RecordBatch.from_arrays([one_array(c) for c in found.columns], names=found.column_names)


def _stored_system_fields(file: DataFile, is_keyed: bool) -> tuple[DataField, ...]:
    if is_keyed:
        return (SEQUENCE_FIELD, VALUE_KIND_FIELD)
    return stored_row_fields(file)


def _numbered_by_snapshot(rows: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
    """Give the rows of a file that no compaction has written the number of its commit, which only the manifest has."""
    if file.file_source != FileSource.APPEND:
        return rows
    return replaced(rows, SEQUENCE_NUMBER, np.full(rows.num_rows, file.min_sequence_number, np.int64))


def _without_deleted(found: FileBatch, deleted: Positions | None) -> pa.RecordBatch:
    if deleted is None or not found.rows.num_rows:
        return found.rows
    first, last = np.searchsorted(deleted, np.array([found.start, found.start + found.rows.num_rows], np.uint64))
    if first == last:
        return found.rows
    mask = np.ones(found.rows.num_rows, bool)
    mask[(deleted[first:last] - np.uint64(found.start)).astype(np.int64)] = False
    return found.rows.filter(pa.array(mask))


def deleted_rows(store: Store, deletions: Sequence[DeletionVectorPlace]) -> int:
    """Count the rows that deletion vectors delete; those of Paimon 0.9 are read for that."""
    if all(where.cardinality is not None for _, where in deletions):
        return sum(where.cardinality or 0 for _, where in deletions)
    return sum(map(len, load_deletions(store, deletions).values()))


def load_deletions(store: Store, deletions: Sequence[DeletionVectorPlace]) -> dict[str, Positions]:
    """Read the deleted positions of each file, by file name."""
    by_file: dict[str, list[DeletionVectorRange]] = {}
    for path, where in deletions:
        by_file.setdefault(path, []).append(where)
    out: dict[str, Positions] = {}
    for path, ranges in by_file.items():
        try:
            data = store.read(path)
        except NotFoundError:
            raise FormatError(f"Deletion vector file {path} is missing; run check_table") from None
        out.update(read_deletion_vectors(data, ranges, name=path))
    return out
