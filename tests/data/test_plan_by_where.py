"""A read with a filter plans only the partitions and buckets that it can match: the same splits as of a plan of all."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.format import manifest_blocks
from airflow_paimon.core.format.avro import encoder
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.predicate import AllOf, Condition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_read import pin_rows
from airflow_paimon.data.planner import pin, plan_pinned, plan_rows
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import plan_read
from tests.core.tables import run
from tests.randomness import chance as chance_of
from tests.randomness import lives
from tests.stores import CountingStore

DAYS = ["a", "b", "c", None]


def used_table(draw: random.Random, *, keyed: bool) -> Table:
    """A table of several partitions, a part of them with more buckets."""
    null = "" if not keyed else " NOT NULL"
    columns = [("k", "BIGINT" + null), ("v", "STRING"), ("dt", "STRING" + null)]
    options = {"bucket": "4"} if keyed else {"bucket": "4", "bucket-key": "k"}
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                         primary_keys=["dt", "k"] if keyed else [], options=options)  # fmt: skip
    for turn in range(4):
        days = DAYS[:2] if turn < 2 else DAYS
        some = [d for d in days if d or not keyed]
        rows = [(draw.randrange(40), f"{turn}", draw.choice(some)) for _ in range(25)]
        write_arrow(table, pa.table({n: [r[i] for r in rows] for i, n in enumerate(("k", "v", "dt"))}))
        if turn == 1:
            run(table, "alter_table", change=["set bucket=6"])
    run(table, "compact_manifest")
    return table


def wheres(draw: random.Random) -> list[pc.Expression]:
    k, dt, v = pc.field("k"), pc.field("dt"), pc.field("v")
    one, other = draw.randrange(40), draw.randrange(40)
    by_day = [dt == "a", dt.isin(["b", "c"]), dt == "z", dt.is_null(), dt != "a"]
    by_key = [k == one, k.isin([one, other]), k > one, (k == one) & (v == "3"), v == "1"]
    return [*by_day, *by_key, (dt == "b") & (k == one), (dt == "a") | (k == one), (dt > "a") & (k == other)]


@pytest.mark.random
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("life", range(lives(1, 20)))
def test_the_same_splits_as_of_all_files(monkeypatch: pytest.MonkeyPatch, life: int, keyed: bool) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 1)
    monkeypatch.setattr(manifest_blocks, "_FEWEST", 2)
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    draw = chance_of(life)
    table = used_table(draw, keyed=keyed)
    whole = read_arrow(table)
    for where in wheres(draw):
        asked = ReadRequest(where=where)
        _, expected = plan_read(plan_scan(table), where=where)
        for plan in (plan_rows(table, asked), plan_pinned(pin(table), asked)):
            ((_, splits),) = plan.layers
            assert key(splits) == key(expected), where
        rows = read_arrow(table, where=where).to_pylist()
        assert sorted(rows, key=repr) == sorted(whole.filter(where).to_pylist(), key=repr)
    predicate = AllOf((Condition("dt", "=", "b"), Condition("k", "in", [1, 2, 3])))
    ((_, splits),) = plan_rows(table, ReadRequest(predicate=predicate)).layers
    _, expected = plan_read(plan_scan(table), predicate=predicate)
    assert key(splits) == key(expected)


def key(splits: Any) -> list[tuple[Any, ...]]:
    return sorted((s.bucket.partition, s.bucket.bucket, sorted(f.file_name for f in s.files)) for s in splits)


def test_manifests_of_other_partitions_are_not_read() -> None:
    table = used_table(random.Random(1), keyed=True)
    write_arrow(table, pa.table({"k": [1], "v": ["x"], "dt": ["later"]}))
    store = CountingStore(table.store)
    plan_rows(Table(store, table.name), ReadRequest(where=pc.field("dt") == "later"))
    read = [uri for _, uri in store.tally.log]
    own, others = [], []
    for manifest in all_manifests(table, table.latest_snapshot()):
        (own if any(manifest.file_name in uri for uri in read) else others).append(manifest)
    assert len(own) == len(others) == 1


@pytest.mark.parametrize("option", ["scan.fallback-branch", "scan.primary-branch"])
def test_a_partition_of_the_other_branch_is_hidden_whatever_buckets_are_asked_for(
    option: str,
) -> None:
    """Only a whole partition tells that there is nothing of it in the first branch."""
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL")],
                         partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "8"})  # fmt: skip
    run(table, "create_branch", branch="other")
    first, second = (table, table.branch("other")) if "fallback" in option else (table.branch("other"), table)
    write_arrow(first, pa.table({"dt": ["a"], "k": pa.array([1], pa.int32())}))
    write_arrow(second, pa.table({"dt": ["a"] * 20, "k": pa.array(range(20), pa.int32())}))
    run(table, "alter_table", change=[f"set {option}=other"])
    whole = read_arrow(table)
    assert whole.num_rows == 1
    rows = pin_rows(table)
    for k in range(20):
        where = (pc.field("k") == k) & (pc.field("dt") == "a")
        assert read_arrow(table, where=where).num_rows == whole.filter(where).num_rows
        assert rows.batches(where=where).read_all().num_rows == whole.filter(where).num_rows
    assert rows.batches().read_all() == whole


def test_writes_of_few_rows_into_partitions_with_different_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence numbers go on from those of all files of a bucket, in a partition with more buckets as well."""
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 1)
    monkeypatch.setattr(manifest_blocks, "_FEWEST", 2)
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                         primary_keys=["dt", "k"], options={"bucket": "4"})  # fmt: skip
    expected: dict[tuple[str, int], str] = {}
    draw = random.Random(4)

    def write(days: str, number: int, version: str) -> None:
        rows = {(draw.choice(days), draw.randrange(60)): version for _ in range(number)}
        expected.update(rows)
        by_column = {"k": [k for _, k in rows], "v": list(rows.values()), "dt": [d for d, _ in rows]}
        write_arrow(table, pa.table({**by_column, "k": pa.array(by_column["k"], pa.int32())}))

    for turn in range(3):
        write("ab", 50, f"first {turn}")
    run(table, "alter_table", change=["set bucket=16"])
    for turn in range(12):
        write("abc"[: 2 + turn % 2], 1 + turn % 3, f"then {turn}")
        if turn == 5:
            run(table, "compact_manifest")
    assert {(r["dt"], r["k"]): r["v"] for r in read_arrow(table).to_pylist()} == expected
    live = live_entries(table, table.latest_snapshot()).values()
    assert {e.total_buckets for e in live} == {4, 16}
    numbers: dict[Any, list[tuple[int, int]]] = {}
    for e in live:
        numbers.setdefault((e.partition, e.bucket), []).append((e.file.min_sequence_number, e.file.max_sequence_number))
    for spans in map(sorted, numbers.values()):
        assert all(before[1] < after[0] for before, after in pairwise(spans))
