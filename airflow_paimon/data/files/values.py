"""Values of metadata (``core.binary_row``) as Arrow scalars and columns, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import DataType
from airflow_paimon.data.files.arrow_types import arrow_type

_PER_MILLI = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def scalar_of(value: Any, data_type: DataType) -> pa.Scalar:
    """Return the Arrow scalar of a partition, key or statistics value.

    Raises:
        UnsupportedFeatureError: a timestamp that 64 bits of the type's unit can't hold.
    """
    target = arrow_type(data_type)
    if value is None:
        return pa.scalar(None, target)
    if isinstance(value, Timestamp):
        count = value.millis * _PER_MILLI[target.unit] + value.nanos_of_milli // (1_000_000 // _PER_MILLI[target.unit])
        try:
            return pa.array([count], pa.int64()).view(target)[0]
        except (OverflowError, pa.ArrowInvalid):
            raise UnsupportedFeatureError(f"Timestamp {value} is out of the range of Arrow's {target}") from None
    if pa.types.is_time32(target):
        return pa.array([value], pa.int32()).view(target)[0]
    return pa.scalar(value, target)


def repeated(value: Any, data_type: DataType, rows: int) -> pa.Array:
    """Return a column that has one value in every row."""
    return pa.repeat(scalar_of(value, data_type), rows) if value is not None else pa.nulls(rows, arrow_type(data_type))


def value_of(scalar: pa.Scalar) -> Any:
    """Return the metadata value of an Arrow scalar of an atomic type."""
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(scalar.type):
        return Timestamp.from_nanos(scalar.value * _NANOS[scalar.type.unit])
    if pa.types.is_time32(scalar.type):
        return scalar.value
    return scalar.as_py()
