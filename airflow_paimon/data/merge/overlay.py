"""Puts merged rows in their places among many rows that stay as they are.

A column that no merged row changes is not copied; one of plain numbers is copied once and overwritten.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.versions import Indices, Mask, gather


def overlaid(
    base: pa.RecordBatch, rows: pa.RecordBatch, at: Indices, *, replaces: Mask, gone: Indices
) -> pa.RecordBatch:
    """Put rows, in key order, each ``at`` a place of the base: instead of its row if ``replaces``, else before it.
    ``gone``: the places of rows that are left out.
    """
    pairs = list(zip(base.columns, rows.columns, strict=True))
    if not len(gone) and replaces.all():
        return pa.RecordBatch.from_arrays([_overwritten(b, at, c) for b, c in pairs], schema=base.schema)
    order: Indices = np.arange(base.num_rows)  # positions in base and rows concatenated
    order[at[replaces]] = base.num_rows + np.flatnonzero(replaces)
    order[gone] = -1
    new = np.flatnonzero(~replaces)
    if len(new):
        order = np.insert(order, at[new], base.num_rows + new)
    if len(gone):
        order = order[order >= 0]
    return pa.RecordBatch.from_arrays([gather([b, c], order) for b, c in pairs], schema=base.schema)


def _overwritten(column: pa.Array, at: Indices, new: pa.Array) -> pa.Array:
    if _is_exact(column.type) and gather([column], at).equals(new):
        return column
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not is_number or column.null_count or new.null_count:
        order = np.arange(len(column))
        order[at] = len(column) + np.arange(len(at))
        return gather([column, new], order)
    numbers = column.to_numpy()
    buffer = pa.allocate_buffer(numbers.nbytes)  # Arrow keeps memory for the next batch
    values = np.frombuffer(buffer, numbers.dtype)
    values[:] = numbers
    values[at] = new.to_numpy()
    return pa.Array.from_buffers(column.type, len(values), [None, buffer], null_count=0)


def _is_exact(data_type: pa.DataType) -> bool:
    """Whether equal values are the same bytes: 0.0 equals -0.0."""
    return not pa.types.is_floating(data_type) and not pa.types.is_nested(data_type)
