"""Columns that a correction's SQL names and no table has, found by its words.

Whatever this can't tell for sure is left to Spark: it never refuses a statement that Spark would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate

from airflow_paimon.core.correction.sql_asked import BRANCH
from airflow_paimon.core.correction.sql_words import Token, kind_of, nesting, tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError

_VALUES = frozenset({"null", "true", "false", "default", "current_date", "current_time", "current_timestamp",
                     "localtimestamp", "current_user", "session_user", "user", "current_catalog", "current_database",
                     "current_schema", "current_timezone", "end"})  # fmt: skip
"""Words that are a value, or end one: a name after them is its alias."""
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond",
          "nanosecond")  # fmt: skip
_KEYWORDS = _VALUES | frozenset({
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
_UNCLEAR_MARKS = frozenset(":{}@$?|")
_BEFORE_RELATION = ("from", "join", "using", "into", "update", "overwrite")
_NO_ALIAS = frozenset({
    "set", "using", "where", "on", "when", "as", "join", "inner", "left", "right", "full", "cross", "natural", "semi",
    "anti", "group", "having", "order", "limit", "union", "intersect", "except", "minus", "window", "sort", "cluster",
    "distribute", "offset", "qualify", "lateral", "select", "partition", "by", "values", "table", "from", "with",
    "tablesample", "pivot", "unpivot", "for", "version", "timestamp", "then", "if", "replace",
})  # fmt: skip


def check_columns(sql: str, views: Mapping[str, Sequence[str]], tables: Mapping[str, str] | None = None) -> None:
    """Check the columns that a statement or query names.

    :param views: the columns of each view or table whose schema is known, by the name that the SQL has for it
    :param tables: what a view is called in the message, where that is another name
    :raises InvalidInputError: a column that no such view has, or that the written branch lacks
    """
    tokens = tokens_of(without_comments(sql))
    known = {name.lower(): tuple(columns) for name, columns in views.items()}
    found = _Statement(tokens, known)
    faults = dict.fromkeys((*found.qualified(), *found.written(), *found.bare()))
    if not faults:
        return
    said = [_text(view, name, known[view]) for view, name in faults]
    of = {view: (tables or {}).get(view, view) for view, _ in faults}
    has = [f"{of[view]} has {', '.join(known[view])}" for view in of]
    kind = kind_of(tokens) or "SQL"
    raise InvalidInputError(
        f"The {kind} names columns that are not there: {'; '.join(dict.fromkeys(said))}. {'; '.join(has)}"
    )


def _text(view: str, name: str, columns: Sequence[str]) -> str:
    near = get_close_matches(name, columns, 1)
    return f"{view} has no column {name}" + (f" (did you mean {near[0]}?)" if near else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    """A table where the SQL reads or writes it. ``start`` and ``end``: its tokens, the alias included."""

    name: str
    alias: str
    start: int
    end: int


class _Statement:
    def __init__(self, tokens: Sequence[Token], views: Mapping[str, Sequence[str]]) -> None:
        self._tokens = tokens
        hidden = _defined(tokens)
        self._views = {name: columns for name, columns in views.items() if name not in hidden}
        self._columns = {column.lower() for columns in views.values() for column in columns}
        self._relations = _relations(tokens)
        self._in_relation = {at for r in self._relations for at in range(r.start, r.end)}
        self._depths = list(accumulate(map(nesting, tokens)))
        self._outer = [r for r in self._relations if self._depths[r.start] == 0]
        self._in_outer = {at for r in self._outer for at in range(r.start, r.end)}
        self._aliases = self._of_aliases(hidden)

    def _of_aliases(self, hidden: set[str]) -> dict[str, str]:
        """Return the view of each name that qualifies columns; none for a name of two tables."""
        found: dict[str, set[str]] = {}
        for one in self._relations:
            found.setdefault(one.alias, set()).add(one.name)
        return {
            alias: next(iter(names))
            for alias, names in found.items()
            if len(names) == 1 and names <= self._views.keys() and alias not in hidden and alias not in self._columns
        }

    def _at(self, at: int) -> Token:
        return self._tokens[at] if 0 <= at < len(self._tokens) else Token("mark", "")

    def _lacks(self, view: str, token: Token) -> bool:
        name = token.text.lower()
        return not name.startswith("_") and name not in map(str.lower, self._views[view])

    def qualified(self) -> list[tuple[str, str]]:
        """Return unknown columns after a table's name or alias: ``b.amuont``."""
        found = []
        for at, token in enumerate(self._tokens):
            view = self._aliases.get(token.text.lower()) if token.names else None
            column = self._at(at + 2)
            if view is None or at in self._in_relation or self._at(at - 1).text == "." or self._at(at + 1).text != ".":
                continue
            if column.names and self._at(at + 3).text != "(" and self._lacks(view, column):
                found.append((view, column.text))
        return found

    def written(self) -> list[tuple[str, str]]:
        """Return unknown columns that a MERGE or an INSERT writes."""
        kind, target = kind_of(self._tokens), self._relations[0] if self._relations else None
        if target is None or target.name not in self._views or kind not in ("MERGE", "INSERT"):
            return []
        if kind == "MERGE":
            names = [*self._set_by_merge(), *self._inserted_by_merge()]
        elif self._at(target.end).is_word("partition"):
            names = self._keys(target.end + 1)
        else:
            names = self._listed(target.end)
        return [(target.name, token.text) for token in names if self._lacks(target.name, token)]

    def _listed(self, at: int) -> list[Token]:
        """Return the names of ``(a, b)`` that begins here; none where something else is in the parentheses."""
        if self._at(at).text != "(":
            return []
        found = []
        while self._at(at + 1).names and self._at(at + 2).text in (",", ")"):
            found.append(self._at(at + 1))
            at += 2
            if self._at(at).text == ")":
                return found
        return []

    def _keys(self, at: int) -> list[Token]:
        """Return the columns of ``(dt = 'a', h)`` that begins here."""
        found, depth = [], 0
        for place in range(at, len(self._tokens)):
            token = self._tokens[place]
            depth += nesting(token)
            if depth == 0:
                break
            if depth == 1 and token.text in ("(", ",") and token.kind == "mark" and self._at(place + 1).names:
                found.append(self._at(place + 1))
        return found

    def _set_by_merge(self) -> list[Token]:
        """Return what UPDATE SET names without a table; none where a CASE hides where a clause ends."""
        if any(token.is_word("case") for token in self._tokens):
            return []
        found, depth, in_set = [], 0, False
        for at, token in enumerate(self._tokens):
            depth += nesting(token)
            starts = token.is_word("set") and self._at(at - 1).is_word("update")
            in_set = starts or (in_set and not (depth == 0 and token.is_word("when")))
            begins = starts or (in_set and depth == 0 and token.kind == "mark" and token.text == ",")
            if begins and self._at(at + 1).names and self._at(at + 2).text == "=":
                found.append(self._at(at + 1))
        return found

    def _inserted_by_merge(self) -> list[Token]:
        found = []
        for at in range(len(self._tokens)):
            if self._at(at).is_word("then") and self._at(at + 1).is_word("insert"):
                found += self._listed(at + 2)
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
        unclear = any(
            t.is_word(*_UNCLEAR) or (t.kind == "mark" and (t.text in _UNCLEAR_MARKS or self._is_arrow(at)))
            for at, t in enumerate(tokens)
        )
        if unclear or selects != (kind is None) or len(self._outer) != 1:
            return None
        view = self._outer[0].name  # FROM in the parentheses of a function names no table
        return view if view in self._views and (kind is None or view == BRANCH) else None

    def _is_arrow(self, at: int) -> bool:
        return self._at(at).text in ("-", "=") and self._at(at + 1).text == ">"

    def _is_candidate(self, at: int) -> bool:
        """Whether a name stands alone: no keyword, function, part of a path, or type of a literal."""
        token, after = self._at(at), self._at(at + 1)
        if not token.names or token.is_word(*_KEYWORDS) or at in self._in_outer:
            return False
        return self._at(at - 1).text != "." and after.text not in (".", "(") and after.kind != "text"

    def _is_alias(self, at: int) -> bool:
        """Whether a name follows an expression: its alias, or the unit of an interval."""
        before = self._at(at - 1)
        if at - 1 in self._in_relation:
            return True
        if before.kind == "word":
            return before.is_word(*_VALUES) or not before.is_word(*_KEYWORDS)
        return before.kind in ("quoted", "text", "number") or before.text in (")", "]")

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
        if depth == 0 and self._at(at).text != "(":
            return at + 1
        while at < len(self._tokens) and self._depths[at] >= depth:
            if self._depths[at] == depth and self._at(at).text in (",", ")"):
                return at + (self._at(at).text == ")")
            at += 1
        return at


def _defined(tokens: Sequence[Token]) -> set[str]:
    """Return the names that the statement gives itself: of a WITH, of a query in parentheses."""
    found = set()
    for at, token in enumerate(tokens):
        after = tokens[at + 1 : at + 3]
        if token.names and len(after) == 2 and after[0].is_word("as") and after[1].text == "(":
            found.add(token.text.lower())
        if token.text == ")" and token.kind == "mark":
            named = after[1:] if after and after[0].is_word("as") else after[:1]
            found |= {one.text.lower() for one in named if one.names and one.text.lower() not in _NO_ALIAS}
            if len(after) == 2 and after[0].is_word("as") and after[1].text == "(":
                found |= {t.text.lower() for t in tokens if t.names}  # WITH x (a, b) AS (...): leave all to Spark
    return found


def _relations(tokens: Sequence[Token]) -> list[_Relation]:
    found: list[_Relation] = []
    for at, token in enumerate(tokens):
        if not token.is_word(*_BEFORE_RELATION) or (at and tokens[at - 1].is_word("distinct", "then")):
            continue
        written = token.is_word("update", "into", "overwrite")
        at += 1
        while (relation := _relation(tokens, at, written=written)) is not None:
            found.append(relation)
            at = relation.end + 1
            if written or relation.end >= len(tokens) or tokens[relation.end].text != ",":
                break
    return found


def _relation(tokens: Sequence[Token], start: int, *, written: bool) -> _Relation | None:
    """Read a table's name and alias; one whose columns get other names, or of another version, has no name."""

    def token(at: int) -> Token:
        return tokens[at] if at < len(tokens) else Token("mark", "")

    at = start + token(start).is_word("table")
    if not token(at).names or token(at).is_word(*_NO_ALIAS):
        return None
    parts = [token(at).text]
    at += 1
    while token(at).text == "." and token(at + 1).names:
        parts.append(token(at + 1).text)
        at += 2
    name, alias, plain = ".".join(parts).lower(), parts[-1], written
    named = at + token(at).is_word("as")
    if token(named).names and (named > at or token(named).text.lower() not in _NO_ALIAS):
        alias, at, plain = token(named).text, named + 1, False
    if (token(at).text == "(" and not plain) or token(at).is_word("version", "timestamp", "for"):
        name = ""
    return _Relation(name=name, alias=alias.lower(), start=start, end=at)
