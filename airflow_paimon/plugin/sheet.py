"""Tables of the page as values, and how numbers, sizes and times are spelled in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from airflow_paimon.shown.listing import AnnotatedValue, Listing, size_text, utc_time, value_of

_DIGEST = re.compile(r"[-_](?:[0-9a-f]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?=-|$)")
_NOTHING = "-"
_SPANS = ((86_400_000 * 365, "y"), (86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


@dataclass(frozen=True, slots=True)
class Cell:
    """``mark``: how it is coloured (good, warn, bad, muted). ``href``: one from ``/`` on leads to Airflow's own pages.

    ``folded``: all of a text of which ``text`` is the beginning; it unfolds on a click. ``whole_words``: broken at
    blanks alone, which a date is not by itself.
    """

    text: str
    title: str = ""
    href: str = ""
    mark: str = ""
    folded: str = ""
    whole_words: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """``number``: aligned to the right. ``help`` is shown on hovering over the heading, ``href`` sorts by it.

    ``order``: ascending or descending when the rows are sorted by it. ``roomy``: not squeezed, as it holds sentences.
    ``optional``: left out where no row says anything there.
    """

    title: str
    number: bool = False
    help: str = ""
    href: str = ""
    order: str = ""
    roomy: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """``total``: rows that there are, of which ``rows`` is page ``page`` of ``pages``."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    empty: str = "Nothing here"
    total: int = 0
    page: int = 1
    pages: int = 1
    search: str | None = None
    hidden: dict[str, str] = field(default_factory=dict)


def heading(name: str, kind: str) -> str:
    """Return what stands above a column of a list."""
    return name[:1].upper() + name[1:] + (" (UTC)" if kind == "utc" else "")


def _columns(listing: Listing) -> list[Column]:
    """Return the columns of a list; only the first, and those of numbers, stay where no row says anything."""
    return [
        Column(
            heading(name, kind),
            number=kind in ("number", "size"),
            help=listing.help.get(name, ""),
            roomy=kind == "sentence",
            optional=place > 0 and kind not in ("number", "size"),
        )
        for place, (name, kind) in enumerate(listing.columns)
    ]


def _cell(value: Any, kind: str, now_ms: int) -> Cell:
    """Return what a list has in a column of some kind."""
    if isinstance(value, AnnotatedValue):
        cell = _cell(value.value, kind, now_ms)
        if value.short:
            cell = Cell(value.short, title="" if value.value is None else str(value.value))
        return replace(cell, title=value.note or cell.title, mark=value.mark or cell.mark, href=value.href)
    if kind == "number":
        return number(value)
    if kind == "size":
        return size(value)
    if isinstance(value, datetime) and kind == "utc":
        return moment(round(value.replace(tzinfo=UTC).timestamp() * 1000), now_ms)
    if isinstance(value, datetime):
        return Cell(value.strftime("%Y-%m-%d %H:%M"), title=str(value), whole_words=True)
    if isinstance(value, (list, tuple)):
        return text(", ".join(map(str, value)))
    return folded(value) if kind == "sql" else shortened(value) if kind == "name" else text(value)


ByColumn = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""Something of the cells of a column, by what their row has in each column."""


def sheet_of(
    listing: Listing,
    now_ms: int,
    *,
    empty: str,
    title: str = "",
    q: str | None = None,
    page: int = 1,
    size: int = 0,
    links: ByColumn | None = None,
    marks: ByColumn | None = None,
) -> Sheet:
    """Show a page of a list: of its rows those whose first column has ``q``; None: it isn't searched.

    ``size``: rows of a page, 0 = all. ``links`` and ``marks``: see ``Cell``.
    """
    names = [name for name, _ in listing.columns]
    found = [row for row in listing.rows if (q or "").lower() in str(value_of(row[0])).lower()]
    page, pages, first, last = paged(len(found), page, size or max(1, len(found)))
    rows = []
    for row in found[first:last]:
        cells = [_cell(value, kind, now_ms) for value, (_, kind) in zip(row, listing.columns, strict=True)]
        by_name = dict(zip(names, map(value_of, row), strict=True))
        for place, name in enumerate(names):
            link, mark = (links or {}).get(name), (marks or {}).get(name)
            href, marked = link(by_name) if link else "", mark(by_name) if mark else ""
            cells[place] = replace(cells[place], href=href or cells[place].href, mark=marked or cells[place].mark)
        rows.append(cells)
    columns = _columns(listing)
    kept = [i for i, c in enumerate(columns) if not c.optional or any(row[i].text != _NOTHING for row in rows)]
    return Sheet(
        columns=[columns[i] for i in kept], rows=[[row[i] for i in kept] for row in rows], title=title,
        total=len(found), page=page, pages=pages, search=q, empty=empty,
    )  # fmt: skip


def paged(count: int, page: int, size: int) -> tuple[int, int, int, int]:
    """Return the page that exists nearest to the one asked for, the number of pages, and its first and last row."""
    pages = max(1, -(-count // size))
    page = min(max(1, page), pages)
    return page, pages, (page - 1) * size, min(count, page * size)


def number(value: int | None) -> Cell:
    """A count: ``1,234``; a dash when nobody knows."""
    return Cell(_NOTHING, mark="muted") if value is None else Cell(f"{value:,}")


def signed(value: int | None) -> str:
    """A difference: ``+1,234``, ``-5``, ``0``."""
    return "?" if value is None else f"{value:+,}" if value else "0"


def size(count: int | None) -> Cell:
    """A number of bytes, the exact one on hovering."""
    return Cell(_NOTHING, mark="muted") if count is None else Cell(size_text(count), title=f"{count:,} bytes")


def moment_text(millis: int) -> str:
    """Spell a time in UTC, as minutes: what people compare."""
    return _spelled(millis, "%Y-%m-%d %H:%M")


def tick_texts(times: Sequence[int]) -> list[str]:
    """Spell times on an axis: as minutes, with seconds where two neighbours would look the same."""
    shown = [moment_text(t) for t in times]
    alike = any(one == other for one, other in pairwise(shown))
    return [exact_text(t).removesuffix(" UTC") for t in times] if alike else shown


def exact_text(millis: int) -> str:
    """Spell a time in UTC to the second."""
    return _spelled(millis, "%Y-%m-%d %H:%M:%S UTC")


def _spelled(millis: int, form: str) -> str:
    found = utc_time(millis)
    return found.strftime(form) if isinstance(found, datetime) else str(found)


def ago(millis: int, now_ms: int) -> str:
    """Spell how long ago something was: ``3 h``, ``12 d``."""
    passed = now_ms - millis
    for length, unit in _SPANS:
        if abs(passed) >= length:
            return f"{passed // length:,} {unit} ago" if passed >= 0 else f"in {-passed // length:,} {unit}"
    return "now"


def moment(millis: int | None, now_ms: int) -> Cell:
    """A time, with the exact one and its age on hovering."""
    if millis is None:
        return Cell(_NOTHING, mark="muted")
    return Cell(moment_text(millis), title=f"{exact_text(millis)}, {ago(millis, now_ms)}", whole_words=True)


def text(value: object) -> Cell:
    """Any text; a dash for None and for nothing."""
    shown = "" if value is None else str(value)
    return Cell(shown) if shown else Cell(_NOTHING, mark="muted")


def shortened(value: object, most: int = 22) -> Cell:
    """A name that may be long, such as a commit user's, without digests."""
    shown = "" if value is None else str(value)
    short = _DIGEST.sub("-…", shown)
    if len(short) > most:
        short = f"{short[: most - 1].rstrip('…')}…"
    return text(shown) if short == shown else Cell(short, title=shown)


def folded(value: object, most: int = 28) -> Cell:
    """A long text, such as a statement: its beginning, and all of it on a click."""
    shown = "" if value is None else str(value)
    if len(shown) <= most:
        return text(shown)
    return Cell(f"{' '.join(shown.split())[: most - 1]}…", folded=shown)
