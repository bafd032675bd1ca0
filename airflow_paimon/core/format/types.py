"""Paimon's logical types, as schema files spell them, and as people write them in SQL notation.

``unknown`` of a field or a nested type: the keys of its JSON object that a later release has added, as JSON again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError

_PATTERN = re.compile(
    r"^(?P<root>[A-Z_]+(?:\s+PRECISION)?)\s*(?:\(\s*(?P<args>\d+(?:\s*,\s*\d+)?)\s*\))?"
    r"(?P<ltz>\s+WITH(?:OUT|\s+LOCAL)?\s+TIME\s+ZONE)?(?P<notnull>\s+NOT\s+NULL)?(?:\s+NULL)?$"
)
_ALIASES = {"INTEGER": "INT", "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "DOUBLE PRECISION": "DOUBLE"}
_DEFAULT_ARGS = {
    "DECIMAL": (10, 0),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), (6,)),
    "TIME": (0,),
    **dict.fromkeys(("CHAR", "VARCHAR", "BINARY", "VARBINARY"), (1,)),
}
_ATOMIC = frozenset({
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR", "VARCHAR", "STRING",
    "BINARY", "VARBINARY", "BYTES", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "VARIANT", "BLOB", "GEOMETRY",
    "GEOGRAPHY",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class AtomicType:
    """A type without children. ``args``: DECIMAL (precision, scale), TIMESTAMP/TIME (precision), CHAR… (length)."""

    root: str
    args: tuple[int, ...] = ()
    nullable: bool = True

    def __str__(self) -> str:
        suffix = "" if self.nullable else " NOT NULL"
        if self.root == "TIMESTAMP_LTZ":
            return f"TIMESTAMP({self.args[0]}) WITH LOCAL TIME ZONE{suffix}"
        args = f"({', '.join(map(str, self.args))})" if self.args else ""
        return f"{self.root}{args}{suffix}"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """ARRAY; also MULTISET and VECTOR (``root``), which are only preserved."""

    element: DataType
    nullable: bool = True
    root: str = "ARRAY"
    length: int | None = None
    unknown: str = ""

    def __str__(self) -> str:
        length = "" if self.length is None else f", {self.length}"
        return f"{self.root}<{self.element}{length}>{'' if self.nullable else ' NOT NULL'}"


@dataclass(frozen=True, slots=True)
class MapType:
    key: DataType
    value: DataType
    nullable: bool = True
    root: str = "MAP"
    unknown: str = ""

    def __str__(self) -> str:
        return f"{self.root}<{self.key}, {self.value}>{'' if self.nullable else ' NOT NULL'}"


@dataclass(frozen=True, slots=True)
class DataField:
    """A column, or a field of a ROW. Schema evolution matches by ``id``, never by name."""

    id: int
    name: str
    type: DataType
    description: str | None = None
    default_value: str | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class RowType:
    fields: tuple[DataField, ...]
    nullable: bool = True
    root: str = "ROW"
    unknown: str = ""

    def __str__(self) -> str:
        fields = ", ".join(f"{_name(field.name)} {field.type}" for field in self.fields)
        return f"{self.root}<{fields}>{'' if self.nullable else ' NOT NULL'}"


def _name(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


DataType = AtomicType | ArrayType | MapType | RowType


def parse_type(value: Any) -> DataType:
    """Parse the ``type`` of a field: a string such as ``DECIMAL(10, 2) NOT NULL`` or a nested object.

    Raises:
        FormatError: it is neither.
        UnsupportedFeatureError: it names a type that Paimon 2.1 doesn't have.
    """
    if isinstance(value, str):
        return _parse_atomic(value)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        root, _, rest = value["type"].partition(" ")
        nullable = rest.strip().upper() != "NOT NULL"
        if root == "ROW":
            fields = tuple(parse_field(f) for f in value["fields"])
            return RowType(fields, nullable, unknown=_others(value, "type", "fields"))
        if root == "MAP":
            unknown = _others(value, "type", "key", "value")
            return MapType(parse_type(value["key"]), parse_type(value["value"]), nullable, unknown=unknown)
        if root in ("ARRAY", "MULTISET", "VECTOR"):
            unknown = _others(value, "type", "element", "length")
            return ArrayType(parse_type(value["element"]), nullable, root, value.get("length"), unknown)
        raise UnsupportedFeatureError(f"the type {root} is unknown")
    raise FormatError(f"No data type, in a schema file: {value!r}")


def _parse_atomic(text: str) -> AtomicType:
    match = _PATTERN.match(text.strip().upper())
    if match is None:
        raise _not_a_type(text)
    root = _ALIASES.get(match["root"], match["root"])
    if root == "TIMESTAMP" and match["ltz"] and "LOCAL" in match["ltz"]:
        root = "TIMESTAMP_LTZ"
    if root not in _ATOMIC:
        raise _not_a_type(text)
    args = tuple(int(a) for a in match["args"].split(",")) if match["args"] else _DEFAULT_ARGS.get(root, ())
    if root == "DECIMAL" and len(args) == 1:
        args = (args[0], 0)
    return AtomicType(root, args, match["notnull"] is None)


def _not_a_type(text: str) -> FormatError | UnsupportedFeatureError:
    if text[:1].isalpha():
        return UnsupportedFeatureError(f"the type {text} is unknown")
    return FormatError(f"No data type, in a schema file: {text!r}")


def parse_field(value: Any) -> DataField:
    """Parse one entry of ``fields`` (schema file or ROW type); raises as ``parse_type`` does."""
    if not isinstance(value, dict) or "id" not in value or "name" not in value or "type" not in value:
        raise FormatError(f"A field of a schema file lacks id, name or type: {value!r}")
    default = value.get("defaultValue")
    return DataField(
        int(value["id"]),
        str(value["name"]),
        parse_type(value["type"]),
        value.get("description"),
        None if default is None else str(default),
        _others(value, "id", "name", "type", "description", "defaultValue"),
    )


def _others(value: dict[str, Any], *known: str) -> str:
    others = {k: v for k, v in value.items() if k not in known}
    return json.dumps(others, ensure_ascii=False, sort_keys=True) if others else ""


def _and_others(value: dict[str, Any], unknown: str) -> dict[str, Any]:
    return {**value, **json.loads(unknown)} if unknown else value


def type_to_json(data_type: DataType) -> Any:
    """Return what Paimon writes for this type in a schema file."""
    if isinstance(data_type, AtomicType):
        return str(data_type)
    root = data_type.root + ("" if data_type.nullable else " NOT NULL")
    if isinstance(data_type, RowType):
        nested: dict[str, Any] = {"type": root, "fields": [field_to_json(f) for f in data_type.fields]}
    elif isinstance(data_type, MapType):
        nested = {"type": root, "key": type_to_json(data_type.key), "value": type_to_json(data_type.value)}
    else:
        nested = {"type": root, "element": type_to_json(data_type.element)}
        if data_type.length is not None:
            nested |= {"length": data_type.length}
    return _and_others(nested, data_type.unknown)


def field_to_json(field: DataField) -> dict[str, Any]:
    """Return what Paimon writes for this field."""
    out: dict[str, Any] = {"id": field.id, "name": field.name, "type": type_to_json(field.type)}
    if field.description is not None:
        out["description"] = field.description
    if field.default_value is not None:
        out["defaultValue"] = field.default_value
    return _and_others(out, field.unknown)


def with_nullable(data_type: DataType, nullable: bool) -> DataType:
    """Return the same type with another nullability."""
    return data_type if data_type.nullable == nullable else replace(data_type, nullable=nullable)


def max_field_id(fields: tuple[DataField, ...]) -> int:
    """Return the highest id among fields and all nested fields; -1 when there is none."""
    return max(field_ids(fields), default=-1)


def field_ids(fields: tuple[DataField, ...]) -> Iterator[int]:
    """Return the ids of fields and of all nested fields."""
    for f in fields:
        yield f.id
        yield from nested_ids(f.type)


def nested_ids(data_type: DataType) -> tuple[int, ...]:
    """Return the field ids of all ROWs inside a type, in order: equal types with other ids are other columns."""
    return tuple(f.id for row in types_within(data_type) if isinstance(row, RowType) for f in row.fields)


def types_within(data_type: DataType) -> Iterator[DataType]:
    """Return the type itself and all types inside it, outer ones first."""
    yield data_type
    inner: tuple[DataType, ...] = ()
    if isinstance(data_type, RowType):
        inner = tuple(f.type for f in data_type.fields)
    elif isinstance(data_type, MapType):
        inner = (data_type.key, data_type.value)
    elif isinstance(data_type, ArrayType):
        inner = (data_type.element,)
    for one in inner:
        yield from types_within(one)


_NESTED = re.compile(r"(ARRAY|MULTISET|MAP|ROW)\s*<(.*)>\s*(NOT\s+NULL|NULL)?", re.IGNORECASE | re.DOTALL)
_ROW_FIELD = re.compile(r"(`[^`]+`|[^\s`:]+)\s*[\s:]\s*(.+?)(?:\s+'((?:[^']|'')*)')?", re.DOTALL)
_BOUNDS = {
    "DECIMAL": (1, 38),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ", "TIME"), (0, 9)),
    **dict.fromkeys(("CHAR", "VARCHAR", "BINARY", "VARBINARY"), (1, 2**31 - 1)),
}
"""Smallest and largest first argument, as Paimon's own type classes check them."""
_HINT = "write e.g. BIGINT, STRING, DECIMAL(10, 2), TIMESTAMP(3), ARRAY<INT>, MAP<STRING, BIGINT>, ROW<a INT, b STRING>"


def parse_type_text(text: str, column: str) -> DataType:
    """Parse e.g. ``DECIMAL(10, 2) NOT NULL`` or ``MAP<STRING, ARRAY<INT>>``. ``column`` is for messages.

    Fields of a ROW get the ids 0, 1, ...; they are renumbered when the column is added to a schema.

    Raises:
        InvalidInputError: an unknown type, or a length, precision or scale out of bounds.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"Column {column}: the type must be a string, got {text!r}; {_HINT}")
    nested = _NESTED.fullmatch(text.strip())
    if nested is not None:
        return with_nullable(_nested(nested[1].upper(), nested[2], column), (nested[3] or "").upper()[:3] != "NOT")
    try:
        found = parse_type(text)
    except (FormatError, UnsupportedFeatureError):
        raise InvalidInputError(f"Column {column}: {text.strip()!r} is not a type of Paimon; {_HINT}") from None
    assert isinstance(found, AtomicType)
    _check_bounds(found, column)
    return found


def _nested(root: str, inner: str, column: str) -> DataType:
    parts = _split(inner)
    if root == "ROW":
        return RowType(tuple(_row_field(i, part, column) for i, part in enumerate(parts)))
    wanted = 2 if root == "MAP" else 1
    if len(parts) != wanted:
        raise InvalidInputError(f"Column {column}: {root}<{inner}> takes {wanted} type{'s'[: wanted - 1]}; {_HINT}")
    types = [parse_type_text(part, column) for part in parts]
    return MapType(types[0], types[1]) if root == "MAP" else ArrayType(types[0], root=root)


def _row_field(position: int, text: str, column: str) -> DataField:
    match = _ROW_FIELD.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"Column {column}: the field {text.strip()!r} of a ROW is not of the form: name TYPE")
    comment = None if match[3] is None else match[3].replace("''", "'")
    return DataField(position, match[1].strip("`"), parse_type_text(match[2], column), comment)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets, quotes and backticks."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'`":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _check_bounds(found: AtomicType, column: str) -> None:
    bounds = _BOUNDS.get(found.root)
    if bounds is None or not found.args:
        return
    low, high = bounds
    if not low <= found.args[0] <= high:
        raise InvalidInputError(f"Column {column}: {found} is out of bounds: {low} to {high} is allowed")
    if found.root == "DECIMAL" and found.args[1] > found.args[0]:
        raise InvalidInputError(f"Column {column}: {found} has a scale above its precision")
