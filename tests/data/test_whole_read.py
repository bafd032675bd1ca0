"""Reads that tasks plan: the same parts and rows as of one plan, whatever the tasks and their order."""

from __future__ import annotations

import pickle
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import Draft, commit
from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DeletionVectorRange, IndexEntry, ManifestFile
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.schema_plan import WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.predicate import AllOf, Condition, Predicate
from airflow_paimon.core.table.scan import all_manifests, live_entries, without_statistics
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import whole_read, write_arrow
from airflow_paimon.data.layers import Layer, pin_layers, plan_table_read
from airflow_paimon.data.plain import compact
from airflow_paimon.data.read import read_split
from airflow_paimon.data.whole_read import (
    Sorted,
    WholeRead,
    packed,
    plan_group,
    plan_or_whole,
    plan_pinned_or_whole,
    sort_out,
    unpacked,
)
from tests.core.tables import alter_table, run
from tests.data.chain.examples import mark_deleted
from tests.data.chain.tables import set_options
from tests.randomness import chance, lives
from tests.stores import CountingStore

KEYED = {"bucket": "2"}
KINDS: dict[str, dict[str, str]] = {
    "keyed": KEYED,
    "hidden level 0": {**KEYED, "merge-engine": "first-row"},
    "dynamic buckets": {"bucket": "-1"},
    "append": {"bucket": "-1", "row-tracking.enabled": "true"},
    "append in buckets": {"bucket": "2", "bucket-key": "k"},
    "deletion vectors": {"bucket": "-1", "deletion-vectors.enabled": "true"},
}
NO_KEYS = ("append", "append in buckets", "deletion vectors")


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(whole_read, "_AT_ONCE", 2)


def make(kind: str, warehouse: str | None = None) -> Table:
    keyed = kind not in NO_KEYS
    columns = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "INT")]
    keys = ["dt", "k"] if keyed else []
    return create_table(warehouse or f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                        primary_keys=keys, options={"write-only": "true", **KINDS[kind]})  # fmt: skip


def put(table: Table, draw: random.Random, days: str = "abc", **how: Any) -> None:
    found = [(draw.choice(days), draw.randint(0, 20), draw.randint(0, 99)) for _ in range(draw.randint(1, 6))]
    rows = pa.table({"dt": [r[0] for r in found], "k": pa.array([r[1] for r in found], pa.int32()),
                     "v": pa.array([r[2] for r in found], pa.int32())})  # fmt: skip
    write_arrow(table, rows, **how)


def compacted(table: Table, min_files: int) -> None:
    request = build_request("compact", {"warehouse": "w", "table": table.name, "min_files": min_files})
    assert isinstance(request, Compact)
    compact(Context(request, table, int(time.time() * 1000), time.monotonic()), request)


def used(kind: str, draw: random.Random, warehouse: str | None = None) -> Table:
    """A table with files of several levels, files that are gone, and several manifests."""
    table = make(kind, warehouse)
    if kind == "deletion vectors":
        for day in "xy":
            put(table, draw, day)
            mark_deleted(table, (day,), [0])
    for _ in range(5):
        act = draw.random()
        if act < 0.2:
            compacted(table, draw.randint(2, 3))
        elif act < 0.35:
            put(table, draw, draw.choice("abc"), mode="dynamic_overwrite")
        else:
            put(table, draw)
    run(table, "create_tag", tag="then")
    put(table, draw)
    alter_table(table, [WidenColumn(name="v", type="BIGINT")])
    put(table, draw)
    return table


def layers_of(whole: WholeRead, draw: random.Random, groups: int) -> list[Layer]:
    """What tasks would plan, whose pieces are as random as their order."""
    whole = pickle.loads(pickle.dumps(whole))
    found: list[Sorted] = []
    listed = draw.sample(whole.listed, len(whole.listed))
    while listed:
        size = draw.randint(1, 3)
        found += sort_out(whole.of, sorted(listed[:size]), groups)
        listed = listed[size:]
    draw.shuffle(found)
    assert all(0 <= one.group < groups for one in found)
    found.sort(key=lambda one: (one.group, one.place))
    numbers = dict.fromkeys(one.group for one in found)
    return [plan_group(whole.of, [one.data for one in found if one.group == n]) for n in numbers]


def parts_of(layers: Iterable[Layer]) -> list[Any]:
    parts = [part for _, splits in layers for split in splits for part in split.divided()]
    return sorted(
        (p.bucket.values, p.bucket.bucket, [[f.file_name for f in run] for s in p.sections for run in s.runs],
         [(path, where.data_file) for path, where in p.deletions])
        for p in parts
    )  # fmt: skip


def rows_of(layers: Iterable[Layer]) -> list[Any]:
    batches = [b for read, splits in layers for s in splits for b in read_split(read, s)]
    return sorted((tuple(row.values()) for b in batches for row in b.to_pylist()), key=repr)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("life", range(lives(1, 20)))
def test_the_same_rows(kind: str, life: int) -> None:
    draw = chance(f"{kind} {life}")
    table = used(kind, draw)
    ids = ["_ROW_ID", "k", "_SEQUENCE_NUMBER"] if kind == "append" else ["v", "k"]
    asked: list[dict[str, Any]] = [
        {},
        {"columns": ids},
        {"version": "then"},
        {"predicate": Condition("v", ">", draw.randint(0, 99)), "columns": ["k", "v"]},
        {"predicate": Condition("dt", ">=", draw.choice(" ab"))},
    ]
    for given in asked:
        whole = plan_or_whole(table, **given)
        expected = plan_table_read(table, **given)
        if not isinstance(whole, WholeRead):
            assert "dt" in repr(given)
            continue
        found = layers_of(whole, draw, draw.choice([1, 3, 50]))
        assert parts_of(found) == parts_of(expected), given
        assert rows_of(found) == rows_of(expected), given
        assert whole.read.output_schema == expected[0][0].output_schema
    assert kind == "hidden level 0" or parts_of(plan_table_read(table))


def test_the_driver_reads_lists_and_each_task_its_manifests() -> None:
    table = used("keyed", random.Random(3))
    store = CountingStore(table.store)
    whole = plan_or_whole(Table(store, table.name))
    assert isinstance(whole, WholeRead)
    head = table.latest_snapshot()
    assert head is not None
    names = [m.file_name for m in all_manifests(table, head)]
    read = [uri for _, uri in store.tally.log]
    assert len(names) > 3 and not [uri for uri in read if any(n in uri for n in names)]
    assert len([uri for uri in read if head.base_manifest_list in uri]) == 1
    assert [one.manifest and one.manifest.file_name for one in whole.listed] == [None, *names]


def test_entries_without_statistics() -> None:
    table = used("append", random.Random(14))
    entries = list(live_entries(table, table.latest_snapshot()).values())
    slim = live_entries(table, table.latest_snapshot(), statistics=False)
    assert [e.file.value_stats for e in slim.values()] == [EMPTY_STATS] * len(entries)
    for entry in entries:
        assert entry.file.value_stats != EMPTY_STATS
        file = entry.file._replace(key_stats=EMPTY_STATS, value_stats=EMPTY_STATS, value_stats_cols=None)
        assert slim[entry.identifier] == without_statistics(entry) == entry._replace(file=file)


def test_a_pinned_state(monkeypatch: pytest.MonkeyPatch) -> None:
    table = used("keyed", random.Random(4))
    assert isinstance(plan_pinned_or_whole(pin_layers(table)), list)  # all of its files are known
    monkeypatch.setattr("airflow_paimon.data.layers.FEW_FILES", 0)
    state = pin_layers(table, version="then")
    put(table, random.Random(5))
    whole = plan_pinned_or_whole(state, columns=["v"])
    assert isinstance(whole, WholeRead)
    assert rows_of(layers_of(whole, random.Random(6), 4)) == rows_of(
        plan_table_read(table, version="then", columns=["v"])
    )


def test_what_a_condition_selects_may_be_few_files() -> None:
    table = make("append in buckets")
    for day in "abc":
        for _ in range(2):
            put(table, random.Random(7), day)
    head = table.latest_snapshot()
    assert head is not None

    def days(predicate: Predicate) -> list[str] | None:
        """Of which days the tasks get entries; None: one plan of all."""
        whole = plan_or_whole(table, predicate=predicate)
        if isinstance(whole, list):
            return None
        assert parts_of(layers_of(whole, random.Random(1), 3)) == parts_of(plan_table_read(table, predicate=predicate))
        entries = [e for one in sort_out(whole.of, whole.listed, 1) for e in unpacked(one.data)[0]]
        return sorted({StoredPartitions(table.schema()).values(e.partition)[0] for e in entries})

    assert days(Condition("dt", ">=", "b")) == ["b", "c"]
    assert days(Condition("dt", "=", "b")) == ["b"]
    assert days(Condition("dt", "=", "d")) is None
    assert days(AllOf((Condition("dt", ">=", "b"), Condition("k", "=", 1)))) is None  # some buckets
    wide = ManifestFile("m", 1, 5, 0, all_manifests(table, head)[0].partition_stats, 0)
    high = all_manifests(table, head)[-1].partition_stats
    wide = wide._replace(partition_stats=wide.partition_stats._replace(max_values=high.max_values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_read, "all_manifests", lambda *_: [wide])  # has other days, too
        assert days(Condition("dt", "=", "b")) is None


@pytest.mark.parametrize(("option", "value"), [("scan.fallback-branch", "old"), ("data-evolution.enabled", "true")])
def test_tables_that_are_planned_at_once(option: str, value: str) -> None:
    table = make("append")
    put(table, random.Random(8))
    run(table, "create_branch", branch="old")
    set_options(table, {option: value})
    assert isinstance(plan_or_whole(table), list)


def test_few_files_are_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = used("keyed", random.Random(9))
    head = table.latest_snapshot()
    assert head is not None
    entries = sum(m.num_added_files + m.num_deleted_files for m in all_manifests(table, head))
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", entries)
    assert isinstance(plan_or_whole(table), list)
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", entries - 1)
    assert isinstance(plan_or_whole(table), WholeRead)
    assert isinstance(plan_or_whole(make("keyed")), list)  # without a snapshot


def _whole(table: Table) -> WholeRead:
    whole = plan_or_whole(table)
    assert isinstance(whole, WholeRead)
    return whole


def test_damage_is_found_by_the_task_that_meets_it() -> None:
    table = used("keyed", random.Random(10))
    whole = _whole(table)
    last = whole.listed[-1].manifest
    assert last is not None
    table.store.delete(manifest_path(last.file_name))
    with pytest.raises(FormatError, match=f"manifest {last.file_name} of a live snapshot is missing"):
        layers_of(whole, random.Random(0), 3)


def test_a_file_that_was_never_added_or_is_added_twice() -> None:
    table = make("append")
    for _ in range(2):
        put(table, random.Random(11))
    whole = _whole(table)
    parts = list(sort_out(whole.of, whole.listed, 1))
    with pytest.raises(FormatError, match="is added twice"):
        plan_group(whole.of, [p.data for p in [*parts, parts[0]]])
    entries, index = unpacked(parts[0].data)
    gone = packed(([e.deleted() for e in entries], index))
    with pytest.raises(FormatError, match="which it never added"):
        plan_group(whole.of, [gone])


def test_an_index_that_is_not_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("append")
    put(table, random.Random(12))
    whole = _whole(table)
    strange = IndexEntry(0, b"", 0, "STRANGE", "index", 1, 1, (DeletionVectorRange("f", 0, 1), None))
    monkeypatch.setattr(whole_read, "read_index", lambda *_: [strange])
    with pytest.raises(UnsupportedFeatureError, match="index files of type 'STRANGE'"):
        list(sort_out(whole.of, whole.listed, 2))


def test_files_of_an_unpartitioned_table_are_spread() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT")], options={"bucket": "-1"})
    for k in range(12):
        write_arrow(table, pa.table({"k": pa.array([k], pa.int32())}))
    found: Sequence[Layer] = layers_of(_whole(table), random.Random(13), 4)
    assert len(found) > 1 and max(len(splits[0].bucket.files) for _, splits in found) < 12
    assert rows_of(found) == rows_of(plan_table_read(table))


def test_a_bucket_of_an_unpartitioned_table_is_one_group() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT NOT NULL"), ("v", "INT")],
                         primary_keys=["k"], options={"bucket": "1"})  # fmt: skip
    for v in range(2):
        write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([v], pa.int32())}))
    stored = next(iter(live_entries(table, table.latest_snapshot()).values()))
    other = stored._replace(partition=stored.partition + bytes(8))  # holds no columns either
    draft = Draft(kind=CommitKind.OVERWRITE, entries=[stored.deleted(), other], schema=table.schema())
    commit(table, lambda _: draft)
    assert rows_of(plan_table_read(table)) == [(1, 1)]
    assert rows_of(layers_of(_whole(table), random.Random(15), 1000)) == [(1, 1)]
