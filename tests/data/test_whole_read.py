"""Reads that tasks plan: the same parts and rows as of one plan, whatever the tasks and their order."""

from __future__ import annotations

import pickle
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.committer import Draft, commit
from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import (
    EMPTY_STATS,
    DeletionVectorRange,
    EntryColumns,
    FileKind,
    IndexEntry,
    ManifestEntry,
    ManifestFile,
)
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.schema_plan import AddColumn, WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.predicate import AllOf, Condition, Predicate
from airflow_paimon.core.table.scan import all_manifests, data_file_path, live_entries, plan_scan, without_statistics
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import row_id_groups, whole_read, write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.layers import Layer, pin_layers, plan_pinned, plan_table_read
from airflow_paimon.data.local import compact
from airflow_paimon.data.read import read_split
from airflow_paimon.data.row_id_groups import divide_row_ids
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
    "data evolution": {"bucket": "-1", "row-tracking.enabled": "true", "deletion-vectors.enabled": "true"},
    "fallback branch": {"bucket": "-1"},
    "primary branch": KEYED,
}
NO_KEYS = ("append", "append in buckets", "deletion vectors", "data evolution", "fallback branch")
OTHERS = {"fallback branch": "scan.fallback-branch", "primary branch": "scan.primary-branch"}
"""The options of tables that are read together with another branch."""


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


def put_columns(table: Table, draw: random.Random) -> None:
    """A file with new values of ``v`` for the rows of one that is there, as an UPDATE with data evolution adds it."""
    set_options(table, {"data-evolution.enabled": "true"})  # with which we write no rows
    held = [(s, f) for s in plan_scan(table).splits for f in s.files if f.write_cols is None]
    split, file = draw.choice(held)
    buffer = pa.BufferOutputStream()
    values = [draw.randint(100, 199) for _ in range(file.row_count)]
    pq.write_table(pa.table({"v": pa.array(values, arrow_schema([table.schema().field("v")]).field(0).type)}), buffer)
    new = file._replace(file_name=f"data-{uuid.uuid4()}-0.parquet", file_size=buffer.tell(), write_cols=("v",),
                        value_stats=EMPTY_STATS, value_stats_cols=(), schema_id=table.schema().id,
                        max_sequence_number=file.max_sequence_number + draw.randint(1, 9))  # fmt: skip
    table.store.create(data_file_path(table.schema(), split.values, split.bucket, new), buffer.getvalue().to_pybytes())
    entry = ManifestEntry(FileKind.ADD, split.partition, split.bucket, split.total_buckets, new)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=table.schema()))
    set_options(table, {"data-evolution.enabled": "false"})


def change(view: Table, kind: str, draw: random.Random) -> None:
    """A commit of some kind."""
    act = draw.random()
    if act < 0.2 and kind != "data evolution":
        compacted(view, draw.randint(2, 3))
    elif act < 0.35:
        put(view, draw, draw.choice("abc"), mode="dynamic_overwrite")
    else:
        put(view, draw, draw.choice(["abc", "cd"]))
    if kind == "data evolution":
        put_columns(view, draw)


def used(kind: str, draw: random.Random, warehouse: str | None = None) -> Table:
    """A table with files of several levels, files that are gone, and several manifests."""
    table = make(kind, warehouse)
    if kind in ("deletion vectors", "data evolution"):
        for day in "xy":
            put(table, draw, day)
            mark_deleted(table, (day,), [0])
    views = [table]
    if kind in OTHERS:
        put(table, draw, "ab")
        run(table, "create_branch", branch="other")
        views.append(table.branch("other"))
    for _ in range(5):
        change(draw.choice(views), kind, draw)
    run(table, "create_tag", tag="then")
    put(draw.choice(views), draw)
    for view in views:
        alter_table(view, [WidenColumn(name="v", type="BIGINT")])
    put(draw.choice(views), draw)
    if kind == "data evolution":
        put_columns(table, draw)
        set_options(table, {"data-evolution.enabled": "true"})
    if kind in OTHERS:
        set_options(table, {OTHERS[kind]: "other"})
    return table


def branch_of_columns(warehouse: str) -> Table:
    """A branch each of whose files has a schema of its own."""
    table = create_table(warehouse, "d.t", [("k", "INT")], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": pa.array([0], pa.int32())}))
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="b", tag="t")
    branch = table.branch("b")
    for column in "abc":
        alter_table(branch, [AddColumn(name=column, type="INT")])
        write_arrow(branch, pa.table(dict.fromkeys(branch.schema().field_names, pa.array([1], pa.int32()))))
    return branch


def make_anew(branch: Table) -> None:
    """Give the ids of schemas and columns of ``branch_of_columns`` to others."""
    main = branch.branch("main")
    run(main, "delete_branch", branch="b")
    run(main, "create_branch", branch="b", tag="t")
    for column in "xyz":
        alter_table(branch, [AddColumn(name=column, type="INT")])


def planned_of(whole: WholeRead, draw: random.Random, groups: int) -> list[Layer]:
    """What tasks would plan of all branches."""
    return [layer for branch in whole.branches for layer in layers_of(branch, draw, groups)]


def layers_of(whole: WholeRead, draw: random.Random, groups: int) -> list[Layer]:
    """What tasks would plan of one branch, whose pieces are as random as their order."""
    whole = pickle.loads(pickle.dumps(whole))
    found: list[Sorted] = []
    listed = draw.sample(whole.listed, len(whole.listed))
    while listed:
        size = draw.randint(1, 3)
        found += sort_out(whole, sorted(listed[:size]), groups)
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
    ids = ["_ROW_ID", "k", "_SEQUENCE_NUMBER"] if kind in ("append", "data evolution") else ["v", "k"]
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
        found = planned_of(whole, draw, draw.choice([1, 3, 50]))
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
        entries = [e for one in sort_out(whole, whole.listed, 1) for e in unpacked(one.data)[0]]
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


def test_files_of_the_same_rows_are_one_group() -> None:
    table = make("data evolution")
    for day in "abcabc":
        put(table, random.Random(8), day)
    for n in range(6):
        put_columns(table, random.Random(n))
    set_options(table, {"data-evolution.enabled": "true"})
    whole = _whole(table)
    parts = list(sort_out(whole, whole.listed, 6))
    entries = [(one.group, e.file.first_row_id) for one in parts for e in unpacked(one.data)[0]]
    assert len({first for _, first in entries}) == len(set(entries)) == 6 < len(entries)
    assert len({group for group, _ in entries}) > 3


def test_ranges_of_row_ids_that_overlap_in_part() -> None:
    table = make("append")
    for n in range(6):
        put(table, random.Random(n), "a")
    split = plan_scan(table).splits[0]
    wrong = split.files[2]._replace(file_name="data-wrong-0.parquet", row_count=split.files[2].row_count + 1)
    entry = ManifestEntry(FileKind.ADD, split.partition, split.bucket, split.total_buckets, wrong)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=table.schema()))
    set_options(table, {"data-evolution.enabled": "true"})
    for plan in (lambda: plan_table_read(table), lambda: layers_of(_whole(table), random.Random(0), 6)):
        with pytest.raises(FormatError, match=r"the row ids of .* overlap other files in part"):
            plan()


EMPTY = EntryColumns._make([] for _ in EntryColumns._fields)


def test_row_ids_are_divided_evenly_and_no_file_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(21)
    for most in (5, 1000):
        monkeypatch.setattr(row_id_groups, "_MOST", most)
        ranges: list[tuple[int | None, int]] = [(None, 3)]
        first = 0
        for _ in range(200):
            count = draw.choice([1, 1, 1, 5000])
            ranges += [(first, count)] * draw.randint(1, 3)
            first += count
        ranges.append((2000, 20_000))
        draw.shuffle(ranges)
        parts = [
            EMPTY._replace(
                kinds=[FileKind.ADD] * len(some), file_names=[f"f{first}" for first, _ in some],
                row_counts=[count for _, count in some], first_row_ids=[first for first, _ in some],
            )
            for some in (ranges[at : at + 50] for at in range(0, len(ranges), 50))
        ]  # fmt: skip
        known = [(f, f + c) for f, c in ranges if f is not None]
        found = divide_row_ids(parts, {f"f{known[0][0]}", "f-1"})
        assert found.marked == {f"f{known[0][0]}": known[0][0]}
        assert not [start for start in found.starts for low, end in known if low < start < end]
        groups = Counter(found.group(low, 5) for low, _ in known)
        assert sorted(groups) == [*range(5)] and max(groups.values()) < len(known) / 2
    assert divide_row_ids([], ()).group(7, 3) == 0


def test_a_branch_without_a_snapshot() -> None:
    table = make("append")
    table.branch("other").store.create(table.branch("other").paths.schema(0), table.store.read(table.paths.schema(0)))
    put(table.branch("other"), random.Random(1))
    for branch, view in (("other", table), ("main", table.branch("other"))):
        set_options(view, {"scan.fallback-branch": branch})
        whole = _whole(view)
        found = planned_of(whole, random.Random(2), 2)
        assert rows_of(found) == rows_of(plan_table_read(view)) != []
        assert [one.files > 0 for one in whole.branches] == [view.branch_name == "other", view.branch_name != "other"]


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
    parts = list(sort_out(whole, whole.listed, 1))
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
        list(sort_out(whole, whole.listed, 2))


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


@pytest.mark.parametrize("few_files", [0, 1000])
@pytest.mark.parametrize("kind", OTHERS)
def test_entries_of_hidden_partitions_that_contradict_each_other(
    kind: str, few_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no matter to a read, however it is planned; those of partitions that it shows are."""
    monkeypatch.setattr("airflow_paimon.data.layers.FEW_FILES", few_files)
    table = make(kind)
    run(table, "create_branch", branch="other")
    first, second = (table, table.branch("other")) if kind == "fallback branch" else (table.branch("other"), table)
    put(first, random.Random(1), "a")
    for day in "ab":
        put(second, random.Random(2), day)
    set_options(table, {OTHERS[kind]: "other"})
    held = {partition: e for e in live_entries(second, second.latest_snapshot()).values()
            for partition in StoredPartitions(second.schema()).values(e.partition)}  # fmt: skip

    def plans() -> list[list[Layer]]:
        whole = plan_or_whole(table)
        assert isinstance(whole, WholeRead)
        some = {"predicate": Condition("k", ">=", 0)}
        pinned = pin_layers(table)
        found = [
            plan_table_read(table),
            plan_table_read(table, **some),
            plan_pinned(pinned),
            plan_pinned(pinned, **some),
        ]
        return [*found, planned_of(whole, chance(kind), 3)]

    def add_again(day: str) -> None:
        commit(second, lambda _: Draft(kind=CommitKind.APPEND, entries=[held[day]], schema=second.schema()))

    expected = rows_of(plan_table_read(table))
    add_again("a")
    assert [rows_of(found) for found in plans()] == [expected] * 5
    add_again("b")
    whole = plan_or_whole(table)
    assert isinstance(whole, WholeRead)
    for plan in (plan_table_read, lambda table: plan_pinned(pin_layers(table)),
                 lambda _: planned_of(whole, chance(kind), 3)):  # fmt: skip
        with pytest.raises(FormatError, match="twice"):
            plan(table)
