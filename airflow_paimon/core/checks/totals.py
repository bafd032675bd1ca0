"""Rules about totals, evaluated on numbers: how many rows a branch changes, and how far a measure moved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_paimon.core.checks.rules import Amount, Drift, RowLimits
from airflow_paimon.core.errors import InvalidInputError

_WEEK = timedelta(days=7)
_COMPACT = re.compile(r"\d{8}")


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
    """Return the partitions in which a measure moved further than it may; one that only a side has counts as 0."""
    out = []
    for partition in sorted(before.keys() | after.keys()):
        old, new = _number(before.get(partition)), _number(after.get(partition))
        if _is_too_far(rule.most, old, new):
            change = f"{float((new - old) / abs(old)) * 100:+.4g} %" if old else None
            out.append({"partition": partition, "before": _shown(old), "after": _shown(new), "change": change})
    return out


def _is_too_far(most: Amount, old: Decimal, new: Decimal) -> bool:
    moved = abs(new - old)
    if not moved.is_finite():
        return True
    bound = Decimal(str(most.value))
    return moved * 100 > bound * abs(old) if most.percent else moved > bound


def _number(value: Any) -> Decimal:
    """Return a measure as a number; NULL, as of no rows, is 0.

    Raises:
        InvalidInputError: it is none, such as the least of texts.
    """
    try:
        return Decimal(0) if value is None else Decimal(str(value))
    except InvalidOperation:
        raise InvalidInputError(f"A drift compares numbers, and {value!r} is none") from None


def _shown(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def week_before(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the partition a week before: its first value that is a date goes back by 7 days; None without one.

    Dates are typed, or ``2026-11-24`` or ``20261124`` as text or number.
    """
    for at, value in enumerate(values):
        earlier = _week_before(value)
        if earlier is not None:
            return (*values[:at], earlier, *values[at + 1 :])
    return None


def _week_before(value: Any) -> Any:
    if isinstance(value, date):
        return value - _WEEK
    text = str(value)
    try:
        day = date.fromisoformat(text) - _WEEK
    except ValueError:
        return None
    shown = day.strftime("%Y%m%d") if _COMPACT.fullmatch(text) else day.isoformat()
    return int(shown) if isinstance(value, int) else shown
