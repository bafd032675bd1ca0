"""From pattern and formatter to times, steps and back: what Paimon's resolver gives."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.java_time import TimeUnit
from airflow_paimon.core.table.partition_time import partition_clock

STEPS = [
    (("dt",), "$dt", "yyyyMMdd", "DAY"),
    (("dt", "hour"), "$dt $hour:00:00", "yyyyMMdd HH:mm:ss", "HOUR"),
    (("dt", "hr_min"), "$dt $hr_min:00", "yyyyMMdd HH:mm:ss", "MINUTE"),
    (("m",), "$m01", "yyyyMMdd", "MONTH"),
    (("y",), "$y1201", "yyyyMMdd", "YEAR"),
    (("dt",), "$dt", "yyyyMMddHHmmss", "SECOND"),
    (("a",), "$a", "yyyyMMddHHmmss", "SECOND"),
    (("a", "a1", "a2"), "$aT$a1$a200", "yyyyMMdd'T'HHmmss", "MINUTE"),
    (("hour", "date"), "$hour:00:00 $date", "HH:mm:ss yyyyMMdd", "HOUR"),
    (("b",), "12:02:01 $b", "HH:mm:ss yyyyMMdd", "DAY"),
    (("dt",), "$dt", "yyyy-DDD", "DAY"),
    (("dt",), "$dt", "yyyyMMddkk", "HOUR"),
    (("y", "m", "d"), "$y$m$d", "yyyyMMdd", "DAY"),
]


@pytest.mark.parametrize(("columns", "pattern", "formatter", "step"), STEPS)
def test_the_step_is_the_smallest_unit_of_a_column(
    columns: tuple[str, ...], pattern: str, formatter: str, step: str
) -> None:
    clock = partition_clock(pattern, formatter, columns)
    assert clock.step == TimeUnit[step]
    # two times that differ by the step are written differently, and read back
    first = datetime(2025, 12, 1, 12, 2, 1) if step in ("SECOND", "DAY") else datetime(2025, 12, 1)
    first = clock.time_of(clock.texts_at(first))
    following = next(clock.times_between(first, first + timedelta(days=1 if step == "SECOND" else 400)))
    assert following > first
    assert clock.time_of(clock.texts_at(following)) == following


def test_partitions_between_two() -> None:
    daily = partition_clock("$dt", "yyyyMMdd", ["dt"])
    between = list(daily.times_between(datetime(2025, 7, 20), datetime(2025, 7, 24)))
    assert [daily.texts_at(t) for t in between] == [("20250721",), ("20250722",), ("20250723",), ("20250724",)]
    assert list(daily.times_between(datetime(2025, 7, 20), datetime(2025, 7, 20))) == []
    assert list(daily.times_between(datetime(2025, 7, 20), datetime(2025, 7, 1))) == []
    minutes = partition_clock("$dt $hm:00", "yyyyMMdd HHmm:ss", ["dt", "hm"])
    found = minutes.times_between(datetime(2025, 7, 20, 10, 10), datetime(2025, 7, 20, 10, 15))
    assert [minutes.texts_at(t)[1] for t in found] == ["1011", "1012", "1013", "1014", "1015"]
    monthly = partition_clock("$m01", "yyyyMMdd", ["m"])
    found = monthly.times_between(datetime(2025, 11, 1), datetime(2026, 2, 1))
    assert [monthly.texts_at(t)[0] for t in found] == ["202512", "202601", "202602"]
    yearly = partition_clock("$y1231", "yyyyMMdd", ["y"])
    assert [t.year for t in yearly.times_between(datetime(2025, 12, 31), datetime(2027, 12, 31))] == [2026, 2027]


def test_the_end_of_time_ends_the_grid() -> None:
    clock = partition_clock("$m01", "yyyyMMdd", ["m"])
    assert [t.month for t in clock.times_between(datetime(9999, 10, 1), datetime(9999, 12, 31))] == [11, 12]


def test_too_many_steps_are_refused() -> None:
    clock = partition_clock("$dt", "yyyyMMddHHmmss", ["dt"])
    with pytest.raises(InvalidInputError, match="More than 10000000 partitions"):
        next(clock.times_between(datetime(2025, 1, 1), datetime(2026, 1, 1)))


def test_two_spellings_of_one_time() -> None:
    clock = partition_clock("$dt $hour", "yyyyMMdd H", ["dt", "hour"])
    assert clock.time_of(("20250809", "05")) == clock.time_of(("20250809", "5"))
    assert clock.texts_at(clock.time_of(("20250809", "05"))) == ("20250809", "5")


@pytest.mark.parametrize(
    ("pattern", "formatter", "problem"),
    [
        ("", "yyyyMMdd", "partition.timestamp-pattern is missing"),
        ("$dt", "", "partition.timestamp-formatter is missing"),
        ("$dt $hour", "yyyyMMddHH", "does not fit"),
        ("$dt $hour", "yyyy-MM-dd", "does not fit"),
        ("$dt$hour", "yyyyMMddHH", "in more than one way"),
        ("$dt", "yyyyMMdd", "Column hour is missing in"),
        ("$dt $dt $hour", "yyyyMMdd yyyyMMdd HH", "Column dt is more than once"),
        ("$day $hour", "yyyyMMdd HH", "Unknown variable .* at position 0"),
        ("$region $dt $hour", "yyyyMMdd HH", "region is a group column"),
        ("$dt $hour:75", "yyyyMMdd HH:mm", "does not fit"),
    ],
)
def test_pattern_and_formatter_that_do_not_agree(pattern: str, formatter: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        partition_clock(pattern, formatter, ["dt", "hour"], ["region"])


@pytest.mark.parametrize(
    ("columns", "pattern", "formatter", "problem"),
    [
        (("dt",), "$dt", "d-M-yyyy", "day in column dt has no fixed number of digits"),
        (("dt",), "$dt", "dd-MM-yyyy", "month after a smaller unit"),
        (("dt",), "$dt", "yyyy-M-d", "month in column dt has no fixed number"),
        (("hour", "dt"), "$hour $dt", "HH yyyyMMdd", "year after a smaller unit"),
        (("dt",), "$dt", "yyyyMMddkk", "midnight as hour 24"),
        (("dt", "hour"), "$dt $hour", "yyyyMMdd H", "hour in column hour has no fixed"),
        (("dt", "hour"), "$dt $hour", "yyyyMMdd HH", None),
        (("dt",), "$dt", "yyyy-DDD", None),
    ],
)
def test_values_must_sort_in_the_order_of_time(
    columns: tuple[str, ...], pattern: str, formatter: str, problem: str | None
) -> None:
    found = partition_clock(pattern, formatter, columns).sort_problem
    assert found is None if problem is None else problem in (found or "")
