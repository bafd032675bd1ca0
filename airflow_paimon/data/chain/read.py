"""Reads chain tables: anchor and deltas of a bucket in one pass, merged once for each resulting partition.

A row's place in the chain decides ties of the sequence fields, before the internal sequence numbers,
which start again in every partition. Rows show the requested partition.

See docs/chain-tables.md, Reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import data_file_path, legacy_schema
from airflow_paimon.data.chain.merge import merge_changes
from airflow_paimon.data.chain.scan import ChainRead, Inputs
from airflow_paimon.data.chain.splits import ChainSection, ChainSplit, ChainTarget
from airflow_paimon.data.files.arrow_types import SEQUENCE_FIELD, VALUE_KIND, VALUE_KIND_FIELD
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.read import FileBatch, read_data_file
from airflow_paimon.data.files.values import repeated
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import merge_runs
from airflow_paimon.data.merge.sections import Run
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.data.merge.versions import CHAIN_POSITION, DELETE
from airflow_paimon.data.read import filtered, load_deletions, read_split


def read_chain(read: ChainRead) -> Iterator[pa.RecordBatch]:
    """Read all rows of a planned read in one process, streamed.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    for part, splits in read.layers:
        for split in splits:
            yield from read_split(part, split)
    for chain in read.splits:
        yield from read_chain_split(read.inputs, chain)


def read_chain_split(inputs: Inputs, split: ChainSplit) -> Iterator[pa.RecordBatch]:
    """Read one bucket of a chain, or a part of it: for each slice of keys the rows of every target."""
    for target, rows in merged_rows(inputs, split):
        yield from _finished(inputs, target, rows)


def merged_rows(inputs: Inputs, split: ChainSplit) -> Iterator[tuple[ChainTarget, pa.RecordBatch]]:
    """Merge a bucket: the live rows of each target, in key order, without partition columns, in bounded memory.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    rules = merge_rules(inputs.main.schema)
    reader = _ChainReader(inputs, split)
    parts = [t.parts for t in split.targets]
    for section in split.sections:
        base, changes = reader.runs(section)
        for target, rows in merge_changes(base, changes, parts, rules, [f.name for f in inputs.deltas.fields]):
            yield split.targets[target], rows


_FULL_RUNS, _LEAST_ROWS = 8, 4096


class _ChainReader:
    """Opens the files of a split."""

    def __init__(self, inputs: Inputs, split: ChainSplit) -> None:
        self._inputs = inputs
        self._split = split
        self._deleted = load_deletions(inputs.deltas.store, split.deletions)

    def runs(self, section: ChainSection) -> tuple[Iterator[pa.RecordBatch] | None, list[Iterator[pa.RecordBatch]]]:
        """Return the base and the changes of a section, with only the columns that decide between rows."""
        count = len(section.base) + len(section.changes)
        whole = self._inputs.deltas.batch_rows
        rows = max(whole * _FULL_RUNS // max(count, _FULL_RUNS), min(whole, _LEAST_ROWS))
        changes = [self._run(run, section, rows) for run in section.changes]
        if not section.base:
            return None, changes
        if len(section.base) == 1:
            return self._files(section.base[0], (), rows), changes
        bases = [self._files(run, (SEQUENCE_FIELD,), rows) for run in section.base]
        return merge_runs(bases, merge_rules(self._inputs.main.schema)), changes

    def _run(self, files: Run, section: ChainSection, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read changes, each row with its position in the chain."""
        system = (SEQUENCE_FIELD,) if section.numbered else ()
        deletes = any(f.delete_row_count != 0 for r in section.changes for f in r)
        if deletes or any(f.file_name in self._deleted for r in section.changes for f in r):
            system = (*system, VALUE_KIND_FIELD)
        for file in files:
            at = self._split.part_of[file.file_name]
            for batch in self._files((file,), system, batch_rows):
                place = pa.array(np.full(batch.num_rows, at, np.int32))
                yield batch.append_column(CHAIN_POSITION, place)

    def _files(self, files: Run, system: Sequence[DataField], batch_rows: int) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in self._file(file, system, batch_rows):
                cut = self._within(batch)
                if cut.num_rows:
                    yield cut

    def _file(self, file: DataFile, system: Sequence[DataField], batch_rows: int) -> Iterator[pa.RecordBatch]:
        part = self._split.parts[self._split.part_of[file.file_name]]
        own = self._inputs.anchors if part.is_anchor else self._inputs.deltas
        written = own.schemas[file.schema_id]
        evolution = plan_mapping((*written.fields, SEQUENCE_FIELD, VALUE_KIND_FIELD), (*own.fields, *system))
        legacy = legacy_schema(own.schema)
        deleted = self._deleted.get(file.file_name)
        for found in read_data_file(
            own.store,
            data_file_path(own.schema, part.values, self._split.bucket, file),
            evolution.file_fields,
            other_path=None if legacy is None else data_file_path(legacy, part.values, self._split.bucket, file),
            legacy_ltz=TableOptions(written.options).flag("orc.timestamp-ltz.legacy.type", True),
            batch_rows=batch_rows,
        ):
            rows = evolution.apply(found.rows)
            yield rows if deleted is None else _marked(FileBatch(found.start, rows), deleted)

    def _within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out keys of other splits."""
        split = self._split
        for bound, keeps_above in ((split.low, True), (split.high, False)):
            if bound is None or not batch.num_rows:
                continue
            fields = self._inputs.main.schema.key_fields
            ends = [repeated(v, f.type, 1) for v, f in zip(bound, fields, strict=True)]
            keys, end = sort_keys([[batch.column(f.name) for f in fields], ends])
            at = int(np.searchsorted(keys, end[0], side="left"))
            batch = batch.slice(at) if keeps_above else batch.slice(0, at)
        return batch


def _marked(found: FileBatch, deleted: Positions) -> pa.RecordBatch:
    """Turn rows that a deletion vector marks into deletes, so that they still hide rows of other files.

    See docs/chain-tables.md, Reads.
    """
    first, last = np.searchsorted(deleted, np.array([found.start, found.start + found.rows.num_rows], np.uint64))
    if first == last:
        return found.rows
    at = found.rows.schema.get_field_index(VALUE_KIND)
    kinds = found.rows.column(at).to_numpy().copy()
    kinds[(deleted[first:last] - np.uint64(found.start)).astype(np.int64)] = DELETE
    return found.rows.set_column(at, found.rows.schema.field(at), pa.array(kinds, found.rows.schema.field(at).type))


def _finished(inputs: Inputs, target: ChainTarget, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Add the target's partition columns, apply the filter, and return the requested columns."""
    main = inputs.main
    constant = dict(zip(main.schema.partition_keys, target.values, strict=True))
    names = [f.name for f in main.schema.fields if f.name in constant or f.name in rows.schema.names]
    columns = [
        repeated(constant[n], main.schema.field(n).type, rows.num_rows) if n in constant else rows.column(n)
        for n in names
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    if main.rows.where is not None:
        batch = filtered(batch, main.rows.where)
    whole = batch.select(list(main.columns)).cast(main.output_schema)
    for offset in range(0, whole.num_rows, main.batch_rows):
        yield whole.slice(offset, main.batch_rows)
