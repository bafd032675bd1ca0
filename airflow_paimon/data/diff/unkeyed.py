"""Compares two versions of a table without primary key as multisets of rows, in memory.

Of a row-tracking table the rows that differ are then paired by ``_ROW_ID``: a row that changed is one row, not two.
What is left is compared once more without the ids: a partition that was overwritten with the same rows has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.data.diff.keyed import RowDifferences, differs, in_order, json_rows
from airflow_paimon.data.files.arrow_types import ROW_ID
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import ReadSplit, TableRead

COUNT = internal_column("count")
"""The column with how much more often the later side has a row."""
PAIRED = internal_column("paired")
"""The column that marks the two rows of a pair, which follow each other."""


def pair_rows(rows: pa.Table, partition_keys: Sequence[str], shared: int) -> tuple[pa.Table, pa.Table]:
    """Find the rows that both sides have under one id and in one partition; returns the pairs, and the other rows.

    ``shared``: ids from here on mean different rows on the two sides.
    """
    ids, counts = (np.asarray(rows.column(name).combine_chunks()) for name in (ROW_ID, COUNT))
    order = np.lexsort((counts, ids))
    old, new = order[:-1], order[1:]
    is_pair = (ids[old] == ids[new]) & (ids[old] < shared) & (counts[old] == -1) & (counts[new] == 1)
    old, new = old[is_pair], new[is_pair]
    for name in partition_keys:
        values = rows.column(name).combine_chunks()
        stayed = ~differs(values.take(pa.array(old)), values.take(pa.array(new)))
        old, new = old[stayed], new[stayed]
    alone = np.ones(rows.num_rows, bool)
    alone[old] = alone[new] = False
    return rows.take(pa.array(np.column_stack((old, new)).ravel())), rows.filter(pa.array(alone))


def whole_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Move a row whose partner is in the next batch over to that one."""
    carried: pa.RecordBatch | None = None
    for batch in batches:
        if carried is not None:
            batch = pa.Table.from_batches([carried, batch]).combine_chunks().to_batches()[0]
            carried = None
        at = np.flatnonzero(np.asarray(batch.column(PAIRED).to_numpy(zero_copy_only=False), bool))
        if len(at) % 2:
            carried = batch.slice(int(at[-1]), 1)
            batch = batch.take(pa.array(np.delete(np.arange(batch.num_rows), at[-1])))
        yield batch
    if carried is not None:
        yield carried


_ROW = internal_column("row")

Values = tuple[Any, ...]
DiffSide = tuple[TableRead, Sequence[ReadSplit]]


def compare_rows(
    schema: TableSchema, before: DiffSide, after: DiffSide, sample: int, shared_row_ids: int = 0
) -> list[tuple[Values, RowDifferences]]:
    """Count rows that occur more often on one side than on the other: ``added`` and ``deleted`` by partition.

    ``shared_row_ids``: rows with the same id below this are the same row on both sides, ``changed`` if they differ; the
    sides are read with ``_ROW_ID`` then. 0: rows have no ids.
    """
    found = surplus(before, after)
    if found is not None and shared_row_ids:
        pairs, rest = pair_rows(found, schema.partition_keys, shared_row_ids)
        rest = _uncancelled(rest, [n for n in before[0].columns if n != ROW_ID])
        found = pa.concat_tables([_marked(pairs, True), _marked(rest, False)])
    batches = [] if found is None else found.combine_chunks().to_batches()
    return list(count_surplus(batches, schema, sample).items())


def count_surplus(batches: Iterable[pa.RecordBatch], schema: TableSchema, sample: int) -> dict[Values, RowDifferences]:
    """Count, by partition, distinct rows with ``COUNT``: above 0 they were added, below 0 deleted.

    Rows with ``PAIRED`` were changed.
    """
    keys, types = schema.partition_keys, [f.type for f in schema.partition_fields]
    found: dict[Values, RowDifferences] = {}
    for plain, pairs in _divided(batches):
        for values, rows in _by_partition(plain, keys, types):
            _count(found.setdefault(values, RowDifferences()), rows, sample)
        if pairs is not None:
            for values, rows in _by_partition(pairs, keys, types):
                _count_pairs(found.setdefault(values, RowDifferences()), rows, sample)
    return found


def _divided(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Divide into single rows and pairs."""
    for first in (batches := iter(batches)):
        if PAIRED not in first.schema.names:
            yield first, None
            continue
        for batch in whole_pairs(chain([first], batches)):
            mask, rows = batch.column(PAIRED), batch.drop_columns([PAIRED])
            yield rows.filter(pc.invert(mask)), rows.filter(mask)


def _marked(rows: pa.Table, is_pair: bool) -> pa.Table:
    return rows.append_column(PAIRED, pa.array(np.full(rows.num_rows, is_pair)))


def surplus(before: DiffSide, after: DiffSide) -> pa.Table | None:
    """Return the distinct rows that one side has more often, with ``COUNT``: above 0 the later side, below 0 the
    earlier one. None: neither side has rows.
    """
    parts = []
    for (read, splits), weight in ((before, -1), (after, 1)):
        for batch in (b for s in splits for b in read_split(read, s) if b.num_rows):
            counts = pa.array(np.full(batch.num_rows, weight, np.int64))
            parts.append(batch.append_column(COUNT, counts))
    return _uncancelled(pa.Table.from_batches(parts), before[0].columns) if parts else None


def _uncancelled(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add up the counts of rows that are equal in these columns, and keep one of each whose sum is not 0."""
    contents = {f"c{i}": _comparable(rows.column(n)) for i, n in enumerate(columns)}
    numbered = pa.table({**contents, COUNT: rows.column(COUNT), _ROW: pa.array(np.arange(rows.num_rows))})
    grouped = numbered.group_by(list(contents)).aggregate([(COUNT, "sum"), (_ROW, "min")])
    grouped = grouped.filter(pc.not_equal(grouped.column(f"{COUNT}_sum"), 0)).sort_by(f"{_ROW}_min")
    distinct = rows.drop_columns([COUNT]).take(grouped.column(f"{_ROW}_min"))
    return distinct.append_column(COUNT, grouped.column(f"{COUNT}_sum"))


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return values that compare as rows do: NaN equals NaN, -0.0 differs from 0.0, maps have no order."""
    whole = column.combine_chunks()
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
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows)))
    for group in numbered.group_by(list(keys)).aggregate([(_ROW, "list")]).to_pylist():
        part = rows.take(pa.array(sorted(group[f"{_ROW}_list"])))
        values = [to_values(part.column(k).slice(0, 1), t)[0] for k, t in zip(keys, types, strict=True)]
        yield tuple(values), part


def _count_pairs(found: RowDifferences, pairs: pa.Table, sample: int) -> None:
    later, plain = pc.greater(pairs.column(COUNT), 0), pairs.drop_columns([COUNT])
    found.changed += pairs.num_rows // 2
    found.sample_changed(sample, plain.filter(pc.invert(later)), plain.filter(later))


def _count(found: RowDifferences, rows: pa.Table, sample: int) -> None:
    counts = rows.column(COUNT)
    plain = rows.drop_columns([COUNT])
    for kind, mask in (("added", pc.greater(counts, 0)), ("deleted", pc.less(counts, 0))):
        some = plain.filter(mask)
        if not some.num_rows:
            continue
        number = pc.sum(pc.abs(counts.filter(mask))).as_py()
        setattr(found, kind, getattr(found, kind) + number)
        found.sample(kind, sample, lambda n, some=some: json_rows(some.slice(0, n)))  # type: ignore[misc]
