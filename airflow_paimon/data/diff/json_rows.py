"""Rows as JSON values for people: samples in results."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

_LONGEST_TEXT = 200


def json_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON objects: times in ISO form, decimals as text, bytes in hex, long texts truncated."""
    columns = {name: _printable(rows.column(name)).to_pylist() for name in rows.schema.names}
    names = list(columns)
    return [
        {name: json_value(value) for name, value in zip(names, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def _printable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Use Arrow's text, as Python's dates have no nanoseconds and no year 0."""
    if pa.types.is_temporal(column.type):
        return column.cast(pa.string())
    if pa.types.is_nested(column.type):
        return column.cast(_texts(column.type))
    return column


def _texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([f.with_type(_texts(f.type)) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_texts(kind.key_type)), _texts(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_texts(kind.value_type)))
    return kind


def json_value(value: Any) -> Any:
    """Convert a value to a JSON type."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[: _LONGEST_TEXT - 1] + "…"
    if isinstance(value, bytes):
        return json_value("0x" + value.hex())
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
