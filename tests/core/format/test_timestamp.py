"""Timestamps beyond what datetime holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of


@given(st.datetimes())
def test_datetimes_round_trip(moment: datetime) -> None:
    stamp = Timestamp.from_datetime(moment)
    assert stamp.to_datetime() == moment
    assert 0 <= stamp.nanos_of_milli < 1_000_000
    assert Timestamp.from_nanos(stamp.to_nanos()) == stamp
    assert Timestamp.from_iso(moment.isoformat()) == stamp
    assert Timestamp.from_iso(stamp.to_sql(9)) == stamp
    assert Timestamp.from_iso(stamp.to_java()) == stamp


@given(st.integers(-(10**18), 10**18))
def test_nanos_round_trip(nanos: int) -> None:
    stamp = Timestamp.from_nanos(nanos)
    assert stamp.to_nanos() == nanos
    assert Timestamp.from_iso(stamp.to_sql(0)) == stamp


def test_before_1970() -> None:
    stamp = Timestamp.from_datetime(datetime(1969, 12, 31, 23, 59, 59, 999_999))
    assert stamp == (-1, 999_000)
    assert stamp.to_sql(6) == "1969-12-31 23:59:59.999999"


def test_aware_is_the_instant() -> None:
    tokyo = datetime(2024, 1, 2, 9, tzinfo=timezone(timedelta(hours=9)))
    assert Timestamp.from_datetime(tokyo) == Timestamp.from_datetime(datetime(2024, 1, 2))
    assert Timestamp.from_iso("2024-01-02 09:00:00.5+09:00") == Timestamp.from_iso("2024-01-02T00:00:00.5Z")


@pytest.mark.parametrize("text", ["", "x", "2024-01-02 03:04:05.", "2024-01-02 03:04:05.1234567890", "2024-13-01"])
def test_no_timestamps(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Timestamp.from_iso(text)


def test_years_that_python_lacks() -> None:
    with pytest.raises(UnsupportedFeatureError, match="9999"):
        Timestamp(2**62).to_datetime()


def test_kinds_are_not_mixed() -> None:
    plain, aware = datetime(2024, 1, 2), datetime(2024, 1, 2, tzinfo=UTC)
    assert timestamp_of(plain, local_zone=False) == timestamp_of(aware, local_zone=True)
    for value, local_zone in ((plain, True), (aware, False), ("2024-01-02", False), (1, True)):
        with pytest.raises(InvalidInputError, match="give a datetime"):
            timestamp_of(value, local_zone=local_zone)
