"""Markdown that people read in Airflow: whatever comes from a form or from data is shown as it is, never as markup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.listing import counted as counted

_ACTIVE = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FENCE = re.compile(r"`{3,}")
_WORDS = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s'"`]|['"`])+\s*|\s+""")
_CELL = 60
_SQL_WIDTH = 84
"""Characters that a code block of Airflow's approval page shows beside each other, at 1280 pixels."""


def escape(text: str) -> str:
    """Take the meaning from every character that Markdown or HTML gives one; line breaks become spaces."""
    flat = " ".join(text.split("\n")).replace("\r", " ")
    return _ACTIVE.sub(r"\\\1", "".join(_HTML.get(character, character) for character in flat))


def code_block(text: str, language: str = "") -> str:
    """Show text as it is, line by line. The fence is longer than any in the text, so the text can't end it."""
    longest = max((len(run) for run in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def sql_block(sql: str) -> str:
    """Show SQL; Airflow's page doesn't break long lines, so they are broken here, at blanks outside of quotes."""
    return code_block("\n".join(part for line in sql.strip().splitlines() for part in _broken(line)), "sql")


def _broken(line: str) -> list[str]:
    if len(line) <= _SQL_WIDTH or any(line.count(quote) % 2 for quote in "'\"`"):  # a text may go on after the line
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts, comment = [""], False
    for word in _WORDS.findall(line):
        goes_on = f"{indent}-- " if comment else indent
        if len(parts[-1]) + len(word.rstrip()) > _SQL_WIDTH and parts[-1].strip():
            parts.append(goes_on)
        parts[-1] += word
        comment = comment or word.startswith("--")
    return [part.rstrip() for part in parts]


def table_of(listing: Listing) -> str:
    """Return a list as a table. Values of rows are cut; a missing and an empty one are told apart."""
    kinds = [kind for _, kind in listing.columns]
    heads = [escape(n) if k.startswith("value") else n[:1].upper() + n[1:] for n, k in listing.columns]
    shown = [[*map(_cell, row, cells, kinds)] for row, cells in zip(listing.rows, listing.cells(), strict=True)]
    left = [[f"and {listing.left:,} more", *[""] * (len(heads) - 1)]] if listing.left > 0 else []
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *shown, *left))


def titled_table(title: str, columns: str, rows: Sequence[Sequence[Any]], most: int = 0) -> list[str]:
    """Return a table below its title, as one part of a text; none without rows. ``columns``: as ``heads`` takes them.

    ``most``: rows that are shown; 0 = all.
    """
    table = table_of(Listing(title=title, columns=heads(columns), rows=rows).first(most))
    return [f"{title}:\n\n{table}" if title else table] if rows else []


def _cell(value: Any, shown: str, kind: str) -> str:
    if not kind.startswith("value"):
        return shown if kind == "markdown" else escape(shown)
    text = str(value)
    return "*null*" if value is None else escape(text if len(text) <= _CELL else text[: _CELL - 1] + "…") or "*empty*"


def requester_line(user: str | None) -> str:
    """Say who asks for an approval."""
    return f"- Requested by: {escape(user) if user else '*unknown*'}"


def where_it_ran(results: Mapping[str, Any]) -> str:
    """Say what of a run Spark has done, and what plain Python beside its task. ``results``: by task; None: it had none.

    Nothing is said of results that don't say it themselves.
    """
    found = {name: result["ran_on"] for name, result in results.items() if result and result.get("ran_on")}
    said = ", ".join(f"{name}: {'Spark' if ran == 'spark' else 'plain Python'}" for name, ran in found.items())
    return f"Ran on: {said}." if said else ""
