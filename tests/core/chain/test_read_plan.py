"""Every worked example of Paimon's tests as a plan: where the rows of a partition come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Partitions, Values
from airflow_paimon.core.chain.read_plan import (
    PartitionRead,
    Source,
    find_gaps,
    plan_chain_read,
    plan_reads,
)
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.partition_time import partition_clock

DAILY = ("$dt", "yyyyMMdd")
HOURLY = ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss")


def layout_of(*columns: str, group: int = 0, form: tuple[str, str] = DAILY, types: tuple[str, ...] = ()) -> ChainLayout:
    return ChainLayout(
        label="d.t",
        snapshot_branch="snapshot",
        delta_branch="delta",
        partition_keys=columns,
        partition_types=tuple(parse_type(t) for t in types or ("STRING",) * len(columns)),
        group_width=group,
        clock=partition_clock(*form, columns[group:], columns[:group]),
    )


def held(*texts: str) -> frozenset[Values]:
    """Partitions by their values with a slash between them."""
    return frozenset(tuple(t.split("/")) for t in texts)


def planned(
    layout: ChainLayout, partitions: Partitions, wanted: Callable[[Values], bool] | None = None, **more: Any
) -> dict[str, PartitionRead]:
    if wanted is not None:
        more["wanted"] = lambda values: [v for v in values if wanted(v)]
    return {"/".join(r.target): r for r in plan_chain_read(layout, partitions, **more)}


def chain_of(read: PartitionRead) -> tuple[str | None, list[str]]:
    """The anchor and the deltas of a chain."""
    assert read.source in (Source.CHAIN, Source.CARRIED)
    return "/".join(read.anchor) if read.anchor else None, ["/".join(d) for d in read.deltas]


DAYS = Partitions(
    main=held("20250810"),
    delta=held("20250809", "20250810", "20250811", "20250812", "20250813", "20250814"),
    snapshot=held("20250810", "20250812", "20250814"),
)
"""testChainTable."""


def test_daily_chain_without_filter() -> None:
    reads = planned(layout_of("dt"), DAYS)
    assert {day: r.source.value for day, r in reads.items()} == {
        "20250809": "chain",
        "20250810": "main",
        "20250811": "chain",
        "20250812": "snapshot",
        "20250813": "chain",
        "20250814": "snapshot",
    }
    assert chain_of(reads["20250809"]) == (None, ["20250809"])
    assert chain_of(reads["20250811"]) == ("20250810", ["20250811"])
    assert chain_of(reads["20250813"]) == ("20250812", ["20250813"])
    assert reads["20250810"].hidden == (ChainBranch.SNAPSHOT, ChainBranch.DELTA)
    assert reads["20250812"].reason == "stored in the snapshot branch; hides delta"
    assert reads["20250811"].reason == "the nearest earlier snapshot partition, 1 delta"


@pytest.mark.parametrize("days", [("20250811",), ("20250811", "20250812"), ("20250810", "20250811", "20250812")])
def test_a_filter_chooses_targets_and_never_their_chains(days: tuple[str, ...]) -> None:
    everything = planned(layout_of("dt"), DAYS)
    some = planned(layout_of("dt"), DAYS, wanted=lambda v: v[0] in days)
    assert some == {day: everything[day] for day in days}


def test_hourly_chain() -> None:
    partitions = Partitions(
        main=held("20250810/22"),
        delta=held("20250810/21", "20250810/22", "20250810/23", "20250811/00", "20250811/01", "20250811/02"),
        snapshot=held("20250810/22", "20250811/00", "20250811/02"),
    )
    reads = planned(layout_of("dt", "hour", form=HOURLY), partitions)
    assert reads["20250810/22"].source == Source.MAIN
    assert reads["20250811/02"].source == Source.SNAPSHOT
    assert chain_of(reads["20250810/21"]) == (None, ["20250810/21"])
    assert chain_of(reads["20250810/23"]) == ("20250810/22", ["20250810/23"])
    assert chain_of(reads["20250811/01"]) == ("20250811/00", ["20250811/01"])


def test_composite_keys_find_the_anchor_of_the_day_before() -> None:
    partitions = Partitions(snapshot=held("20250809/01", "20250809/02"), delta=held("20250810/03", "20250810/05"))
    reads = planned(layout_of("dt", "hour", form=HOURLY), partitions)
    assert chain_of(reads["20250810/05"]) == ("20250809/02", ["20250810/03", "20250810/05"])


def test_minutes_take_no_delta_of_the_future() -> None:
    layout = layout_of("dt", "hm", form=("$dt $hm:00", "yyyyMMdd HH:mm:ss"))
    partitions = Partitions(
        snapshot=held("20250810/01:01", "20250810/03:30"),
        delta=held("20250810/03:35", "20250810/03:40", "20250810/03:45"),
    )
    reads = planned(layout, partitions)
    assert chain_of(reads["20250810/03:40"]) == ("20250810/03:30", ["20250810/03:35", "20250810/03:40"])


def test_months() -> None:
    layout = layout_of("m", form=("$m01", "yyyyMMdd"))
    reads = planned(layout, Partitions(snapshot=held("202411"), delta=held("202412", "202502", "202410")))
    assert chain_of(reads["202502"]) == ("202411", ["202412", "202502"])
    assert chain_of(reads["202410"]) == (None, ["202410"])


def test_dates_and_numbers_as_partition_columns() -> None:
    dates = layout_of("dt", form=("$dt", "yyyy-MM-dd"), types=("DATE",))
    day = datetime(2025, 8, 10).date()
    assert dates.time_of((day,)) == datetime(2025, 8, 10)
    assert dates.values_at((), datetime(2025, 8, 10)) == (day,)
    numbers = layout_of("dt", types=("INT",))
    found = plan_chain_read(numbers, Partitions(snapshot=frozenset({(20250809,)}), delta=frozenset({(20250810,)})))
    assert [(r.target, r.source, r.anchor) for r in found] == [
        ((20250809,), Source.SNAPSHOT, None),
        ((20250810,), Source.CHAIN, (20250809,)),
    ]


@pytest.mark.parametrize("groups", [("CN", "US"), ("CN/food", "US/food")])
def test_groups_have_chains_of_their_own(groups: tuple[str, ...]) -> None:
    columns = ("region", "biz_type", "dt") if "/" in groups[0] else ("region", "dt")
    layout = layout_of(*columns, group=len(columns) - 1)
    main, snapshot, delta = (
        frozenset((*g.split("/"), *v) for g in groups for v in branch)
        for branch in (DAYS.main, DAYS.snapshot, DAYS.delta)
    )
    partitions = Partitions(main=main, snapshot=snapshot, delta=delta)
    single = planned(layout_of("dt"), DAYS)
    for group in groups:
        prefix = tuple(group.split("/"))
        found = planned(layout, partitions, wanted=lambda v, p=prefix: v[: len(p)] == p)
        assert len(found) == len(single)
        for day, read in single.items():
            own = found[f"{group}/{day}"]
            assert own.source == read.source
            assert own.anchor == (None if read.anchor is None else (*prefix, *read.anchor))
            assert own.deltas == tuple((*prefix, *d) for d in read.deltas)


def test_a_group_never_takes_another_groups_anchor() -> None:
    layout = layout_of("region", "dt", group=1)
    reads = planned(layout, Partitions(snapshot=held("CN/20250810"), delta=held("US/20250811", "US/20250809")))
    assert chain_of(reads["US/20250811"]) == (None, ["US/20250809", "US/20250811"])


def test_main_is_never_an_anchor() -> None:
    """testChainTableWithBranchOption."""
    reads = planned(layout_of("dt"), Partitions(main=held("20250810"), delta=held("20250810", "20250811")))
    assert chain_of(reads["20250811"]) == (None, ["20250810", "20250811"])
    assert reads["20250810"].source == Source.MAIN


def test_the_delta_of_the_anchors_own_day_is_part_of_the_anchor() -> None:
    reads = planned(layout_of("dt"), Partitions(snapshot=held("20250810"), delta=held("20250810", "20250811")))
    assert chain_of(reads["20250811"]) == ("20250810", ["20250811"])


def test_a_snapshot_of_the_future_is_not_an_anchor() -> None:
    reads = planned(layout_of("dt"), Partitions(snapshot=held("20250812"), delta=held("20250811")))
    assert chain_of(reads["20250811"]) == (None, ["20250811"])


GAPS = Partitions(snapshot=held("20250810", "20250813"), delta=held("20250811", "20250814", "20250816"))


def test_a_gap_is_empty_as_in_paimon() -> None:
    assert set(planned(layout_of("dt"), GAPS)) == {"20250810", "20250811", "20250813", "20250814", "20250816"}


def test_a_gap_carries_the_state_before_it_forward() -> None:
    reads = planned(layout_of("dt"), GAPS, gap_policy="carry_forward")
    assert {d for d, r in reads.items() if r.source == Source.CARRIED} == {"20250812", "20250815"}
    assert chain_of(reads["20250812"]) == ("20250810", ["20250811"])
    assert chain_of(reads["20250815"]) == ("20250813", ["20250814"])
    assert reads["20250815"].reason.startswith("a gap")
    one = planned(layout_of("dt"), GAPS, gap_policy="carry_forward", wanted=lambda v: v == ("20250812",))
    assert set(one) == {"20250812"}


def test_the_grid_is_a_groups_own() -> None:
    layout = layout_of("region", "dt", group=1)
    partitions = Partitions(snapshot=held("CN/20250810", "US/20250810"), delta=held("CN/20250812"))
    assert find_gaps(layout, partitions) == [("CN", "20250811")]


def test_a_gap_before_any_snapshot_or_delta_stays_empty() -> None:
    partitions = Partitions(main=held("20250810"), delta=held("20250812"))
    assert set(planned(layout_of("dt"), partitions, gap_policy="carry_forward")) == {"20250810", "20250812"}


def test_incremental_and_hybrid_reads() -> None:
    layout = layout_of("dt")

    def one(values: Sequence[Values]) -> Sequence[Values]:
        return [v for v in values if v == ("20250811",)]

    changes = plan_reads(layout, DAYS, one, mode="incremental")
    assert changes == [PartitionRead(target=("20250811",), source=Source.DELTA)]
    assert plan_reads(layout, DAYS, one, mode="hybrid") == plan_chain_read(layout, DAYS, one) + changes
    assert [r.target[0] for r in plan_reads(layout, DAYS, mode="incremental")] == sorted(v[0] for v in DAYS.delta)


@pytest.mark.parametrize("strange", ["someday", "2025-08-01", ""])
def test_a_partition_without_a_time_is_refused_by_name_where_it_matters(strange: str) -> None:
    layout = layout_of("dt")
    partitions, shown = Partitions(snapshot=held("20250810"), delta=held("20250811", strange)), strange or "''"
    with pytest.raises(
        InvalidInputError, match=rf"d\.t: partition dt={shown} is without a partition time .*\$dt.*yyyyMMdd"
    ):
        planned(layout, partitions)
    # what is stored as it is needs no time
    assert set(planned(layout, partitions, wanted=lambda v: v == ("20250810",))) == {"20250810"}


def test_null_is_not_a_partition_time() -> None:
    partitions = Partitions(snapshot=frozenset({("20250810",)}), delta=frozenset({(None,)}))
    with pytest.raises(InvalidInputError, match="dt=__DEFAULT_PARTITION__ is without a partition time"):
        plan_chain_read(layout_of("dt"), partitions)


def test_a_spelling_that_paimon_would_silently_skip_is_refused() -> None:
    layout = layout_of("dt", "hour", form=("$dt $hour", "yyyyMMdd H"))
    partitions = Partitions(snapshot=held("20250810/1"), delta=held("20250810/05"))
    with pytest.raises(InvalidInputError, match=r"hour=05 is not written .* write its rows to dt=20250810/hour=5"):
        plan_chain_read(layout, partitions)


def test_the_partitions_of_other_groups_are_looked_at_once() -> None:
    """What it costs grows with the partitions, not with partitions times groups."""
    layout = layout_of("region", "dt", group=1)

    def groups_looked_up(groups: int) -> int:
        looked_up = 0

        class Counted(tuple[str, ...]):
            def __getitem__(self, key: Any) -> Any:
                nonlocal looked_up
                looked_up += 1
                return super().__getitem__(key)

        days = frozenset(Counted((f"r{g}", day)) for g in range(groups) for day in ("20250101", "20250102"))
        assert len(plan_chain_read(layout, Partitions(snapshot=frozenset(), delta=days))) == 2 * groups
        return looked_up

    assert groups_looked_up(400) <= 12 * groups_looked_up(40)
