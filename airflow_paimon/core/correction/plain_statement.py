"""Statements whose meaning doesn't depend on Spark: UPDATE, DELETE and INSERT VALUES with literals that columns hold.

What of SQL is read, ``plain_reader.py`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_paimon.core.correction.plain_reader import (
    TARGET,
    Expression,
    NotPlain,
    Reader,
    columns_by_name,
    read_plainly,
    refuse_rounding,
)
from airflow_paimon.core.correction.sql_words import Token
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.predicate import Predicate

PlainKind = Literal["UPDATE", "DELETE", "INSERT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStatement:
    """A statement that was read whole. ``text``: as it was given, by which another try of it is known.

    ``condition``: its rows, None = every row, with the text ``condition_text``. ``values``: what columns become.
    ``rows``: of an INSERT, each with all columns of the table in their order; ``columns``: those that it names.
    """

    kind: PlainKind
    text: str
    alias: str | None = None
    condition: Predicate | None = None
    condition_text: str | None = None
    values: Mapping[str, Expression]
    rows: tuple[tuple[Any, ...], ...] = ()
    columns: tuple[str, ...] = ()


def read_plain(sql: str, schema: TableSchema) -> PlainStatement | None:
    """Read one statement on the view ``branch``, whose columns are those of ``schema``; None = it is Spark's."""
    return read_plainly(sql, lambda text, words: replace(_Statement(words, text, schema).statement(), text=sql))


class _Statement(Reader):
    def __init__(self, tokens: Sequence[Token], text: str, schema: TableSchema) -> None:
        super().__init__(tokens, text, columns_by_name(schema.fields))
        self._schema = schema

    def statement(self) -> PlainStatement:
        if self._skips("update"):
            return self._update()
        if self._skips("delete"):
            return self._delete()
        if self._skips("insert"):
            return self._insert()
        raise NotPlain

    def _update(self) -> PlainStatement:
        alias = self._target(before="set")
        self._word("set")
        values: dict[str, Expression] = {}
        while True:
            field = self._column()
            self._mark("=")
            if field.name in values:
                raise NotPlain
            values[field.name] = self._assigned(field)
            if not self._skips_mark(","):
                break
        condition, text = self._where()
        return PlainStatement(
            kind="UPDATE", text=self._text, alias=alias, condition=condition, condition_text=text, values=values
        )

    def _delete(self) -> PlainStatement:
        self._word("from")
        alias = self._target(before="where")
        condition, text = self._where()
        return PlainStatement(
            kind="DELETE", text=self._text, alias=alias, condition=condition, condition_text=text, values={}
        )

    def _insert(self) -> PlainStatement:
        self._word("into")
        self._skips("table")
        self._view((TARGET,))
        named = []
        if self._skips_mark("("):
            named.append(self._one_of(self._fields).name)
            while self._skips_mark(","):
                named.append(self._one_of(self._fields).name)
            self._mark(")")
        if len(set(named)) < len(named):
            raise NotPlain
        self._word("values")
        fields = [self._fields[n] for n in named] if named else list(self._schema.fields)
        if any(f.default_value is not None or not f.type.nullable for f in self._schema.fields if f not in fields):
            raise NotPlain
        rows = [self._row(fields)]
        while self._skips_mark(","):
            rows.append(self._row(fields))
        self._end()
        if len(rows) > 1:
            for field in fields:
                refuse_rounding(field)
        return PlainStatement(kind="INSERT", text=self._text, values={}, rows=tuple(rows), columns=tuple(named))

    def _row(self, fields: Sequence[DataField]) -> tuple[Any, ...]:
        self._mark("(")
        given: dict[str, Any] = {}
        for number, field in enumerate(fields):
            if number:
                self._mark(",")
            given[field.name] = self._literal(field)
        self._mark(")")
        return tuple(given.get(f.name) for f in self._schema.fields)

    def _target(self, before: str) -> str | None:
        self._view((TARGET,))
        alias = self._alias((before,))
        self._qualifier = alias or TARGET
        return alias
