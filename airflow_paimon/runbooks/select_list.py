"""What can be said of a form's SQL without Spark: whether it is one statement, and the columns that it gives or sets.

Whatever this can't read for sure it leaves to Spark: it never refuses a query that Spark would run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from airflow_paimon.core.correction.sql_words import QUERIES, Token, nesting, tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError

# Spark takes most of these as names of columns, too: where one comes before FROM, the list is not read any further.
_CLAUSES = frozenset({"where", "group", "having", "order", "limit", "union", "intersect", "except", "minus", "lateral",
                      "window", "sort", "cluster", "distribute", "offset", "qualify", "using"})  # fmt: skip
_VALUES = frozenset({"null", "true", "false", "current_date", "current_time", "current_timestamp", "localtimestamp",
                     "current_user", "session_user", "user", "current_catalog", "current_database",
                     "current_schema", "current_timezone"})  # fmt: skip
_NESTED_COMMENT = re.compile(r"/\*(?:(?!\*/).)*/\*", re.DOTALL)
_VIEWS = ("branch", "main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One item of a select list. ``source``: the column of a view that it is, when it is nothing else."""

    name: str | None
    source: str | None = None


def check_statement(sql: str, kind: str, columns: Sequence[str] | None, table: str, *, all_rows: bool) -> None:
    """Check a statement of a ``kind`` that ``statement_kind`` returned.

    :param columns: the table's columns; None where they aren't known
    :param all_rows: an UPDATE or DELETE may take every row
    :raises InvalidInputError: several statements, every row without ``all_rows``, or an UPDATE of an unknown column
    """
    tokens = tokens_of(without_comments(sql))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if any(t.kind == "mark" and t.text == ";" for t in tokens):
        raise InvalidInputError(f"SQL holds several statements; give one {kind}")
    outer = _outside_parentheses(tokens)
    if kind in ("UPDATE", "DELETE") and not all_rows and not any(t.is_word("where") for t in outer):
        raise InvalidInputError(
            f"The {kind} has no WHERE, so it takes every row of {table}; add one, or switch on "
            "Allow full-table change (all_rows)"
        )
    if kind == "UPDATE" and columns is not None:
        faults = [
            _unknown(name, columns) for name in _set_columns(tokens) if name.lower() not in map(str.lower, columns)
        ]
        if faults:
            raise InvalidInputError(
                f"The UPDATE sets what {table} does not have: {'; '.join(faults)}. It has {', '.join(columns)}"
            )


def _outside_parentheses(tokens: Sequence[Token]) -> list[Token]:
    found, depth = [], 0
    for token in tokens:
        depth += nesting(token)
        if depth == 0:
            found.append(token)
    return found


def _set_columns(tokens: Sequence[Token]) -> list[str]:
    """Return the columns that an UPDATE sets, without those that may be something else, such as fields of a struct."""
    begin = next((at for at, t in enumerate(tokens) if t.is_word("update")), len(tokens))
    start = next((at for at, t in enumerate(tokens) if at > begin and t.is_word("set")), len(tokens))
    views = {t.text.lower() for t in tokens[begin + 1 : start] if t.names}
    found = []
    for item in _split(tokens[start + 1 :]):
        path = item[: next((at for at, t in enumerate(item) if t.text == "="), 0)]
        if len(path) == 3 and path[0].text.lower() in views and path[1].text == ".":
            path = path[2:]
        if len(path) == 1 and path[0].names:
            found.append(path[0].text)
    return found


def check_select(sql: str, columns: Sequence[str], optional: Sequence[str], table: str) -> None:
    """Compare the columns that a SELECT gives with those of its table.

    :param columns: the table's columns; ``optional`` are those that a row may lack
    :raises InvalidInputError: no query, several statements, or a column that is unknown, missing or there twice
    """
    if _NESTED_COMMENT.search(sql):
        return
    tokens = tokens_of(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise InvalidInputError("SQL holds no statement; give one SELECT")
    if not (tokens[0].is_word(*QUERIES) or tokens[0].text == "("):
        raise InvalidInputError(f"SQL starts with {tokens[0].text!r}; give one SELECT, which is all that runs")
    if any(t.kind == "mark" and t.text == ";" for t in tokens):
        raise InvalidInputError("SQL holds several statements; give one SELECT")
    found = select_list(tokens)
    if found is not None:
        _check_columns(found, columns, optional, table)


def _check_columns(found: Sequence[Column | None], columns: Sequence[str], optional: Sequence[str], table: str) -> None:
    """``None`` in ``found`` is a ``*``."""
    known, faults = {c.lower() for c in columns}, []
    readable = set(known)
    for column in found:
        if column is None or column.name is None:
            continue
        if column.source is not None and column.source.lower() not in readable:
            faults.append(_unknown(column.source, columns))
        elif column.name.lower() not in {*known, "_row_kind"}:
            faults.append(_unknown(column.name, columns))
        readable.add(column.name.lower())  # a later item may go by an earlier one's alias
    names = [None if c is None else c.name for c in found]
    faults += [f"{name} is there twice" for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if None not in names:
        given = {name.lower() for name in names if name}
        missing = [c for c in columns if c.lower() not in given and c not in optional]
        faults += [f"missing: {', '.join(missing)}"] if missing else []
    if faults:
        raise InvalidInputError(
            f"The SELECT does not give the columns of {table}: {'; '.join(dict.fromkeys(faults))}. The table has "
            f"{', '.join(columns)}"
        )


def _unknown(name: str, columns: Sequence[str]) -> str:
    meant = get_close_matches(name, columns, 1)
    return f"no column {name}" + (f" (did you mean {meant[0]}?)" if meant else "")


def select_list(tokens: Sequence[Token]) -> list[Column | None] | None:
    """Return the first SELECT's items, None for a ``*``; None when the statement is of another form."""
    if not tokens[0].is_word("select"):
        return None
    end, depth = len(tokens), 0
    for at, token in enumerate(tokens[1:], 1):
        depth += nesting(token)
        if depth or tokens[at - 1].text == ".":
            continue
        if token.is_word("from"):
            end = at
            break
        if token.is_word(*_CLAUSES) and not (token.is_word("except") and tokens[at - 1].text == "*"):
            return None
    listed = list(tokens[1:end])
    if listed and listed[0].is_word("distinct", "all"):
        listed.pop(0)
    if not listed or listed[0].is_word("transform"):
        return None
    single = _reads_one_view(tokens[end:])
    return [_column(item, single) for item in _split(listed)]


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += nesting(token)
        if depth == 0 and token.kind == "mark" and token.text == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


def _reads_one_view(rest: Sequence[Token]) -> bool:
    """Whether FROM names one of our two views and nothing else: then a bare name is a column of the table."""
    if len(rest) < 2 or not rest[0].is_word("from") or not rest[1].is_word(*_VIEWS):
        return False
    return len(rest) == 2 or rest[2].is_word("where")


def _column(item: Sequence[Token], single: bool) -> Column | None:
    if any(t.kind == "mark" and t.text == "*" and _is_star(item, at) for at, t in enumerate(item)):
        return None
    path = [t for t in item if t.names]
    if len(item) == 1 and item[0].names:
        value = item[0].is_word(*_VALUES)
        return Column(name=None if value else item[0].text, source=item[0].text if single and not value else None)
    if item and item[-1].names and all(t.names or t.text == "." for t in item) and len(item) == 2 * len(path) - 1:
        return Column(name=item[-1].text)  # a.b: of a view, or a field of a struct
    if len(item) >= 3 and item[-1].names and item[-2].is_word("as"):
        plain = single and len(item) == 3 and item[0].names and not item[0].is_word(*_VALUES)
        source = item[0].text if plain else None
        return Column(name=item[-1].text, source=source)
    return Column(name=None)


def _is_star(item: Sequence[Token], at: int) -> bool:
    """A star that stands for columns, not a multiplication: at the start, or after a view's dot."""
    return at == 0 or item[at - 1].text == "."
