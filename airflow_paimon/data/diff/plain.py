"""Compares two versions of a table without primary key as multisets of rows, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.diff.json_rows import json_rows
from airflow_paimon.data.diff.keyed import Findings, in_order
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import ReadSplit, TableRead

COUNT = "__airflow_paimon_count"
"""The column with how much more often the later side has a row."""
_ROW = "__airflow_paimon_row"

Values = tuple[Any, ...]
Side = tuple[TableRead, Sequence[ReadSplit]]


def compare_rows(schema: TableSchema, before: Side, after: Side, sample: int) -> list[tuple[Values, Findings]]:
    """Count rows that occur more often on one side than on the other: ``added`` and ``deleted`` by partition."""
    return list(count_surplus(_surplus(before, after), schema, sample).items())


def count_surplus(batches: Iterable[pa.RecordBatch], schema: TableSchema, sample: int) -> dict[Values, Findings]:
    """Count, by partition, distinct rows with ``COUNT``: above 0 they were added, below 0 deleted."""
    keys, types = schema.partition_keys, [f.type for f in schema.partition_fields]
    found: dict[Values, Findings] = {}
    for batch in batches:
        for values, rows in _by_partition(batch, keys, types):
            _count(found.setdefault(values, Findings()), rows, sample)
    return found


def _surplus(before: Side, after: Side) -> list[pa.RecordBatch]:
    parts = []
    for (read, splits), weight in ((before, -1), (after, 1)):
        for batch in (b for s in splits for b in read_split(read, s) if b.num_rows):
            counts = pa.array(np.full(batch.num_rows, weight, np.int64))
            parts.append(batch.append_column(COUNT, counts))
    if not parts:
        return []
    rows = pa.Table.from_batches(parts).combine_chunks()
    contents = {f"c{i}": _comparable(rows.column(n)) for i, n in enumerate(before[0].columns)}
    numbered = pa.table({**contents, COUNT: rows.column(COUNT), _ROW: pa.array(np.arange(rows.num_rows))})
    grouped = numbered.group_by(list(contents)).aggregate([(COUNT, "sum"), (_ROW, "min")])
    grouped = grouped.filter(pc.not_equal(grouped.column(f"{COUNT}_sum"), 0)).sort_by(f"{_ROW}_min")
    distinct = rows.drop_columns([COUNT]).take(grouped.column(f"{_ROW}_min"))
    return list(distinct.append_column(COUNT, grouped.column(f"{COUNT}_sum")).to_batches())


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return values that compare as rows do: NaN equals NaN, -0.0 differs from 0.0, maps have no order."""
    whole = pa.concat_arrays(column.chunks)
    if pa.types.is_nested(whole.type):
        return pa.array([in_order(v, whole.type) for v in whole.to_pylist()], pa.string())
    if pa.types.is_floating(whole.type):
        plain = pc.if_else(pc.is_nan(whole), pa.scalar(float("nan"), whole.type), whole)
        return plain.view(pa.int32() if pa.types.is_float32(whole.type) else pa.int64())
    return whole


def _by_partition(
    batch: pa.RecordBatch, keys: Sequence[str], types: Sequence[Any]
) -> Iterator[tuple[Values, pa.Table]]:
    rows = pa.Table.from_batches([batch])
    if not keys or not rows.num_rows:
        if rows.num_rows:
            yield (), rows
        return
    numbered = rows.append_column("__row", pa.array(range(rows.num_rows)))
    for group in numbered.group_by(list(keys)).aggregate([("__row", "list")]).to_pylist():
        part = rows.take(pa.array(group["__row_list"]))
        values = [to_values(part.column(k).slice(0, 1), t)[0] for k, t in zip(keys, types, strict=True)]
        yield tuple(values), part


def _count(found: Findings, rows: pa.Table, sample: int) -> None:
    counts = rows.column(COUNT)
    plain = rows.drop_columns([COUNT])
    for kind, mask in (("added", pc.greater(counts, 0)), ("deleted", pc.less(counts, 0))):
        some = plain.filter(mask)
        if not some.num_rows:
            continue
        number = pc.sum(pc.abs(counts.filter(mask))).as_py()
        setattr(found, kind, getattr(found, kind) + number)
        found.sample(kind, sample, lambda n, some=some: json_rows(some.slice(0, n)))  # type: ignore[misc]
