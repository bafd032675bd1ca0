"""Names of automatic tags and their times, as Paimon's TagPeriodHandler has them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.tag_periods import TagPeriods, TagRules, local_time, tag_rules

AT = datetime(2026, 11, 26, 7, 59, 59, 999000)


def rules(**options: str) -> TagRules:
    given = {k.replace("__", "."): v for k, v in options.items()}
    given = {k.replace("_", "-"): v for k, v in given.items()}
    return tag_rules(TableOptions({"tag.automatic-creation": "process-time", **given}), "d.t")


def periods(**options: str) -> TagPeriods:
    found = rules(**options).periods
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "2026-11-25"),
        ({"tag__period_formatter": "without_dashes"}, "20261125"),
        ({"tag__period_formatter": "WITHOUT_DASHES_AND_SPACES"}, "20261125"),
        ({"tag__creation_period": "hourly"}, "2026-11-26 06"),
        ({"tag__creation_period": "hourly", "tag__period_formatter": "without_dashes"}, "20261126 06"),
        ({"tag__creation_period": "hourly", "tag__period_formatter": "without_dashes_and_spaces"}, "2026112606"),
        ({"tag__creation_period": "two-hours"}, "2026-11-26 04"),
        ({"tag__creation_period": "two-hours", "tag__period_formatter": "without_dashes"}, "2026-11-26 04"),
        ({"tag__creation_period_duration": "15 min", "tag__creation_period": "hourly"}, "202611260730"),
    ],
)
def test_the_name_is_of_the_last_period_that_is_over(options: dict[str, str], name: str) -> None:
    found = periods(**options)
    start = found.before(AT)
    assert found.name_of(start) == name
    assert found.time_of(name) == start, "and back"


def test_which_names_are_automatic() -> None:
    daily = periods()
    assert daily.time_of("2026-11-25 late") == datetime(2026, 11, 25), "Paimon reads the first word of a daily name"
    for name in ("2026-1-25", "2026-13-01", "2026-02-30", "20261125", "x2026-11-25", " 2026-11-25", "٢٠٢٦-11-25", ""):
        assert daily.time_of(name) is None, name
    hourly = periods(tag__creation_period="hourly")
    for name in ("2026-11-25 24", "2026-11-25", "2026-11-25 07 x"):
        assert hourly.time_of(name) is None, name


def test_before_1970_java_divides_towards_zero() -> None:
    assert periods().before(datetime(1969, 12, 31, 12)) == datetime(1969, 12, 31)


def test_the_zone_of_a_snapshots_time() -> None:
    def zone(text: str) -> datetime | None:
        return local_time(1_764_115_200_123, rules(sink__process_time_zone=text).zone)

    assert zone("UTC") == zone("Z") == datetime(2025, 11, 26, 0, 0, 0, 123000)
    assert zone("GMT-08:00") == zone("-8") == zone("America/Los_Angeles") == datetime(2025, 11, 25, 16, 0, 0, 123000)
    assert zone("+05:30") == datetime(2025, 11, 26, 5, 30, 0, 123000)
    assert local_time(2**63 - 1, None) is None, "the last watermark of a bounded source"
    watermark = tag_rules(TableOptions({"tag.automatic-creation": "watermark"}), "d.t")
    assert local_time(0, watermark.zone) == datetime(1970, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag__automatic_creation": "weekly"}, "must be one of none, process-time, watermark, batch"),
        ({"tag__creation_period": "weekly"}, "must be one of daily, hourly, two-hours"),
        ({"tag__creation_delay": "1 d"}, "must be shorter than the period of a tag"),
        ({"tag__creation_period_duration": "0 ms"}, "must be greater than 0"),
        ({"tag__num_retained_max": "many"}, "should be a whole number"),
        ({"sink__process_time_zone": "Mars"}, "must be a time zone"),
        ({"tag__default_time_retained": "long"}, "is not a duration"),
    ],
)
def test_values_that_paimon_would_not_take(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        rules(**options)


def test_defaults() -> None:
    none = tag_rules(TableOptions({}), "d.t")
    assert none == TagRules(mode="none") and not none.is_automatic("2026-11-25")
    assert rules(tag__creation_delay="10 min").delay == timedelta(minutes=10)
