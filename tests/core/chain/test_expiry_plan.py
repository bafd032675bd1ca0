"""The examples of Paimon's tests and documentation, and what Paimon does not test."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.chain.chain_expiry_plan import GroupExpiry, plan_chain_expiry
from airflow_paimon.core.chain.layout import Partitions, Values
from airflow_paimon.core.chain.read_plan import plan_chain_read
from tests.core.chain.test_read_plan import layout_of

NOW = datetime(2025, 3, 31)
CUTOFF = NOW - timedelta(days=30)


def days(text: str) -> frozenset[Values]:
    """``0101 0201`` or ``US/0101 EU/0215``: days of 2025."""
    return frozenset((*t.split("/")[:-1], f"2025{t.split('/')[-1]}") for t in text.split())


def short(values: frozenset[Values] | set[Values]) -> str:
    return " ".join(sorted("/".join((*v[:-1], v[-1][4:])) for v in values))


def dropped_deltas(plan: GroupExpiry) -> tuple[Values, ...]:
    return (*plan.orphans, *(d for s in plan.segments for d in s.deltas))


def expire(
    snapshot: str, delta: str, cutoff: datetime = CUTOFF, *, max_segments: int = 100, min_full_partitions: int = 1
) -> tuple[str, str]:
    """What is left of both branches."""
    grouped = "/" in snapshot + delta
    layout = layout_of(*(("region", "dt") if grouped else ("dt",)), group=int(grouped))
    partitions = Partitions(snapshot=days(snapshot), delta=days(delta))
    plans = plan_chain_expiry(
        layout, partitions, cutoff, max_segments=max_segments, min_full_partitions=min_full_partitions
    )
    gone = {s for plan in plans for s in plan.snapshots}, {d for plan in plans for d in dropped_deltas(plan)}
    assert gone[0] <= partitions.snapshot
    assert gone[1] <= partitions.delta
    assert all(p.anchor not in gone[0] for p in plans)
    return short(partitions.snapshot - gone[0]), short(partitions.delta - gone[1])


@pytest.mark.parametrize(
    ("snapshot", "delta", "cutoff", "max_segments", "left"),
    [
        ("0101 0201 0301", "0110 0115 0210 0215 0315", NOW - timedelta(days=20), 100, ("0301", "0315")),
        ("0201 0315", "0205", CUTOFF, 100, ("0201 0315", "0205")),
        ("0101 0115 0201 0315", "0105 0120 0210", CUTOFF, 100, ("0201 0315", "0210")),
        ("0315 0320", "0316", CUTOFF, 100, ("0315 0320", "0316")),
        ("0101 0115 0201 0315", "0105 0120 0210", CUTOFF, 1, ("0115 0201 0315", "0120 0210")),
        (
            *("US/0101 US/0201 US/0301 EU/0215 EU/0320", "US/0110 US/0210 EU/0220", CUTOFF, 100),
            ("EU/0215 EU/0320 US/0201 US/0301", "EU/0220 US/0210"),
        ),
        ("0101 0201 0301", "0110 0210", CUTOFF, 100, ("0201 0301", "0210")),
        # the documentation's example
        ("0101 0201 0301", "0110 0210 0315", CUTOFF, 100, ("0201 0301", "0210 0315")),
        # what Paimon does not test
        ("0101 0201", "0101 0110 0201", CUTOFF, 100, ("0201", "0201")),  # a delta of the snapshot's own day goes along
        ("0110 0201", "0101 0105 0111", CUTOFF, 100, ("0201", "")),  # orphans go with the first segment
        ("0110", "0101 0105 0111", CUTOFF, 100, ("0110", "0101 0105 0111")),  # and only then
        ("US/0101 US/0201", "EU/0101 EU/0102", CUTOFF, 100, ("US/0201", "EU/0101 EU/0102")),  # delta-only groups stay
        ("0101 0301", "", CUTOFF, 100, ("0101 0301", "")),  # time == cutoff is kept, so 0101 is the only old one
        ("0101 0301 0302", "", datetime(2025, 3, 1, 0, 0, 1), 100, ("0301 0302", "")),
    ],
)
def test_whole_segments_expire(
    snapshot: str, delta: str, cutoff: datetime, max_segments: int, left: tuple[str, str]
) -> None:
    assert expire(snapshot, delta, cutoff, max_segments=max_segments) == left


def test_a_minimum_number_of_anchors_stays() -> None:
    assert expire("0101 0115 0201", "0102 0116", min_full_partitions=2) == ("0115 0201", "0116")
    assert expire("0101 0115 0201", "0102 0116", min_full_partitions=3) == ("0101 0115 0201", "0102 0116")
    assert expire("0101 0115 0315", "0102 0116", min_full_partitions=2) == ("0115 0315", "0116")


def test_partitions_without_a_partition_time_stay_and_are_named() -> None:
    partitions = Partitions(snapshot=days("0101 0201") | {("someday",)}, delta=days("0110") | {("",), (None,)})
    (plan,) = plan_chain_expiry(layout_of("dt"), partitions, CUTOFF)
    assert plan.snapshots == (("20250101",),)
    assert dropped_deltas(plan) == (("20250110",),)
    assert plan.without_time == (("",), ("someday",), (None,))


def test_a_plan_lists_its_segments_with_reasons() -> None:
    partitions = Partitions(snapshot=days("0110 0201 0301"), delta=days("0101 0115 0116 0205"))
    (plan,) = plan_chain_expiry(layout_of("dt"), partitions, datetime(2025, 3, 2))
    assert [(s.snapshot, s.deltas) for s in plan.segments] == [
        (("20250110",), (("20250115",), ("20250116",))),
        (("20250201",), (("20250205",),)),
    ]
    assert plan.orphans == (("20250101",),)
    assert plan.anchor == ("20250301",)
    assert "3 snapshot partitions before 2025-03-02" in plan.reason
    (only,) = plan_chain_expiry(layout_of("dt"), Partitions(delta=days("0101")), CUTOFF)
    assert (only.reason, dropped_deltas(only), only.anchor) == ("only deltas: never touched", (), None)


_DAYS = st.sets(st.sampled_from([f"20250{m}{d:02d}" for m in (1, 2, 3) for d in range(1, 28, 3)]), max_size=12)
_HELD = st.tuples(_DAYS, _DAYS)


@given(st.dictionaries(st.sampled_from("AB"), _HELD), st.integers(0, 90), st.integers(1, 3), st.integers(1, 3))
def test_what_stays_is_read_from_the_same_parts_as_before(
    groups: dict[str, tuple[set[str], set[str]]], age: int, limit: int, min_full_partitions: int
) -> None:
    layout = layout_of("region", "dt", group=1)
    cutoff = NOW - timedelta(days=age)
    snapshot, delta = (
        frozenset((group, day) for group, both in groups.items() for day in both[side]) for side in (0, 1)
    )
    plans = plan_chain_expiry(
        layout,
        Partitions(snapshot=snapshot, delta=delta),
        cutoff,
        max_segments=limit,
        min_full_partitions=min_full_partitions,
    )
    left = Partitions(
        snapshot=snapshot - {v for p in plans for v in p.snapshots},
        delta=delta - {v for p in plans for v in dropped_deltas(p)},
    )
    before = {r.target: r for r in plan_chain_read(layout, Partitions(snapshot=snapshot, delta=delta))}
    for read in plan_chain_read(layout, left):
        was = before[read.target]
        assert (read.source, read.anchor, read.deltas) == (was.source, was.anchor, was.deltas)
    for plan in plans:
        own = sorted(v for v in snapshot if v[0] == plan.group[0])
        kept = sorted(v for v in left.snapshot if v[0] == plan.group[0])
        assert len(plan.segments) <= limit
        assert kept == own[len(plan.segments) :]
        assert len(kept) >= min(min_full_partitions, len(own))
        # Only what is older than an old anchor goes, and all of it, up to the limits.
        gone = {v for v in dropped_deltas(plan) if v[0] == plan.group[0]}
        assert gone == ({v for v in delta if v[0] == plan.group[0] and v < kept[0]} if plan.segments else set())
