"""The part of Avro's type system that metadata files use: parsed from a file's header, written as Java writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import parse_json

NAMESPACE: Final = "org.apache.paimon.avro.generated"
_PLAIN = {"null": "null", "boolean": "boolean", "int": "long", "long": "long", "float": "float", "double": "double",
          "bytes": "bytes", "string": "string"}  # fmt: skip


MOST_PARTS: Final = 100_000
"""A schema that names its own types again and again can have more parts than there is time."""
_DEEPEST: Final = 100
_LONGEST_FIXED: Final = 1 << 20

Unknown = tuple[tuple[str, bytes], ...]
"""Fields that are only kept: for each its JSON in the schema of the file, and its value as it is stored."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """``kind``: null, boolean, long (also int and enum), float, double, bytes, string, fixed, array, map or record.

    ``union``: its branch number is stored first; ``null_branch`` is the one that means null. ``texts``: of a record,
    the JSON of each field. ``parts``: how many types it consists of, those that are named again counted again.
    """

    kind: str
    name: str = ""
    items: AvroType | None = None
    fields: tuple[tuple[str, AvroType], ...] = ()
    size: int = 0
    union: bool = False
    null_branch: int | None = None
    logical: str | None = None
    texts: tuple[str, ...] = ()
    parts: int = 1

    @property
    def nullable(self) -> bool:
        return self.null_branch is not None


@lru_cache(maxsize=64)
def parse_avro_schema(text: str) -> AvroType:
    """Parse a schema. The files of a writer have the same one, and to parse it takes as long as some hundred entries.

    Raises:
        FormatError: it is none, or has a type that no metadata file of Paimon has (unions of two values, ...).
    """
    try:
        return _parse(parse_json(text), {}, 0)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FormatError(f"its Avro schema is corrupt: {e!r}") from None


def _parse(schema: Any, named: dict[str, AvroType], depth: int) -> AvroType:
    if depth > _DEEPEST:
        raise FormatError("its Avro schema is nested too deeply")
    if isinstance(schema, list):
        return _parse_union(schema, named, depth)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return AvroType(_PLAIN[schema])
        if schema in named or schema.rpartition(".")[2] in named:
            return named.get(schema) or named[schema.rpartition(".")[2]]
        raise FormatError(f"its Avro schema names an unknown type {schema!r}")
    kind = schema["type"]
    if kind == "record":
        return _parse_record(schema, named, depth)
    if kind in ("array", "map"):
        items = _parse(schema["items" if kind == "array" else "values"], named, depth + 1)
        if kind == "array" and not _least_bytes(items):
            raise FormatError("its Avro schema has an array of items that take no bytes")
        return AvroType(kind, items=items, parts=1 + items.parts)
    if kind in ("enum", "fixed"):
        out = AvroType("long") if kind == "enum" else AvroType("fixed", size=_fixed_size(schema["size"]))
        named[schema["name"]] = out
        return out
    return replace(_parse(kind, named, depth + 1), logical=schema.get("logicalType"))


def _parse_record(schema: Any, named: dict[str, AvroType], depth: int) -> AvroType:
    # Registered only afterwards: metadata has no recursive types, so they fail as unknown.
    fields = tuple((str(f["name"]), _parse(f["type"], named, depth + 1)) for f in schema["fields"])
    texts = tuple(map(avro_text, schema["fields"]))
    parts = 1 + sum(t.parts for _, t in fields)
    if parts > MOST_PARTS:
        raise FormatError(f"its Avro schema has more than {MOST_PARTS:,} parts")
    out = named[schema["name"]] = AvroType("record", schema["name"], fields=fields, texts=texts, parts=parts)
    return out


def _fixed_size(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LONGEST_FIXED:
        raise FormatError(f"its Avro schema has a fixed type of {size!r} bytes")
    return size


def _least_bytes(stored: AvroType) -> int:
    """Return 0 for a type whose values can take no bytes, 1 for all others."""
    if stored.union:
        return 1
    if stored.kind == "record":
        return max((_least_bytes(t) for _, t in stored.fields), default=0)
    return min(stored.size, 1) if stored.kind == "fixed" else int(stored.kind != "null")


def _parse_union(branches: list[Any], named: dict[str, AvroType], depth: int) -> AvroType:
    values = [b for b in branches if b != "null"]
    if len(values) != 1 or len(branches) > 2:
        raise FormatError(f"its Avro schema has a union that is not supported: {json.dumps(branches)[:200]}")
    null_branch = branches.index("null") if len(branches) == 2 else None
    return replace(_parse(values[0], named, depth + 1), union=True, null_branch=null_branch)


def avro_schema(fields: Sequence[Any], name: str = "record") -> dict[str, Any]:
    """Write a record as Paimon's Java engine does: names of nested records chained, null first in unions.

    A field is ``"_NAME type"``, ``?`` before the type for nullable and ``[...]`` around it for an array, or a pair of
    such a text and the fields of the record that its type ``record`` stands for.
    """
    out: dict[str, Any] = {"type": "record", "name": name}
    if name == "record":
        out["namespace"] = NAMESPACE
    out["fields"] = [_avro_field(f, name) for f in fields]
    return out


def avro_text(schema: dict[str, Any]) -> str:
    """Return the JSON of a schema without blanks, as Java writes it."""
    return json.dumps(schema, separators=(",", ":"))


def _avro_field(field: Any, record: str) -> dict[str, Any]:
    text, nested = field if isinstance(field, tuple) else (field, ())
    name, _, type_text = text.partition(" ")
    avro_type = _avro_type(type_text, nested, f"{record}_{name}")
    return {"name": name, "type": avro_type} | ({"default": None} if type_text.startswith("?") else {})


def _avro_type(text: str, nested: Sequence[Any], record: str) -> Any:
    if text.startswith("?"):
        return ["null", _avro_type(text[1:], nested, record)]
    if text.startswith("["):
        return {"type": "array", "items": _avro_type(text[1:-1], nested, record)}
    if text == "record":
        return avro_schema(nested, record)
    return {"type": "long", "logicalType": text} if text == "timestamp-millis" else text
