"""Reads of chain tables that one process plans in groups: the plan and the rows of a read of all files at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.scan import all_manifests
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import grouped_read as many
from airflow_paimon.data import read_arrow, read_batches, whole_read
from airflow_paimon.data.arrow_read import pin_rows
from airflow_paimon.data.chain import grouped_read
from airflow_paimon.data.chain.grouped_read import plan_chain_by_groups
from airflow_paimon.data.chain.groups import segments_of
from airflow_paimon.data.chain.read import read_chain
from airflow_paimon.data.chain.scan import ChainRead, plan_chain
from airflow_paimon.spark.datasource import PaimonReader
from tests.data.chain.examples import with_deletion_vectors
from tests.data.chain.tables import DAYS, GAPPED, chain_table, seen, write
from tests.data.chain.test_differential import Life
from tests.randomness import chance as chance_of
from tests.randomness import lives
from tests.stores import CountingStore


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MANY_ENTRIES", 0)
    monkeypatch.setattr(grouped_read, "_FILES", 3)


def memory() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def texts(items: Iterable[Any]) -> list[str]:
    return sorted(map(repr, items))


def rows_of(reads: Iterable[ChainRead]) -> list[str]:
    return texts(row for read in reads for batch in read_chain(read) for row in batch.to_pylist())


def check(table: Table, **asked: Any) -> int:
    """Compare both plans; return how many groups there are."""
    expected = plan_chain(table, **asked)
    planned = plan_chain_by_groups(table, **asked)
    found = list(planned.reads)
    assert planned.main.output_schema == expected.inputs.main.output_schema
    assert {*texts(p for read in found for p in read.partitions)} == {*texts(expected.partitions)}
    assert texts(s for read in found for s in read.splits) == texts(expected.splits)
    for at, (_, splits) in enumerate(expected.layers):
        assert texts(s for read in found for s in read.layers[at][1]) == texts(splits)
    assert {repr(read.snapshots) for read in found} <= {repr(expected.snapshots)}
    assert rows_of(found) == rows_of([expected])
    return len(found)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(4, 60)))
def test_the_same_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(seed)
    draw = life.chance
    monkeypatch.setattr(grouped_read, "_FILES", draw.choice([1, 4]))
    monkeypatch.setattr(whole_read, "_AT_ONCE", draw.choice([1, 5, 50_000]))
    monkeypatch.setattr(grouped_read, "_MEMORY_BYTES", draw.choice([0, 1 << 20]))
    for _ in range(2):
        for _ in range(draw.randint(4, 12)):
            life.step()
        for mode in ("full", "incremental", "hybrid"):
            check(life.table, mode=mode, gap_policy=draw.choice(["empty", "carry_forward"]))
        day = life.partition()[-1]
        for where in (pc.field(life.keys[-1]) <= day, pc.field(life.keys[-1]) == day, pc.field("v1") > "v4"):
            mode = draw.choice(["full", "hybrid"])
            check(life.table, where=where & (pc.field("k") < 7), columns=["v2", *life.keys], mode=mode)
        life.check()


def test_deletion_vectors() -> None:
    assert check(with_deletion_vectors(memory())) > 0


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


def test_few_files_are_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = chain_table(memory(), DAYS)
    entries = sum(
        m.num_added_files
        for branch in map(table.branch, ("main", "snapshot", "delta"))
        for m in all_manifests(branch, branch.snapshot(branch.latest_snapshot_id() or 0))
    )
    for most, at_once in ((entries, True), (entries // 2, False)):
        monkeypatch.setattr(many, "MANY_ENTRIES", most)
        assert (len(list(plan_chain_by_groups(table).reads)) == 1) == at_once
    day = pc.field("dt") == "20250811"
    assert len(list(plan_chain_by_groups(table, where=day).reads)) == 1
    assert seen(table, where=day) == [row for row in seen(table) if row[-1] == "20250811"]


def test_the_state_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MANY_ENTRIES", 1 << 30)
    store = CountingStore(chain_table(memory(), DAYS).store)
    table, log = Table(store, "d.t"), store.tally.log
    for asked in ({}, {"where": pc.field("k") == 1}):
        log.clear()
        plan_chain(table, **asked)  # type: ignore[arg-type]
        expected = sorted(log)
        log.clear()
        plan_chain_by_groups(table, **asked)  # type: ignore[arg-type]
        assert sorted(log) == expected


def test_the_files_are_chosen_when_a_read_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    table = chain_table(memory(), DAYS)
    expected, batches, pinned = seen(table), read_batches(table), pin_rows(table)
    assert not pinned.state.has_files  # type: ignore[union-attr]
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20250815", [(1, 9, "new")])
    assert texts(batches.read_all().to_pylist()) == texts(pinned.batches().read_all().to_pylist())
    assert len(expected) == pinned.batches().read_all().num_rows < read_arrow(table).num_rows
    assert pinned.batches(where=pc.field("k") == 1, columns=["v"]).read_all().num_rows == sum(
        r[0] == 1 for r in expected
    )
    assert pinned.schema == read_arrow(table).schema


def test_schemas_and_manifests_are_read_once() -> None:
    table = chain_table(memory(), DAYS)
    store = CountingStore(table.store)
    expected = rows_of([plan_chain(table)])
    planned = plan_chain_by_groups(Table(store, table.name))
    before = len(store.tally.log)
    branches = [table.branch(name) for name in ("main", "snapshot", "delta")]
    assert sum(uri.endswith("/schema-0") for _, uri in store.tally.log) == len(branches)
    for branch in branches:
        branch.store.delete(branch.paths.schema(0))  # also a branch that is made anew has other ones
    found = list(planned.reads)
    assert len(found) > 3
    assert len(store.tally.log) == before
    assert rows_of(found) == expected


def test_a_manifest_that_is_missing() -> None:
    table = chain_table(memory(), DAYS)
    delta = table.branch("delta")
    gone = all_manifests(delta, delta.snapshot(delta.latest_snapshot_id() or 0))[-1].file_name
    delta.store.delete(manifest_path(gone))
    with pytest.raises(FormatError, match=f"manifest {gone} of a live snapshot is missing"):
        plan_chain_by_groups(table)


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


@pytest.mark.parametrize("seed", range(lives(2, 20)))
def test_the_data_source(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(seed)
    draw = chance_of(f"chain data source {seed}")
    for _ in range(12):
        life.step()

    def read(**asked: Any) -> list[str]:
        reader = PaimonReader(
            life.table, None, None, ["k", "v1", *life.keys], asked["where"], asked["gaps"], asked["mode"]
        )
        batches: Iterable[pa.RecordBatch] = (b for task in reader.partitions() for b in reader.read(task))
        return texts(row for batch in batches for row in batch.to_pylist())

    for mode in ("full", "incremental", "hybrid"):
        asked = {"where": draw.choice([None, "k > 3"]), "gaps": draw.choice(["empty", "carry_forward"]), "mode": mode}
        monkeypatch.setattr(many, "MANY_ENTRIES", 1 << 30)
        expected = read(**asked)
        monkeypatch.setattr(many, "MANY_ENTRIES", 0)
        assert read(**asked) == expected
