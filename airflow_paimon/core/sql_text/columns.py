"""Columns that SQL of a correction names and no table has, found by its words.

Whatever this can't tell for sure is left to Spark: it never refuses a statement that Spark would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.statement import (
    BRANCH,
    NO_ALIAS,
    kind_of,
    relations_of,
)
from airflow_paimon.core.sql_text.tokens import Token, nesting, tokens_of

_VALUES = frozenset({"null", "true", "false", "default", "current_date", "current_time", "current_timestamp",
                     "localtimestamp", "current_user", "session_user", "user", "current_catalog", "current_database",
                     "current_schema", "current_timezone"})  # fmt: skip
"""Words that are a value."""
_ENDS_VALUE = (*_VALUES, "end")
"""Words after which a name is an alias."""
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond",
          "nanosecond")  # fmt: skip
_KEYWORDS = frozenset({
    *_ENDS_VALUE,
    *_UNITS, *(f"{unit}s" for unit in _UNITS), "dayofyear", "dayofweek", "doy", "dow", "epoch", "select", "distinct",
    "all", "from", "where", "group", "by", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "asc",
    "desc", "nulls", "first", "last", "update", "set", "delete", "insert", "into", "and", "or", "not", "in", "is",
    "between", "like", "ilike", "rlike", "regexp", "escape", "any", "some", "case", "when", "then", "else", "as",
    "cast", "interval", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time", "exists", "div", "mod", "both",
    "leading", "trailing", "placing", "for", "to", "except", "rollup", "cube", "grouping", "sets", "filter", "on",
    "using", "respect", "ignore", "collate", "at", "zone", "x", "binary", "table",
})  # fmt: skip
_UNCLEAR = frozenset({"lateral", "window", "over", "pivot", "unpivot", "tablesample", "transform", "with", "union",
                      "intersect", "minus", "join", "qualify", "within", "values", "declare", "version",
                      "identifier"})  # fmt: skip
_UNCLEAR_MARKS = (":", "::", "{", "}", "@", "$", "?", "|", "||", "->", "=>")


def check_columns(sql: str, views: Mapping[str, Sequence[str]], tables: Mapping[str, str] | None = None) -> None:
    """Check the columns that a statement or query names.

    :param views: the columns of each view or table whose schema is known, by the name that the SQL has for it
    :param tables: what a view is called in the message, where that is another name
    :raises InvalidInputError: a column that no such view has
    """
    tokens = tokens_of(sql)
    known = {name.lower(): tuple(columns) for name, columns in views.items()}
    found = _Statement(tokens, known)
    faults = dict.fromkeys((*found.qualified(), *found.bare()))
    if not faults:
        return
    said = [f"{view} has no column {name}{_meant(name, known[view])}" for view, name in faults]
    of = {view: (tables or {}).get(view, view) for view, _ in faults}
    has = [f"{of[view]} has {', '.join(known[view])}" for view in of]
    kind = kind_of(tokens) or "SQL"
    raise InvalidInputError(
        f"The {kind} names columns that do not exist: {'; '.join(dict.fromkeys(said))}. {'; '.join(has)}"
    )


class _Statement:
    def __init__(self, tokens: Sequence[Token], views: Mapping[str, Sequence[str]]) -> None:
        self._tokens = tokens
        hidden = _defined(tokens)
        self._views = {name: columns for name, columns in views.items() if name not in hidden}
        self._columns = {column.lower() for columns in views.values() for column in columns}
        self._relations = relations_of(tokens)
        self._in_relation = {at for r in self._relations for at in range(r.start, r.end)}
        self._depths = list(accumulate(map(nesting, tokens)))
        self._outer = [r for r in self._relations if self._depths[r.start] == 0]
        self._in_outer = {at for r in self._outer for at in range(r.start, r.end)}
        self._aliases = self._of_aliases(hidden)

    def _of_aliases(self, hidden: set[str]) -> dict[str, str]:
        """Return the view of each name that qualifies columns; none for a name of two tables."""
        found: dict[str, set[str]] = {}
        for one in self._relations:
            found.setdefault(one.alias, set()).add(one.view)
        return {
            alias: next(iter(names))
            for alias, names in found.items()
            if len(names) == 1 and names <= self._views.keys() and alias not in hidden and alias not in self._columns
        }

    def _at(self, at: int) -> Token:
        return self._tokens[at] if 0 <= at < len(self._tokens) else Token("end", "", 0, 0)

    def _lacks(self, view: str, token: Token) -> bool:
        name = token.text.lower()
        return not name.startswith("_") and name not in map(str.lower, self._views[view])

    def qualified(self) -> list[tuple[str, str]]:
        """Return unknown columns after a table's name or alias: ``b.amuont``."""
        found = []
        for at, token in enumerate(self._tokens):
            view = self._aliases.get(token.text.lower()) if token.names else None
            column = self._at(at + 2)
            is_table = not self._at(at - 1).is_mark(".") and self._at(at + 1).is_mark(".")
            if view is None or at in self._in_relation or not is_table:
                continue
            if column.names and not self._at(at + 3).is_mark("(") and self._lacks(view, column):
                found.append((view, column.text))
        return found

    def bare(self) -> list[tuple[str, str]]:
        """Return unknown columns without a table's name, of a statement that reads one table and nothing else."""
        view = self._only_view()
        if view is None:
            return []
        known, found = {c.lower() for c in self._views[view]}, []
        places = [at for at in range(len(self._tokens)) if self._is_candidate(at)]
        skipped = self._after_as()
        aliases = {self._at(at).text.lower() for at in skipped} | {
            self._at(at).text.lower() for at in places if self._is_alias(at)
        }
        for at in places:
            token = self._at(at)
            if at in skipped or self._is_alias(at) or token.text.lower() in known | aliases:
                continue
            if self._lacks(view, token):
                found.append((view, token.text))
        return found

    def _only_view(self) -> str | None:
        tokens = self._tokens
        selects = sum(t.is_word("select") for t in tokens)
        kind = kind_of(tokens)
        if not tokens or (kind is None and not tokens[0].is_word("select")) or kind not in (None, "UPDATE", "DELETE"):
            return None
        unclear = any(t.is_word(*_UNCLEAR) or t.is_mark(*_UNCLEAR_MARKS) for at, t in enumerate(tokens))
        if unclear or selects != (kind is None) or len(self._outer) != 1:
            return None
        view = self._outer[0].view  # FROM in the parentheses of a function names no table
        return view if view in self._views and (kind is None or view == BRANCH) else None

    def _is_candidate(self, at: int) -> bool:
        """Whether a name stands alone: no keyword, function, part of a path, or type of a literal."""
        token, after = self._at(at), self._at(at + 1)
        if not token.names or token.is_word(*_KEYWORDS) or at in self._in_outer:
            return False
        return not self._at(at - 1).is_mark(".") and not after.is_mark(".", "(") and after.kind != "text"

    def _is_alias(self, at: int) -> bool:
        """Whether a name follows an expression: its alias, or the unit of an interval."""
        before = self._at(at - 1)
        if at - 1 in self._in_relation:
            return True
        if before.kind == "word":
            return before.is_word(*_ENDS_VALUE) or not before.is_word(*_KEYWORDS)
        return before.kind in ("quoted", "text", "number") or before.is_mark(")", "]")

    def _after_as(self) -> set[int]:
        """Return where aliases and types of casts are: from AS up to the comma or the end of the parentheses."""
        found: set[int] = set()
        for start, token in enumerate(self._tokens):
            if token.is_word("collate", "extract"):
                found |= {start + 1, start + 2}
            if token.is_word("as"):
                found |= set(range(start + 1, self._end_of_alias(start)))
        return found

    def _end_of_alias(self, start: int) -> int:
        depth, at = self._depths[start], start + 1
        if depth == 0 and not self._at(at).is_mark("("):
            return at + 1
        while at < len(self._tokens) and self._depths[at] >= depth:
            if self._depths[at] == depth and self._at(at).is_mark(",", ")"):
                return at + (self._at(at).is_mark(")"))
            at += 1
        return at


def _defined(tokens: Sequence[Token]) -> set[str]:
    """Return the names that the statement gives itself: of a WITH, of a query in parentheses."""
    found = set()
    for at, token in enumerate(tokens):
        after = tokens[at + 1 : at + 3]
        if token.names and len(after) == 2 and after[0].is_word("as") and after[1].is_mark("("):
            found.add(token.text.lower())
        if token.is_mark(")"):
            named = after[1:] if after and after[0].is_word("as") else after[:1]
            found |= {one.text.lower() for one in named if one.names and one.text.lower() not in NO_ALIAS}
            if len(after) == 2 and after[0].is_word("as") and after[1].is_mark("("):
                found |= {t.text.lower() for t in tokens if t.names}  # WITH x (a, b) AS (...): leave all to Spark
    return found


def _meant(name: str, columns: Sequence[str]) -> str:
    near = get_close_matches(name, columns, 1)
    return f" (did you mean {near[0]}?)" if near else ""
