"""Which records of a table have expired by ``record-level.expire-time``: only compactions drop them, as in Paimon."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.table.options import TableOptions, parse_duration
from airflow_paimon.core.table.predicate import Bounds

_MILLIS = 1_000_000_000_000
"""From here on a BIGINT counts milliseconds, as in Paimon."""
_TIMES = ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ")
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class RecordExpiry:
    """Records whose ``column`` is before ``oldest``, in seconds since 1970, have expired; null never does."""

    column: str
    oldest: int

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that have not expired."""
        fresh = pc.fill_null(pc.greater_equal(_seconds(batch.column(self.column)), self.oldest), True)
        return batch if pc.all(fresh).as_py() in (True, None) else batch.filter(fresh)

    def may_be_in(self, bounds: Bounds) -> bool:
        """Whether a file with these statistics holds an expired record."""
        low = bounds.low.millis // 1000 if isinstance(bounds.low, Timestamp) else bounds.low
        if low is None:
            return False
        return bool((low // 1000 if low >= _MILLIS else low) < self.oldest)


def record_expiry(schema: TableSchema, now: float, label: str) -> RecordExpiry | None:
    """Return the rule of a table at ``now``, in seconds since 1970; None: its records don't expire.

    Raises:
        InvalidInputError: the option names no column, or an unknown one.
        UnsupportedFeatureError: a column of another type than Paimon takes.
    """
    options = TableOptions(schema.options)
    text, column = options.text("record-level.expire-time"), options.text("record-level.time-field")
    if not text:
        return None
    if column not in schema.field_names:
        raise InvalidInputError(
            f"{label}: option record-level.expire-time needs record-level.time-field, the name of a column; it is "
            f"{column!r}"
        )
    found = schema.field(column).type
    if found.root not in _TIMES:
        raise UnsupportedFeatureError(
            f"{label}: record-level.time-field={column} is {found.root}; records expire by an INT, BIGINT or TIMESTAMP"
        )
    kept = int(parse_duration(text, "Table option record-level.expire-time").total_seconds())
    return RecordExpiry(column, int(now) - kept)


def _seconds(column: pa.Array) -> pa.Array:
    """Return the seconds since 1970 that a time column says."""
    if pa.types.is_timestamp(column.type):
        return pc.divide(column.cast(pa.int64()), _PER_SECOND[column.type.unit])
    if pa.types.is_int64(column.type):
        return pc.if_else(pc.greater_equal(column, _MILLIS), pc.divide(column, 1000), column)
    return column
