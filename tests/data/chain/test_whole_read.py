"""Reads of chain tables that tasks plan: the plan and the rows of a read of all files at once, whatever the tasks and
their order, also where the buckets of one chain are planned apart.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.manifest import EMPTY_STATS
from airflow_paimon.core.table.predicate import Condition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import grouped_read, whole_read
from airflow_paimon.data.chain.grouped_read import pin_chain, plan_chain_by_groups
from airflow_paimon.data.chain.groups import ChainGroups
from airflow_paimon.data.chain.scan import ChainRead, plan_chain
from airflow_paimon.data.chain.whole_read import (
    WholeChain,
    plan_chain_or_whole,
    plan_group,
    plan_pinned_chain_or_whole,
    sort_out,
)
from tests.data.chain.examples import with_deletion_vectors
from tests.data.chain.tables import DAYS, GAPPED, chain_table, set_options, write
from tests.data.chain.test_differential import Life
from tests.data.chain.test_grouped_read import memory, rows_of, texts
from tests.randomness import chance, lives


def planned(whole: WholeChain, groups: ChainGroups, seed: str) -> list[ChainRead]:
    """What tasks plan, whose pieces of the manifests are as random as their order."""
    draw = chance(seed)
    of, groups = pickle.loads(pickle.dumps((whole.of, groups)))
    listed = draw.sample(whole.listed, len(whole.listed))
    found = []
    while listed:
        size = draw.randint(1, 3)
        found += sort_out(of, groups, sorted(listed[:size], key=lambda one: one.listed.place))
        listed = listed[size:]
    draw.shuffle(found)
    found.sort(key=lambda one: (one.group, one.place))
    assert len({(one.group, one.place) for one in found}) == len(found)
    return [
        plan_group(of, groups.reads(group), [one.data for one in found if one.group == group])
        for group in range(len(groups))
    ]


def compare(table: Table, seed: str, files: int, **asked: Any) -> None:
    """Compare both plans."""
    expected, whole = plan_chain(table, **asked), plan_chain_or_whole(table, more_than=0, **asked)
    if isinstance(whole, ChainRead):
        assert not any(splits for _, splits in expected.layers) and not expected.splits
        return
    groups = whole.divided(files)
    found = planned(whole, groups, seed)
    assert whole.base.inputs.main.output_schema == expected.inputs.main.output_schema
    assert texts(s for read in found for s in read.splits) == texts(expected.splits)
    for at, (_, splits) in enumerate(expected.layers):
        assert texts(s for read in found for s in read.layers[at][1]) == texts(splits)
    assert rows_of(found) == rows_of([expected])


@pytest.mark.random
def test_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(lives(4, 60)):
        life = Life(seed)
        draw = life.chance
        monkeypatch.setattr(whole_read, "_AT_ONCE", draw.choice([1, 5, 50_000]))
        for _ in range(draw.randint(8, 24)):
            life.step()
        day = life.partition()[-1]
        asked: list[dict[str, Any]] = [
            {"mode": draw.choice(["full", "incremental", "hybrid"])},
            {"gap_policy": "carry_forward", "columns": ["v2", *life.keys]},
            {"where": (pc.field(life.keys[-1]) <= day) & (pc.field("k") < 7)},
            {"predicate": Condition("v1", ">", "v4"), "mode": "hybrid"},
        ]
        for given in asked:
            compare(life.table, f"{seed}", draw.choice([1, 3]), **given)
        life.check()


def test_deletion_vectors() -> None:
    table = with_deletion_vectors(memory())
    for files in (1, 100):
        compare(table, f"vectors {files}", files)


def test_a_large_chain_is_divided_by_buckets() -> None:
    rows = [(k, 1, "a") for k in range(20)]
    days = [("delta", day, rows) for day in ("20250810", "20250811") for _ in range(4)]
    table = chain_table(memory(), [("snapshot", "20250809", rows), *days, ("snapshot", "20250812", rows)], buckets=5)
    whole = plan_chain_or_whole(table, more_than=0)
    assert isinstance(whole, WholeChain) and whole.files == 50
    for files, sizes in ((1, [9] * 5 + [1] * 5), (20, [18, 18, 14]), (30, [27, 23]), (45, [45, 5]), (1000, [50])):
        assert sizes_of(whole, files) == sizes
        compare(table, "buckets", files)


def sizes_of(whole: WholeChain, files: int) -> list[int]:
    groups = whole.divided(files)
    sizes = [0] * len(groups)
    for part in sort_out(whole.of, groups, whole.listed):
        sizes[part.group] += part.files
    return sizes


def test_buckets_that_are_planned_apart_have_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain whose partitions have different numbers of buckets is refused, also if no bucket tells."""
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    table = chain_table(memory(), GAPPED)
    branches = (table, table.branch("snapshot"), table.branch("delta"))
    for one in branches:
        set_options(one, {"bucket": "3", "chain-table.enabled": "false"})
    key = 0
    while not any(s.bucket == 2 for s in plan_scan(branches[2]).splits):
        write(branches[2], ["k", "s", "v"], ["dt"], "20250814", [(key, 1, "a")], mode="overwrite")
        key += 1
    for one in branches:
        set_options(one, {"chain-table.enabled": "true"})
    for plan in (plan_chain, plan_chain_by_groups, plan_chain_or_whole):
        with pytest.raises(InvalidInputError, match=r"different numbers of buckets .*3 in dt=20250814 of branch delta"):
            plan(table, **({"more_than": 0} if plan is plan_chain_or_whole else {}))
    where = pc.field("dt") == "20250811"
    compare(table, "one day", 1, where=where)


def test_few_files_of_large_manifests_are_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    table = chain_table(memory(), DAYS)
    pinned, whole = pin_chain(table), plan_chain_or_whole(table, more_than=0)
    assert not pinned.has_files and isinstance(whole, WholeChain)
    for more_than, kind in ((whole.files, ChainRead), (whole.files - 1, WholeChain)):
        assert isinstance(plan_pinned_chain_or_whole(pinned, more_than=more_than), kind)
        assert isinstance(plan_chain_or_whole(table, more_than=more_than), kind)
    where = pc.field("dt") == "20250811"
    day = plan_pinned_chain_or_whole(pinned, more_than=whole.files - 1, where=where)
    full = plan_pinned_chain_or_whole(pinned, more_than=whole.files)
    assert isinstance(full, ChainRead) and isinstance(day, ChainRead)
    for read, is_kept in ((full, False), (day, True)):
        assert {f.key_stats != EMPTY_STATS for s in read.splits for f in s.files} == {is_kept}
    assert rows_of([day]) == rows_of([plan_chain(table, where=where)])
