"""The part of a SQL condition that metadata can test: comparisons of a column with a literal, joined by AND and OR.

What is not such a comparison counts as true, so the predicate holds for every row that the condition selects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from airflow_paimon.core.correction.sql_words import Token, nesting
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Operator, Predicate, literal

_COMPARISONS: dict[str, Operator] = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED: dict[str, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was read of a condition. ``predicate``: None = any row may match. ``whole``: nothing was left out."""

    predicate: Predicate | None
    whole: bool


def read_condition(tokens: Sequence[Token], schema: TableSchema, names: Collection[str], *, bare: bool = True) -> Read:
    """Read the condition of a statement on the rows of one table.

    ``names``: the lower-case names by which the table's columns are qualified; ``bare``: a column without any is the
    table's.
    """
    reader = _Reader(tokens, schema, frozenset(names), bare)
    try:
        predicate = reader.any_of()
    except RecursionError:  # nested too deeply, which Spark refuses
        return Read(predicate=None, whole=False)
    return Read(predicate=predicate, whole=reader.whole and reader.at == len(tokens))


class _Unreadable(Exception):
    """A condition that is no comparison of a column with a literal."""


class _Reader:
    """Recursive descent: OR of ANDs of comparisons; what can't be read is skipped up to the next AND or OR."""

    def __init__(self, tokens: Sequence[Token], schema: TableSchema, names: frozenset[str], bare: bool) -> None:
        self._tokens = tokens
        self._fields = {f.name.lower(): f for f in schema.fields}
        self._names = names
        self._bare = bare
        self.at = 0
        self.whole = True

    def any_of(self) -> Predicate | None:
        parts = [self._all_of()]
        while self._skip_word("or"):
            parts.append(self._all_of())
        known = tuple(p for p in parts if p is not None)
        if len(known) < len(parts):
            return None
        return known[0] if len(known) == 1 else AnyOf(known)

    def _all_of(self) -> Predicate | None:
        parts = [self._item()]
        while self._skip_word("and"):
            parts.append(self._item())
        known = tuple(p for p in parts if p is not None)
        return AllOf(known) if len(known) > 1 else known[0] if known else None

    def _item(self) -> Predicate | None:
        began = self.at
        try:
            found = self._group() if self._mark("(") else self._comparison()
            if not self._ends():
                raise _Unreadable
            return found
        except (_Unreadable, IndexError):
            self.at, self.whole = began, False
            self._skip_item()
            return None

    def _group(self) -> Predicate | None:
        self.at += 1
        found = self.any_of()
        self._expect(")")
        return found

    def _ends(self) -> bool:
        """Whether nothing follows that would make the comparison a part of something else."""
        return self.at >= len(self._tokens) or self._word("and", "or") or self._mark(")")

    def _skip_item(self) -> None:
        """Go to the next AND or OR of the same depth, past that of a BETWEEN and past those of a CASE."""
        depth, cases, betweens = 0, 0, 0
        while self.at < len(self._tokens):
            token = self._tokens[self.at]
            if depth == 0 and token.text in ")]" and token.kind == "mark":
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

    def _comparison(self) -> Predicate:
        if self._tokens[self.at].kind in ("text", "number"):
            return self._mirrored()
        field = self._column()
        if self._skip_word("is"):
            is_null = not self._skip_word("not")
            if not self._skip_word("null"):
                raise _Unreadable
            return Condition(field.name, "is null" if is_null else "is not null")
        if self._skip_word("in"):
            return Condition(field.name, "in", self._values(field))
        if self._skip_word("between"):
            low = self._value(field)
            if not self._skip_word("and"):
                raise _Unreadable
            return AllOf((Condition(field.name, ">=", low), Condition(field.name, "<=", self._value(field))))
        operator = self._operator()
        return Condition(field.name, operator, self._value(field))

    def _mirrored(self) -> Predicate:
        """Read ``7 < k``."""
        began = self.at
        self.at += 2 if self._tokens[self.at].is_word("date") else 1
        operator = self._operator()
        field = self._column()
        after, self.at = self.at, began
        value = self._value(field)
        self.at = after
        return Condition(field.name, _MIRRORED.get(operator, operator), value)

    def _operator(self) -> Operator:
        sign = self._tokens[self.at].text
        pair = sign + self._tokens[self.at + 1].text if self.at + 1 < len(self._tokens) else ""
        if sign in "<>!" and pair in _COMPARISONS:
            self.at += 2
            return _COMPARISONS[pair]
        if sign not in _COMPARISONS or pair == "==":
            raise _Unreadable
        self.at += 1
        return _COMPARISONS[sign]

    def _values(self, field: DataField) -> tuple[Any, ...]:
        self._expect("(")
        values = [self._value(field)]
        while self._mark(","):
            self.at += 1
            values.append(self._value(field))
        self._expect(")")
        return tuple(values)

    def _column(self) -> DataField:
        first = self._name()
        qualified = self._mark(".")
        if qualified:
            self.at += 1
        name = self._name() if qualified else first
        if name not in self._fields or (first not in self._names if qualified else not self._bare) or self._mark("."):
            raise _Unreadable
        return self._fields[name]

    def _name(self) -> str:
        token = self._tokens[self.at]
        if not token.names:
            raise _Unreadable
        self.at += 1
        return token.text.lower()

    def _value(self, field: DataField) -> Any:
        """Read a literal of the column's own type; another one is compared as only the engine knows."""
        if self._tokens[self.at].is_word("date"):
            self.at += 1
        negative = self._mark("-")
        self.at += negative
        token = self._tokens[self.at]
        self.at += 1
        if not isinstance(field.type, AtomicType) or (negative and token.kind != "number"):
            raise _Unreadable
        try:
            return literal(_converted(("-" if negative else "") + token.text, token.kind, field.type.root), field.type)
        except (PaimonError, ValueError, ArithmeticError):
            raise _Unreadable from None

    # -- words ---------------------------------------------------------------------------------------------------------

    def _word(self, *words: str) -> bool:
        return self.at < len(self._tokens) and self._tokens[self.at].is_word(*words)

    def _skip_word(self, word: str) -> bool:
        found = self._word(word)
        self.at += found
        return found

    def _mark(self, mark: str) -> bool:
        return self.at < len(self._tokens) and self._tokens[self.at] == Token("mark", mark)

    def _expect(self, mark: str) -> None:
        if not self._mark(mark):
            raise _Unreadable
        self.at += 1


def _converted(text: str, kind: str, root: str) -> Any:
    if kind == "text":
        inner = text[1:-1]
        if text[0] not in "'\"" or "\\" in inner or text[0] in inner:  # escapes depend on Spark's settings
            raise ValueError
        if root == "DATE":
            return date.fromisoformat(inner)
        if root in ("CHAR", "VARCHAR", "STRING"):
            return inner
    if kind == "number" and root in _INTEGERS:
        return int(text)
    if kind == "number" and root == "DECIMAL":
        return Decimal(text)
    if kind == "word" and root == "BOOLEAN" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError
