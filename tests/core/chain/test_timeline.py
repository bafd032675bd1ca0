"""Partitions in the order of time, group by group."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import pytest

from airflow_paimon.core.chain.layout import ChainLayout, TimeLine, TimeLines
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import InvalidInputError
from tests.core.chain.tables import make_chain, message
from tests.core.chain.test_write_plan import LAYOUT, day, days


def at(number: int) -> datetime:
    return datetime(2025, 1, number)


def test_a_line_answers_by_time() -> None:
    line = TimeLines(LAYOUT, days("07 03 05 CN/04")).of(("US",))
    assert line.values == (day("03"), day("05"), day("07")) and line.times == (at(3), at(5), at(7))
    assert line.between(at(3), at(7)) == (day("03"), day("05")) and line.between(None, None) == line.values
    assert line.up_to(at(3), at(7)) == (day("05"), day("07")) and line.up_to(None, at(4)) == (day("03"),)
    assert line.inside(at(3), at(7)) == (day("05"),) and line.inside(None, None) == line.values
    assert line.before(at(5)) == (at(3), day("03")) and line.before(at(3)) == (None, None)
    assert line.time_from(at(5)) == at(5) and line.time_after(at(5)) == at(7) and line.time_after(at(7)) is None
    assert TimeLine().before(at(1)) == (None, None) and TimeLine().time_from(at(1)) is None


def test_groups_are_ordered_when_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    parse = ChainLayout.parsed_time
    monkeypatch.setattr(ChainLayout, "parsed_time", lambda self, v: [asked.append(v), parse(self, v)][1])
    lines = TimeLines(LAYOUT, days("01 02 03 CN/01 CN/02"))
    assert lines.groups == {("US",), ("CN",)} and asked == []
    for _ in range(3):
        assert lines.of(("CN",)).values == (day("CN/01"), day("CN/02"))
    assert len(asked) == 2
    assert lines.of(("none",)) == TimeLine()


def test_a_write_of_many_partitions_orders_each_branch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of a commit may look at each partition that is there a few times, never once for each new one."""
    table = make_chain(f"memory://{uuid.uuid4()}/wh")
    delta, held = table.branch("delta"), [f"2020{m:02}{d:02}" for m in range(1, 11) for d in range(1, 21)]
    commit_append(delta, [message(delta, (one,)) for one in held], planned_on=None)
    new = [message(delta, (f"2021{m:02}{d:02}",)) for m in range(1, 4) for d in range(1, 11)]
    asked: list[Any] = []
    parse = ChainLayout.parsed_time
    monkeypatch.setattr(ChainLayout, "parsed_time", lambda self, v: [asked.append(v), parse(self, v)][1])
    commit_append(delta, new, planned_on=delta.latest_snapshot())
    assert len(asked) <= 2 * (len(held) + len(new))


def test_partitions_without_a_time() -> None:
    lines = TimeLines(LAYOUT, {*days("01 CN/02"), ("US", "x")})
    assert lines.of(("US",)).values == (day("01"),) and lines.without_time(("US",)) == (("US", "x"),)
    assert lines.without_time(("CN",)) == () and ("US", "x") in lines.held
    strict = TimeLines(LAYOUT, lines.held, strict=True)
    assert strict.of(("CN",)).values == (day("CN/02"),)
    with pytest.raises(InvalidInputError, match="dt=x"):
        strict.of(("US",))
