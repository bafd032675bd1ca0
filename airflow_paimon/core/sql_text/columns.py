"""Columns that SQL of a correction names and no table has, and those that its SELECT gives, found by its words.

Whatever this can't tell for sure is left to Spark: it never refuses a statement that Spark would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.statement import (
    AFTER_FROM,
    BRANCH,
    NO_ALIAS,
    QUERIES,
    kind_of,
    outside_parentheses,
    relations_of,
)
from airflow_paimon.core.sql_text.tokens import Token, nesting, split_at_commas, tokens_of

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
    :raises InvalidInputError: a column that no such view has, or that the written branch lacks
    """
    tokens = tokens_of(sql)
    known = {name.lower(): tuple(columns) for name, columns in views.items()}
    found = _Statement(tokens, known)
    faults = dict.fromkeys((*found.qualified(), *found.written(), *found.bare()))
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

    def written(self) -> list[tuple[str, str]]:
        """Return unknown columns that a MERGE or an INSERT writes."""
        kind, target = kind_of(self._tokens), self._relations[0] if self._relations else None
        if target is None or target.view not in self._views or kind not in ("MERGE", "INSERT"):
            return []
        if kind == "MERGE":
            places = range(len(self._tokens))
            inserts = [at for at in places if self._at(at).is_word("then") and self._at(at + 1).is_word("insert")]
            names = [*self._set_by_merge(), *(token for at in inserts for token in self._listed(at + 2))]
        elif self._at(target.end).is_word("partition"):
            names = self._keys(target.end + 1)
        else:
            names = self._listed(target.end)
        return [(target.view, token.text) for token in names if self._lacks(target.view, token)]

    def _listed(self, at: int) -> list[Token]:
        """Return the names of ``(a, b)`` that begins here; none where something else is in the parentheses."""
        if not self._at(at).is_mark("("):
            return []
        found = []
        while self._at(at + 1).names and self._at(at + 2).is_mark(",", ")"):
            found.append(self._at(at + 1))
            at += 2
            if self._at(at).is_mark(")"):
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
            if depth == 1 and token.is_mark("(", ",") and self._at(place + 1).names:
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
            begins = starts or (in_set and depth == 0 and token.is_mark(","))
            if begins and self._at(at + 1).names and self._at(at + 2).is_mark("="):
                found.append(self._at(at + 1))
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


def check_statement(sql: str, kind: str, table: str, *, all_rows: bool) -> None:
    """Check a statement of a ``kind`` that ``statement_kind`` returned.

    :param all_rows: an UPDATE or DELETE may take every row
    :raises InvalidInputError: several statements, or every row without ``all_rows``
    """
    outer = outside_parentheses(_one_statement(sql, kind))
    if kind in ("UPDATE", "DELETE") and not all_rows and not any(token.is_word("where") for token in outer):
        raise InvalidInputError(
            f"The {kind} has no WHERE, so it takes every row of {table}; add one, or switch on "
            "Allow full-table change (all_rows)"
        )


def check_select(sql: str, columns: Sequence[str], optional: Sequence[str], table: str) -> None:
    """Compare the columns that a SELECT gives with those of its table.

    :param columns: the table's columns; ``optional`` are those that a row may lack
    :raises InvalidInputError: no query, several statements, or a column that is unknown, missing or there twice
    """
    tokens = _one_statement(sql, "SELECT")
    if not tokens:
        raise InvalidInputError("SQL contains no statement; give one SELECT")
    if not (tokens[0].is_word(*QUERIES) or tokens[0].is_mark("(")):
        raise InvalidInputError(f"SQL starts with {tokens[0].text!r}; give one SELECT, which is all that runs")
    names = _select_list(tokens) or []
    named, known = [name for name in names if name and name != "*"], {"_row_kind", *(c.lower() for c in columns)}
    faults = [f"no column {name}{_meant(name, columns)}" for name in named if name.lower() not in known]
    faults += [f"{name} occurs twice" for name in dict.fromkeys(named) if named.count(name) > 1]
    given = {name.lower() for name in named}
    missing = [c for c in columns if c.lower() not in given and c not in optional]
    if names and missing and None not in names and "*" not in names:
        faults.append(f"missing: {', '.join(missing)}")
    if faults:
        raise InvalidInputError(
            f"The SELECT does not give the columns of {table}: {'; '.join(dict.fromkeys(faults))}. The table has "
            f"{', '.join(columns)}"
        )


def _one_statement(sql: str, kind: str) -> list[Token]:
    tokens = tokens_of(sql)
    while tokens and tokens[-1].is_mark(";"):
        tokens.pop()
    if any(token.is_mark(";") for token in tokens):
        raise InvalidInputError(f"SQL contains several statements; give one {kind}")
    return tokens


def _select_list(tokens: Sequence[Token]) -> list[str | None] | None:
    """Return the names of the first SELECT's items, None for an unclear one; None when the query is of another form."""
    if not tokens[0].is_word("select"):
        return None
    end, depth = len(tokens), 0
    for at, token in enumerate(tokens[1:], 1):
        depth += nesting(token)
        if depth or tokens[at - 1].is_mark("."):
            continue
        if token.is_word("from"):
            end = at
            break
        # Spark takes most of these as names of columns, too.
        if token.is_word("using", *AFTER_FROM) and not (token.is_word("except") and tokens[at - 1].is_mark("*")):
            return None
    listed = list(tokens[1:end])
    if listed and listed[0].is_word("distinct", "all"):
        listed.pop(0)
    return None if not listed or listed[0].is_word("transform") else [_name(i) for i in split_at_commas(listed)]


def _name(item: Sequence[Token]) -> str | None:
    if any(t.is_mark("*") and (at == 0 or item[at - 1].is_mark(".")) for at, t in enumerate(item)):
        return "*"
    is_path = all(t.names if at % 2 == 0 else t.is_mark(".") for at, t in enumerate(item)) and len(item) % 2 == 1
    is_named = len(item) >= 3 and item[-1].names and item[-2].is_word("as")
    if not is_path and not is_named:
        return None
    return None if len(item) == 1 and item[0].is_word(*_VALUES) else item[-1].text


def _meant(name: str, columns: Sequence[str]) -> str:
    near = get_close_matches(name, columns, 1)
    return f" (did you mean {near[0]}?)" if near else ""
