"""Queries whose meaning doesn't depend on Spark: columns, values and a condition of one view.

What of SQL is read, ``plain_reader.py`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_paimon.core.correction.plain_reader import (
    Column,
    Expression,
    NotPlain,
    Reader,
    Value,
    columns_by_name,
    read_plainly,
)
from airflow_paimon.core.correction.sql_words import Token, nesting
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.table.predicate import Predicate

Views = Mapping[str, Sequence[DataField]]
"""The columns of what SQL can read, by its name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainQuery:
    """A query that was read whole. ``view``: what it reads, a name in lower case; ``condition``: its rows, None = every
    row. ``values``: what each column of the written table becomes, in the query's order.
    """

    view: str
    condition: Predicate | None
    values: Mapping[str, Expression]


def read_plain_query(sql: str, schema: TableSchema, views: Views) -> PlainQuery | None:
    """Read a SELECT that gives rows of a table; None = it is Spark's, as is what gives other columns or types."""
    return read_plainly(sql, lambda text, words: _Query(words, text, schema, views).query())


class _Query(Reader):
    def __init__(self, tokens: Sequence[Token], text: str, schema: TableSchema, views: Views) -> None:
        super().__init__(tokens, text, {})
        self._written, self._views = columns_by_name(schema.fields), views

    def query(self) -> PlainQuery:
        self._word("select")
        began, end = self._at, self._end_of_items()
        self._at = end + 1
        named = self._view(self._views)
        view = named.lower()
        self._fields = columns_by_name(self._views[view])
        self._qualifier = self._alias(("where",)) or named
        condition, _ = self._where()
        self._at = began
        values = self._every() if self._skips_mark("*") else self._items(end)
        if self._at != end or values.keys() != self._written.keys():
            raise NotPlain
        return PlainQuery(view=view, condition=condition, values=values)

    def _end_of_items(self) -> int:
        """Return the place of the first FROM outside of parentheses."""
        depth = 0
        for at in range(self._at, len(self._tokens)):
            depth += nesting(self._tokens[at])
            if depth == 0 and self._tokens[at].is_word("from"):
                return at
        raise NotPlain

    def _every(self) -> dict[str, Expression]:
        if not self._fields.keys() <= self._written.keys():
            raise NotPlain
        return {name: self._checked(self._written[name], Column(name)) for name in self._fields}

    def _items(self, end: int) -> dict[str, Expression]:
        values: dict[str, Expression] = {}
        while True:
            name, value = self._item(self._end_of_item(end))
            if name in values:
                raise NotPlain
            values[name] = value
            if not self._skips_mark(","):
                return values

    def _end_of_item(self, end: int) -> int:
        depth = 0
        for at in range(self._at, end):
            depth += nesting(self._tokens[at])
            if depth == 0 and self._tokens[at] == Token("mark", ","):
                return at
        return end

    def _item(self, end: int) -> tuple[str, Expression]:
        """Read ``column``, or ``value AS column``."""
        began = self._at
        if end - began < 3 or not self._tokens[end - 2].is_word("as"):
            found = self._column()
            value = self._checked(self._target_of(found.name), Column(found.name))
            return self._read_to(end, found.name, value)
        self._at = end - 1
        field = self._target_of(self._name())
        self._at = began
        value = self._assigned(field)
        if isinstance(value, Value) and value.value is not None and _converts(field):
            raise NotPlain
        name, _ = self._read_to(end - 2, field.name, value)
        self._at = end
        return name, value

    def _read_to(self, end: int, name: str, value: Expression) -> tuple[str, Expression]:
        if self._at != end:
            raise NotPlain
        return name, value

    def _target_of(self, name: str) -> DataField:
        if name not in self._written:
            raise NotPlain
        return self._written[name]


def _converts(field: DataField) -> bool:
    """Whether a literal would have another type, which the rows of a query may not have there."""
    return isinstance(field.type, AtomicType) and field.type.root == "DOUBLE"
