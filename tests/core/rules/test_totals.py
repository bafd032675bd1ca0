"""Rules about totals, on values that tables really hold: infinity, NaN, numbers that look like dates."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.rules.rules import Drift, parse_rules
from airflow_paimon.core.rules.totals import date_column, moved_too_far, week_before

NAN, INF = float("nan"), float("inf")


def drift(most: Any = "5 %", **more: Any) -> Drift:
    [rule] = parse_rules([{"drift": {"measure": "sum", "column": "v", "most": most, **more}}], "rules")
    assert isinstance(rule, Drift)
    return rule


MOVED: list[tuple[Any, Any, bool]] = [
    (INF, INF, False),
    (-INF, INF, True),
    (1.0, INF, True),
    (INF, 1.0, True),
    (NAN, NAN, False),
    (1.0, NAN, True),
    (NAN, None, True),
    (None, None, False),
    (100, 105, False),
    (100, 105.01, True),
    (1e308, -1e308, True),
    (0, 1e-300, True),
]


SMALL = ((100, 105.01), (0, 1e-300))


@pytest.mark.parametrize(("before", "after", "moved"), MOVED, ids=[f"{b} {a}" for b, a, _ in MOVED])
def test_a_drift_of_any_number(before: Any, after: Any, moved: bool) -> None:
    found = moved_too_far(drift(), {"dt=1": before}, {"dt=1": after})
    assert bool(found) == moved
    json.loads(json.dumps(found, allow_nan=False))
    assert bool(moved_too_far(drift(10), {"dt=1": before}, {"dt=1": after})) == (moved and (before, after) not in SMALL)


def test_big_sums_are_compared_digit_by_digit() -> None:
    most = moved_too_far(drift(0), {"": Decimal("1" + "0" * 37)}, {"": Decimal("1" + "0" * 36 + "1")})
    assert [row["partition"] for row in most] == [""]


@pytest.mark.parametrize("value", [NAN, INF, -1, -0.5, 10**400, True, "1e400 %", "9" * 400 + " %", "NaN %"])
@pytest.mark.parametrize("where", ["row_limits", "drift"])
def test_a_limit_is_a_finite_number(value: Any, where: str) -> None:
    drifts = {"measure": "count", "most": value}
    rule = {"row_limits": {"deleted": value}} if where == "row_limits" else {"drift": drifts}
    with pytest.raises(InvalidInputError, match="must be a number from 0 on"):
        parse_rules([rule], "rules")


COLUMNS: list[tuple[list[tuple[Any, ...]], int | None]] = [
    ([(10010101, "2026-11-24")], 1),
    ([(20260101, date(2026, 11, 24))], 1),
    ([(20260101, Timestamp(0))], 1),
    ([("20261124", 7)], 0),
    ([(10010101, 20261124), (10010102, 20261125)], 1),
    ([(20261124, 20261131), (20261125, 1)], 0),
    ([("x", "y")], None),
    ([("2026-W47-2", "x")], None),
    ([(None, "2026-11-24")], 1),
    ([("unknown", 1), ("2026-11-24", 1)], 0),
    ([], None),
]


@pytest.mark.parametrize(("partitions", "at"), COLUMNS, ids=[str(p) for p, _ in COLUMNS])
def test_the_column_with_the_dates(partitions: list[tuple[Any, ...]], at: int | None) -> None:
    assert date_column(("a", "b"), partitions) == at


def test_two_columns_with_numbers_like_dates_need_a_name() -> None:
    with pytest.raises(InvalidInputError, match="a and b both hold numbers that may be dates; name the one"):
        date_column(("a", "b"), [(20261124, 20260101)])
    assert date_column(("a", "b"), [(20261124, 20260101)], "b") == 1


WEEKS: list[tuple[Any, Any]] = [
    ("2026-11-24", "2026-11-17"),
    ("20261124", "20261117"),
    (20260103, 20251227),
    (date(2026, 11, 24), date(2026, 11, 17)),
    (Timestamp(7 * 86_400_000, 5), Timestamp(0, 5)),
    ("0001-01-01", None),
    (date(1, 1, 3), None),
    ("unknown", None),
    (None, None),
]


@pytest.mark.parametrize(("value", "then"), WEEKS, ids=[str(v) for v, _ in WEEKS])
def test_a_week_before(value: Any, then: Any) -> None:
    assert week_before(("x", value), 1) == (None if then is None else ("x", then))


def test_a_column_of_dates_is_named_for_the_week_before_only() -> None:
    with pytest.raises(InvalidInputError, match="date goes with against: week-before only"):
        drift(date="dt")
    assert drift(date="dt", against="week-before").date == "dt"
