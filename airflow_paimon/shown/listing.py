"""Listings: the same rows as an aligned table for people, or as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_paimon.core.requests.printed import printable
from airflow_paimon.shown.html import line_html, table_html

_NUMBERS = ("number", "size", "value number")
_SQL = 60
"""Characters of a statement that a table for people shows."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class AnnotatedValue:
    """A value, and more for a page: ``short``: shown instead of it; ``note``: on hovering over it; ``mark``: its colour
    (good, warn, bad, muted); ``href``: where it leads.
    """

    value: Any
    short: str = ""
    note: str = ""
    mark: str = ""
    href: str = ""


def value_of(cell: Any) -> Any:
    """Return a value without what is noted of it."""
    return cell.value if isinstance(cell, AnnotatedValue) else cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """``columns``: name and how it is shown: text, number, size (bytes), utc or time (the writer's local time);
    name (of a user or a branch), sentence or sql: a text that may be long; markdown: one that a report shows as it is;
    value or value number: a value of a row, under the column's own name. ``rows``: of values, or ``AnnotatedValue``.

    ``left``: rows that are not shown. ``note``: a line for people below the table. ``help``: what a column means.
    """

    title: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Any]]
    left: int = 0
    note: str = ""
    help: Mapping[str, str] = field(default_factory=dict)

    def first(self, limit: int) -> Listing:
        """Return a list of the first rows; 0 = all."""
        rows, left = limited(self.rows, limit)
        return replace(self, rows=rows, left=left)

    def to_json(self) -> list[dict[str, Any]]:
        """Give one object a row; sizes in bytes, times in ISO, in UTC where that is known."""
        names = [name if _is_value(kind) else name.replace(" ", "_") for name, kind in self.columns]
        kinds = [kind for _, kind in self.columns]
        return [dict(zip(names, map(_plain, map(value_of, row), kinds), strict=True)) for row in self.rows]

    def to_text(self, all_of_them: str = "--limit 0 shows all") -> str:
        """Return an aligned table; numbers and sizes stand to the right. ``all_of_them``: how to see what is left."""
        kinds = [kind for _, kind in self.columns]
        heads = [name if _is_value(k) else name.upper() + (" (UTC)" if k == "utc" else "") for name, k in self.columns]
        cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in self.cells()]
        widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
        lines = [_line(line, kinds, widths) for line in (heads, *cells)]
        return "\n".join([*lines, *self._below(all_of_them)])

    def to_html(self, all_of_them: str) -> str:
        """Return the table as HTML, every text escaped."""
        heads = [name + (" (UTC)" if kind == "utc" else "") for name, kind in self.columns]
        numbers = [kind in _NUMBERS for _, kind in self.columns]
        return table_html(heads, self.cells(), numbers) + "".join(map(line_html, self._below(all_of_them)))

    def __repr__(self) -> str:
        return self.to_text("limit=0 shows all")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.to_html("limit=0 shows all")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give the rows that are shown, as ``to_json`` does."""
        return iter(self.to_json())

    def cells(self) -> list[list[str]]:
        """Return what people read in each cell."""
        kinds = [kind for _, kind in self.columns]
        return [[_shown(value_of(v), k) for v, k in zip(row, kinds, strict=True)] for row in self.rows]

    def _below(self, all_of_them: str) -> list[str]:
        none = [] if self.rows else [f"(no {self.title})"]
        left = [f"... and {self.left} more {self.title}: {all_of_them}"] if self.left else []
        return [*none, *left, *([self.note] if self.note else [])]


@dataclass(frozen=True, slots=True)
class View:
    """What a look-up shows that is no list: ``data`` for scripts, ``text`` for people."""

    data: Any
    text: str

    def to_json(self) -> Any:
        return self.data

    def to_text(self) -> str:
        return self.text


def heads(spelled: str) -> tuple[tuple[str, str], ...]:
    """Return the columns of a list, spelled as ``tag | stored rows: number``; those without a kind are texts."""
    pairs = (one.partition(":") for one in spelled.split("|"))
    return tuple((name.strip(), kind.strip() or "text") for name, _, kind in pairs)


def _is_value(kind: str) -> bool:
    return kind.startswith("value")


def limited(rows: Sequence[Any], limit: int) -> tuple[Sequence[Any], int]:
    """Return the first rows, and how many are left out; 0 = all."""
    return (rows, 0) if not limit or len(rows) <= limit else (rows[:limit], len(rows) - limit)


def size_text(count: int) -> str:
    """Spell a number of bytes for people."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def utc_time(millis: int | None) -> datetime | str | None:
    """Return a time for a column of kind ``utc``; a text for one that no calendar has."""
    if millis is None:
        return None
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return f"{millis} ms"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 partition``, ``1,200 partitions``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def duration_text(value: timedelta) -> str:
    """Spell a duration for people as the flags take it: ``7 d``, ``1 d 12 h``."""
    left, parts = round(value.total_seconds()), []
    for size, unit in _DURATIONS:
        count, left = divmod(left, size)
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts) or "0 s"


def _line(cells: Sequence[str], kinds: Sequence[str], widths: Sequence[int]) -> str:
    padded = (c.rjust(w) if k in _NUMBERS else c.ljust(w) for c, k, w in zip(cells, kinds, widths, strict=True))
    return "  ".join(padded).rstrip()


def _shown(value: Any, kind: str) -> str:
    if _is_value(kind):
        return "null" if value is None else " ".join(str(value).split("\n"))
    if value is None:
        return "-"
    if kind == "size":
        return size_text(value)
    if kind == "number":
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    text = " ".join(str(value).split()) if kind == "sql" else str(value).replace("\n", " ")
    return (f"{text[:_SQL]}..." if kind == "sql" and len(text) > _SQL else text) or "-"


def _plain(value: Any, kind: str) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds") + ("Z" if kind == "utc" else "")
    return list(value) if isinstance(value, tuple) else value
