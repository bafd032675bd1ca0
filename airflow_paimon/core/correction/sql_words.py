"""Words of SQL without Spark, and what kind of statement they make.

Whatever this can't read for sure is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.sql_comments import comment_end

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\r\n]*|/\*.*?\*/)
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<number>[0-9][0-9A-Za-z_.]*)
    |(?P<word>[^\W0-9]\w*)
    |(?P<torn>['"`].*|/\*.*)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
# ``torn``: what begins and does not end takes all the rest, as otherwise each beginning would be followed to the end.
_COMMENT = re.compile(
    r"""(?P<kept>`[^`]*`|\b[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<line>--(?:\\\n|[^\r\n])*)
    |(?P<nested>/\*)
    |(?P<torn>['"`].*)""",
    re.VERBOSE | re.DOTALL,
)
_APART = re.compile(
    r"""(?P<kept>`(?:[^`]|``)*`|--(?:\\\n|[^\r\n])*|\b[rR](?:'[^']*'|"[^"]*")
        |'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<nested>/\*(?!\+))
    |(?P<end>;)
    |(?P<torn>['"`].*)""",
    re.VERBOSE | re.DOTALL,
)
QUERIES = ("select", "with", "from", "values", "table", "map", "reduce")
"""Words that begin a query."""
STATEMENTS = ("update", "delete", "merge", "insert")
"""Words that begin a statement which changes rows by itself."""

MOST_NESTED = 100
TOO_DEEP = (
    f"SQL is nested more than {MOST_NESTED} deep, by parentheses, CASE or NOT; name parts of it in a WITH, or use "
    f"IN (...) for many values"
)
_SIGNS = ("+", "-", "~", "!")


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: ``word``, ``quoted`` (a name in backquotes), ``text``, ``number``, ``mark``, or ``torn``: a text, a
    name or a comment without an end.
    """

    kind: str
    text: str

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    @property
    def names(self) -> bool:
        return self.kind in ("word", "quoted")


def tokens_of(sql: str) -> list[Token]:
    """Split SQL into its words and marks, without blanks and comments."""
    found = []
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind is not None and kind != "skip":
            found.append(Token(kind, match[kind].replace("``", "`") if kind == "quoted" else match[kind]))
    return found


def split_statements(sql: str) -> list[str]:
    """Split a file at its semicolons, except those in texts, quoted names and comments.

    Statements without words are left out. What Spark would not parse as a whole may be split anywhere.
    """
    found, start, at = [], 0, 0
    while (match := _APART.search(sql, at)) is not None:
        at = comment_end(sql, match.end()) if match.lastgroup == "nested" else match.end()
        if match.lastgroup == "end":
            found.append(sql[start : match.start()])
            start = at
    return [part.strip() for part in (*found, sql[start:]) if tokens_of(without_comments(part))]


def nesting(token: Token) -> int:
    """Return by how much the depth of parentheses changes after this token."""
    if token.kind != "mark":
        return 0
    return (token.text in "([") - (token.text in ")]")


def check_nesting(sql: str) -> None:
    """Refuse SQL that is nested so deeply that parsers, or what walks through their trees, would run out of stack.

    Raises:
        InvalidInputError: it is.
    """
    if _is_nested_too_deeply(sql):
        raise InvalidInputError(TOO_DEEP)


@lru_cache(maxsize=4)  # a statement is parsed several times
def _is_nested_too_deeply(sql: str) -> bool:
    depth = signs = 0
    for token in tokens_of(without_comments(sql)):
        depth += nesting(token) + token.is_word("case") - token.is_word("end")
        signs = signs + 1 if token.is_word("not") or token.text in _SIGNS else 0
        if depth + signs > MOST_NESTED:
            return True
    return False


def without_comments(sql: str) -> str:
    """Take the comments out, nested ones as well; what looks like one in a text or a quoted name stays."""
    out, at = [], 0
    while (match := _COMMENT.search(sql, at)) is not None:
        kept = match.lastgroup in ("kept", "torn")
        out += [sql[at : match.end() if kept else match.start()], "" if kept else " "]
        at = comment_end(sql, match.end()) if match.lastgroup == "nested" else match.end()
    return "".join([*out, sql[at:]])


def statement_kind(sql: str) -> str | None:
    """Return UPDATE, DELETE, MERGE or INSERT for SQL that changes rows by itself; None for a SELECT or unclear SQL.

    Only the words outside of parentheses are looked at: ``WITH x AS (SELECT ...) UPDATE branch ...`` is an UPDATE.
    """
    return kind_of(tokens_of(without_comments(sql)))


def kind_of(tokens: Sequence[Token]) -> str | None:
    """Return what ``statement_kind`` does, of words."""
    depth = 0
    if not tokens or not tokens[0].is_word("with", *STATEMENTS):
        return None
    for token in tokens:
        depth += nesting(token)
        if depth == 0 and token.is_word(*STATEMENTS):
            return token.text.upper()
        if depth == 0 and token.is_word(*QUERIES) and not token.is_word("with"):
            return None
    return None
