"""Rules about totals, evaluated on numbers: how many rows a branch changes, and how far a measure moved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.rules.rules import Amount, Drift, RowLimits

_WEEK = timedelta(days=7)
_DASHED, _COMPACT = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"\d{8}")
_YEARS = range(1970, 2200)
"""Years of dates without dashes: other numbers of eight digits are none."""
_EXACT = Context(prec=400)
"""Digits enough for sums of every type."""
_LONGEST_SHOWN = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows of a partition differ, by kind, and how many it had before."""

    partition: str
    added: int
    changed: int
    deleted: int
    before: int


def broken_limits(rule: RowLimits, counts: Sequence[Counts]) -> list[dict[str, Any]]:
    """Return the limits that are exceeded: numbers in all, parts in each partition by what that had before."""
    out: list[dict[str, Any]] = []
    for kind, most in rule.limits:
        if not most.percent:
            total = sum(getattr(c, kind) for c in counts)
            out += [{"rows": kind, "number": total, "most": str(most)}] if total > most.value else []
            continue
        for c in counts:
            number = getattr(c, kind)
            if number * 100 > most.value * c.before:
                out.append({"partition": c.partition, "rows": kind, "number": number, "of": c.before})
    return out


def moved_too_far(rule: Drift, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the partitions in which a measure moved further than it may; one that only a side has counts as 0.

    NaN and infinity moved if the other side is anything else.
    """
    out = []
    for partition in sorted(before.keys() | after.keys()):
        old, new = _number(before.get(partition)), _number(after.get(partition))
        if _is_too_far(rule.most, old, new):
            out.append(
                {"partition": partition, "before": _shown(old), "after": _shown(new), "change": _change(old, new)}
            )
    return out


def _is_too_far(most: Amount, old: Decimal, new: Decimal) -> bool:
    if not (old.is_finite() and new.is_finite()):
        return str(old) != str(new)
    moved, bound = _EXACT.abs(_EXACT.subtract(new, old)), Decimal(str(most.value))
    if not most.percent:
        return moved > bound
    return _EXACT.multiply(moved, Decimal(100)) > _EXACT.multiply(bound, _EXACT.abs(old))


def _number(value: Any) -> Decimal:
    """Return a measure as a number; NULL, as of no rows, is 0.

    Raises:
        InvalidInputError: it is none, such as the least of texts.
    """
    try:
        return Decimal(0) if value is None else Decimal(str(value))
    except InvalidOperation:
        raise InvalidInputError(f"drift needs a numeric column, got {value!r}") from None


def _change(old: Decimal, new: Decimal) -> str | None:
    if not old or not (old.is_finite() and new.is_finite()):
        return None
    return f"{float(_EXACT.divide(_EXACT.subtract(new, old), _EXACT.abs(old))) * 100:+.4g} %"


def _shown(value: Decimal) -> int | float | str:
    """Return a number as JSON has it: NaN and infinity as text."""
    if not value.is_finite():
        return str(value)
    return int(value) if abs(value) < _LONGEST_SHOWN and value == value.to_integral_value() else float(value)


def date_column(keys: Sequence[str], partitions: Sequence[Sequence[Any]], named: str | None = None) -> int | None:
    """Return the position of the partition column that holds dates, None if there is none.

    ``named`` is one, if given. Else the first whose type is a date or a time, else the first with texts such as
    ``2026-11-24``, else the one with numbers or texts such as ``20261124`` only.

    Raises:
        InvalidInputError: several columns have such numbers.
    """
    if named is not None:
        return keys.index(named)
    columns = [[p[i] for p in partitions if p[i] is not None] for i in range(len(keys))]
    for is_date in (_is_typed, _is_dashed):
        if found := [i for i, values in enumerate(columns) if any(map(is_date, values))]:
            return found[0]
    compact = [i for i, values in enumerate(columns) if values and all(map(_is_compact, values))]
    if len(compact) > 1:
        names = " and ".join(keys[i] for i in compact)
        raise InvalidInputError(f"{names} both hold numbers that may be dates; name the one that does: date: {keys[0]}")
    return compact[0] if compact else None


def week_before(values: Sequence[Any], at: int) -> tuple[Any, ...] | None:
    """Return the partition a week before: its value at ``at`` goes back by 7 days; None if there is no such day."""
    try:
        earlier = _week_before(values[at])
    except (ValueError, OverflowError):  # no date, or in the first week of year 1
        return None
    return (*values[:at], earlier, *values[at + 1 :])


def _week_before(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value._replace(millis=value.millis - _WEEK // timedelta(milliseconds=1))
    if isinstance(value, date):
        return value - _WEEK
    text = str(value)
    if not (_DASHED.fullmatch(text) or _COMPACT.fullmatch(text)):
        raise ValueError(text)
    day = date.fromisoformat(text) - _WEEK
    shown = f"{day.year:04}{day:%m%d}" if _COMPACT.fullmatch(text) else day.isoformat()
    return int(shown) if isinstance(value, int) else shown


def _is_typed(value: Any) -> bool:
    return isinstance(value, date | Timestamp)


def _is_dashed(value: Any) -> bool:
    return isinstance(value, str) and _DASHED.fullmatch(value) is not None and _is_day(value)


def _is_compact(value: Any) -> bool:
    text = str(value)
    return _COMPACT.fullmatch(text) is not None and int(text[:4]) in _YEARS and _is_day(text)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
