"""Compaction plans: the cases of Paimon's procedure, and what goes beyond Paimon's one partition a call."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from airflow_paimon.core.chain.compaction_plan import (
    CompactionAction,
    PartitionCompaction,
    Staleness,
    parse_targets,
    plan_compaction,
)
from airflow_paimon.core.chain.layout import ChainLayout, Partitions
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.core.table.partition_text import parse_partition_text, quoted_partition
from tests.core.chain.test_read_plan import DAILY, HOURLY, held, layout_of

DAY = layout_of("dt")
HOUR = layout_of("dt", "hour", form=HOURLY)
GROUPS = layout_of("region", "dt", "hour", group=1, form=HOURLY)
REGION = layout_of("region", "dt", group=1)


def plan(
    layout: ChainLayout, snapshot: str, delta: str, *partition: str, known: Staleness | None = None, **more: Any
) -> dict[str, PartitionCompaction]:
    """By partition; what the branches hold is given with blanks between."""
    targets = parse_targets(layout, CompactChainTable(table="d.t", partition=partition, **more))
    partitions = Partitions(snapshot=held(*snapshot.split()), delta=held(*delta.split()))
    return {"/".join(p.target): p for p in plan_compaction(layout, partitions, targets, known)}


def shape(plans: dict[str, PartitionCompaction]) -> dict[str, tuple[Any, ...]]:
    """Action, anchor and deltas of each."""
    return {
        name: (p.action, p.anchor and "/".join(p.anchor), ["/".join(d) for d in p.deltas]) for name, p in plans.items()
    }


def test_the_procedures_basic_case() -> None:
    assert shape(plan(DAY, "", "", "dt=20260224")) == {"20260224": (CompactionAction.NOTHING_TO_DO, None, [])}
    found = plan(DAY, "20260222 20260223", "20260224", "dt=20260224")
    assert shape(found) == {"20260224": (CompactionAction.COMPACT, "20260223", ["20260224"])}
    assert found["20260224"].reason == "anchor dt=20260223, 1 delta"
    assert not found["20260224"].replaces
    again = plan(DAY, "20260222 20260223 20260224", "20260224", "dt=20260224")
    assert shape(again) == {"20260224": (CompactionAction.EXISTS, None, [])}


def test_overwrite_starts_from_the_previous_anchor() -> None:
    snapshot, delta = "20260223 20260224 20260225", "20260225"
    assert shape(plan(DAY, snapshot, delta, "dt=20260225"))["20260225"][0] == CompactionAction.EXISTS
    found = plan(DAY, snapshot, delta, "dt=20260225", overwrite=True)
    assert shape(found) == {"20260225": (CompactionAction.COMPACT, "20260224", ["20260225"])}
    assert found["20260225"].replaces
    # Paimon's too: from deltas alone
    assert shape(plan(DAY, "20260225", delta, "dt=20260225", overwrite=True))["20260225"][1:] == (None, ["20260225"])


def test_hours() -> None:
    snapshot = "10/20 10/22".replace("10/", "20260210/")
    delta = "10/21 10/22 10/23".replace("10/", "20260210/")
    found = plan(HOUR, snapshot, delta, "dt='20260210',hour=23")
    assert shape(found) == {"20260210/23": (CompactionAction.COMPACT, "20260210/22", ["20260210/23"])}
    more = " 20260211/00 20260211/02", " 20260211/00 20260211/01 20260211/02"
    later = plan(HOUR, snapshot + more[0], delta + more[1], "dt=20260211,hour=02", overwrite=True)
    assert shape(later) == {"20260211/02": (CompactionAction.COMPACT, "20260211/00", ["20260211/01", "20260211/02"])}


def test_groups() -> None:
    """t4: FR has a full partition and no delta, CA neither."""
    hours = {"CN": "20 21 22", "UK": "21", "FR": "22", "CA": "21"}
    snapshot = " ".join(f"{g}/20260210/{h}" for g, found in hours.items() for h in found.split())
    delta = "CN/20260210/22 US/20260210/22 UK/20260210/22"
    found = shape(plan(GROUPS, snapshot, delta, "dt=20260210,hour=22", overwrite=True))
    assert found == {
        "CA/20260210/22": (CompactionAction.GAP, None, []),
        "CN/20260210/22": (CompactionAction.COMPACT, "CN/20260210/21", ["CN/20260210/22"]),
        "FR/20260210/22": (CompactionAction.NOTHING_TO_DO, None, []),
        "UK/20260210/22": (CompactionAction.COMPACT, "UK/20260210/21", ["UK/20260210/22"]),
        "US/20260210/22": (CompactionAction.COMPACT, None, ["US/20260210/22"]),
    }
    # without overwrite Paimon skips every group as soon as one has the partition
    plain = shape(plan(GROUPS, snapshot, delta, "dt=20260210,hour=22"))
    assert [a for a, *_ in plain.values()] == [
        CompactionAction.GAP,
        CompactionAction.EXISTS,
        CompactionAction.EXISTS,
        CompactionAction.COMPACT,
        CompactionAction.COMPACT,
    ]


def test_a_group_alone_means_all_its_deltas_each_on_the_one_before() -> None:
    delta = " ".join(f"CN/2026020{d}" for d in (2, 3, 5)) + " US/20260202"
    found = plan(REGION, "CN/20260201", delta, "region=CN")
    assert shape(found) == {
        "CN/20260201": (CompactionAction.EXISTS, None, []),
        "CN/20260202": (CompactionAction.COMPACT, "CN/20260201", ["CN/20260202"]),
        "CN/20260203": (CompactionAction.COMPACT, "CN/20260202", ["CN/20260203"]),
        "CN/20260205": (CompactionAction.COMPACT, "CN/20260203", ["CN/20260205"]),
    }
    assert [p.anchor_in_run for p in found.values()] == [False, False, True, True]
    one = plan(REGION, "CN/20260201", delta, "region=CN,dt=20260205", "dt=20260203,region=CN")
    assert shape(one) == {
        "CN/20260203": (CompactionAction.COMPACT, "CN/20260201", ["CN/20260202", "CN/20260203"]),
        "CN/20260205": (CompactionAction.COMPACT, "CN/20260203", ["CN/20260205"]),
    }


def test_a_group_that_is_named_in_full_gets_an_answer() -> None:
    assert shape(plan(REGION, "", "CN/20260201", "region=XX,dt=20260201")) == {
        "XX/20260201": (CompactionAction.NOTHING_TO_DO, None, [])
    }
    assert plan(REGION, "", "CN/20260201", "region=XX") == {}


def test_gaps() -> None:
    snapshot, delta = "20260201", "20260202 20260205"
    assert shape(plan(DAY, snapshot, delta, "dt=20260204")) == {"20260204": (CompactionAction.GAP, None, [])}
    carried = plan(DAY, snapshot, delta, "dt=20260204", gap_policy="carry_forward")
    assert shape(carried) == {"20260204": (CompactionAction.COMPACT, "20260201", ["20260202"])}
    assert carried["20260204"].reason == "a gap, carried forward: anchor dt=20260201, 1 delta"
    before = plan(DAY, snapshot, delta, "dt=20260131", gap_policy="carry_forward")
    assert shape(before) == {"20260131": (CompactionAction.NOTHING_TO_DO, None, [])}


def test_a_range() -> None:
    found = plan(DAY, "20260201 20260203", "20260202 20260204 20260206", from_="dt=20260202", to="dt=20260207")
    assert {n: a for n, (a, *_) in shape(found).items()} == {
        "20260202": CompactionAction.COMPACT,
        "20260203": CompactionAction.EXISTS,
        "20260204": CompactionAction.COMPACT,
        "20260205": CompactionAction.GAP,
        "20260206": CompactionAction.COMPACT,
        "20260207": CompactionAction.GAP,
    }
    filled = plan(DAY, "20260201", "20260203", to="dt=20260204", gap_policy="carry_forward")
    assert [(n, p.anchor_in_run) for n, p in filled.items() if p.action.writes] == [
        ("20260202", False),
        ("20260203", True),
        ("20260204", True),
    ]
    assert filled["20260202"].deltas == ()


def test_a_range_in_one_group() -> None:
    found = plan(REGION, "", "CN/20260201 CN/20260202 US/20260202", "region=US", from_="dt=20260201")
    assert list(found) == ["US/20260202"]


def test_pending_keeps_chains_short() -> None:
    delta = " ".join(f"202602{d:02}" for d in range(2, 12))
    found = plan(DAY, "20260201", delta, pending=True, max_chain_length=3)
    assert shape(found) == {
        "20260205": (CompactionAction.COMPACT, "20260201", ["20260202", "20260203", "20260204", "20260205"]),
        "20260209": (CompactionAction.COMPACT, "20260205", ["20260206", "20260207", "20260208", "20260209"]),
    }
    after = plan(DAY, "20260201 20260205 20260209", delta, pending=True, max_chain_length=3)
    assert after == {}
    every = plan(DAY, "20260201", "20260202 20260203", pending=True, max_chain_length=0)
    assert list(every) == ["20260202", "20260203"]


def test_pending_alone_allows_a_chain_of_a_month() -> None:
    delta = [f"{day:%Y%m%d}" for day in (date(2026, 2, 2) + timedelta(days=d) for d in range(32))]
    assert plan(DAY, "20260201", " ".join(delta[:31]), pending=True) == {}
    assert list(plan(DAY, "20260201", " ".join(delta), pending=True)) == [delta[-1]]
    assert list(plan(DAY, *FULL, pending=True, known=STALE)) == ["20260202", "20260203", "20260204"]


def test_pending_in_one_group() -> None:
    delta = "CN/20260201 CN/20260202 US/20260201 US/20260202"
    assert list(plan(REGION, "", delta, "region=US", pending=True, max_chain_length=1)) == ["US/20260202"]


STALE = Staleness(
    stale={("20260202",): "delta dt=20260202 was changed"},
    anchors={("20260202",): ("20260201",), ("20260203",): ("20260202",), ("20260204",): ("20260203",)},
)
FULL = "20260201 20260202 20260203 20260204", "20260202 20260203 20260204"


def test_stale_partitions_are_rebuilt_with_those_built_from_them() -> None:
    found = plan(DAY, *FULL, pending=True, max_chain_length=9, known=STALE)
    assert shape(found) == {
        "20260202": (CompactionAction.STALE_REBUILD, "20260201", ["20260202"]),
        "20260203": (CompactionAction.STALE_REBUILD, "20260202", ["20260203"]),
        "20260204": (CompactionAction.STALE_REBUILD, "20260203", ["20260204"]),
    }
    assert found["20260203"].reason == "it was built from dt=20260202, which is rebuilt"
    asked = plan(DAY, *FULL, "dt=20260202", overwrite=True, known=STALE)
    assert shape(asked) == shape(found)
    told = plan(DAY, *FULL, "dt=20260202", known=STALE)
    assert shape(told) == {"20260202": (CompactionAction.EXISTS, None, [])}
    assert "stale (delta dt=20260202 was changed): overwrite" in told["20260202"].reason
    other = plan(DAY, *FULL, "dt=20260204", overwrite=True, known=STALE)
    assert shape(other) == {"20260204": (CompactionAction.COMPACT, "20260203", ["20260204"])}


def test_partitions_that_cannot_be_rebuilt_stay() -> None:
    known = Staleness(stale=STALE.stale, lost={("20260202",): "its anchor dt=20260201 was deleted"})
    for how in ({"overwrite": True}, {"pending": True, "max_chain_length": 5}):
        found = plan(DAY, "20260202", "20260202", *(("dt=20260202",) if "overwrite" in how else ()), known=known, **how)
        assert found["20260202"].action == CompactionAction.EXISTS
        assert "can't be rebuilt: its anchor dt=20260201 was deleted" in found["20260202"].reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dt=20250810,hour=02", {"dt": "20250810", "hour": "02"}),
        ("""dt="20250810",hour='02'""", {"dt": "20250810", "hour": "02"}),
        ("dt = '2025-08-10' / hour= 02 ", {"dt": "2025-08-10", "hour": "02"}),
        ("""a="it's, b=1",c='x''y'""", {"a": "it's, b=1", "c": "x'y"}),
        ("region=a/b,dt=1", {"region": "a/b", "dt": "1"}),
    ],
)
def test_quotes_change_nothing(text: str, expected: dict[str, str]) -> None:
    assert parse_partition_text(text) == expected


def test_quoted_partitions_hold_any_value() -> None:
    values = {"region": 'it\'s d/e=f, "x"', "dt": "20250810"}
    assert parse_partition_text(quoted_partition(values)) == values


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "name what to compact"),
        ({"partition": ("day=20250810",)}, "'day' is not a partition column"),
        ({"partition": ("20250810",)}, "not of the form key=value"),
        ({"partition": ("dt=20250810,dt=20250811",)}, "each key once"),
        ({"partition": ("dt=2025-08-10",)}, "not written as the table's partitions are .*write it like dt=20000101"),
        ({"partition": ("hour=5",)}, "not written as .*write it like dt=20000101,hour=00"),
        ({"partition": ("dt=20250810,hour=24",)}, "not written as"),
        ({"partition": ("dt=__DEFAULT_PARTITION__,hour=01",)}, "not written as"),
        ({"from_": "dt=20250810"}, "an end of a range names the columns dt, hour"),
        ({"from_": "dt=20250810,hour=03", "to": "dt=20250810,hour=02"}, "is later than"),
        ({"from_": "dt=20250810,hour=03", "pending": True, "max_chain_length": 1}, "not both"),
        ({"partition": ("dt=20250810",), "max_chain_length": 1}, "needs pending"),
        ({"pending": True, "max_chain_length": -1}, "0 or more"),
    ],
)
def test_wrong_requests(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"d\.t: .*{why}"):
        parse_targets(HOUR, CompactChainTable(table="d.t", **more))


def test_a_partition_without_a_partition_time_stops_only_its_group() -> None:
    delta = "CN/20260201 CN/soon US/20260201"
    assert list(plan(REGION, "", delta, "region=US,dt=20260201")) == ["US/20260201"]
    with pytest.raises(InvalidInputError, match="region=CN/dt=soon is without a partition time"):
        plan(REGION, "", delta, "dt=20260201")


def test_typed_partition_columns() -> None:
    layout = layout_of("day", form=("$day", "yyyy-MM-dd"), types=("DATE",))
    targets = parse_targets(layout, CompactChainTable(table="d.t", partition=("day='2026-02-01'",)))
    numbers = layout_of("n", form=("$n", DAILY[1]), types=("INT",))
    assert targets.specs[0][0][1].isoformat() == "2026-02-01"
    quoted = CompactChainTable(table="d.t", partition=('n="20260201"',))
    assert parse_targets(numbers, quoted).specs == (((0, 20260201),),)
