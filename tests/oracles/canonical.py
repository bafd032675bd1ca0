"""Rows in one form that every engine's answer can be brought to, so that equal means equal.

NaN equals NaN, -0.0 differs from 0.0, decimals compare by value, timestamps by nanoseconds since 1970 (LTZ by the
instant, others as if UTC), maps by their sorted pairs. Integer widths, float widths and timestamp units don't count:
engines choose those differently.
"""

from __future__ import annotations

import datetime
import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.oracles.wire import NANOS

Row = tuple[Any, ...]

_EPOCH = datetime.datetime(1970, 1, 1)
_NAN = ("float", "nan")


def canonical_rows(
    table_or_rows: pa.Table | Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | None = None
) -> list[Row]:
    """The rows as a sorted list of tuples in the order of `columns` (default: the table's own).

    Takes an Arrow table, or Python rows: mappings (of which `columns` defaults to the first one's keys) or sequences.
    In Python values a map is a list of pairs (tuples), as pyarrow's to_pylist gives it, and a dict is a ROW.
    """
    if isinstance(table_or_rows, pa.Table):
        if table_or_rows.num_rows == 0:
            return []
        names = list(columns) if columns is not None else table_or_rows.column_names
        values = [canonical_column(table_or_rows.column(name)) for name in names]
        rows = list(zip(*values, strict=True)) if values else []
        return sorted(rows, key=repr)
    given = list(table_or_rows)
    if given and isinstance(given[0], Mapping):
        names = list(columns) if columns is not None else list(given[0])
        return sorted((tuple(canonical_value(row[name]) for name in names) for row in given), key=repr)
    return sorted((tuple(canonical_value(value) for value in row) for row in given), key=repr)


def canonical_column(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Each value of an Arrow column, canonical."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in canonical_column(chunk)]
    kind = column.type
    if pa.types.is_dictionary(kind):
        return canonical_column(column.dictionary_decode())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        tag = "timestamp" if pa.types.is_timestamp(kind) else "time"
        factor = NANOS[kind.unit]
        return [
            None if value is None else (tag, value * factor)
            for value in column.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()
        ]
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).view(pa.int32()).to_pylist()
        return [None if value is None else ("date", value) for value in days]
    if pa.types.is_nested(kind):
        return _nested(column)
    return [canonical_value(value) for value in column.to_pylist()]


def _nested(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [canonical_column(child) for child in column.flatten()]
        names = [kind.field(index).name for index in range(kind.num_fields)]
        rows = [("row", *zip(names, values, strict=True)) for values in zip(*fields, strict=True)]
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    offsets = column.offsets.to_pylist()
    if pa.types.is_map(kind):
        pairs = list(zip(canonical_column(column.keys), canonical_column(column.items), strict=True))
        values: list[Any] = [("map", *sorted(pairs[start:end], key=repr)) for start, end in _ranges(offsets)]
    else:
        items = canonical_column(column.values)
        values = [("list", *items[start:end]) for start, end in _ranges(offsets)]
    return [value if valid else None for value, valid in zip(values, column.is_valid().to_pylist(), strict=True)]


def _ranges(offsets: list[int]) -> Iterable[tuple[int, int]]:
    return itertools.pairwise(offsets)


def canonical_value(value: Any) -> Any:
    """One Python value, canonical."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return _NAN if value != value else ("float", struct.pack(">d", value).hex())
    if isinstance(value, Decimal):
        return ("decimal", _decimal(value))
    if isinstance(value, bytes | bytearray):
        return ("binary", bytes(value).hex())
    if isinstance(value, Mapping):
        return ("row", *((name, canonical_value(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            pairs = [(canonical_value(key), canonical_value(item)) for key, item in value]
            return ("map", *sorted(pairs, key=repr))
        return ("list", *(canonical_value(item) for item in value))
    return _temporal(value)


def _temporal(value: Any) -> Row:
    if isinstance(value, datetime.datetime):
        naive = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        return ("timestamp", (naive - _EPOCH) // datetime.timedelta(microseconds=1) * 1000)
    if isinstance(value, datetime.date):
        return ("date", (value - _EPOCH.date()).days)
    if isinstance(value, datetime.time):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return ("time", (seconds * 1_000_000 + value.microsecond) * 1000)
    raise TypeError(f"no canonical form of {type(value).__name__} {value!r}")


def _decimal(value: Decimal) -> str:
    text = f"{value:f}"
    stripped = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if stripped in ("-0", "") else stripped


def assert_same_rows(actual: pa.Table, expected: pa.Table, columns: Sequence[str] | None = None) -> None:
    """Both tables have the same columns (or just `columns`) and, in any order, the same rows; says which rows
    differ."""
    names = list(columns) if columns is not None else expected.column_names
    # An engine that finds no split at all may not tell the columns either.
    if columns is None and actual.column_names and sorted(actual.column_names) != sorted(names):
        raise AssertionError(f"columns {actual.column_names}, expected {names}")
    got, want = Counter(canonical_rows(actual, names)), Counter(canonical_rows(expected, names))
    if got == want:
        return
    extra, missing = list((got - want).elements()), list((want - got).elements())
    shown = [f"  only in actual:   {row}" for row in extra[:5]] + [f"  only in expected: {row}" for row in missing[:5]]
    raise AssertionError(
        "\n".join([f"{len(extra)} rows too many, {len(missing)} missing, of {names}:", *shown]),
    )
