"""What commits on one branch of a chain table mean for the others, from partitions alone."""

from __future__ import annotations

import pytest

from airflow_paimon.core.chain.layout import ChainLayout, TimeLines, Values
from airflow_paimon.core.chain.write_plan import affected, merged_with, required_anchors
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.partition_time import partition_clock

LAYOUT = ChainLayout(
    label="d.t",
    snapshot_branch="snapshot",
    delta_branch="delta",
    partition_keys=("region", "dt"),
    partition_types=(parse_type("STRING"), parse_type("STRING")),
    group_width=1,
    clock=partition_clock("$dt", "yyyyMMdd", ("dt",), ("region",)),
)


def days(text: str) -> frozenset[Values]:
    """``"01 CN/02"``: of January 2025; without a group it is US."""
    found = (one.rpartition("/") for one in text.split())
    return frozenset((group or "US", f"202501{day}") for group, _, day in found)


def lines(text: str) -> TimeLines:
    return TimeLines(LAYOUT, days(text))


def day(text: str) -> Values:
    (values,) = days(text)
    return values


def needed(before: str, after: str, deltas: str, **built: tuple[str, str]) -> dict[str, tuple[int, int]]:
    """The anchors that can't go: how many deltas build on each, and how many parts are missing. ``d03``: its record."""
    records = {
        day(name[1:]): (day(anchor) if anchor else None, tuple(sorted(days(parts))))
        for name, (anchor, parts) in built.items()
    }
    found = required_anchors(LAYOUT, days(before), days(after), days(deltas), records.get)
    return {n.values[1][-2:]: (len(n.followers), len(n.missing)) for n in found}


@pytest.mark.parametrize(
    ("before", "after", "deltas", "expected"),
    [
        ("01 03 05", "01 03", "01 02 03 04 05", {}),  # nothing builds on the last
        ("01 03 05", "03 05", "01 02 03 04 05", {"01": (2, 1)}),  # days 1 and 2; nothing earlier is left
        ("01 03 05", "01 05", "01 02 03 04 05", {}),  # day 4 falls back to day 1, whose deltas are there
        ("01 03 05", "01 05", "01 03 04 05", {"03": (2, 1)}),  # the delta of day 2 is gone
        ("01 03", "", "04", {"01": (1, 1), "03": (1, 1)}),  # dropped together they don't stand in for each other
        ("01 CN/01", "CN/01", "02", {"01": (1, 1)}),  # groups don't either
        ("01 CN/01", "CN/01", "CN/02", {}),
        ("01 02", "02", "02", {}),  # a delta on the day of the next full partition needs that one alone
        ("01", "", "01", {"01": (1, 1)}),  # its own delta would be all that is left
    ],
)
def test_anchors_that_deltas_need(before: str, after: str, deltas: str, expected: dict[str, tuple[int, int]]) -> None:
    assert needed(before, after, deltas) == expected


def test_what_is_on_record_is_asked_for_and_no_more() -> None:
    """Day 5 was built from day 1 over a gap: only its deltas count, through an anchor that goes as well."""
    assert needed("01 05", "01", "03 05 06") == {"05": (2, 2)}  # days 2 and 4 may have been there
    assert needed("01 05", "01", "03 05 06", d05=("01", "03 05")) == {}
    assert needed("01 03 05", "01", "03 05 06", d05=("03", "05"), d03=("01", "03")) == {}
    assert needed("01 03 05", "01", "05 06", d05=("03", "05"), d03=("01", "03")) == {"03": (2, 1), "05": (2, 1)}
    assert needed("01", "", "01", d01=("", "01")) == {}
    assert needed("01", "", "01", d01=("", "01 02")) == {"01": (1, 1)}
    assert needed("05", "", "05", d05=("01", "05")) == {"05": (1, 1)}  # what it was built on has expired


def test_what_a_changed_delta_makes_stale() -> None:
    found = affected([day("03")], lines("01 04 06 08 CN/04"), lines("02 03 04 06 CN/04"))
    assert found.hidden == ()
    assert list(found.rebuilt) == [day("04"), day("06")]  # day 8 has no delta: it was loaded as it is
    assert found.rebuilt[day("04")] == (day("01"), (day("02"), day("03"), day("04")))
    assert found.rebuilt[day("06")] == (day("04"), (day("06"),))
    hidden = affected([day("08")], lines("01 08"), lines("02"))
    assert hidden.hidden == (day("08"),) and list(hidden.rebuilt) == [day("08")]
    assert not affected([day("09")], lines("01 08"), lines("02")).rebuilt


def test_what_is_merged_together() -> None:
    def merged(text: str, snapshots: str, deltas: str) -> tuple[Values | None, frozenset[Values]]:
        found = merged_with(day(text), lines(snapshots), lines(deltas))
        assert found is not None
        return found[0], frozenset(found[1])

    assert merged("03", "01 05 CN/02", "01 02 03 04 05 06 CN/03") == (day("01"), days("02 03 04"))
    assert merged("05", "01 05", "02 05 06") == (day("01"), days("02 05 06"))
    assert merged("05", "08", "02 05 08 09") == (None, days("02 05"))
    assert merged("05", "", "02 05") == (None, days("02 05"))
    assert merged_with(("US", "x"), lines("01"), lines("")) is None
