"""A MERGE whose meaning doesn't depend on Spark: a view's rows meet the branch's by columns of the same types.

What of SQL is read, ``plain_reader.py`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_paimon.core.correction.plain_query import Views
from airflow_paimon.core.correction.plain_reader import (
    TARGET,
    Arithmetic,
    Column,
    Expression,
    NotPlain,
    Reader,
    Value,
    columns_by_name,
    read_plainly,
    refuse_rounding,
    used_columns,
)
from airflow_paimon.core.correction.sql_words import Token
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField, DataType, with_nullable
from airflow_paimon.core.table.hidden_names import hidden
from airflow_paimon.core.table.predicate import AllOf, Predicate, columns_of

SOURCE = hidden("source:")
"""Stands before the names of the source's columns, in conditions and values that know both sides."""
_LOOSE = AtomicType("LOOSE")
"""The type of a column of VALUES until it meets one of the target's: its literals are read as those of that one."""
_INT = AtomicType("INT")
_JOINED = frozenset({"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "STRING", "VARCHAR", "DATE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainClause:
    """``WHEN ... THEN``: what happens to rows for which ``condition`` is true, None = to all that are left.

    ``values``: what columns become; of an INSERT all of them. ``star``: those of ``*``.
    """

    action: Literal["update", "delete", "insert"]
    condition: Predicate | None
    values: Mapping[str, Expression]
    star: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMerge:
    """A MERGE that was read whole. ``text``: as it was given; ``view``: its source, in lower case; None: it is VALUES,
    ``rows`` with the columns ``fields``.

    Rows meet where ``equal`` columns, of the target and of the source, have the same values, ``of_target`` is true for
    the one and ``of_source`` for the other; ``condition_text`` says that in SQL.
    """

    text: str
    alias: str | None
    view: str | None
    equal: tuple[tuple[str, str], ...]
    of_target: Predicate | None
    of_source: Predicate | None
    condition_text: str
    matched: tuple[PlainClause, ...]
    not_matched: tuple[PlainClause, ...]
    fields: tuple[DataField, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of the source that the statement needs, sorted."""
        clauses = (*self.matched, *self.not_matched)
        conditions = (self.of_target, self.of_source, *(c.condition for c in clauses))
        used = {SOURCE + source for _, source in self.equal}
        used |= {name for c in conditions if c is not None for name in columns_of(c)}
        used |= {name for c in clauses for value in c.values.values() for name in used_columns(value)}
        return tuple(sorted(name.removeprefix(SOURCE) for name in used if name.startswith(SOURCE)))


def read_plain_merge(sql: str, schema: TableSchema, views: Views) -> PlainMerge | None:
    """Read a MERGE into the view ``branch``, whose columns are those of ``schema``; None = it is Spark's."""
    return read_plainly(sql, lambda text, words: replace(_Merge(words, text, schema, views).merge(), text=sql))


class _Merge(Reader):
    def __init__(self, tokens: Sequence[Token], text: str, schema: TableSchema, views: Views) -> None:
        super().__init__(tokens, text, {})
        self._target, self._views = columns_by_name(schema.fields), views
        self._source: dict[str, DataField] = {}
        self._source_name = ""
        self._inline_rows: list[dict[str, int]] = []
        self._values: dict[str, list[Any]] = {}

    def merge(self) -> PlainMerge:
        self._word("merge")
        self._word("into")
        self._view((TARGET,))
        alias = self._alias(("using",))
        self._word("using")
        view = self._inline() if self._skips_mark("(") else self._view(self._views)
        own = [] if self._inline_rows else self._views[view.lower()]
        name = view if self._inline_rows else self._alias(("on",)) or view
        self._name_sides(alias or TARGET, name, own)
        self._word("on")
        began = self._at
        equal, of_target, of_source = self._on()
        condition_text = self._text_between(began, self._at)
        matched, not_matched = self._clauses()
        found = PlainMerge(
            text=self._text,
            alias=alias,
            view=None if self._inline_rows else view.lower(),
            equal=equal,
            of_target=of_target,
            of_source=of_source,
            condition_text=condition_text,
            matched=matched,
            not_matched=not_matched,
        )
        return self._with_values(found) if self._inline_rows else found

    def _name_sides(self, target: str, source: str, fields: Sequence[DataField]) -> None:
        """Say by which names columns are qualified. ``fields``: of the source; its own where it is VALUES."""
        own = columns_by_name(fields) if fields else {n: DataField(0, n, _LOOSE) for n in self._inline_rows[0]}
        names = {name.lower() for name in (*self._target, *own)}
        qualifiers = {target.lower(), source.lower()}
        if len(qualifiers) < 2 or qualifiers & names or any(name.startswith(SOURCE) for name in names):
            raise NotPlain  # a column of that name may have fields
        self._qualifier, self._source_name = target, source
        self._source = {name: replace(field, name=SOURCE + name) for name, field in own.items()}
        self._fields = {**self._target, **{field.name: field for field in self._source.values()}}

    # -- VALUES --------------------------------------------------------------------------------------------------------

    def _inline(self) -> str:
        """Read ``[SELECT * FROM] VALUES (literal, ...), ... AS name (column, ...)) AS name`` after its parenthesis, and
        return the latter name; types come later.
        """
        if self._skips("select"):
            self._mark("*")
            self._word("from")
        self._word("values")
        rows = [self._places()]
        while self._skips_mark(","):
            rows.append(self._places())
        inner = self._alias(())
        self._mark("(")
        columns = [self._name()]
        while self._skips_mark(","):
            columns.append(self._name())
        self._mark(")")
        self._mark(")")
        name = self._alias(("on",))
        if inner is None or name is None or {len(row) for row in rows} != {len(columns)}:
            raise NotPlain
        if len({column.lower() for column in columns}) < len(columns):
            raise NotPlain
        self._inline_rows = [dict(zip(columns, row, strict=True)) for row in rows]
        return name

    def _places(self) -> list[int]:
        """Return where each literal of a row stands."""
        self._mark("(")
        places: list[int] = []
        while True:
            if not self._at_literal():
                raise NotPlain
            places.append(self._at)
            self._skip_literal()
            if not self._skips_mark(","):
                break
        self._mark(")")
        return places

    def _met(self, name: str, kind: DataType) -> DataField:
        """Return a column of the source that meets one of this type; one of VALUES gets the type with that."""
        found = self._fields[name]
        if found.type != _LOOSE:
            return found
        field = DataField(0, name, with_nullable(kind, True))
        refuse_rounding(field)
        at, column = self._at, name.removeprefix(SOURCE)
        self._values[column] = []
        for row in self._inline_rows:
            self._at = row[column]
            self._values[column].append(self._literal(field))
        if all(value is None for value in self._values[column]):
            raise NotPlain  # of no type
        self._at = at
        self._source[column] = field
        self._fields = {**self._fields, name: field}
        return field

    def _checked(self, field: DataField, found: Expression) -> Expression:
        used = [name for name in used_columns(found) if self._inline_rows and name.startswith(SOURCE)]
        if used and isinstance(found, Arithmetic) and field.type != replace(_INT, nullable=field.type.nullable):
            raise NotPlain  # Spark may compute in a smaller type, that of the literals
        for name in used:
            self._met(name, field.type)
        return super()._checked(field, found)

    def _with_values(self, found: PlainMerge) -> PlainMerge:
        """Add the rows of VALUES, as far as the statement uses them."""
        names = found.source_columns
        if any(self._source[name].type == _LOOSE for name in names):
            raise NotPlain
        fields = tuple(replace(self._source[name], name=name) for name in names)
        return replace(found, fields=fields, rows=tuple(zip(*(self._values[n] for n in names), strict=True)))

    # -- names ---------------------------------------------------------------------------------------------------------

    def _named(self, qualifier: str | None) -> DataField:
        if qualifier == self._qualifier:
            return self._one_of(self._target)
        if qualifier == self._source_name:
            return self._one_of(self._source)
        name = self._name()
        sides = [side for side in (self._target, self._source) if name.lower() in {n.lower() for n in side}]
        if qualifier is not None or len(sides) != 1 or name not in sides[0]:
            raise NotPlain
        return sides[0][name]

    # -- ON ------------------------------------------------------------------------------------------------------------

    def _on(self) -> tuple[tuple[tuple[str, str], ...], Predicate | None, Predicate | None]:
        equal: list[tuple[str, str]] = []
        of_target: list[Predicate] = []
        of_source: list[Predicate] = []
        opened = self._skips_mark("(")
        while True:
            pair = self._pair()
            if pair is not None:
                equal.append(pair)
            else:
                found = self._negatable()
                (of_source if _is_source(columns_of(found)) else of_target).append(found)
            if not self._skips("and"):
                break
        if opened:
            self._mark(")")
        if not equal or not self._is_word("when"):
            raise NotPlain
        return tuple(equal), _all_of(of_target), _all_of(of_source)

    def _pair(self) -> tuple[str, str] | None:
        """Read ``column = column``, of both sides; None if something else stands there."""
        began = self._at
        try:
            first = self._column()
            sign = self._sign()
            second = None if self._at_literal() else self._column()
        except NotPlain:
            second = None
        if second is None:
            self._at = began
            return None
        target, source = (second, first) if first.name.startswith(SOURCE) else (first, second)
        if sign != "=" or target.name.startswith(SOURCE) or not source.name.startswith(SOURCE):
            raise NotPlain
        kind, source = target.type, self._met(source.name, target.type)
        same = with_nullable(kind, True) == with_nullable(source.type, True)
        if not same or not isinstance(kind, AtomicType) or kind.root not in _JOINED:
            raise NotPlain
        return target.name, source.name.removeprefix(SOURCE)

    # -- WHEN ----------------------------------------------------------------------------------------------------------

    def _clauses(self) -> tuple[tuple[PlainClause, ...], tuple[PlainClause, ...]]:
        matched: list[PlainClause] = []
        not_matched: list[PlainClause] = []
        while not self._is_over():
            self._word("when")
            inserts = self._skips("not")
            self._word("matched")
            if inserts and self._skips("by"):
                self._word("target")
            if not inserts and not_matched:
                raise NotPlain
            clauses = not_matched if inserts else matched
            if clauses and clauses[-1].condition is None:
                raise NotPlain
            condition = self._any_of() if self._skips("and") else None
            self._word("then")
            clauses.append(self._insert(condition) if inserts else self._change(condition))
        if not matched and not not_matched:
            raise NotPlain
        return tuple(matched), tuple(not_matched)

    def _change(self, condition: Predicate | None) -> PlainClause:
        if self._skips("delete"):
            return PlainClause(action="delete", condition=condition, values={})
        self._word("update")
        self._word("set")
        if self._skips_mark("*"):
            return PlainClause(action="update", condition=condition, values=self._every(), star=True)
        values: dict[str, Expression] = {}
        while True:
            field = self._assigned_to()
            self._mark("=")
            if field.name in values:
                raise NotPlain
            values[field.name] = self._assigned(field)
            if not self._skips_mark(","):
                return PlainClause(action="update", condition=condition, values=values)

    def _assigned_to(self) -> DataField:
        if self._tokens[self._at + 1] == Token("mark", "."):
            qualifier = self._next()
            if not qualifier.names or qualifier.text != self._qualifier:
                raise NotPlain
            self._mark(".")
        return self._one_of(self._target)

    def _insert(self, condition: Predicate | None) -> PlainClause:
        self._word("insert")
        star = self._skips_mark("*")
        values = self._every() if star else self._listed_values()
        if not _is_source(name for value in values.values() for name in used_columns(value)):
            raise NotPlain
        if condition is not None and not _is_source(columns_of(condition)):
            raise NotPlain
        return PlainClause(action="insert", condition=condition, values=values, star=star)

    def _listed_values(self) -> dict[str, Expression]:
        """Read ``(column, ...) VALUES (value, ...)``; columns that it doesn't name become null."""
        self._mark("(")
        fields = [self._one_of(self._target)]
        while self._skips_mark(","):
            fields.append(self._one_of(self._target))
        self._mark(")")
        if len({f.name for f in fields}) < len(fields):
            raise NotPlain
        self._word("values")
        self._mark("(")
        given: dict[str, Expression] = {}
        for number, field in enumerate(fields):
            if number:
                self._mark(",")
            given[field.name] = self._assigned(field)
        self._mark(")")
        left = [f for f in self._target.values() if f.name not in given]
        if any(f.default_value is not None or not f.type.nullable for f in left):
            raise NotPlain
        return {name: given.get(name, Value(None)) for name in self._target}

    def _every(self) -> dict[str, Expression]:
        """Return the source's column for each of the target's."""
        if not self._target.keys() <= self._source.keys():
            raise NotPlain
        return {n: self._checked(field, Column(SOURCE + n)) for n, field in self._target.items()}


def _is_source(names: Iterable[str]) -> bool:
    """Whether all columns are the source's.

    Raises:
        NotPlain: some are and some are not.
    """
    sides = {name.startswith(SOURCE) for name in names}
    if len(sides) > 1:
        raise NotPlain
    return sides != {False}


def _all_of(parts: Sequence[Predicate]) -> Predicate | None:
    return AllOf(tuple(parts)) if parts else None
