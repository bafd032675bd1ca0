"""Listings and facts as HTML, for notebooks. Every text is escaped: what a table holds never becomes markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_CELL = 200
"""Characters that a cell shows."""
_LEFT, _RIGHT = "text-align:left", "text-align:right"


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    """Return a table; ``numbers``: which of its columns stand to the right."""
    styles = [_RIGHT if number else _LEFT for number in numbers]
    head = _line("th", heads, styles)
    body = "".join(_line("td", row, styles) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def facts_html(facts: Mapping[str, str]) -> str:
    """Return a table of two columns: what, and its value."""
    rows = "".join(
        f'<tr><th style="{_LEFT}">{escape(name)}</th><td style="{_LEFT}">{_cell(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def line_html(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def _line(tag: str, cells: Sequence[str], styles: Sequence[str]) -> str:
    inner = "".join(f'<{tag} style="{style}">{_cell(c)}</{tag}>' for c, style in zip(cells, styles, strict=True))
    return f"<tr>{inner}</tr>"


def _cell(text: str) -> str:
    return escape(text if len(text) <= _CELL else text[: _CELL - 1] + "…")
