"""Columns that SQL of a correction names and no table has, found by its words.

Whatever this can't tell for sure is left to Spark: it never refuses a statement that Spark would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from airflow_paimon.core.errors import InvalidInputError, did_you_mean
from airflow_paimon.core.sql_text.statement import AFTER_FROM, BRANCH, NO_ALIAS, kind_of, relations_of
from airflow_paimon.core.sql_text.tokens import Token, nesting, tokens_of
from airflow_paimon.core.table.predicate import COMPARISONS

_VALUES = frozenset({"null", "true", "false", "default", "current_date", "current_time", "current_timestamp",
                     "localtimestamp", "current_user", "session_user", "user", "current_catalog", "current_database",
                     "current_schema", "current_timezone"})  # fmt: skip
"""Words that are a value."""
_BEFORE = ("set", "where", "and", "or", "not", "when", "on")
"""Words after which a name that is compared or set is a column."""
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
    faults = dict.fromkeys((*found.qualified(), *found.compared()))
    if not faults:
        return
    said = [f"{view} has no column {name}{did_you_mean(name, known[view])}" for view, name in faults]
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

    def compared(self) -> list[tuple[str, str]]:
        """Return unknown columns that are compared or set without a table's name, of a statement that reads one table
        and nothing else.
        """
        if (view := self._only_view()) is None:
            return []
        found, in_reach = [], kind_of(self._tokens) is not None
        for at, token in enumerate(self._tokens):
            if self._depths[at] == 0 and token.is_word(*AFTER_FROM):  # of a SELECT only what is behind WHERE
                in_reach = token.is_word("where")
            before, after = self._at(at - 1), self._at(at + 1)
            after = self._at(at + 2) if after.is_word("not") else after
            begins = before.is_word(*_BEFORE) or before.is_mark("(", ",")
            compared = after.is_mark("<=>", *COMPARISONS) or after.is_word("is", "in", "between", "like")
            is_column = in_reach and token.names and begins and compared and not token.is_word(*_VALUES)
            if is_column and self._lacks(view, token):
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
