"""Pairs differing rows of a row-tracking table by ``_ROW_ID``: a row that changed is one row, not two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.diff.keyed import differs
from airflow_paimon.data.files.arrow_types import ROW_ID

COUNT = "__airflow_paimon_count"
"""The column with how much more often the later side has a row."""
PAIRED = "__airflow_paimon_paired"
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


def before_and_after(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Divide pairs into their earlier and their later rows, in the same order."""
    later = pc.greater(rows.column(COUNT), 0)
    plain = rows.drop_columns([COUNT])
    return plain.filter(pc.invert(later)), plain.filter(later)
