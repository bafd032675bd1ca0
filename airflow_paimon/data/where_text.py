"""Parses a condition as text: the data source's option ``where``, look-ups, notebooks. No Spark session is needed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError, naming_table
from airflow_paimon.core.format.char_text import compared_text
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Operator, Predicate, literal
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import repeated, scalar_of, value_of
from airflow_paimon.data.read_schema import read_schema
from airflow_paimon.data.row_columns import with_row_columns

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[+-]?\d+(?:\.\d+)?)|(?P<quoted>`(?:[^`]|``)*`)|(?P<word>[^\W\d]\w*)|"""
    r"(?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,))"
)
_COMPARISONS: dict[str, Operator] = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_EXPRESSIONS: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_SHOWN = 500
_HELP = "comparisons of a column with a literal, IN, BETWEEN, IS [NOT] NULL, AND, OR and parentheses"


def parse_condition(text: str, schema: TableSchema, *, hidden: bool = False) -> Predicate:
    """Parse a condition; literals are in the column's type, dates and times as ISO text.

    ``hidden``: an error repeats nothing of the text but columns' names, as it may name a person.

    Raises:
        InvalidInputError: a syntax that ``_HELP`` does not list, an unknown column, or a literal not of its type.
    """
    parser = _Parser(text, schema, hidden=hidden)
    try:
        found = parser.any_of()
    except RecursionError:
        raise parser.error("it is nested too deeply") from None
    if parser.peek() is not None:
        raise parser.error(f"unexpected {parser.shown(parser.peek())}")
    return found


def to_expression(predicate: Predicate, schema: TableSchema) -> pc.Expression:
    """Return the Arrow expression that is true for exactly the rows that a predicate of ``parse_condition`` selects."""
    if isinstance(predicate, AllOf | AnyOf):
        out = to_expression(predicate.parts[0], schema)
        for part in predicate.parts[1:]:
            other = to_expression(part, schema)
            out = out & other if isinstance(predicate, AllOf) else out | other
        return out
    field = pc.field(predicate.column)
    if predicate.op == "is null":
        return field.is_null()
    if predicate.op == "is not null":
        return field.is_valid()
    data_type = schema.field(predicate.column).type
    if data_type.root in _FLOATS:
        return _of_float(field, predicate, data_type)
    if predicate.op == "in":
        return field.isin(pa.concat_arrays([repeated(v, data_type, 1) for v in predicate.value]))
    return _EXPRESSIONS[predicate.op](field, pc.scalar(scalar_of(predicate.value, data_type)))


def _of_float(field: pc.Expression, asked: Condition, data_type: DataType) -> pc.Expression:
    """Compare as Spark and Paimon do: NaN is equal to itself and above all other numbers, -0.0 is 0.0."""
    if asked.op == "in":  # Arrow looks values up by their bits
        return reduce(or_, (_of_float(field, Condition(asked.column, "=", v), data_type) for v in asked.value))
    value, is_nan = pc.scalar(scalar_of(asked.value, data_type)), field.is_nan()
    equal, less = (is_nan, ~is_nan) if math.isnan(asked.value) else (field == value, field < value)
    return {"=": equal, "!=": ~equal, "<": less, "<=": less | equal, ">": ~(less | equal), ">=": ~less}[asked.op]


def where_argument(
    table: Table,
    where: str | pc.Expression | None,
    version: int | str | None = None,
    timestamp: int | str | None = None,
) -> pc.Expression | None:
    """Return a filter as an expression: a text is parsed with the columns of the version that is read.

    Raises:
        InvalidInputError: neither an expression nor a text that ``parse_condition`` takes.
    """
    if where is None or isinstance(where, pc.Expression):
        return where
    if not isinstance(where, str):
        raise InvalidInputError(
            f"{table.label}: where is a condition as text or a pyarrow expression, not {type(where).__name__}"
        )
    schema = with_row_columns(read_schema(table, version, timestamp))
    with naming_table(table.label):
        return to_expression(parse_condition(where, schema), schema)


class _Parser:
    """Recursive descent over the tokens: OR of ANDs of conditions."""

    def __init__(self, text: str, schema: TableSchema, *, hidden: bool) -> None:
        self._text = text
        self._hidden = hidden
        self._schema = schema
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[tuple[str, str]]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                raise self.error(f"can't read {self.shown(self._text[at : at + 20])}")
            yield match.lastgroup, match[match.lastgroup]
            at = match.end()

    def error(self, what: str) -> InvalidInputError:
        if self._hidden:
            return InvalidInputError(f"where: {what}; a condition takes {_HELP}")
        text = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}..."
        return InvalidInputError(
            f"where {text!r}: {what}; a condition as text takes {_HELP}. For more use .where() of a DataFrame "
            f"or a pyarrow expression"
        )

    def shown(self, part: str | None) -> str:
        """Return a part of the text for an error; None: its end."""
        if part is None:
            return "the end"
        return "***" if self._hidden else repr(part)

    def peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise self.error("ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, word: str) -> bool:
        """Go past a keyword or sign if it comes next."""
        found = self._at < len(self._tokens) and self._tokens[self._at][0] in ("word", "sign")
        if found and self._tokens[self._at][1].upper() == word:
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self.error(f"{word} expected before {self.shown(self.peek())}")

    def any_of(self) -> Predicate:
        parts = [self._all_of()]
        while self._skip("OR"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Predicate:
        parts = [self._condition()]
        while self._skip("AND"):
            parts.append(self._condition())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _condition(self) -> Predicate:
        if self._skip("("):
            inner = self.any_of()
            self._expect(")")
            return inner
        name = self._column()
        if self._skip("IS"):
            is_null = not self._skip("NOT")
            self._expect("NULL")
            return Condition(name, "is null" if is_null else "is not null")
        data_type = self._comparable(name)
        if self._skip("IN"):
            return Condition(name, "in", self._values(name, data_type))
        if self._skip("BETWEEN"):
            low = self._value(name, data_type)
            self._expect("AND")
            return AllOf((Condition(name, ">=", low), Condition(name, "<=", self._value(name, data_type))))
        sign = self._next()[1]
        if sign not in _COMPARISONS:
            raise self.error(f"a comparison expected, not {self.shown(sign)}")
        return Condition(name, _COMPARISONS[sign], self._value(name, data_type))

    def _values(self, name: str, data_type: AtomicType) -> tuple[Any, ...]:
        self._expect("(")
        values = [self._value(name, data_type)]
        while self._skip(","):
            values.append(self._value(name, data_type))
        self._expect(")")
        return tuple(values)

    def _column(self) -> str:
        kind, token = self._next()
        name = token[1:-1].replace("``", "`") if kind == "quoted" else token
        if kind not in ("word", "quoted"):
            raise self.error(f"a column expected, not {self.shown(token)}")
        if name not in self._schema.field_names:
            raise self.error(f"there is no column {name!r} (columns: {', '.join(self._schema.field_names)})")
        return name

    def _comparable(self, name: str) -> AtomicType:
        data_type = self._schema.field(name).type
        if not isinstance(data_type, AtomicType) or data_type.root not in _LITERALS:
            raise self.error(f"column {name!r} of type {getattr(data_type, 'root', data_type)} can't be compared here")
        return data_type

    def _value(self, name: str, data_type: AtomicType) -> Any:
        kind, token = self._next()
        if kind == "word" and token.upper() in ("DATE", "TIMESTAMP"):
            kind, token = self._next()
        elif kind == "word" and token.upper() in ("TRUE", "FALSE"):
            kind, token = "text", f"'{token.lower()}'"
        if kind not in ("text", "number"):
            raise self.error(f"a literal expected, not {self.shown(token)}")
        text = token[1:-1].replace("''", "'") if kind == "text" else token
        try:
            value = literal(_LITERALS[data_type.root](text), data_type)
            if data_type.root == "CHAR":
                value = compared_text(value, data_type.args[0])
            scalar = scalar_of(value, data_type)  # raises if it has more digits than the column
            if data_type.root.startswith("TIMESTAMP") and value_of(scalar) != value:
                raise ValueError("Arrow cuts the digits off")
            return value
        except (ValueError, KeyError, InvalidOperation, OverflowError):
            zone = {"TIMESTAMP": ", a time without a zone", "TIMESTAMP_LTZ": ", a time with a zone"}
            kind = f"{data_type}{zone.get(data_type.root, '')}"
            raise self.error(f"{self.shown(text)} is not a value of column {name!r} ({kind})") from None


def _moment(text: str, *, local_zone: bool) -> Timestamp:
    if "," in text:  # Python takes it for a point, and cuts digits off
        raise ValueError(text)
    timestamp_of(datetime.fromisoformat(text), local_zone=local_zone)  # refuses a zone, or its absence
    return Timestamp.from_iso(text)


_FLOATS = ("FLOAT", "DOUBLE")
_LITERALS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_FLOATS, float),
    "BOOLEAN": lambda text: {"true": True, "false": False}[text.lower()],
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), int),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), str),
    "DECIMAL": Decimal,
    "DATE": date.fromisoformat,
    "TIMESTAMP": lambda text: _moment(text, local_zone=False),
    "TIMESTAMP_LTZ": lambda text: _moment(text, local_zone=True),
}
