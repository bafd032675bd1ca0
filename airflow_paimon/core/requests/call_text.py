"""Parses ``CALL [catalog.]sys.procedure(name => value, ...)`` without Spark.

The grammar is that of Paimon's connector: values are literals. Spark 3.5 has no CALL, and a Spark Connect client and
the command line have no parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_paimon.core.correction.sql_words import Token, check_nesting, tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError

Value = str | int | float | bool | tuple["Value", ...] | None
"""A literal: text (times and dates as well), number, TRUE or FALSE, NULL, or ``ARRAY(...)`` of these.

``MAP(...)``, which only procedures take that are refused, is read as an array."""

SYSTEM = "sys"
_NUMBER = re.compile(r"([0-9]+)[LlSsYy]?")
_FRACTION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][0-9]+)?(?:[dDfF]|bd|BD)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
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


def is_call(text: object) -> bool:
    """Whether a statement begins with CALL."""
    if not isinstance(text, str):
        return False
    tokens = tokens_of(without_comments(text))
    return bool(tokens) and tokens[0].is_word("call")


def parse_call(text: str) -> Call:
    """Parse one CALL statement.

    Raises:
        InvalidInputError: it is malformed, an argument is no literal, or named and positional arguments are mixed.
    """
    check_nesting(text)
    return _Parser(tokens_of(without_comments(text))).call()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at = tokens, 0

    def call(self) -> Call:
        self._word("call")
        names = [self._name("the name of a procedure")]
        while self._mark("."):
            names.append(self._name("the name of a procedure"))
        *catalog, system, procedure = ["", *names] if len(names) == 1 else names
        if system.lower() != SYSTEM or len(catalog) > 1:
            raise InvalidInputError(
                f"CALL {'.'.join(names)}: procedures are called as sys.{names[-1]} or catalog.sys.{names[-1]}"
            )
        arguments = self._arguments()
        while self._mark(";"):
            pass
        if self._at < len(self._tokens):
            raise self._fault("the end of the statement")
        call = Call(procedure.lower(), arguments, catalog[0] if catalog else None)
        if len({given.name is None for given in arguments}) > 1:
            raise InvalidInputError(f"CALL {procedure}: give all arguments by name, or all by position")
        return call

    def _arguments(self) -> tuple[Given, ...]:
        self._need("(")
        if self._mark(")"):
            return ()
        found = [self._argument()]
        while self._mark(","):
            found.append(self._argument())
        self._need(")")
        return tuple(found)

    def _argument(self) -> Given:
        if not self._is_named():
            return Given(None, self._value())
        name = self._name("the name of an argument")
        self._need("=")
        self._need(">")
        return Given(name, self._value())

    def _is_named(self) -> bool:
        ahead = self._tokens[self._at : self._at + 3]
        return len(ahead) == 3 and ahead[0].names and [t.text for t in ahead[1:]] == ["=", ">"]

    def _value(self) -> Value:
        token = self._peek()
        if token is None:
            raise self._fault("a value")
        if token.kind == "text":
            return self._text()
        if token.kind == "number" or token.text in ("-", "+", "."):
            return self._number()
        following = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else None
        if token.is_word(*_CONSTANTS):
            self._at += 1
            return _CONSTANTS[token.text.lower()]
        if token.is_word(*_TIMES) and following is not None and following.kind == "text":
            self._at += 1
            return self._text()
        if token.is_word("array", "map") and following is not None and following.text == "(":
            self._at += 1
            return tuple(given.value for given in self._arguments())
        if token.names and following is not None and following.text == "=":
            raise InvalidInputError(f"{_FORM}: write {token.text} => value, not {token.text} = value")
        raise self._fault("a literal: a text in quotes, a number, true, false, null or array(...)")

    def _text(self) -> str:
        parts = []
        while (token := self._peek()) is not None and token.kind == "text":
            parts.append(_unquoted(token.text))
            self._at += 1
        return "".join(parts)

    def _number(self) -> int | float:
        sign = -1 if self._mark("-") else 1
        if sign == 1:
            self._mark("+")
        text = "." if self._mark(".") else ""
        token = self._peek()
        text += token.text if token is not None and token.kind == "number" else ""
        if (whole := _NUMBER.fullmatch(text)) is not None:
            self._at += 1
            return sign * int(whole[1])
        if _FRACTION.fullmatch(text) is None:
            raise self._fault("a number")
        self._at += 1
        return sign * float(re.sub("[dDfF]$|bd$|BD$", "", text))

    def _name(self, what: str) -> str:
        token = self._peek()
        if token is None or not token.names:
            raise self._fault(what)
        self._at += 1
        return token.text

    def _word(self, word: str) -> None:
        token = self._peek()
        if token is None or not token.is_word(word):
            raise self._fault(word.upper())
        self._at += 1

    def _need(self, mark: str) -> None:
        if not self._mark(mark):
            raise self._fault(f"{mark!r}")

    def _mark(self, mark: str) -> bool:
        token = self._peek()
        found = token is not None and token.kind == "mark" and token.text == mark
        self._at += found
        return found

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _fault(self, expected: str) -> InvalidInputError:
        token = self._peek()
        found = "the end" if token is None else repr(token.text[:40])
        return InvalidInputError(f"{_FORM}: expected {expected}, found {found}")


def _unquoted(token: str) -> str:
    """Return what a text in quotes says, by Spark's rules: backslashes escape, except in ``r'...'``; quotes double."""
    if token[0] in "rR":
        return token[2:-1]
    mark, inner = token[0], token[1:-1]
    return _ESCAPE.sub(lambda m: _escaped(m[1]), inner.replace(mark * 2, mark))


def _escaped(code: str) -> str:
    if code[0] in "uU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    return _CONTROL.get(code, code)
