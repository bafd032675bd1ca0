"""Arrow columns as Paimon's internal values, and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import EPOCH_ORDINAL
from airflow_paimon.core.format.stats import ColumnStats
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import AtomicType, DataType

Column: TypeAlias = pa.Array | pa.ChunkedArray


def is_text(t: pa.DataType) -> bool:
    return bool(pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t))


def is_bytes(t: pa.DataType) -> bool:
    return bool(pt.is_binary(t) or pt.is_large_binary(t) or pt.is_fixed_size_binary(t) or pt.is_binary_view(t))


_Family = Callable[[pa.DataType], bool]
_FAMILIES: dict[str, tuple[_Family, pa.DataType | None]] = {
    "BOOLEAN": (pt.is_boolean, pa.bool_()),
    "TINYINT": (pt.is_integer, pa.int8()),
    "SMALLINT": (pt.is_integer, pa.int16()),
    "INT": (pt.is_integer, pa.int32()),
    "BIGINT": (pt.is_integer, pa.int64()),
    "FLOAT": (pt.is_floating, pa.float32()),
    "DOUBLE": (pt.is_floating, pa.float64()),
    "DATE": (pt.is_date, pa.date32()),
    "TIME": (pt.is_time, pa.time32("ms")),
    "DECIMAL": (pt.is_decimal, None),
    "TIMESTAMP": (pt.is_timestamp, None),
    "TIMESTAMP_LTZ": (pt.is_timestamp, None),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), (is_text, pa.large_string())),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), (is_bytes, pa.large_binary())),
}


def canonical(column: Column, data_type: DataType) -> Column:
    """Cast to the canonical Arrow type of a Paimon type; timestamps keep their unit.

    Raises:
        InvalidInputError: the column is of another kind of type, or a value doesn't fit.
        UnsupportedFeatureError: ARRAY, MAP, ROW and the like.
    """
    if data_type.root not in _FAMILIES:
        raise UnsupportedFeatureError(f"A column of type {data_type.root} can't be part of a key or partition")
    in_family, target = _FAMILIES[data_type.root]
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not in_family(column.type):
        raise InvalidInputError(f"An Arrow column of type {column.type} can't be stored as {data_type}")
    if target is None:
        assert isinstance(data_type, AtomicType)
        if data_type.root == "DECIMAL":
            target = pa.decimal128(*data_type.args)
        elif (column.type.tz is not None) != (data_type.root == "TIMESTAMP_LTZ"):
            raise InvalidInputError(f"An Arrow column of type {column.type} can't be stored as {data_type}")
        else:
            return column
    try:
        return column if column.type == target else column.cast(target)
    except pa.ArrowException as e:
        raise InvalidInputError(f"An Arrow column of type {column.type} can't be stored as {data_type}: {e}") from None


_FIRST_DATE, _LAST_DATE = date.min.toordinal() - EPOCH_ORDINAL, date.max.toordinal() - EPOCH_ORDINAL
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


def to_values(column: Column, data_type: DataType) -> list[Any]:
    """Return the internal values that ``binary_row`` takes; raises as ``canonical`` does."""
    column = canonical(column, data_type)
    if data_type.root == "TIME":
        return list(column.cast(pa.int32()).to_pylist())
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        unit = _NANOS[column.type.unit]
        return [None if v is None else Timestamp.from_nanos(v * unit) for v in column.cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def date_beyond_python(column: Column) -> int | None:
    """Return a DATE that lies outside of the years 1 to 9999, as days from 1970; None: there is none."""
    extremes = pc.min_max(column.cast(pa.int32())).as_py()
    found = [n for n in extremes.values() if n is not None and not _FIRST_DATE <= n <= _LAST_DATE]
    return found[0] if found else None


def null_count(column: Column) -> int:
    """Count nulls, including those of types without a validity bitmap."""
    return int(pc.sum(pc.is_null(column)).as_py() or 0)


_WITHOUT_BOUNDS = frozenset(("VARIANT", "BLOB", "GEOMETRY", "GEOGRAPHY"))


def column_stats(column: Column, data_type: DataType) -> ColumnStats:
    """Return minimum, maximum (internal values) and number of nulls, as Paimon's Java engine reads them from Parquet
    files (docs/contributing/format.md, Statistics).

    Nested columns have no statistics at all. A column of floats with a NaN has no bounds, and zero bounds are widened
    to -0.0 and 0.0: the order of these is not the same everywhere, so pruning by them could lose rows. Nor has a
    column of dates beyond the years of Python.

    Raises:
        InvalidInputError: the column doesn't have that type.
    """
    if not isinstance(data_type, AtomicType):
        return ColumnStats()
    nulls = null_count(column)
    if nulls == len(column) or data_type.root in _WITHOUT_BOUNDS:
        return ColumnStats(null_count=nulls)
    low, high = _bounds(canonical(column, data_type), data_type)
    return ColumnStats(low, high, nulls)


def _bounds(column: Column, data_type: DataType) -> tuple[Any, Any]:
    if data_type.root in ("FLOAT", "DOUBLE") and pc.any(pc.is_nan(column)).as_py():
        return None, None
    extremes = pc.min_max(column)
    ends = pa.array([extremes["min"], extremes["max"]], column.type)
    if data_type.root == "DATE" and date_beyond_python(ends) is not None:
        return None, None
    low, high = to_values(ends, data_type)
    if data_type.root in ("FLOAT", "DOUBLE"):
        return (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return low, high
