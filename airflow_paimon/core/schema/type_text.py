"""Parses column types in Paimon's SQL notation, including nested types."""

from __future__ import annotations

import re

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.format.types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    RowType,
    parse_type,
    with_nullable,
)

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
        raise InvalidInputError(f"Column {column}: the type must be a text, it is {text!r}; {_HINT}")
    nested = _NESTED.fullmatch(text.strip())
    if nested is not None:
        return with_nullable(_nested(nested[1].upper(), nested[2], column), (nested[3] or "").upper()[:3] != "NOT")
    try:
        found = parse_type(text)
    except FormatError:
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
