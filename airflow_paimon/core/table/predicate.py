"""A small predicate on rows, and whether rows within known bounds can match it. Conservative: if unknown, they can.

For callers with known filters, as Spark hands them to a data source; ``where`` of a read is any Arrow expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from airflow_paimon.core.errors import InvalidInputError, UnsupportedError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.char_text import compared_text
from airflow_paimon.core.format.timestamp import timestamp_of
from airflow_paimon.core.format.types import AtomicType, DataType

Operator = Literal[
    "=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null", "starts with", "like", "not like"
]


@dataclass(frozen=True, slots=True)
class Condition:
    """``column op value``. ``in`` and ``not in`` take a tuple of values; the null tests ignore ``value``; the pattern
    of ``like`` has ``%``, ``_`` and backslashes before what stands for itself.

    As in SQL no comparison is true for null, and none of ``in``, ``not in``, ``like`` and ``not like`` either.
    """

    column: str
    op: Operator
    value: Any = None


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Predicate, ...]


Predicate = Condition | AllOf | AnyOf

COMPARISONS: Mapping[str, Operator] = {
    "=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
"""By their signs in SQL."""
MIRRORED: Mapping[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""With the sides swapped."""
_PAIRS: tuple[tuple[Operator, Operator], ...] = (
    ("=", "!="), ("<", ">="), (">", "<="), ("in", "not in"), ("is null", "is not null"), ("like", "not like"),
)  # fmt: skip
_OPPOSITES: dict[Operator, Operator] = {**dict(_PAIRS), **{b: a for a, b in _PAIRS}}


def negation(predicate: Predicate) -> Predicate | None:
    """Return what is true where SQL's NOT of this is; None: no predicate is."""
    if isinstance(predicate, Condition):
        opposite = _OPPOSITES.get(predicate.op)
        return None if opposite is None else Condition(predicate.column, opposite, predicate.value)
    parts = [negation(part) for part in predicate.parts]
    return any_of(parts) if isinstance(predicate, AllOf) else all_of(parts) if None not in parts else None


def all_of(parts: Iterable[Predicate | None]) -> Predicate | None:
    """Join by AND what is known; None: unknown, so it may be true."""
    known = tuple(p for p in parts if p is not None)
    return AllOf(known) if len(known) > 1 else known[0] if known else None


def any_of(parts: Iterable[Predicate | None]) -> Predicate | None:
    """Join by OR; None, also in the result: unknown, so it may be true."""
    found = tuple(parts)
    known = tuple(p for p in found if p is not None)
    return None if len(known) < len(found) else known[0] if len(known) == 1 else AnyOf(known)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a column's values in some rows: ``low`` to ``high``, inclusive (None = unknown).

    ``nulls``: how many are null, None = unknown. ``rows``: how many rows there are.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None
    rows: int | None = None

    @property
    def all_null(self) -> bool:
        return self.nulls is not None and self.nulls == self.rows


def exactly(value: Any) -> Bounds:
    """Bounds of a column that has one value in all rows."""
    return Bounds(None, None, 1, 1) if value is None else Bounds(value, value, 0, 1)


def columns_of(predicate: Predicate) -> frozenset[str]:
    """Return the names of the columns in a predicate."""
    if isinstance(predicate, Condition):
        return frozenset((predicate.column,))
    return frozenset().union(*(columns_of(p) for p in predicate.parts))


def restrict(predicate: Predicate | None, columns: Set[str]) -> Predicate | None:
    """Weaken a predicate to these columns: the result is true wherever the predicate is. None = no condition."""
    if predicate is None or columns_of(predicate) <= columns:
        return predicate
    if isinstance(predicate, Condition):
        return None
    parts = tuple(r for p in predicate.parts if (r := restrict(p, columns)) is not None)
    if isinstance(predicate, AllOf):
        return AllOf(parts) if parts else None
    return AnyOf(parts) if len(parts) == len(predicate.parts) else None


def may_match(predicate: Predicate | None, bounds: Mapping[str, Bounds], types: Mapping[str, DataType]) -> bool:
    """Return whether a row within these bounds can match. A column without bounds can hold anything."""
    if predicate is None:
        return True
    if isinstance(predicate, AllOf):
        return all(may_match(p, bounds, types) for p in predicate.parts)
    if isinstance(predicate, AnyOf):
        return any(may_match(p, bounds, types) for p in predicate.parts)
    known, data_type = bounds.get(predicate.column), types.get(predicate.column)
    if known is None or data_type is None:
        return True
    return _may_match_condition(predicate, known, data_type)


def _may_match_condition(condition: Condition, known: Bounds, data_type: DataType) -> bool:
    if condition.op == "is null":
        return known.nulls != 0
    if known.all_null:
        return False
    if condition.op == "is not null" or known.low is None or known.high is None:
        return True
    if not isinstance(data_type, AtomicType) or data_type.root in ("FLOAT", "DOUBLE"):
        return True  # bounds may leave NaN out, and -0.0 is equal to 0.0
    if data_type.root == "CHAR":
        return _char_may_match(condition, known, data_type)
    try:
        if condition.op in ("in", "not in"):
            values = [literal(v, data_type) for v in condition.value if v is not None]
            return _is_listed(condition.op, known.low, known.high, values)
        value = literal(condition.value, data_type)
        return value is not None and _TESTS[condition.op](known.low, known.high, value)
    except (UnsupportedError, InvalidInputError, TypeError):
        return True  # a literal of another type: only the engine knows how it compares


def _char_may_match(condition: Condition, known: Bounds, data_type: AtomicType) -> bool:
    """CHARs are compared filled up with blanks, and stored so or without. The bounds are of what is stored."""
    high = filled_bound(known.high, data_type)
    given = condition.value if condition.op in ("in", "not in") else (condition.value,)
    if high is None or not all(v is None or isinstance(v, str) for v in given):
        return True
    low = high if known.low == known.high else known.low
    if condition.op in ("starts with", "like", "not like"):
        return _TESTS[condition.op](low, high, condition.value)
    values = [compared_text(v, data_type.args[0]) for v in given if v is not None]
    if condition.op in ("in", "not in"):
        return _is_listed(condition.op, low, high, values)
    return bool(values) and _TESTS[condition.op](low, high, values[0])


def filled_bound(high: str, data_type: AtomicType) -> str | None:
    """Return the bound of filled-up CHARs, of which what is stored has the upper bound ``high``; None: there is none.

    Filled up, a text is never below what is stored. It may be above another one whose next character is below a blank.
    """
    return None if any(c < " " for c in high) else high.ljust(data_type.args[0])


def _may_start_with(low: Any, high: Any, prefix: Any) -> bool:
    size = len(prefix)
    return bool(low[:size] <= prefix <= high[:size])


def _is_listed(op: Operator, low: Any, high: Any, values: list[Any]) -> bool:
    if op == "in":
        return any(low <= v <= high for v in values)
    return low != high or low not in values


def _may_be_like(low: Any, high: Any, pattern: str) -> bool:
    expression, prefix = like_pattern(pattern)
    return expression.fullmatch(low) is not None if low == high else _may_start_with(low, high, prefix)


@lru_cache(maxsize=64)
def like_pattern(pattern: str) -> tuple[re.Pattern[str], str]:
    """Return the regular expression of a pattern of LIKE, and the text that all that match it begin with.

    Raises:
        InvalidInputError: a backslash before anything but ``%``, ``_`` and a backslash, as Spark has it.
    """
    segments, prefix, is_open = [""], "", True
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        if part[0] == "\\" and part[1:] not in ("%", "_", "\\"):
            raise InvalidInputError(f"LIKE {pattern!r}: a backslash is allowed only before %, _ and another one")
        is_open = is_open and part not in ("%", "_")
        prefix += part[-1] if is_open else ""
        if part == "%":
            segments.append("")
        else:
            segments[-1] += "." if part == "_" else re.escape(part[-1])
    first, *middle = segments
    if not middle:
        return re.compile(first, re.DOTALL), prefix
    # What stands between two % is looked for once, from the left: that is enough, and takes no time to go back in.
    between = "".join(f"(?>.*?{part})" for part in middle[:-1])
    return re.compile(f"{first}{between}.*{middle[-1]}", re.DOTALL), prefix


_TESTS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "=": lambda low, high, v: bool(low <= v <= high),
    "!=": lambda low, high, v: not low == high == v,
    "<": lambda low, high, v: bool(low < v),
    "<=": lambda low, high, v: bool(low <= v),
    ">": lambda low, high, v: bool(high > v),
    ">=": lambda low, high, v: bool(high >= v),
    "starts with": _may_start_with,
    "like": _may_be_like,
    "not like": lambda low, high, v: low != high or like_pattern(v)[0].fullmatch(low) is None,
}


def literal(value: Any, data_type: DataType) -> Any:
    """Convert a value to the representation of this type in metadata rows (``binary_row``); null stays null.

    Raises:
        InvalidInputError: not a value of the type. UnsupportedError: a time zone is missing or not allowed.
    """
    if value is None or not isinstance(data_type, AtomicType):
        return value
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return timestamp_of(value, local_zone=data_type.root == "TIMESTAMP_LTZ")
    if data_type.root == "DATE" and isinstance(value, date) and not isinstance(value, datetime):
        return value
    if data_type.root == "DECIMAL" and isinstance(value, Decimal | int) and not isinstance(value, bool):
        return Decimal(value)
    if data_type.root in _PYTHON and type(value) in _PYTHON[data_type.root]:
        return value
    encode_row((value,), (data_type,))  # raises, unless it is one of the rarer representations that need no change
    return value


_PYTHON: dict[str, tuple[type, ...]] = {
    "BOOLEAN": (bool,),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "TIME"), (int,)),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), (str,)),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), (bytes,)),
}
