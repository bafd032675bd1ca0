"""Parses CALL, and SHOW BRANCHES and SHOW TAGS, which Spark 3.5 and a client of Spark Connect have no parser for.

The grammar is that of Paimon's connector: ``CALL [catalog.]sys.procedure(name => value, ...)`` with literals as values,
and ``SHOW {BRANCHES | TAGS} [IN | FROM] db.t``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.tokens import Cursor, Token, check_nesting, position, tokens_of, unquoted

Value = str | int | float | bool | tuple["Value", ...] | None
"""A literal: text (times and dates as well), number, TRUE or FALSE, NULL, or ``ARRAY(...)`` of these.

``MAP(...)``, which only procedures take that are refused, is read as an array."""

SYSTEM = "sys"
_LISTS = ("branches", "tags")
_WHOLE, _FRACTION = re.compile(r"([0-9]+)[LlSsYy]?"), re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(?:[dDfF]|[bB][dD])?")
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}
_TIMES = ("timestamp", "timestamp_ntz", "timestamp_ltz", "date")
_FORM = "CALL sys.procedure(name => value, ...)"


@dataclass(frozen=True, slots=True)
class Given:
    """An argument; ``name`` as it is written, None where only its position says which one it is."""

    name: str | None
    value: Value


@dataclass(frozen=True, slots=True)
class Call:
    """``catalog``: what stands before ``sys``. ``procedure`` is in lower case."""

    procedure: str
    arguments: tuple[Given, ...]
    catalog: str | None = None


@dataclass(frozen=True, slots=True)
class ShowList:
    """``what``: ``BRANCHES`` or ``TAGS``; ``name``: the parts of the table's name, unquoted."""

    what: str
    name: tuple[str, ...]


def is_call(text: object) -> bool:
    """Whether a statement begins with CALL."""
    return isinstance(text, str) and Cursor(tokens_of(text)).word("call")


def parse_call(text: str) -> Call:
    """Parse one CALL statement.

    Raises:
        InvalidInputError: it is malformed, an argument is no literal, or named and positional arguments are mixed.
    """
    check_nesting(text)
    return _Parser(text).call()


def parse_show_list(text: str) -> ShowList | None:
    """Parse ``SHOW {BRANCHES | TAGS} [IN | FROM] db.t``; None if it is another statement.

    Raises:
        InvalidInputError: it begins so and goes on otherwise; with the position, from 1.
    """
    cursor = Cursor(tokens_of(text))
    if not cursor.word("show") or not cursor.peek().is_word(*_LISTS):
        return None
    what = cursor.next().text.upper()
    if cursor.peek(1).names:
        cursor.word("in", "from")

    def fault(why: str, token: Token) -> InvalidInputError:
        return InvalidInputError(f"SHOW {what} {why} ({position(text, token.start)}); write SHOW {what} IN db.t")

    parts = [cursor.next()]
    while parts[-1].names and cursor.mark("."):
        parts.append(cursor.next())
    if parts[-1].kind == "end" or parts[-1].is_mark(";"):
        raise fault("names no table", parts[-1])
    while cursor.mark(";"):
        pass
    wrong = cursor.peek() if parts[-1].names else parts[-1]
    if wrong.kind != "end":
        raise fault(f"does not take {wrong.text[:20]!r}", wrong)
    return ShowList(what, tuple(part.text for part in parts))


class _Parser(Cursor):
    def __init__(self, text: str) -> None:
        super().__init__(tokens_of(text))
        self._text = text

    def call(self) -> Call:
        if not self.word("call"):
            raise self._fault("CALL")
        names = [self._name("the name of a procedure")]
        while self.mark("."):
            names.append(self._name("the name of a procedure"))
        *catalog, system, procedure = ["", *names] if len(names) == 1 else names
        if system.lower() != SYSTEM or len(catalog) > 1:
            raise InvalidInputError(
                f"CALL {'.'.join(names)}: procedures are called as sys.{names[-1]} or catalog.sys.{names[-1]}"
            )
        arguments = self._arguments()
        while self.mark(";"):
            pass
        if self.peek().kind != "end":
            raise self._fault("the end of the statement")
        call = Call(procedure.lower(), arguments, catalog[0] if catalog else None)
        if len({given.name is None for given in arguments}) > 1:
            raise InvalidInputError(f"CALL {procedure}: give all arguments by name, or all by position")
        return call

    def _arguments(self) -> tuple[Given, ...]:
        self._need("(")
        if self.mark(")"):
            return ()
        found = [self._argument()]
        while self.mark(","):
            found.append(self._argument())
        self._need(")")
        return tuple(found)

    def _argument(self) -> Given:
        if not (self.peek().names and self.peek(1).is_mark("=>")):
            return Given(None, self._value())
        name = self._name("the name of an argument")
        self._need("=>")
        return Given(name, self._value())

    def _value(self) -> Value:
        token, following = self.peek(), self.peek(1)
        if token.kind == "text":
            return self._joined()
        if token.kind == "number" or token.is_mark("-", "+"):
            return self._number()
        if token.is_word(*_CONSTANTS):
            return _CONSTANTS[self.next().text.lower()]
        if token.is_word(*_TIMES) and following.kind == "text":
            self.at += 1
            return self._joined()
        if token.is_word("array", "map") and following.is_mark("("):
            self.at += 1
            return tuple(given.value for given in self._arguments())
        if token.names and following.is_mark("="):
            raise InvalidInputError(f"{_FORM}: write {token.text} => value, not {token.text} = value")
        raise self._fault("a literal: a string in quotes, a number, true, false, null or array(...)")

    def _joined(self) -> str:
        """Read a text; several beside each other are one, as in Spark."""
        parts = []
        while self.peek().kind == "text":
            try:
                parts.append(unquoted(self.peek().text))
            except ValueError:
                raise self._fault("a string without an invalid escape") from None
            self.at += 1
        return "".join(parts)

    def _number(self) -> int | float:
        sign = -1 if self.mark("-") else 1
        if sign == 1:
            self.mark("+")
        token = self.peek()
        whole, fraction = _WHOLE.fullmatch(token.text), _FRACTION.fullmatch(token.text)
        if token.kind != "number" or not (whole or fraction):
            raise self._fault("a number")
        self.at += 1
        if whole is not None:
            return sign * int(whole[1])
        assert fraction is not None
        return sign * float(fraction[1])

    def _name(self, what: str) -> str:
        if not self.peek().names:
            raise self._fault(what)
        return self.next().text

    def _need(self, mark: str) -> None:
        if not self.mark(mark):
            raise self._fault(f"{mark!r}")

    def _fault(self, expected: str) -> InvalidInputError:
        token = self.peek()
        found = "the end" if token.kind == "end" else f"{token.text[:40]!r} ({position(self._text, token.start)})"
        return InvalidInputError(f"{_FORM}: expected {expected}, found {found}")
