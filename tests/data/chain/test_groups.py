"""Reads of chain tables that are planned group by group: the plan and the rows of a read of all files at once, also
where the buckets of one chain are planned apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.format.manifest import EMPTY_STATS
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.predicate import Condition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, read_batches
from airflow_paimon.data.arrow_read import pin_rows, read_group
from airflow_paimon.data.chain.groups import segments_of
from airflow_paimon.data.planner import pin, plan_pinned, plan_rows
from airflow_paimon.data.read_groups import IN_PROCESS, GroupPlan, GroupSizes
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.spark.shares import read_share, task_shares
from tests.data.chain.examples import with_deletion_vectors
from tests.data.chain.tables import DAYS, GAPPED, chain_table, planned_chain, seen, set_options, write
from tests.data.chain.test_differential import Life
from tests.randomness import lives
from tests.stores import CountingStore

EACH = GroupSizes(entries=0, files=3)


def memory() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def texts(items: Iterable[Any]) -> list[str]:
    return sorted(map(repr, items))


def rows_of(groups: Iterable[GroupPlan]) -> list[str]:
    return texts(row for group in groups for batch in read_group(group) for row in batch.to_pylist())


def check(table: Table, sizes: GroupSizes = EACH, **asked: Any) -> int:
    """Compare both plans, and the rows of tasks; return how many groups there are."""
    request = ReadRequest(**{"mode": "full", **asked})
    expected, plan = planned_chain(table, **asked), plan_rows(table, request, sizes)
    groups = list(plan.groups)
    assert expected.inputs is not None
    assert plan.read.output_schema == expected.inputs.main.output_schema
    assert texts(s for group in groups for s in group.chains) == texts(expected.chains)
    for at, (_, splits) in enumerate(expected.layers):
        assert texts(s for group in groups for s in group.layers[at][1]) == texts(splits)
    rows = rows_of([expected])
    assert rows_of(groups) == rows
    shares, few = task_shares(plan_rows(table, request, sizes)), task_shares(plan_rows(table, request))
    of_tasks, of_few = (texts(r for s in some for b in read_share(s) for r in b.to_pylist()) for some in (shares, few))
    assert of_tasks == of_few and len(of_few) == len(rows)
    return len(groups) if plan.is_large else 0


@pytest.mark.every(2)
@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(2, 60)))
def test_the_same_plan(seed: int) -> None:
    life = Life(seed)
    draw = life.chance

    def drawn() -> GroupSizes:
        return GroupSizes(
            entries=draw.choice([0, 1, 5]), files=draw.choice([1, 4]), memory_bytes=draw.choice([0, 1 << 20])
        )

    for _ in range(2):
        for _ in range(draw.randint(4, 12)):
            life.step()
        for mode in ("full", "incremental", "hybrid"):
            check(life.table, drawn(), mode=mode, gap_policy=draw.choice(["empty", "carry_forward"]))
        day = life.partition()[-1]
        columns = ["v2", *life.keys]
        for where in (pc.field(life.keys[-1]) <= day, pc.field(life.keys[-1]) == day, pc.field("v1") > "v4"):
            mode = draw.choice(["full", "hybrid"])
            check(life.table, drawn(), where=where & (pc.field("k") < 7), columns=columns, mode=mode)
        check(life.table, drawn(), predicate=Condition("v1", ">", "v4"), mode="hybrid")
        life.check()


def test_deletion_vectors() -> None:
    table = with_deletion_vectors(memory())
    for files in (1, 3, 100):
        assert check(table, GroupSizes(entries=0, files=files)) > 0


def test_time_travel() -> None:
    table = chain_table(memory(), DAYS)
    before = table.latest_snapshot()
    assert before is not None
    expected = seen(table)
    write(table, ["k", "s", "v"], ["dt"], "20250812", [(9, 9, "new")])
    assert check(table, version=before.id) > 0
    then = table.branch("snapshot").snapshot(2).time_millis
    assert check(table, timestamp=then) > 0
    assert seen(table, timestamp=then) != expected != seen(table)


def test_gaps() -> None:
    assert check(chain_table(memory(), GAPPED), gap_policy="carry_forward") > 0


def test_a_large_chain_is_divided_by_buckets() -> None:
    rows = [(k, 1, "a") for k in range(20)]
    days = [("delta", day, rows) for day in ("20250810", "20250811") for _ in range(4)]
    table = chain_table(memory(), [("snapshot", "20250809", rows), *days, ("snapshot", "20250812", rows)], buckets=5)
    for files, sizes in ((1, [9] * 5 + [1] * 5), (20, [18, 18, 14]), (30, [27, 23]), (49, [45, 5])):
        plan = plan_rows(table, ReadRequest(mode="full"), GroupSizes(entries=0, files=files))
        assert list(map(files_of, plan.groups)) == sizes
        check(table, GroupSizes(entries=0, files=files))


def files_of(group: GroupPlan) -> int:
    stored = [f.file_name for _, splits in group.layers for s in splits for f in s.files]
    return len({*stored, *(f.file_name for s in group.chains for f in s.files)})


def test_buckets_that_are_planned_apart_have_one_number() -> None:
    """A chain whose partitions have different numbers of buckets is refused, also if no bucket tells."""
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
    for sizes in (IN_PROCESS, EACH):
        with pytest.raises(InvalidInputError, match=r"different numbers of buckets .*3 in dt=20250814 of branch delta"):
            plan_rows(table, ReadRequest(mode="full"), sizes)
    check(table, GroupSizes(entries=0, files=1), where=pc.field("dt") == "20250811")


def test_few_files_of_a_large_table_are_planned_at_once() -> None:
    table = chain_table(memory(), DAYS)
    files = sum(map(files_of, plan_rows(table, ReadRequest(mode="full"), EACH).groups))
    pinned, where = pin(table), pc.field("dt") == "20250811"
    for entries, is_large in ((files, False), (files - 1, True)):
        sizes = GroupSizes(entries=entries)
        assert plan_pinned(pinned, sizes=sizes).is_large == is_large
        assert plan_rows(table, ReadRequest(mode="full"), sizes).is_large == is_large
    day = plan_pinned(pinned, ReadRequest(where=where), sizes)
    for plan, is_kept in ((plan_pinned(pinned), False), (day, True)):
        assert not plan.is_large
        assert {f.key_stats != EMPTY_STATS for g in plan.groups for s in g.chains for f in s.files} == {is_kept}
    assert rows_of(day.groups) == rows_of([planned_chain(table, where=where)])


def test_the_files_are_chosen_when_a_read_is_planned() -> None:
    table = chain_table(memory(), DAYS)
    expected, batches, pinned = seen(table), read_batches(table), pin_rows(table)
    plan = plan_rows(table, ReadRequest(mode="full"), EACH)
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20250815", [(1, 9, "new")])
    assert texts(batches.read_all().to_pylist()) == texts(pinned.batches().read_all().to_pylist())
    assert len(expected) == len(rows_of(plan.groups)) == pinned.batches().read_all().num_rows
    assert len(expected) < read_arrow(table).num_rows
    ones = pinned.batches(where=pc.field("k") == 1, columns=["v"]).read_all()
    assert ones.num_rows == sum(row[0] == 1 for row in expected)
    assert pinned.schema == read_arrow(table).schema


def test_schemas_and_manifests_are_read_once() -> None:
    table = chain_table(memory(), DAYS)
    store = CountingStore(table.store)
    expected = rows_of([planned_chain(table)])
    plan = plan_rows(Table(store, table.name), ReadRequest(mode="full"), EACH)
    before = len(store.tally.log)
    branches = [table.branch(name) for name in ("main", "snapshot", "delta")]
    assert sum(uri.endswith("/schema-0") for _, uri in store.tally.log) == len(branches)
    for branch in branches:
        branch.store.delete(branch.paths.schema(0))  # also a branch that is made anew has other ones
    groups = list(plan.groups)
    assert len(groups) > 3
    assert len(store.tally.log) == before
    assert rows_of(groups) == expected


def test_a_manifest_that_is_missing() -> None:
    table = chain_table(memory(), DAYS)
    delta = table.branch("delta")
    gone = all_manifests(delta, delta.snapshot(delta.latest_snapshot_id() or 0))[-1].file_name
    delta.store.delete(manifest_path(gone))
    with pytest.raises(FormatError, match=f"manifest {gone} of a live snapshot is missing"):
        plan_rows(table, ReadRequest(mode="full"), EACH)


def test_a_partition_is_read_for_one_segment() -> None:
    def chain(target: str, anchor: str | None, *deltas: str) -> PartitionRead:
        return PartitionRead(target=(target,), source=Source.CHAIN, anchor=anchor and (anchor,),  # type: ignore[arg-type]
                             deltas=tuple((d,) for d in deltas))  # fmt: skip

    reads = [
        PartitionRead(target=("3",), source=Source.MAIN),
        PartitionRead(target=("2",), source=Source.SNAPSHOT),
        chain("1", None, "1"),
        chain("3.5", "2", "3", "3.5"),
        chain("2.5", "2"),
        PartitionRead(target=("3",), source=Source.DELTA),
        PartitionRead(target=("0",), source=Source.DELTA),
        chain("8", "7", "0", "3"),  # no layout gives such a chain
    ]
    found = [[(str(r.source), r.target[0]) for r in some] for some in segments_of(reads)]
    assert sorted(map(sorted, found)) == [
        [("chain", "1")],
        [("chain", "2.5"), ("chain", "3.5"), ("chain", "8"), ("delta", "0"), ("delta", "3"), ("snapshot", "2")],
        [("main", "3")],
    ]
