"""SHOW BRANCHES and SHOW TAGS, which are no SQL of Spark's: their own small grammar, as Paimon's connector has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.sql_comments import comment_end

_TOKEN = re.compile(r"(?P<line>--[^\n]*)|(?P<open>/\*)|`(?P<quoted>(?:[^`]|``)*)`|(?P<word>\w+)|(?P<sign>\S)|\s+")
_LISTS = ("BRANCHES", "TAGS")


@dataclass(frozen=True, slots=True)
class ShowList:
    """``what``: ``BRANCHES`` or ``TAGS``; ``name``: the parts of the table's name, unquoted."""

    what: str
    name: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_name: bool
    is_quoted: bool
    at: int


def parse_show_list(text: str) -> ShowList | None:
    """Parse ``SHOW {BRANCHES | TAGS} [IN | FROM] db.t``; None if it is another statement.

    Raises:
        InvalidInputError: it begins so and goes on otherwise; with the position, from 1.
    """
    tokens = list(_tokens(text))
    if [t.text.upper() for t in tokens[:1]] != ["SHOW"] or len(tokens) < 2 or tokens[1].text.upper() not in _LISTS:
        return None
    if tokens[0].is_quoted or tokens[1].is_quoted:
        return None
    what, rest = tokens[1].text.upper(), tokens[2:]
    while rest and rest[-1].text == ";" and not rest[-1].is_quoted:
        rest = rest[:-1]
    if len(rest) > 1 and rest[0].text.upper() in ("IN", "FROM") and not rest[0].is_quoted and rest[1].is_name:
        rest = rest[1:]
    for number, token in enumerate(rest):
        if token.is_name == (number % 2 == 1) or not (token.is_name or token.text == "."):
            where = _where(text, token.at)
            raise InvalidInputError(f"SHOW {what}: {token.text!r} was not expected{where}; {_form(what)}")
    if len(rest) % 2 == 0:
        at = rest[-1].at if rest else tokens[1].at
        raise InvalidInputError(f"SHOW {what} names no table{_where(text, at)}; {_form(what)}")
    return ShowList(what, tuple(token.text for token in rest[::2]))


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        start, at = at, found.end()
        if found["open"]:
            at = comment_end(text, at)
        elif found["quoted"] is not None:
            yield _Token(found["quoted"].replace("``", "`"), True, True, start)
        elif found["word"] or found["sign"]:
            yield _Token(found[0], bool(found["word"]), False, start)


def _where(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f" (line {line}, position {at - (text.rfind(chr(10), 0, at) + 1) + 1})"


def _form(what: str) -> str:
    return f"write SHOW {what} IN db.t"
