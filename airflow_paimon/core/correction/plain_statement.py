"""Statements whose meaning doesn't depend on Spark: UPDATE, DELETE and INSERT VALUES with literals that columns hold.

Read is a small part of SQL, whole or not at all: what may mean something else to Spark, in any of its settings, is left
to Spark. So a literal is one that its column holds exactly, names are written as the table has them, and timestamps,
fractions of binary floats in conditions, functions and subqueries are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from airflow_paimon.core.correction.sql_words import Token, tokens_of, without_comments
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Operator, Predicate

PlainKind = Literal["UPDATE", "DELETE", "INSERT"]
TARGET = "branch"


@dataclass(frozen=True, slots=True)
class Value:
    """A literal, as Python holds it; None = null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column's old value."""

    name: str


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Of integers of one type; a result beyond that type is an error."""

    sign: Literal["+", "-", "*"]
    left: Expression
    right: Expression


Expression = Value | Column | Arithmetic


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
    text = without_comments(sql).strip()
    names = [f.name.lower() for f in schema.fields]
    if any(part in sql for part in ("/*+", "${", "\\")) or len(set(names)) < len(names):
        return None
    if not without_comments(f"{sql}\n;").endswith(";") or _TORN_SIGN.search(text):
        return None  # a comment without an end, or < > for <>: Spark refuses both
    try:
        return replace(_Reader(tokens_of(text), text, schema).statement(), text=sql)
    except (_NotPlain, IndexError):
        return None


class _NotPlain(Exception):
    """Something that only Spark knows the meaning of."""


_SIGNS: dict[str, Operator] = {"=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "!=": "!=", "<>": "!="}
_MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "is null": "is not null",
    "is not null": "is null",
}  # fmt: skip
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_COUNTS = ("INT", "BIGINT")
_TEXTS = ("STRING", "VARCHAR")
_SAME = frozenset({"BOOLEAN", "DATE", "DECIMAL", "STRING", *_BITS})
_WHOLE = re.compile("[0-9]{1,38}")
_FRACTION = re.compile(r"[0-9]{1,37}\.[0-9]{1,37}")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TORN_SIGN = re.compile(r"[<>!=]\s+[<>!=]")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MIXED_SCALE = 18
"""Of decimals that Spark brings together with whole numbers in a list, BIGINT among them, without rounding any."""
_EXACT_DIGITS = 15
"""Of a decimal number, so that every way to a DOUBLE ends at the same one."""
_SPECIAL = frozenset({
    "all", "and", "any", "array", "as", "between", "binary", "case", "cast", "current_catalog", "current_database",
    "current_date", "current_path", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "date", "default", "distinct", "div", "else", "end", "exists", "extract", "false", "from",
    "ilike", "in", "interval", "is", "like", "localtime", "localtimestamp", "map", "not", "now", "null", "or",
    "overlay", "position", "regexp", "rlike", "select", "session_user", "set", "some", "struct", "substring", "system",
    "table", "then", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "trim", "true", "unknown", "user",
    "values", "when", "where",
})  # fmt: skip
"""Words that need backquotes here to be the name of a column."""


class _Reader:
    def __init__(self, tokens: Sequence[Token], text: str, schema: TableSchema) -> None:
        self._tokens, self._text, self._schema = tokens, text, schema
        self._fields = {f.name: f for f in schema.fields}
        self._qualifier = TARGET
        self._at = 0

    def statement(self) -> PlainStatement:
        if self._skips("update"):
            return self._update()
        if self._skips("delete"):
            return self._delete()
        if self._skips("insert"):
            return self._insert()
        raise _NotPlain

    def _update(self) -> PlainStatement:
        alias = self._target(before="set")
        self._word("set")
        values: dict[str, Expression] = {}
        while True:
            field = self._column()
            self._mark("=")
            if field.name in values:
                raise _NotPlain
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
        self._branch()
        named = []
        if self._skips_mark("("):
            named.append(self._own_column().name)
            while self._skips_mark(","):
                named.append(self._own_column().name)
            self._mark(")")
        if len(set(named)) < len(named):
            raise _NotPlain
        self._word("values")
        fields = [self._fields[n] for n in named] if named else list(self._schema.fields)
        if any(f.default_value is not None or not f.type.nullable for f in self._schema.fields if f not in fields):
            raise _NotPlain
        rows = [self._row(fields)]
        while self._skips_mark(","):
            rows.append(self._row(fields))
        self._end()
        if len(rows) > 1:
            for field in fields:
                _refuse_rounding(field)
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

    # -- the target ----------------------------------------------------------------------------------------------------

    def _target(self, before: str) -> str | None:
        self._branch()
        named = self._skips("as")
        if self._is_over() or (self._is_word(before) and not named):
            return None
        token = self._next()
        if token.kind != "word" or not _NAME.fullmatch(token.text) or token.text.lower() in _SPECIAL:
            raise _NotPlain
        self._qualifier = token.text
        return token.text

    def _branch(self) -> None:
        token = self._next()
        if not token.names or token.text.lower() != TARGET:
            raise _NotPlain

    # -- values --------------------------------------------------------------------------------------------------------

    def _assigned(self, field: DataField) -> Expression:
        """Read what a column becomes: a literal, a column of the same type, or a computed integer."""
        if isinstance(field.type, AtomicType) and field.type.root in _COUNTS:
            return self._checked(field, self._sum(field))
        if self._at_literal():
            return Value(self._literal(field))
        return self._checked(field, Column(self._column().name))

    def _checked(self, field: DataField, found: Expression) -> Expression:
        """Refuse columns that an assignment would convert, or that could be null where the target can't."""
        for name in _columns_of(found):
            other = self._fields[name].type
            same = isinstance(other, AtomicType) and isinstance(field.type, AtomicType) and (
                (other.root, other.args) == (field.type.root, field.type.args) and other.root in _SAME
            )  # fmt: skip
            if not same or (other.nullable and not field.type.nullable):
                raise _NotPlain
        if isinstance(found, Arithmetic) and not _has_type_of_columns(found):
            raise _NotPlain
        return found

    def _sum(self, field: DataField) -> Expression:
        left = self._product(field)
        while (sign := self._skipped_sign("+", "-")) is not None:
            left = Arithmetic("+" if sign == "+" else "-", left, self._product(field))
        return left

    def _product(self, field: DataField) -> Expression:
        left = self._factor(field)
        while self._skipped_sign("*") is not None:
            left = Arithmetic("*", left, self._factor(field))
        return left

    def _factor(self, field: DataField) -> Expression:
        if self._skips_mark("("):
            inside = self._sum(field)
            self._mark(")")
            return inside
        return Value(self._literal(field)) if self._at_literal() else Column(self._column().name)

    def _skipped_sign(self, *signs: str) -> str | None:
        if self._is_over() or self._tokens[self._at].kind != "mark" or self._tokens[self._at].text not in signs:
            return None
        return self._next().text

    def _at_literal(self) -> bool:
        token = self._tokens[self._at]
        if token.is_word("date"):
            return self._tokens[self._at + 1].kind == "text"
        return token.kind in ("text", "number") or token.is_word("null", "true", "false") or token.text == "-"

    def _literal(self, field: DataField) -> Any:
        """Read a literal that the column holds exactly as it is stored."""
        if self._skips("null"):
            if not field.type.nullable:
                raise _NotPlain
            return None
        is_date = self._skips("date")
        value = self._plain_literal(field, is_date=is_date)
        if isinstance(value, date) and not is_date:
            raise _NotPlain  # a text is no date where it is stored
        return value

    def _plain_literal(self, field: DataField, *, is_date: bool) -> Any:
        if not isinstance(field.type, AtomicType):
            raise _NotPlain
        negative = self._skips_mark("-")
        token = self._next()
        if token.kind == "number":
            if is_date:
                raise _NotPlain
            return _number(token.text, negative, field.type)
        if negative:
            raise _NotPlain
        if token.is_word("true", "false") and field.type.root == "BOOLEAN" and not is_date:
            return token.is_word("true")
        if token.kind != "text":
            raise _NotPlain
        return _text(token.text, field.type, is_date=is_date)

    # -- the condition -------------------------------------------------------------------------------------------------

    def _where(self) -> tuple[Predicate | None, str | None]:
        if self._is_over():
            return None, None
        self._word("where")
        began = self._at
        found = self._any_of()
        self._end()
        return found, _text_from(self._text, self._tokens, began)

    def _any_of(self) -> Predicate:
        parts = [self._all_of()]
        while self._skips("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Predicate:
        parts = [self._negatable()]
        while self._skips("and"):
            parts.append(self._negatable())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _negatable(self) -> Predicate:
        if self._skips("not"):
            return _negated(self._negatable())
        if self._skips_mark("("):
            inside = self._any_of()
            self._mark(")")
            return inside
        return self._comparison()

    def _comparison(self) -> Predicate:
        if self._at_literal():
            began = self._at
            self._skip_literal()
            sign = self._sign()
            field = self._column()
            after, self._at = self._at, began
            value = self._compared(field)
            self._at = after
            return Condition(field.name, _MIRRORED.get(sign, sign), value)
        field = self._column()
        if self._skips("is"):
            negated = self._skips("not")
            self._word("null")
            return Condition(field.name, "is not null" if negated else "is null")
        negated = self._skips("not")
        found: Predicate
        if self._skips("in"):
            found = Condition(field.name, "in", self._listed(field))
        elif self._skips("between"):
            low = self._compared(field)
            self._word("and")
            found = AllOf((Condition(field.name, ">=", low), Condition(field.name, "<=", self._compared(field))))
        elif negated:
            raise _NotPlain
        else:
            sign = self._sign()
            found = Condition(field.name, sign, self._compared(field))
        return _negated(found) if negated else found

    def _skip_literal(self) -> None:
        self._skips("date")
        self._skips_mark("-")
        self._next()

    def _listed(self, field: DataField) -> tuple[Any, ...]:
        _refuse_rounding(field)
        self._mark("(")
        values = [self._compared(field)]
        while self._skips_mark(","):
            values.append(self._compared(field))
        self._mark(")")
        return tuple(values)

    def _compared(self, field: DataField) -> Any:
        """Read a literal that is compared with a column of its own type."""
        if not isinstance(field.type, AtomicType) or field.type.root in ("FLOAT", "DOUBLE"):
            raise _NotPlain
        is_date = self._skips("date")
        return self._plain_literal(field, is_date=is_date)

    def _sign(self) -> Operator:
        sign = self._next()
        if sign.kind != "mark":
            raise _NotPlain
        text = sign.text
        while self._tokens[self._at].kind == "mark" and self._tokens[self._at].text in "<>=!":
            text += self._next().text
        if text not in _SIGNS:
            raise _NotPlain
        return _SIGNS[text]

    # -- words ---------------------------------------------------------------------------------------------------------

    def _column(self) -> DataField:
        first = self._tokens[self._at]
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1] == Token("mark", "."):
            if not first.names or first.text != self._qualifier:
                raise _NotPlain
            self._at += 2
        found = self._own_column()
        if not self._is_over() and self._tokens[self._at].text in (".", "[", "(", ":"):
            raise _NotPlain
        return found

    def _own_column(self) -> DataField:
        token = self._next()
        plain = token.kind == "word" and _NAME.fullmatch(token.text) and token.text.lower() not in _SPECIAL
        if token.text not in self._fields or not (plain or token.kind == "quoted"):
            raise _NotPlain
        return self._fields[token.text]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _is_over(self) -> bool:
        return self._at >= len(self._tokens)

    def _is_word(self, *words: str) -> bool:
        return not self._is_over() and self._tokens[self._at].is_word(*words)

    def _skips(self, word: str) -> bool:
        found = self._is_word(word)
        self._at += found
        return found

    def _word(self, word: str) -> None:
        if not self._skips(word):
            raise _NotPlain

    def _skips_mark(self, mark: str) -> bool:
        found = not self._is_over() and self._tokens[self._at] == Token("mark", mark)
        self._at += found
        return found

    def _mark(self, mark: str) -> None:
        if not self._skips_mark(mark):
            raise _NotPlain

    def _end(self) -> None:
        if not self._is_over():
            raise _NotPlain


def _refuse_rounding(field: DataField) -> None:
    """Refuse a list of literals for a decimal that Spark may round, to give all of the list one type."""
    if isinstance(field.type, AtomicType) and field.type.root == "DECIMAL" and field.type.args[1] > _MIXED_SCALE:
        raise _NotPlain


def _negated(predicate: Predicate) -> Predicate:
    """Return what is true where a predicate is false, and null where it is null."""
    if isinstance(predicate, AllOf):
        return AnyOf(tuple(map(_negated, predicate.parts)))
    if isinstance(predicate, AnyOf):
        return AllOf(tuple(map(_negated, predicate.parts)))
    if predicate.op == "in":
        return AllOf(tuple(Condition(predicate.column, "!=", value) for value in predicate.value))
    return Condition(predicate.column, _OPPOSITE[predicate.op], predicate.value)


def _columns_of(found: Expression) -> frozenset[str]:
    if isinstance(found, Column):
        return frozenset((found.name,))
    return _columns_of(found.left) | _columns_of(found.right) if isinstance(found, Arithmetic) else frozenset()


def _has_type_of_columns(found: Arithmetic) -> bool:
    """Whether each step computes in the columns' type: not one on literals alone, whose type may be smaller."""
    sides = (found.left, found.right)
    return bool(_columns_of(found)) and all(
        _has_type_of_columns(s) if isinstance(s, Arithmetic) else s != Value(None) for s in sides
    )


def _number(text: str, negative: bool, data_type: AtomicType) -> Any:
    is_whole = _WHOLE.fullmatch(text) is not None
    if not is_whole and _FRACTION.fullmatch(text) is None:
        raise _NotPlain
    number = Decimal(text)
    number = -number if negative and number else number
    if data_type.root in _BITS:
        edge = 1 << (_BITS[data_type.root] - 1)
        if not is_whole or not -edge < number < edge:
            raise _NotPlain
        return int(number)
    if data_type.root == "DECIMAL":
        precision, scale = data_type.args
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if -exponent > scale or len(digits) + exponent > precision - scale or len(digits) > 38:
            raise _NotPlain
        return number
    if data_type.root == "DOUBLE" and len(text.replace(".", "")) <= _EXACT_DIGITS:
        return float(number)
    raise _NotPlain


def _text(token: str, data_type: AtomicType, *, is_date: bool) -> Any:
    inner = token[1:-1]
    if token[0] != "'" or "'" in inner or "\\" in inner:  # what doubled quotes and escapes mean depends on settings
        raise _NotPlain
    if data_type.root == "DATE":
        if _DATE.fullmatch(inner) is None:
            raise _NotPlain
        try:
            return date.fromisoformat(inner)
        except ValueError:
            raise _NotPlain from None
    if is_date or data_type.root not in _TEXTS or (data_type.root == "VARCHAR" and len(inner) > data_type.args[0]):
        raise _NotPlain
    return inner


def _text_from(text: str, tokens: Sequence[Token], at: int) -> str:
    """Return the text from a token on: it is the rest after as many words as come before."""
    for start in range(len(text)):
        if tokens_of(text[start:]) == list(tokens[at:]):
            return text[start:].strip()
    return ""
