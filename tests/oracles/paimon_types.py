"""Paimon's types as text ("ARRAY<INT NOT NULL>"), as its schema files' JSON, and as Arrow types."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

JsonType = str | dict[str, Any]
"""What stands at "type" in a schema file: text for a scalar, an object for ARRAY, MAP, MULTISET and ROW."""

_SCALARS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "STRING": pa.string(),
    "VARIANT": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BYTES": pa.binary(),
    "BLOB": pa.binary(),
}


def to_json(text: JsonType) -> JsonType:
    """The JSON form of a type's text. Fields of a ROW get no ids: Paimon assigns them."""
    if isinstance(text, dict):
        return text
    nullable = not re.search(r"\s+NOT\s+NULL$", text, re.IGNORECASE)
    body = text if nullable else text[: text.upper().rindex("NOT")].rstrip()
    opened = re.match(r"\s*(ARRAY|MAP|MULTISET|ROW)\s*<(.*)>\s*$", body, re.IGNORECASE | re.DOTALL)
    if opened is None:
        return text.strip()
    root, inner = opened[1].upper(), _split(opened[2])
    name = root if nullable else f"{root} NOT NULL"
    if root == "MAP":
        return {"type": name, "key": to_json(inner[0]), "value": to_json(inner[1])}
    if root == "ROW":
        return {"type": name, "fields": [_field(one) for one in inner]}
    return {"type": name, "element": to_json(inner[0])}


def _split(text: str) -> list[str]:
    """`text` cut at its outermost commas."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _field(text: str) -> dict[str, Any]:
    named = re.match(r"(?:`([^`]+)`|(\S+))\s+(.*)$", text, re.DOTALL)
    if named is None:
        raise ValueError(f"a field of a ROW needs a name and a type, not {text!r}")
    return {"name": named[1] or named[2], "type": to_json(named[3])}


def to_arrow(type_: JsonType) -> pa.DataType:
    """The Arrow type that keeps every value: timestamps in ns above precision 6, maps as pairs in order."""
    json_type = to_json(type_)
    if isinstance(json_type, dict):
        return _nested_to_arrow(json_type)
    text = re.sub(r"\s+NOT\s+NULL$", "", json_type.upper())
    root = re.match(r"[A-Z_]+", text)
    sizes = [int(number) for number in re.findall(r"\d+", text)]
    if root is None:
        raise ValueError(f"no type {json_type!r}")
    if root[0] == "DECIMAL":
        return pa.decimal128(*(sizes or [10, 0]))
    if root[0].startswith("TIMESTAMP"):
        precision = sizes[0] if sizes else 6
        unit = "ms" if precision <= 3 else "us" if precision <= 6 else "ns"
        return pa.timestamp(unit, "UTC" if root[0] == "TIMESTAMP_LTZ" or "LOCAL" in text else None)
    return _SCALARS[root[0]]


def _nested_to_arrow(type_: dict[str, Any]) -> pa.DataType:
    root = type_["type"].split()[0]
    if root == "ARRAY":
        return pa.list_(to_arrow(type_["element"]))
    if root == "MAP":
        return pa.map_(to_arrow(type_["key"]), to_arrow(type_["value"]))
    if root == "MULTISET":
        return pa.map_(to_arrow(type_["element"]), pa.int32())
    return pa.struct([pa.field(field["name"], to_arrow(field["type"])) for field in type_["fields"]])


def arrow_schema(fields: list[dict[str, Any]]) -> pa.Schema:
    """The Arrow schema of a schema file's `fields`."""
    return pa.schema([pa.field(field["name"], to_arrow(field["type"])) for field in fields])
