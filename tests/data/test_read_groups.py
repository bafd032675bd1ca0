"""Reads that are planned group by group: the rows of a plan of all files at once, whatever the groups."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import (
    EMPTY_STATS,
    DeletionVectorRange,
    FileKind,
    IndexEntry,
    ManifestEntry,
    ManifestFile,
)
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries, without_statistics
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.predicate import AllOf, Condition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import planner, read_groups, read_system_table, row_history, write_arrow
from airflow_paimon.data.fallback_branches import choose_branches
from airflow_paimon.data.planner import pin, plan_branches, plan_rows
from airflow_paimon.data.read_groups import IN_PROCESS, GroupSizes, ReadPlan
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.spark.datasource import PaimonReader
from airflow_paimon.spark.shares import read_share, task_shares
from tests.core.tables import alter_table, run
from tests.data.chain.tables import set_options
from tests.data.used_tables import (
    KINDS,
    OTHERS,
    branch_of_columns,
    compacted,
    make,
    make_anew,
    parts_of,
    put,
    put_columns,
    rows_of,
    used,
)
from tests.randomness import chance, lives
from tests.stores import CountingStore

EACH = GroupSizes(entries=0, files=1)
"""Each file, or bucket, is a group if it can be."""


def drawn(draw: random.Random) -> GroupSizes:
    return GroupSizes(entries=0, files=draw.choice([1, 3, 50]), memory_bytes=draw.choice([0, 1000, 1 << 20]))


def rows_in(found: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def in_groups(table: Table, sizes: GroupSizes = EACH, **asked: Any) -> ReadPlan:
    found = plan_rows(table, ReadRequest(**asked), sizes)
    assert found.is_large
    return found


def at_once(table: Table, **asked: Any) -> ReadPlan:
    found = plan_rows(table, ReadRequest(**asked))
    assert not found.is_large
    return found


def shared_rows(plan: ReadPlan) -> list[str]:
    """The rows that tasks read."""
    return sorted(repr(row) for s in task_shares(plan) for batch in read_share(s) for row in batch.to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("life", range(lives(1, 20)))
def test_the_same_rows(kind: str, life: int) -> None:
    draw = chance(f"grouped {kind} {life}")
    table = used(kind, draw)
    ids = ["_ROW_ID", "k", "_SEQUENCE_NUMBER"] if kind in ("append", "data evolution") else ["v", "k"]
    asked: list[dict[str, Any]] = [
        {},
        {"columns": ids},
        {"version": "then"},
        {"predicate": Condition("v", ">", draw.randint(0, 99)), "columns": ["k", "v"]},
        {"where": pc.field("v") > draw.randint(0, 99), "columns": ["k", "v"]},
        {"where": (pc.field("dt") >= draw.choice(" ab")) & (pc.field("v") < draw.randint(0, 99))},
    ]
    for given in asked:
        expected = at_once(table, **given)
        found = plan_rows(table, ReadRequest(**given), drawn(draw))
        assert found.is_large or "dt" in repr(given)
        assert found.read.output_schema == expected.read.output_schema
        layers = [layer for group in found.groups for layer in group.layers]
        assert parts_of(layers) == parts_of(expected.layers), given
        assert rows_of(layers) == rows_of(expected.layers), given
        if set(given.get("columns", ())) <= {"k", "v"}:  # row ids have no type in Spark's form of a task
            tasks = plan_rows(table, ReadRequest(**given), drawn(draw))
            assert shared_rows(tasks) == shared_rows(at_once(table, **given)), given
    files = sum(len(s.files) for s in plan_scan(table).splits)
    groups = [group for group in in_groups(table).groups if any(splits for _, splits in group.layers)]
    # A hash of their names, which are random, divides files: few of them may be in one group.
    assert len(groups) > 1 or files < 8 or kind in ("dynamic buckets", "hidden level 0")


@pytest.mark.parametrize("kind", ["keyed", "hidden level 0", "deletion vectors", "fallback branch"])
def test_system_tables(kind: str) -> None:
    draw = chance(f"system tables {kind}")
    table = used(kind, draw)
    if kind != "fallback branch":
        compacted(table, 2)
    put(table, draw)
    asked: list[dict[str, Any]] = [
        {},
        {"version": "then", "columns": ["v"]},
        {"where": pc.field("v") > draw.randint(0, 99)},
    ]
    for system, given in product(("audit_log", "ro"), asked):
        expected = read_system_table(table, system, **given)
        found = in_groups(table, drawn(draw), system=system, **given)
        assert found.read.output_schema == expected.schema
        assert rows_of(layer for group in found.groups for layer in group.layers) == rows_in(expected), (system, given)
    with pytest.raises(InvalidInputError, match="has no column 'x'"):
        in_groups(table, system="audit_log", columns=["x"])


def test_few_files_are_planned_at_once() -> None:
    table = used("keyed", random.Random(9))
    entries = sum(m.num_added_files + m.num_deleted_files for m in all_manifests(table, table.snapshot(5)))
    for most, is_large in ((entries, False), (entries - 1, True)):
        assert plan_rows(table, ReadRequest(version=5), GroupSizes(entries=most)).is_large == is_large
    assert not plan_rows(make("keyed"), sizes=EACH).is_large  # without a snapshot


def test_what_a_condition_selects_may_be_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("append in buckets")
    for day in "abc":
        for _ in range(2):
            put(table, random.Random(7), day)

    def days(predicate: Any) -> list[str] | None:
        """Of which days files are sorted; None: one plan of all."""
        found = plan_rows(table, ReadRequest(predicate=predicate), EACH)
        layers = [layer for group in found.groups for layer in group.layers]
        assert parts_of(layers) == parts_of(at_once(table, predicate=predicate).layers)
        return sorted({s.bucket.values[0] for _, splits in layers for s in splits}) if found.is_large else None

    assert days(Condition("dt", ">=", "b")) == ["b", "c"]
    assert days(Condition("dt", "=", "b")) == ["b"]
    assert days(Condition("dt", "=", "d")) is None
    assert days(AllOf((Condition("dt", ">=", "b"), Condition("k", "=", 1)))) is None  # some buckets
    first, *_, last = all_manifests(table, table.snapshot(table.latest_snapshot_id() or 0))
    bounds = first.partition_stats._replace(max_values=last.partition_stats.max_values)
    wide = ManifestFile("m", 1, 5, 0, bounds, 0)
    monkeypatch.setattr(planner, "manifests_of", lambda _: [wide])  # has other days, too
    assert days(Condition("dt", "=", "b")) is None


def test_a_pinned_state() -> None:
    table = used("keyed", random.Random(4))
    expected = rows_of(at_once(table, version="then", columns=["v"]).layers)
    pinned = pin(table, version="then")
    put(table, random.Random(5))
    for sizes in (IN_PROCESS, EACH):
        found = plan_branches(pinned, ReadRequest(columns=["v"]), sizes)
        assert found.is_large == (sizes is EACH)
        assert rows_of(layer for group in found.groups for layer in group.layers) == expected


def test_entries_without_statistics() -> None:
    table = used("append", random.Random(14))
    entries = list(live_entries(table, table.latest_snapshot()).values())
    slim = live_entries(table, table.latest_snapshot(), statistics=False)
    assert [e.file.value_stats for e in slim.values()] == [EMPTY_STATS] * len(entries)
    for entry in entries:
        assert entry.file.value_stats != EMPTY_STATS
        file = entry.file._replace(key_stats=EMPTY_STATS, value_stats=EMPTY_STATS, value_stats_cols=None)
        assert slim[entry.identifier] == without_statistics(entry) == entry._replace(file=file)


def test_files_of_the_same_rows_are_one_group() -> None:
    table = make("data evolution")
    for day in "abcabc":
        put(table, random.Random(8), day)
    for n in range(6):
        put_columns(table, random.Random(n))
    set_options(table, {"data-evolution.enabled": "true"})
    found = in_groups(table, GroupSizes(entries=0, files=2))
    firsts = [{f.first_row_id for _, splits in g.layers for s in splits for f in s.files} for g in found.groups]
    assert sum(map(len, firsts)) == len(set().union(*firsts)) == 6
    assert len(firsts) > 1


def test_ranges_of_row_ids_that_overlap_in_part() -> None:
    table = make("append")
    for n in range(6):
        put(table, random.Random(n), "a")
    split = plan_scan(table).splits[0]
    wrong = split.files[2]._replace(file_name="data-wrong-0.parquet", row_count=split.files[2].row_count + 1)
    entry = ManifestEntry(FileKind.ADD, split.partition, split.bucket, split.total_buckets, wrong)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=table.schema()))
    set_options(table, {"data-evolution.enabled": "true"})
    for sizes in (IN_PROCESS, EACH):
        with pytest.raises(FormatError, match=r"the row ids of .* overlap other files in part"):
            list(plan_rows(table, sizes=sizes).groups)


def test_a_branch_without_a_snapshot() -> None:
    table = make("append")
    table.branch("other").store.create(table.branch("other").paths.schema(0), table.store.read(table.paths.schema(0)))
    put(table.branch("other"), random.Random(1))
    for branch, view in (("other", table), ("main", table.branch("other"))):
        set_options(view, {"scan.fallback-branch": branch})
        assert rows_of(in_groups(view).layers) == rows_of(at_once(view).layers) != []


def test_a_branch_that_is_made_anew_while_it_is_read() -> None:
    branch = branch_of_columns(f"memory://{uuid.uuid4()}/wh")
    expected = rows_of(at_once(branch).layers)
    here, tasks = in_groups(branch), list(task_shares(in_groups(branch)))
    make_anew(branch)
    assert rows_of(here.layers) == expected
    of_tasks = [tuple(row.values()) for share in tasks for b in read_share(share) for row in b.to_pylist()]
    assert sorted(of_tasks, key=repr) == expected


def test_a_schema_of_files_that_are_gone_may_be_missing() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT")], options={"bucket": "-1"})
    for mode, column in (("append", "a"), ("overwrite", "b")):
        values = pa.array([0], pa.int32())
        write_arrow(table, pa.table(dict.fromkeys(table.schema().field_names, values)), mode=mode)
        alter_table(table, [AddColumn(name=column, type="INT")])
    table.store.delete(table.paths.schema(0))
    assert rows_of(in_groups(table).layers) == [(0, 0, None)]


def test_no_schema_and_no_manifest_is_read_for_each_group() -> None:
    table = used("append", random.Random(10))
    store = CountingStore(table.store)
    found = in_groups(Table(store, table.name))
    assert len([uri for _, uri in store.tally.log if uri.endswith("schema-0")]) == 1
    before = len(store.tally.log)
    assert len(list(found.groups)) > 3
    assert len(store.tally.log) == before
    names = [m.file_name for m in all_manifests(table, table.snapshot(table.latest_snapshot_id() or 0))]
    assert all(sum(name in uri for _, uri in store.tally.log) == 1 for name in names)


def test_what_is_wrong_with_a_file_is_said_when_its_group_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    table = used("append", random.Random(6))

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedFeatureError("not this file")

    found = in_groups(table)
    monkeypatch.setattr("airflow_paimon.data.read_splits.check_file", refuse)
    with pytest.raises(UnsupportedFeatureError, match="not this file"):
        next(iter(found.groups))


def test_a_manifest_that_is_missing() -> None:
    table = used("keyed", random.Random(10))
    last = all_manifests(table, table.snapshot(table.latest_snapshot_id() or 0))[-1].file_name
    table.store.delete(manifest_path(last))
    with pytest.raises(FormatError, match=f"manifest {last} of a live snapshot is missing"):
        in_groups(table)


@pytest.mark.parametrize("says", ["is added twice", "which it never added"])
def test_a_file_that_was_never_added_or_is_added_twice(says: str) -> None:
    table = make("append")
    put(table, random.Random(11))
    one = next(iter(live_entries(table, table.latest_snapshot()).values()))
    unknown = one._replace(file=one.file._replace(file_name="data-x.parquet")).deleted()
    draft = Draft(kind=CommitKind.OVERWRITE, entries=[one if "twice" in says else unknown], schema=table.schema())
    commit(table, lambda _: draft)
    found = in_groups(table)
    with pytest.raises(FormatError, match=says):
        list(found.groups)


def test_an_index_that_is_not_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("append")
    put(table, random.Random(12))
    strange = IndexEntry(0, b"", 0, "STRANGE", "index", 1, 1, (DeletionVectorRange("f", 0, 1), None))
    monkeypatch.setattr(read_groups, "read_index_entries", lambda *_: [strange])
    with pytest.raises(UnsupportedFeatureError, match="index files of type 'STRANGE'"):
        in_groups(table)


def test_files_of_an_unpartitioned_table_are_spread() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT")], options={"bucket": "-1"})
    for k in range(12):
        write_arrow(table, pa.table({"k": pa.array([k], pa.int32())}))
    found = in_groups(table, GroupSizes(entries=0, files=3)).layers
    assert len(found) > 1 and max(len(splits[0].bucket.files) for _, splits in found) < 12
    assert rows_of(found) == rows_of(at_once(table).layers)


def test_a_bucket_of_an_unpartitioned_table_is_one_group() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT NOT NULL"), ("v", "INT")],
                         primary_keys=["k"], options={"bucket": "1"})  # fmt: skip
    for v in range(2):
        write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([v], pa.int32())}))
    stored = next(iter(live_entries(table, table.latest_snapshot()).values()))
    other = stored._replace(partition=stored.partition + bytes(8))  # holds no columns either
    draft = Draft(kind=CommitKind.OVERWRITE, entries=[stored.deleted(), other], schema=table.schema())
    commit(table, lambda _: draft)
    assert rows_of(in_groups(table).layers) == rows_of(at_once(table).layers) == [(1, 1)]


@pytest.mark.parametrize("kind", OTHERS)
def test_entries_of_hidden_partitions_that_contradict_each_other(kind: str) -> None:
    """They are no matter to a read, however it is planned; those of partitions that it shows are."""
    table = make(kind)
    run(table, "create_branch", branch="other")
    first, second = (table, table.branch("other")) if kind == "fallback branch" else (table.branch("other"), table)
    put(first, random.Random(1), "a")
    for day in "ab":
        put(second, random.Random(2), day)
    set_options(table, {OTHERS[kind]: "other"})
    held = {partition: e for e in live_entries(second, second.latest_snapshot()).values()
            for partition in StoredPartitions(second.schema()).values(e.partition)}  # fmt: skip

    def plans() -> list[list[Any]]:
        asked = (ReadRequest(), ReadRequest(predicate=Condition("k", ">=", 0)))
        each = product((pin(table), choose_branches(table)), asked, (IN_PROCESS, EACH))
        return [plan_branches(*one).layers for one in each]

    def add_again(day: str) -> None:
        commit(second, lambda _: Draft(kind=CommitKind.APPEND, entries=[held[day]], schema=second.schema()))

    expected = rows_of(at_once(table).layers)
    add_again("a")
    assert [rows_of(found) for found in plans()] == [expected] * 8
    add_again("b")
    for plan in (plan_rows, lambda t: plan_branches(pin(t), ReadRequest()), lambda t: in_groups(t).layers):
        with pytest.raises(FormatError, match="twice"):
            plan(table)


def test_the_history_of_a_row_among_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = used("append", random.Random(7))
    k = rows_of(at_once(table).layers)[0][1]

    def history() -> list[Any]:
        return [replace(found, rows=sorted(found.rows, key=repr)) for found in row_history(table, {"k": k})]

    expected = history()
    monkeypatch.setattr("airflow_paimon.data.row_versions.plan_rows", lambda t, asked: plan_rows(t, asked, EACH))
    assert history() == expected != []


@pytest.mark.parametrize("kind", ["keyed", "append"])
def test_what_a_filter_leaves_is_divided_as_a_small_read(kind: str) -> None:
    table = make(kind)
    for k in range(40):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))

    def tasks(v: int, sizes: GroupSizes) -> int:
        return len(list(task_shares(plan_rows(table, ReadRequest(predicate=Condition("v", ">=", v)), sizes))))

    for v in (20, 0):
        assert tasks(v, EACH) == tasks(v, IN_PROCESS)
        assert kind == "keyed" or tasks(v, EACH) > 5


def test_tasks_of_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tasks are known before all groups are planned."""
    monkeypatch.setattr("airflow_paimon.spark.shares.TASK_BYTES", 10_000)
    table = make("append")
    for k in range(200):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))
    plan = in_groups(table, GroupSizes(entries=0, files=10))
    taken = Counter[str]()
    counted = (taken.update(["group"]) or group for group in plan.groups)
    shares = task_shares(replace(plan, groups=counted))
    rows = list(read_share(next(shares)))
    assert rows and 0 < taken["group"] < 20
    rows += [batch for share in shares for batch in read_share(share)]
    assert sorted(k for batch in rows for k in batch.column(1).to_pylist()) == [*range(200)]


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_data_source(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = chance(f"data source {kind}")
    table = used(kind, draw)

    def read(where: str | None, columns: list[str], sizes: GroupSizes, system: str | None = None) -> list[str]:
        monkeypatch.setattr(
            "airflow_paimon.spark.datasource.plan_rows", lambda table, asked: plan_rows(table, asked, sizes)
        )
        reader = PaimonReader(table, ReadRequest(columns=columns, system=system), where)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return sorted(repr(row) for b in batches for row in b.to_pylist())

    for where in (None, f"v > {draw.randint(0, 99)}", f"dt >= 'b' AND k < {draw.randint(5, 20)}", "k < 0"):
        columns = draw.sample(["dt", "k", "v"], draw.randint(1, 3))
        assert read(where, columns, drawn(draw)) == read(where, columns, IN_PROCESS), where
    for system in ("audit_log", "ro"):
        assert read(None, ["v"], drawn(draw), system) == read(None, ["v"], IN_PROCESS, system)
