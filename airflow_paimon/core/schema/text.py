"""Parses columns and schema changes written on a command line. Strict: unknown forms are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import DataType, parse_type_text
from airflow_paimon.core.requests.requests import GRAMMAR
from airflow_paimon.core.schema.schema_plan import (
    AddColumn,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    WidenColumn,
)

_NAME = r"(?:`[^`]+`|[^\s`']+)"
_TEXT = r"'(?:[^']|'')*'"
_COLUMN = re.compile(
    rf"\s*(?P<name>{_NAME})\s+(?P<type>[^']+?)(?:\s+(?:COMMENT\s+)?(?P<comment>{_TEXT}))?\s*", re.IGNORECASE
)


def parse_column(text: str) -> tuple[str, DataType, str | None]:
    """Parse ``name TYPE [NOT NULL] ['comment']``; a name with blanks is quoted in backticks.

    Raises:
        InvalidInputError: malformed, or an unknown type.
    """
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"Column {text!r} is not of the form: name TYPE [NOT NULL] ['comment']")
    name = _name(match["name"])
    return name, parse_type_text(match["type"], name), _text(match["comment"])


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Parse table options given as ``key=value``.

    Raises:
        InvalidInputError: malformed, or a key is given twice.
    """
    out: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or key in out:
            raise InvalidInputError(f"Option {text!r} is given twice or is not of the form key=value")
        out[key] = value.strip()
    return out


def parse_change(text: str) -> SchemaChange:
    """Parse one change in a form of ``GRAMMAR``; key words in any case, names with blanks in backticks.

    Raises:
        InvalidInputError: malformed, or an unknown type.
    """
    for form, make in _FORMS.items():
        match = re.fullmatch(form, text.strip(), re.IGNORECASE)
        if match is not None:
            return make(match)
    raise InvalidInputError(f"Change {text!r} is not understood; write one of: {'; '.join(GRAMMAR)}")


def _add(match: re.Match[str]) -> SchemaChange:
    name, data_type, comment = parse_column(match["column"])
    return AddColumn(name=name, type=data_type, comment=comment, after=_place(match))


def _place(match: re.Match[str]) -> str | None:
    """The column to put it after; "" = first, None = not given."""
    if match["first"]:
        return ""
    return _name(match["after"]) if match["after"] else None


_PLACE = rf"(?:(?P<first>first)|after\s+(?P<after>{_NAME}))"
_FORMS: Mapping[str, Callable[[re.Match[str]], SchemaChange]] = {
    rf"add\s+column\s+(?P<column>.+?)(?:\s+{_PLACE})?": _add,
    rf"drop\s+column\s+(?P<name>{_NAME})": lambda m: DropColumn(name=_name(m["name"])),
    rf"rename\s+column\s+(?P<name>{_NAME})\s+to\s+(?P<to>{_NAME})": lambda m: RenameColumn(
        name=_name(m["name"]), to_name=_name(m["to"])
    ),
    rf"alter\s+column\s+(?P<name>{_NAME})\s+type\s+(?P<type>[^']+)": lambda m: WidenColumn(
        name=_name(m["name"]), type=parse_type_text(m["type"], _name(m["name"]))
    ),
    rf"alter\s+column\s+(?P<name>{_NAME})\s+comment\s+(?P<comment>{_TEXT})": lambda m: CommentColumn(
        name=_name(m["name"]), comment=_text(m["comment"])
    ),
    rf"alter\s+column\s+(?P<name>{_NAME})\s+{_PLACE}": lambda m: MoveColumn(
        name=_name(m["name"]), after=_place(m) or ""
    ),
    r"set\s+(?P<key>[^\s=]+)\s*=\s*(?P<value>.*)": lambda m: SetOption(key=m["key"], value=m["value"]),
    r"reset\s+(?P<key>[^\s=]+)": lambda m: RemoveOption(key=m["key"]),
}


def _name(text: str) -> str:
    return text[1:-1] if text.startswith("`") else text


def _text(quoted: str | None) -> str | None:
    return None if quoted is None else quoted[1:-1].replace("''", "'")
