"""The part of SQL that means the same without Spark: conditions and values of columns, and of literals that they hold.

It is read whole or not at all: what may mean something else to Spark, in any of its settings, is left to Spark. So a
literal is one that its column holds exactly, names are written as the table has them, and timestamps, fractions of
binary floats in conditions, functions and subqueries are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, TypeVar

from airflow_paimon.core.correction.sql_words import Token, check_nesting, starts_of, tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import AtomicType, DataField, with_nullable
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Operator, Predicate, columns_of

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Case:
    """What the first condition that is true gives, else ``otherwise``."""

    branches: tuple[tuple[Predicate, Expression], ...]
    otherwise: Expression


Expression = Value | Column | Arithmetic | Case


class NotPlain(Exception):
    """Something that only Spark knows the meaning of."""


def words_of(sql: str) -> tuple[str, list[Token]]:
    """Return SQL without comments, and its words.

    Raises:
        NotPlain: hints, variables, escapes, or what Spark refuses.
    """
    text = without_comments(sql).strip()
    if any(part in sql for part in ("/*+", "${", "\\")):
        raise NotPlain
    if not without_comments(f"{sql}\n;").endswith(";") or _TORN_SIGN.search(text):
        raise NotPlain  # a comment without an end, or < > for <>: Spark refuses both
    return text, tokens_of(text)


def read_plainly(sql: str, read: Callable[[str, Sequence[Token]], T]) -> T | None:
    """Return what ``read`` makes of SQL's text without comments, and of its words; None = it is Spark's."""
    try:
        check_nesting(sql)
        return read(*words_of(sql))
    except (NotPlain, IndexError, RecursionError, InvalidInputError):  # what is nested too deeply, Spark refuses
        return None


def columns_by_name(fields: Sequence[DataField]) -> dict[str, DataField]:
    """Return columns by their names.

    Raises:
        NotPlain: two that differ by case alone, which is for settings to say.
    """
    if len({f.name.lower() for f in fields}) < len(fields):
        raise NotPlain
    return {f.name: f for f in fields}


_SIGNS: dict[str, Operator] = {"=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "!=": "!=", "<>": "!="}
_MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "is null": "is not null",
    "is not null": "is null",
}  # fmt: skip
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_COUNTS = ("INT", "BIGINT")
_TEXTS = ("STRING", "VARCHAR")
_WHOLE = re.compile("[0-9]{1,38}")
_FRACTION = re.compile(r"[0-9]{1,37}\.[0-9]{1,37}")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TORN_SIGN = re.compile(r"[<>!=]\s+[<>!=]")
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MIXED_SCALE = 18
"""Of decimals that Spark brings together with whole numbers in a list, BIGINT among them, without rounding any."""
_EXACT_DIGITS = 15
"""Of a decimal number, so that every way to a DOUBLE ends at the same one."""
SPECIAL = frozenset({
    "all", "and", "any", "array", "as", "between", "binary", "case", "cast", "current_catalog", "current_database",
    "current_date", "current_path", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "date", "default", "distinct", "div", "else", "end", "exists", "extract", "false", "from",
    "ilike", "in", "interval", "is", "like", "localtime", "localtimestamp", "map", "not", "now", "null", "or",
    "overlay", "position", "regexp", "rlike", "select", "session_user", "set", "some", "struct", "substring", "system",
    "table", "then", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "trim", "true", "unknown", "user",
    "values", "when", "where",
})  # fmt: skip
"""Words that need backquotes here to be the name of a column."""


_NO_ALIAS = SPECIAL | frozenset({
    "anti", "cluster", "cross", "distribute", "except", "for", "full", "group", "having", "inner", "intersect", "join",
    "lateral", "left", "limit", "minus", "natural", "offset", "on", "order", "pivot", "qualify", "right", "semi",
    "setminus", "sort", "tablesample", "union", "unpivot", "using", "version", "window", "with",
})  # fmt: skip
"""Words that go on after a table's name, and need backquotes here to be its alias."""


class Reader:
    """Reads from word to word; every method raises ``NotPlain``, or IndexError at the end, for what it doesn't know.

    ``fields``: the columns that an expression can name, by that name.
    """

    def __init__(self, tokens: Sequence[Token], text: str, fields: Mapping[str, DataField]) -> None:
        self._tokens, self._text = tokens, text
        self._fields = fields
        self._qualifier = TARGET
        self._at = 0

    # -- tables --------------------------------------------------------------------------------------------------------

    def _alias(self, before: Collection[str]) -> str | None:
        """Read the alias of a table, if there is one. ``before``: words that may follow the table."""
        named = self._skips("as")
        if not named and (self._is_over() or self._is_word(*before)):
            return None
        token = self._next()
        if token.kind != "word" or not NAME.fullmatch(token.text) or token.text.lower() in _NO_ALIAS:
            raise NotPlain
        return token.text

    def _view(self, names: Collection[str]) -> str:
        """Read the name of one of these views."""
        token = self._next()
        if not token.names or token.text.lower() not in names:
            raise NotPlain
        return token.text

    # -- values --------------------------------------------------------------------------------------------------------

    def _assigned(self, field: DataField) -> Expression:
        """Read what a column becomes: a literal, a column of the same type, a computed integer, or a CASE of those."""
        if self._skips("case"):
            return self._case(field)
        if isinstance(field.type, AtomicType) and field.type.root in _COUNTS:
            return self._checked(field, self._sum(field))
        if self._at_literal():
            return Value(self._literal(field))
        return self._checked(field, Column(self._column().name))

    def _case(self, field: DataField) -> Expression:
        """Read what follows CASE. What has a fraction in binary is left out: it has no type in common with literals."""
        if not isinstance(field.type, AtomicType) or field.type.root in ("FLOAT", "DOUBLE"):
            raise NotPlain
        refuse_rounding(field)
        branches: list[tuple[Predicate, Expression]] = []
        while self._skips("when"):
            condition = self._any_of()
            self._word("then")
            branches.append((condition, self._assigned(field)))
        otherwise = self._assigned(field) if self._skips("else") else Value(None)
        self._word("end")
        if not branches:
            raise NotPlain
        return Case(tuple(branches), otherwise)

    def _checked(self, field: DataField, found: Expression) -> Expression:
        """Refuse columns that an assignment would convert. Whether one is null where the target can't be, rows say."""
        for name in used_columns(found):
            other = self._fields[name].type
            same = with_nullable(other, True) == with_nullable(field.type, True)
            if not same:
                raise NotPlain
        if isinstance(found, Arithmetic) and not _has_type_of_columns(found):
            raise NotPlain
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
                raise NotPlain
            return None
        is_date = self._skips("date")
        value = self._plain_literal(field, is_date=is_date)
        if isinstance(value, date) and not is_date:
            raise NotPlain  # a text is no date where it is stored
        return value

    def _plain_literal(self, field: DataField, *, is_date: bool) -> Any:
        if not isinstance(field.type, AtomicType):
            raise NotPlain
        negative = self._skips_mark("-")
        token = self._next()
        if token.kind == "number":
            if is_date:
                raise NotPlain
            return _number(token.text, negative, field.type)
        if negative:
            raise NotPlain
        if token.is_word("true", "false") and field.type.root == "BOOLEAN" and not is_date:
            return token.is_word("true")
        if token.kind != "text":
            raise NotPlain
        return _text(token.text, field.type, is_date=is_date)

    # -- the condition -------------------------------------------------------------------------------------------------

    def _where(self) -> tuple[Predicate | None, str | None]:
        if self._is_over():
            return None, None
        self._word("where")
        began = self._at
        found = self._any_of()
        self._end()
        return found, self._text_between(began, self._at)

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
            raise NotPlain
        else:
            sign = self._sign()
            found = Condition(field.name, sign, self._compared(field))
        return _negated(found) if negated else found

    def _skip_literal(self) -> None:
        self._skips("date")
        self._skips_mark("-")
        self._next()

    def _listed(self, field: DataField) -> tuple[Any, ...]:
        refuse_rounding(field)
        self._mark("(")
        values = [self._compared(field)]
        while self._skips_mark(","):
            values.append(self._compared(field))
        self._mark(")")
        return tuple(values)

    def _compared(self, field: DataField) -> Any:
        """Read a literal that is compared with a column of its own type."""
        if not isinstance(field.type, AtomicType) or field.type.root in ("FLOAT", "DOUBLE"):
            raise NotPlain
        is_date = self._skips("date")
        return self._plain_literal(field, is_date=is_date)

    def _sign(self) -> Operator:
        sign = self._next()
        if sign.kind != "mark":
            raise NotPlain
        text = sign.text
        while self._tokens[self._at].kind == "mark" and self._tokens[self._at].text in "<>=!":
            text += self._next().text
        if text not in _SIGNS:
            raise NotPlain
        return _SIGNS[text]

    # -- words ---------------------------------------------------------------------------------------------------------

    def _column(self) -> DataField:
        first, qualifier = self._tokens[self._at], None
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1] == Token("mark", "."):
            if not first.names or first.text.lower() in self._words:
                raise NotPlain  # a column of that name may have fields
            qualifier = first.text
            self._at += 2
        found = self._named(qualifier)
        if not self._is_over() and self._tokens[self._at].text in (".", "[", "(", ":"):
            raise NotPlain
        return found

    @property
    def _words(self) -> frozenset[str]:
        """The names of all columns, in lower case."""
        return frozenset(name.lower() for name in self._fields)

    def _named(self, qualifier: str | None) -> DataField:
        """Read a column's name after what qualifies it."""
        if qualifier not in (None, self._qualifier):
            raise NotPlain
        return self._one_of(self._fields)

    def _one_of(self, fields: Mapping[str, DataField]) -> DataField:
        """Read the name of one of these columns."""
        name = self._name()
        if name not in fields:
            raise NotPlain
        return fields[name]

    def _name(self) -> str:
        token = self._next()
        plain = token.kind == "word" and NAME.fullmatch(token.text) and token.text.lower() not in SPECIAL
        if not plain and token.kind != "quoted":
            raise NotPlain
        return token.text

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
            raise NotPlain

    def _skips_mark(self, mark: str) -> bool:
        found = not self._is_over() and self._tokens[self._at] == Token("mark", mark)
        self._at += found
        return found

    def _mark(self, mark: str) -> None:
        if not self._skips_mark(mark):
            raise NotPlain

    def _end(self) -> None:
        if not self._is_over():
            raise NotPlain

    def _text_between(self, first: int, end: int) -> str:
        """Return the text of words, ``end`` not among them, without parentheses around all of it, as Spark shows it."""
        while end - first > 1 and self._closes(first) == end - 1:
            first, end = first + 1, end - 1
        starts = [*starts_of(self._text), len(self._text)]
        return self._text[starts[first] : starts[end]].strip()

    def _closes(self, at: int) -> int | None:
        """Return where the parenthesis that opens at a word is closed; None: none does."""
        depth = 0
        for number in range(at, len(self._tokens)):
            mark = self._tokens[number]
            depth += (mark == Token("mark", "(")) - (mark == Token("mark", ")"))
            if depth <= 0:
                return number if number > at else None
        return None


def refuse_rounding(field: DataField) -> None:
    """Refuse a list of literals for a decimal that Spark may round, to give all of the list one type."""
    if isinstance(field.type, AtomicType) and field.type.root == "DECIMAL" and field.type.args[1] > _MIXED_SCALE:
        raise NotPlain


def _negated(predicate: Predicate) -> Predicate:
    """Return what is true where a predicate is false, and null where it is null."""
    if isinstance(predicate, AllOf):
        return AnyOf(tuple(map(_negated, predicate.parts)))
    if isinstance(predicate, AnyOf):
        return AllOf(tuple(map(_negated, predicate.parts)))
    if predicate.op == "in":
        return AllOf(tuple(Condition(predicate.column, "!=", value) for value in predicate.value))
    return Condition(predicate.column, _OPPOSITE[predicate.op], predicate.value)


def used_columns(found: Expression) -> frozenset[str]:
    """Return the columns that a value is computed from, those of its conditions among them."""
    if isinstance(found, Column):
        return frozenset((found.name,))
    if isinstance(found, Arithmetic):
        return used_columns(found.left) | used_columns(found.right)
    if isinstance(found, Value):
        return frozenset()
    parts = [columns_of(condition) | used_columns(value) for condition, value in found.branches]
    return used_columns(found.otherwise).union(*parts)


def _has_type_of_columns(found: Arithmetic) -> bool:
    """Whether each step computes in the columns' type: not one on literals alone, whose type may be smaller."""
    sides = (found.left, found.right)
    return bool(used_columns(found)) and all(
        _has_type_of_columns(s) if isinstance(s, Arithmetic) else s != Value(None) for s in sides
    )


def _number(text: str, negative: bool, data_type: AtomicType) -> Any:
    is_whole = _WHOLE.fullmatch(text) is not None
    if not is_whole and _FRACTION.fullmatch(text) is None:
        raise NotPlain
    number = Decimal(text)
    number = -number if negative and number else number
    if data_type.root in _BITS:
        edge = 1 << (_BITS[data_type.root] - 1)
        if not is_whole or not -edge < number < edge:
            raise NotPlain
        return int(number)
    if data_type.root == "DECIMAL":
        precision, scale = data_type.args
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if -exponent > scale or len(digits) + exponent > precision - scale or len(digits) > 38:
            raise NotPlain
        return number
    if data_type.root == "DOUBLE" and len(text.replace(".", "")) <= _EXACT_DIGITS:
        return float(number)
    raise NotPlain


def _text(token: str, data_type: AtomicType, *, is_date: bool) -> Any:
    inner = token[1:-1]
    if token[0] != "'" or "'" in inner or "\\" in inner:  # what doubled quotes and escapes mean depends on settings
        raise NotPlain
    if data_type.root == "DATE":
        if _DATE.fullmatch(inner) is None:
            raise NotPlain
        try:
            return date.fromisoformat(inner)
        except ValueError:
            raise NotPlain from None
    if is_date or data_type.root not in _TEXTS or (data_type.root == "VARCHAR" and len(inner) > data_type.args[0]):
        raise NotPlain
    return inner
