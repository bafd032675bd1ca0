"""Puts merged rows in their places among many rows that stay as they are.

A column that no merged row changes is not copied; one of plain numbers is copied once and overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.versions import Indices, Mask, gather


@dataclass(frozen=True, slots=True)
class OverlayChange:
    """``rows``: those to put, in key order, each ``at`` a place of the base: instead of its row if ``replaces``, else
    before it. ``gone``: the places of rows that are left out.
    """

    rows: pa.RecordBatch
    at: Indices
    replaces: Mask
    gone: Indices


def overlaid(base: pa.RecordBatch, change: OverlayChange) -> pa.RecordBatch:
    """Return the rows of a base with a change in them."""
    if len(change.gone) or not change.replaces.all():
        order = _order(base.num_rows, change)
        pairs = zip(base.columns, change.rows.columns, strict=True)
        return pa.RecordBatch.from_arrays([gather([b, c], order) for b, c in pairs], schema=base.schema)
    pairs = zip(base.columns, change.rows.columns, strict=True)
    return pa.RecordBatch.from_arrays([_overwritten(b, change, c) for b, c in pairs], schema=base.schema)


def _order(rows: int, change: OverlayChange) -> Indices:
    """Return the positions, in base and change concatenated, of the resulting rows."""
    order: Indices = np.arange(rows)
    order[change.at[change.replaces]] = rows + np.flatnonzero(change.replaces)
    order[change.gone] = -1
    new = np.flatnonzero(~change.replaces)
    if len(new):
        order = np.insert(order, change.at[new], rows + new)
    return order[order >= 0] if len(change.gone) else order


def _overwritten(column: pa.Array, change: OverlayChange, new: pa.Array) -> pa.Array:
    if _is_exact(column.type) and gather([column], change.at).equals(new):
        return column
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not is_number or column.null_count or new.null_count:
        return gather([column, new], _order(len(column), change))
    numbers = column.to_numpy()
    buffer = pa.allocate_buffer(numbers.nbytes)  # Arrow keeps memory for the next batch
    values = np.frombuffer(buffer, numbers.dtype)
    values[:] = numbers
    values[change.at] = new.to_numpy()
    return pa.Array.from_buffers(column.type, len(values), [None, buffer], null_count=0)


def _is_exact(data_type: pa.DataType) -> bool:
    """Whether equal values are the same bytes: 0.0 equals -0.0."""
    return not pa.types.is_floating(data_type) and not pa.types.is_nested(data_type)
