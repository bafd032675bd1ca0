"""Statistics of Arrow columns, as Paimon's Java engine reads them from Parquet files (docs/format.md, Statistics)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.arrow_values import Column, canonical, null_count, to_values
from airflow_paimon.core.format.stats import ColumnStats, StatsMode
from airflow_paimon.core.format.types import AtomicType, DataType

_WITHOUT_BOUNDS = frozenset(("VARIANT", "BLOB", "GEOMETRY", "GEOGRAPHY"))


def column_stats(column: Column, data_type: DataType, mode: StatsMode) -> ColumnStats:
    """Return minimum, maximum (internal values) and number of nulls, reduced to what ``mode`` keeps.

    Nested columns have no statistics at all. A column of floats with a NaN has no bounds, and zero bounds are widened
    to -0.0 and 0.0: the order of these is not the same everywhere, so pruning by them could lose rows.

    Raises:
        InvalidInputError: the column doesn't have that type.
    """
    if mode.kind == "none" or not isinstance(data_type, AtomicType):
        return ColumnStats()
    nulls = null_count(column)
    if mode.kind == "counts" or nulls == len(column) or data_type.root in _WITHOUT_BOUNDS:
        return ColumnStats(null_count=nulls)
    low, high = _bounds(canonical(column, data_type), data_type)
    return mode.apply(ColumnStats(low, high, nulls))


def _bounds(column: Column, data_type: DataType) -> tuple[Any, Any]:
    if data_type.root in ("FLOAT", "DOUBLE") and pc.any(pc.is_nan(column)).as_py():
        return None, None
    extremes = pc.min_max(column)
    ends = pa.array([extremes["min"], extremes["max"]], column.type)
    low, high = to_values(ends, data_type)
    if data_type.root in ("FLOAT", "DOUBLE"):
        return (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return low, high
