"""Values as JSON, without loss, between these tests and the Java engine.

Timestamps and dates are ISO text with every digit (LTZ with `Z`), decimals text, binary base64, NaN and the infinities
text; a map is a list of pairs, a ROW a list of its fields' values.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_NS = 86_400 * 1_000_000_000
_EPOCH = datetime.date(1970, 1, 1)
_CYCLE = 146_097  # days in 400 years, after which the calendar repeats
_DATE = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)$")
_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z?$")


def date_text(days: int) -> str:
    """ISO text of a day since 1970, as Java's LocalDate prints it, for any year."""
    cycles, day = divmod(days, _CYCLE)
    date = _EPOCH + datetime.timedelta(days=day)
    year = date.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{date:%m-%d}"


def date_days(text: str) -> int:
    found = _DATE.match(text)
    if found is None:
        raise ValueError(f"no ISO date: {text!r}")
    cycles, year = divmod(int(found[1]) - 1970, 400)
    return cycles * _CYCLE + (datetime.date(1970 + year, int(found[2]), int(found[3])) - _EPOCH).days


def time_text(nanos: int) -> str:
    seconds, fraction = divmod(nanos, 1_000_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:09d}"


def time_nanos(text: str) -> int:
    found = _TIME.match(text)
    if found is None:
        raise ValueError(f"no ISO time: {text!r}")
    seconds = int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0)
    return seconds * 1_000_000_000 + int((found[4] or "").ljust(9, "0"))


def timestamp_text(nanos: int, utc: bool) -> str:
    days, rest = divmod(nanos, _DAY_NS)
    return f"{date_text(days)}T{time_text(rest)}{'Z' if utc else ''}"


def timestamp_nanos(text: str) -> int:
    date, _, time = text.partition("T")
    return date_days(date) * _DAY_NS + time_nanos(time)


def encode(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column's values as JSON values."""
    return [_encode(value) for value in column]


def _encode(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        return timestamp_text(scalar.value * NANOS[kind.unit], kind.tz is not None)
    if pa.types.is_date(kind):
        return date_text(scalar.cast(pa.date32()).value)
    if pa.types.is_time(kind):
        return time_text(scalar.value * NANOS[kind.unit])
    if pa.types.is_map(kind):
        keys, items = scalar.values.field(0), scalar.values.field(1)
        return [list(pair) for pair in zip(encode(keys), encode(items), strict=True)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return encode(scalar.values)
    if pa.types.is_struct(kind):
        return [_encode(scalar[index]) for index in range(kind.num_fields)]
    return _plain(scalar.as_py())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(values: list[Any], kind: pa.DataType) -> pa.Array:
    """JSON values as a column of the Arrow type that paimon_types gives for the Paimon type."""
    return pa.array([_decode(value, kind) for value in values], kind)


def _decode(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return timestamp_nanos(value) // NANOS[kind.unit]
    if pa.types.is_date(kind):
        return date_days(value)
    if pa.types.is_time(kind):
        return time_nanos(value) // NANOS[kind.unit]
    if pa.types.is_map(kind):
        return [(_decode(key, kind.key_type), _decode(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind):
        return [_decode(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _decode(item, field.type) for field, item in zip(kind, value, strict=True)}
    return _decode_plain(value, kind)


def _decode_plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    if pa.types.is_floating(kind):
        return float(value)
    return value
