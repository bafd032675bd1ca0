"""Reads chain tables: anchor and deltas of a bucket in one pass, merged once for every partition that comes out.

A row's place in the chain decides ties of the sequence fields (DESIGN section 6), before the internal sequence numbers,
which count anew in every partition. Rows show the partition that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from airflow_paimon.core.manifest import DataFile
from airflow_paimon.core.options import TableOptions
from airflow_paimon.core.scan import data_file_path, legacy_schema
from airflow_paimon.core.types import DataField
from airflow_paimon.data.arrow_types import SEQUENCE_FIELD, VALUE_KIND_FIELD
from airflow_paimon.data.chain_plan import ChainPart, ChainRead, ChainSplit, ChainTarget
from airflow_paimon.data.evolution import plan_mapping
from airflow_paimon.data.files import read_data_file
from airflow_paimon.data.merge import CHAIN_POSITION, MergeRules, align_runs, merge_rules, merge_slices
from airflow_paimon.data.read import read_split
from airflow_paimon.data.sort_keys import Keys
from airflow_paimon.data.values import repeated


def read_chain(read: ChainRead) -> Iterator[pa.RecordBatch]:
    """Read all rows of a planned read in one process, streamed.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    for part, splits in read.layers:
        for split in splits:
            yield from read_split(part, split)
    for chain in read.splits:
        yield from read_chain_split(read, chain)


def read_chain_split(read: ChainRead, split: ChainSplit) -> Iterator[pa.RecordBatch]:
    """Read one bucket of a chain: for each slice of keys the rows of every target. Memory does not grow with it."""
    rules = merge_rules(read.main.schema)
    for section in split.sections:
        runs = [_run(read, split, files) for files in section.runs]
        for slices, keys in align_runs(runs, rules):
            for target in split.targets:
                rows = _merged(slices, keys, target, len(split.parts), rules)
                if rows is not None and rows.num_rows:
                    yield from _finished(read, target, rows)


def _run(read: ChainRead, split: ChainSplit, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Read the files of a sorted run; each row says where in the chain it stands."""
    for file in files:
        at = split.part_of[file.file_name]
        for batch in _file(read, split.parts[at], split.bucket, file):
            place = pa.array(np.full(batch.num_rows, at, np.int32))
            yield batch.append_column(CHAIN_POSITION, place)


def _file(read: ChainRead, part: ChainPart, bucket: int, file: DataFile) -> Iterator[pa.RecordBatch]:
    own = read.anchors if part.is_anchor else read.deltas
    written = own.schemas[file.schema_id]
    fields: tuple[DataField, ...] = (*own.fields, SEQUENCE_FIELD, VALUE_KIND_FIELD)
    evolution = plan_mapping((*written.fields, SEQUENCE_FIELD, VALUE_KIND_FIELD), fields)
    legacy = legacy_schema(own.schema)
    for found in read_data_file(
        own.store,
        data_file_path(own.schema, part.values, bucket, file),
        evolution.file_fields,
        other_path=None if legacy is None else data_file_path(legacy, part.values, bucket, file),
        legacy_ltz=TableOptions(written.options).flag("orc.timestamp-ltz.legacy.type", True),
        batch_rows=own.batch_rows,
    ):
        yield evolution.apply(found.rows)


def _merged(
    slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], target: ChainTarget, parts: int, rules: MergeRules
) -> pa.RecordBatch | None:
    """Merge what a target's chain has of these slices; None = nothing."""
    if target.parts < parts:
        own_slices, own_keys = [], []
        for one, own in zip(slices, keys, strict=True):
            mask = np.asarray(one.column(CHAIN_POSITION).to_numpy()) < target.parts
            if mask.any():
                own_slices.append(one if mask.all() else one.filter(pa.array(mask)))
                own_keys.append(own if mask.all() else own[mask])
        slices, keys = own_slices, own_keys
    return merge_slices(slices, keys, rules) if slices else None


def _finished(read: ChainRead, target: ChainTarget, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Put the target's partition columns in, apply the filter, and give the columns that were asked for."""
    main = read.main
    constant = dict(zip(main.schema.partition_keys, target.values, strict=True))
    names = [f.name for f in main.schema.fields if f.name in constant or f.name in rows.schema.names]
    columns = [
        repeated(constant[n], main.schema.field(n).type, rows.num_rows) if n in constant else rows.column(n)
        for n in names
    ]
    table = pa.table(columns, names=names)
    if main.rows.where is not None:
        table = table.filter(main.rows.where)
    yield from table.select(list(main.columns)).cast(main.output_schema).to_batches(max_chunksize=main.batch_rows)
