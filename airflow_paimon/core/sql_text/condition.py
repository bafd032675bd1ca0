"""The one translation of an SQL condition into a ``Predicate``: comparisons of a column with a literal, joined.

``parse_condition`` takes a condition whole, and its predicate holds for exactly the rows for which Spark 4's answer in
ANSI mode is true; what it can't translate so it refuses. ``read_condition`` takes what it can of the condition of a
statement that Spark runs, whatever its settings: its predicate holds at least for these rows.

NOT moves inward to the comparisons, which SQL's three values allow: no comparison is true for null, negated or not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.char_text import compared_text
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.sql_text.tokens import (
    HINT,
    Cursor,
    Token,
    nesting,
    nests_too_deeply,
    position,
    tokens_of,
    unquoted,
)
from airflow_paimon.core.table.predicate import (
    COMPARISONS,
    MIRRORED,
    AllOf,
    Condition,
    Operator,
    Predicate,
    all_of,
    any_of,
    like_pattern,
    negation,
)

_HELP = (
    "comparisons of a column with a literal, [NOT] IN, [NOT] BETWEEN, [NOT] LIKE, IS [NOT] NULL, NOT, AND, OR and "
    "parentheses"
)
_SHOWN = 500
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_FLOATS, _TEXTS = ("FLOAT", "DOUBLE"), ("CHAR", "VARCHAR", "STRING")
_TYPED = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz")
_NUMBER = re.compile(r"(?P<digits>[0-9.]+)(?P<exponent>[eE][+-]?[0-9]+)?(?P<suffix>[lL]|[dD]|[bB][dD]|)")
_WHOLE, _DAY = re.compile(r"[+-]?[0-9]+"), re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_TIME = re.compile(
    rf"(?P<seconds>{_DAY.pattern}(?:[ T](?:[01][0-9]|2[0-3]):[0-9]{{2}}"
    r"(?::[0-9]{2}(?:\.(?P<digits>[0-9]{1,9}))?)?)?)"
    r"(?P<zone>Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?"
)
_MOST_DIGITS = 38
_OF_DOUBLE = 15
"""Digits of decimal numbers that keep their order as DOUBLE."""
_FORMS = {
    "BOOLEAN": "TRUE or FALSE",
    **dict.fromkeys(_BITS, "a whole number in its range, for a BIGINT without an exponent"),
    **dict.fromkeys(_FLOATS, "a number, 'NaN' or 'Infinity'"),
    "DECIMAL": "a number without more digits than it has; in quotes or with an exponent for up to 15 digits",
    "CHAR": "a string in quotes that is not longer than it",
    **dict.fromkeys(("VARCHAR", "STRING"), "a string in quotes"),
    "DATE": "DATE 'yyyy-mm-dd'",
    "TIMESTAMP": "TIMESTAMP 'yyyy-mm-dd hh:mm:ss.nnn', a time without a zone and with no more digits",
    "TIMESTAMP_LTZ": "TIMESTAMP 'yyyy-mm-dd hh:mm:ss.nnn+00:00', a time with a zone and no more digits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was read of a condition. ``predicate``: None = any row may match. ``whole``: nothing was left out."""

    predicate: Predicate | None
    whole: bool


def parse_condition(text: str, schema: TableSchema, *, hidden: bool = False) -> Predicate:
    """Parse a condition. A TIMESTAMP without a zone is meant as the column's own time, not in a session's zone.

    ``hidden``: an error repeats nothing of the text but columns' names, as it may name a person.

    Raises:
        InvalidInputError: a syntax that ``_HELP`` does not list, an unknown column, or a literal whose comparison with
            the column depends on more than the two; with its place.
    """
    reader = _Reader(tokens_of(text, hints=True), schema, hidden=hidden)
    try:
        if nests_too_deeply(reader.tokens):
            raise _Fault("it is nested too deeply", None)
        found = reader.any_of(negated=False)
        if reader.at < len(reader.tokens) or found is None:
            raise reader.unexpected("AND, OR or the end")
        return found
    except _Fault as fault:
        at = "" if fault.at is None else f" ({position(text, fault.at)})"
        if hidden:
            raise InvalidInputError(f"where: {fault}{at}; a condition takes {_HELP}") from None
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InvalidInputError(
            f"where {shown!r}: {fault}{at}; a condition takes {_HELP}. For more use .where() of a DataFrame or a "
            "pyarrow expression"
        ) from None


def read_condition(tokens: Sequence[Token], schema: TableSchema, names: Collection[str], *, bare: bool = True) -> Read:
    """Read the condition of a statement on the rows of one table. Spark refuses one that is nested too deeply.

    ``names``: the lower-case names by which the table's columns are qualified; ``bare``: a column without any is the
    table's.
    """
    reader = _Reader(tokens, schema, names=frozenset(names), bare=bare, skips=True)
    try:
        predicate = reader.any_of(negated=False)
    except RecursionError:
        return Read(predicate=None, whole=False)
    return Read(predicate=predicate, whole=reader.whole and reader.at == len(tokens))


class _Fault(Exception):
    """Why a part of a condition is not translated, and where it is."""

    def __init__(self, what: str, at: int | None) -> None:
        super().__init__(what)
        self.at = at


@dataclass(frozen=True, slots=True)
class _Literal:
    """``kind``: ``text``, ``boolean``, ``integer``, ``decimal``, ``double``, or one of ``_TYPED``. A number's value is
    a ``Decimal``. ``at``: where it begins.
    """

    kind: str
    value: Any
    at: int


class _Reader(Cursor):
    """Recursive descent: OR of ANDs of comparisons. ``skips``: what it can't translate may be true."""

    def __init__(
        self,
        tokens: Sequence[Token],
        schema: TableSchema,
        *,
        names: frozenset[str] = frozenset(),
        bare: bool = True,
        skips: bool = False,
        hidden: bool = False,
    ) -> None:
        super().__init__(tokens)
        self._fields = {f.name: f for f in schema.fields}
        self._names, self._bare, self._skips, self._hidden = names, bare, skips, hidden
        self.whole = True

    def any_of(self, *, negated: bool) -> Predicate | None:
        parts = [self._all_of(negated=negated)]
        while self.word("or"):
            parts.append(self._all_of(negated=negated))
        return all_of(parts) if negated else any_of(parts)

    def _all_of(self, *, negated: bool) -> Predicate | None:
        parts = [self._item(negated=negated)]
        while self.word("and"):
            parts.append(self._item(negated=negated))
        return any_of(parts) if negated else all_of(parts)

    def _item(self, *, negated: bool) -> Predicate | None:
        if not self._skips:
            return self._negatable(negated=negated)
        began = self.at
        try:
            found = self._negatable(negated=negated)
            if not self._ends():
                raise self.unexpected("AND or OR")
            return found
        except _Fault:
            self.at, self.whole = began, False
            self._skip_item()
            return None

    def _negatable(self, *, negated: bool) -> Predicate | None:
        while self.word("not"):
            negated = not negated
        if self.mark("("):
            found = self.any_of(negated=negated)
            self._need_mark(")")
            return found
        found = self._comparison()
        return negation(found) if found is not None and negated else found

    def _ends(self) -> bool:
        """Whether nothing follows that would make the comparison a part of something else."""
        token = self.peek()
        return token.kind == "end" or token.is_word("and", "or") or token.is_mark(")")

    def _skip_item(self) -> None:
        """Go to the next AND or OR of the same depth, past that of a BETWEEN and past those of a CASE."""
        depth, cases, betweens = 0, 0, 0
        while (token := self.peek()).kind != "end":
            if depth == 0 and token.is_mark(")", "]"):
                return
            depth += nesting(token)
            cases += token.is_word("case") - (token.is_word("end") and cases > 0)
            if depth == 0 and cases == 0:
                betweens += token.is_word("between")
                if token.is_word("or") or (token.is_word("and") and not betweens):
                    return
                betweens -= token.is_word("and")
            self.at += 1

    # -- one comparison ------------------------------------------------------------------------------------------------

    def _comparison(self) -> Predicate | None:
        began = self.peek().start
        if (given := self._literal()) is not None:
            operator = MIRRORED[self._operator()]
            field = self._column()
            return Condition(field.name, operator, self._converted(field, given))
        field = self._column()
        if self.word("is"):
            is_null = not self.word("not")
            self._need_word("null")
            return Condition(field.name, "is null" if is_null else "is not null")
        negated = self.word("not")
        if self.word("in"):
            found: Predicate = Condition(field.name, "in", self._values(field))
        elif self.word("between"):
            if field.type.root == "CHAR":  # Spark 4 fills up no CHAR here
                raise _Fault(f"BETWEEN does not compare column {self._of(field)} as >= and <= do: use these", began)
            low = self._value(field)
            self._need_word("and")
            found = AllOf((Condition(field.name, ">=", low), Condition(field.name, "<=", self._value(field))))
        elif self.word("like"):
            found = Condition(field.name, "like", self._pattern(field))
        elif negated:
            raise self.unexpected("IN, BETWEEN or LIKE")
        else:
            operator = self._operator()
            found = Condition(field.name, operator, self._value(field))
        return negation(found) if negated else found

    def _operator(self) -> Operator:
        token = self.peek()
        if token.kind != "mark" or token.text not in COMPARISONS:
            raise self.unexpected("a comparison")
        self.at += 1
        return COMPARISONS[token.text]

    def _values(self, field: DataField) -> tuple[Any, ...]:
        self._need_mark("(")
        given = [self._given()]
        while self.mark(","):
            given.append(self._given())
        self._need_mark(")")
        values = tuple(self._converted(field, one) for one in given)
        if field.type.root == "BIGINT" and {"text", "decimal"} <= {one.kind for one in given}:
            raise _Fault("strings and decimal numbers in one list are compared as DOUBLE: write numbers", given[0].at)
        return values

    def _pattern(self, field: DataField) -> str:
        given = self._given()
        if given.kind != "text" or field.type.root not in _TEXTS:
            raise _Fault(f"LIKE compares a string column with a string in quotes, not {self._of(field)}", given.at)
        if self.peek().is_word("escape"):
            raise self.unexpected("no ESCAPE: a backslash")
        try:
            like_pattern(given.value)
        except InvalidInputError:
            raise _Fault(
                "in a pattern of LIKE a backslash is allowed only before %, _ and another one", given.at
            ) from None
        return str(given.value)

    def _column(self) -> DataField:
        token = self.peek()
        if not token.names:
            raise self.unexpected("a column")
        self.at += 1
        if self.peek().is_mark("("):
            raise _Fault(f"there is no column {token.text!r}, and no function is called here", token.start)
        if not self.mark("."):
            if not self._bare:
                raise _Fault("it may be the column of another table", token.start)
            return self._field(token)
        name = self.next()
        if token.text.lower() not in self._names or not name.names or self.peek().is_mark("."):
            raise _Fault("a column is written here without its table, and not a field of a column", token.start)
        return self._field(name)

    def _field(self, token: Token) -> DataField:
        """Find a column as Spark does: in any case; the same case where several columns differ by that alone."""
        if token.text in self._fields:
            return self._fields[token.text]
        found = [f for f in self._fields.values() if f.name.lower() == token.text.lower()]
        if len(found) != 1:
            what = "several columns" if found else "no column"
            raise _Fault(f"there is {what} {token.text!r} (columns: {', '.join(self._fields)})", token.start)
        return found[0]

    # -- literals ------------------------------------------------------------------------------------------------------

    def _value(self, field: DataField) -> Any:
        return self._converted(field, self._given())

    def _given(self) -> _Literal:
        found = self._literal()
        if found is None:
            raise self.unexpected("a literal")
        return found

    def _literal(self) -> _Literal | None:
        """Read a literal if one comes next."""
        token = self.peek()
        if token.is_word("null"):
            raise _Fault("nothing is equal to NULL: use IS NULL, and leave it out of a list", token.start)
        if token.kind == "text":
            return _Literal("text", self._text(), token.start)
        if token.is_word(*_TYPED) and self.peek(1).kind == "text":
            self.at += 1
            return _Literal(token.text.lower(), self._text(), token.start)
        if self.word("true", "false"):
            return _Literal("boolean", token.text.lower() == "true", token.start)
        if token.kind == "number" or (token.is_mark("+", "-") and self.peek(1).kind == "number"):
            sign = self.next().text if token.kind == "mark" else ""
            return self._number(self.next(), sign, token.start)
        return None

    def _text(self) -> str:
        token = self.next()
        inner = token.text[1:-1]
        if self._skips and (token.text[0] != "'" or "\\" in inner or "'" in inner):
            raise _Fault("its meaning depends on Spark's settings", token.start)
        try:
            return unquoted(token.text)
        except ValueError:
            raise _Fault("its text has an escape that names no character", token.start) from None

    def _number(self, token: Token, sign: str, at: int) -> _Literal:
        match = _NUMBER.fullmatch(token.text)
        value = None if match is None else _exact(f"{sign}{match['digits']}{match['exponent'] or ''}")
        if match is None or value is None:
            raise _Fault(f"{self._shown(token.text[:_SHOWN])} is not a number that is read here", at)
        digits, exponent, suffix = match["digits"], match["exponent"], match["suffix"].lower()
        is_double = suffix == "d" or (exponent and suffix != "bd")
        if suffix == "l" and ("." in digits or exponent or not -(2**63) <= value < 2**63):
            raise _Fault(f"{self._shown(token.text)} is not a BIGINT", at)
        if not is_double and max(len(digits.strip(".").replace(".", "")), abs(value.adjusted())) > _MOST_DIGITS:
            raise _Fault(f"{self._shown(token.text)} has more than {_MOST_DIGITS} digits", at)
        return _Literal("double" if is_double else "decimal" if "." in digits or suffix else "integer", value, at)

    def _converted(self, field: DataField, given: _Literal) -> Any:
        """Return a literal as a value of the column's type, if it compares so as Spark compares the two."""
        data_type, root = field.type, field.type.root
        if not isinstance(data_type, AtomicType) or root not in _FORMS:
            raise _Fault(f"column {self._of(field)} can't be compared here", given.at)
        if self._skips and root in (*_FLOATS, "TIMESTAMP", "TIMESTAMP_LTZ"):
            raise _Fault("no statistics of such a column are used", given.at)
        if self._skips and given.kind == "text" and root not in (*_TEXTS, "DATE"):
            raise _Fault("without ANSI mode Spark compares a list as strings", given.at)
        value = _value_of(data_type, given)
        if value is None:
            raise _Fault(
                f"{self._shown(given.value)} is not a value of column {self._of(field)}: give {_FORMS[root]}", given.at
            )
        return value

    # -- errors --------------------------------------------------------------------------------------------------------

    def _of(self, field: DataField) -> str:
        return f"{field.name!r} ({field.type})"

    def _shown(self, what: object) -> str:
        return "***" if self._hidden else repr(what if isinstance(what, str) else str(what))

    def unexpected(self, expected: str) -> _Fault:
        token = self.peek()
        if token.kind == "end":
            return _Fault(f"it ends too early: {expected} expected", token.start)
        found = "a hint" if token.is_mark(HINT) else self._shown(token.text[:20])
        return _Fault(f"{expected} expected, not {found}", token.start)

    def _need_word(self, word: str) -> None:
        if not self.word(word):
            raise self.unexpected(word.upper())

    def _need_mark(self, mark: str) -> None:
        if not self.mark(mark):
            raise self.unexpected(mark)


def _value_of(data_type: AtomicType, given: _Literal) -> Any:
    """Return what a literal is as a value of the type; None where Spark compares the two in another way."""
    root, kind, value = data_type.root, given.kind, given.value
    if root == "BOOLEAN":
        known = {"true": True, "false": False}
        return value if kind == "boolean" else known.get(value.lower()) if kind == "text" else None
    if root in _TEXTS:
        return _text_of(data_type, value) if kind == "text" else None
    if root == "DATE":
        return _day(value) if kind in ("text", "date") else None
    if root == "TIMESTAMP":
        fits = kind in ("text", "timestamp", "timestamp_ntz") or (kind == "date" and _day(value) is not None)
        return _moment(data_type, value, zoned=False) if fits else None
    if root == "TIMESTAMP_LTZ":
        return _moment(data_type, value, zoned=True) if kind in ("text", "timestamp", "timestamp_ltz") else None
    if kind == "text":
        return _number_of_text(data_type, value)
    return _number_of(data_type, kind, value) if isinstance(value, Decimal) else None


def _text_of(data_type: AtomicType, value: str) -> str | None:
    if data_type.root != "CHAR":
        return value
    length = data_type.args[0]
    return compared_text(value, length) if len(value.rstrip(" ")) <= length else None


def _number_of_text(data_type: AtomicType, value: str) -> Any:
    """Read a text that Spark casts: to BIGINT beside whole numbers, else to DOUBLE."""
    if data_type.root in _FLOATS and _NOT_FINITE.fullmatch(value):
        return float(value)
    kind, form = ("integer", _WHOLE) if data_type.root in _BITS else ("double", _DECIMAL)
    number = _exact(value) if form.fullmatch(value) else None
    return None if number is None else _number_of(data_type, kind, number)


def _exact(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return None


def _number_of(data_type: AtomicType, kind: str, value: Decimal) -> Any:
    if data_type.root in _FLOATS:
        found = float(value)
        return found if abs(found) != float("inf") else None
    if data_type.root == "DECIMAL":
        precision, scale = data_type.args
        if kind == "double" and precision > _OF_DOUBLE:
            return None
        return _decimal(value, precision, scale)
    bits = _BITS.get(data_type.root)
    if bits is None or (kind == "double" and bits == 64) or (value and value.adjusted() > _MOST_DIGITS):
        return None
    whole = int(value)
    return whole if whole == value and -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1) else None


def _decimal(value: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a number with as many digits as the type has; None where it needs more."""
    sign, digits, exponent = value.as_tuple()
    significant = "".join(map(str, digits)).lstrip("0")
    shortened = significant.rstrip("0")
    exponent = int(exponent) + len(significant) - len(shortened)
    if not shortened:
        return Decimal(0)
    if -exponent > scale or len(shortened) + exponent > precision - scale:
        return None
    return Decimal((sign, tuple(map(int, shortened + "0" * max(exponent, 0))), min(exponent, 0)))


def _day(value: str) -> date | None:
    try:
        return date.fromisoformat(value) if _DAY.fullmatch(value) else None
    except ValueError:
        return None


def _moment(data_type: AtomicType, value: str, *, zoned: bool) -> Timestamp | None:
    """Read a time with as many digits as Arrow keeps of the column's: 3, 6 or 9."""
    match = _TIME.fullmatch(value)
    if match is None or (match["zone"] is not None) != zoned:
        return None
    precision = data_type.args[0]
    kept = next(n for n in (3, 6, 9) if precision <= n)
    digits = match["digits"] or ""
    if digits[kept:].strip("0"):
        return None
    seconds = match["seconds"].partition(".")[0]
    try:
        moment = Timestamp.from_datetime(datetime.fromisoformat(seconds + (match["zone"] or "")))
    except (ValueError, OverflowError):
        return None
    found = Timestamp.from_nanos(moment.to_nanos() + int(digits.ljust(9, "0") or 0))
    return found if kept < 9 or -(2**63) <= found.to_nanos() < 2**63 else None
