"""Manifests are skipped by their partition statistics, and never one that holds what is looked for."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.commit.files import (
    commit_append,
    commit_buckets,
    commit_overwrite,
    drop_if_unchanged,
    drop_partitions,
)
from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES, encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry, ManifestFile, Stats
from airflow_paimon.core.format.manifest_io import describe_manifest
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.partition_values import encode_partition
from airflow_paimon.core.table.partitions import StoredPartitions, both_of, either_of, partitions_where
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Predicate, exactly, may_match, restrict
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read_request import ReadRequest
from tests.core.tables import append, files, make_table, message, names, overwrite, rewrite
from tests.stores import CountingStore

DAYS = [f"2025-01-{day:02}" for day in range(1, 26)]


# -- what is read ------------------------------------------------------------------------------------------------------


def manifests_read(counting: CountingStore) -> int:
    """How many manifests (not lists) were read."""
    paths = [p for method, p in counting.tally.log if method in ("read", "read_many") for p in p.split(", ")]
    return sum("manifest/manifest-" in f"manifest/{p.rpartition('/')[2]}" and "manifest-list" not in p for p in paths)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = tmp_path_factory.mktemp("made") / "wh"
    table = make_table(warehouse)
    for day in DAYS:
        append(table, day)
    return warehouse


@pytest.fixture
def table(made: Path, tmp_path: Path) -> Table:
    """25 partitions, each in a manifest of its own."""
    shutil.copytree(made, tmp_path / "wh")
    return open_table(str(tmp_path / "wh"), "d.t")


def dynamic(view: Table) -> object:
    return commit_overwrite(view, [message(view, DAYS[7])], partitions="dynamic").snapshot


def dropped_as_held(view: Table) -> object:
    whole = plan_scan(Table(view.store.inner, view.name))  # type: ignore[attr-defined]
    held = next(h for h in partition_contents(whole) if h.text.endswith(DAYS[7]))
    return drop_if_unchanged(view, {held.key: held.digest}).snapshot


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda view: overwrite(view, DAYS[7]).snapshot, 25),
        (dynamic, 25),
        (lambda view: drop_partitions(view, [{"dt": DAYS[7]}]).snapshot, 24),
        (dropped_as_held, 24),
    ],
    ids=["overwrite", "dynamic overwrite", "drop", "drop as held"],
)
def test_a_commit_on_one_partition_reads_the_manifests_of_that_partition(
    table: Table, change: Callable[[Table], object], left: int
) -> None:
    counting = CountingStore(table.store)
    assert change(Table(counting, table.name))
    assert manifests_read(counting) == 1
    assert len(names(table)) == left


def test_rewritten_buckets_read_the_manifests_of_their_partitions(table: Table) -> None:
    new = message(table, DAYS[7], level=5)
    now = [e.file for e in live_entries(table, table.latest_snapshot()).values() if e.partition == new.partition]
    counting = CountingStore(table.store)
    commit_buckets(Table(counting, table.name), [type(new)(
        partition=new.partition, bucket=0, total_buckets=2, new_files=new.new_files, replaced=tuple(now)
    )])  # fmt: skip
    assert manifests_read(counting) == 1
    assert len(names(table)) == 25


def test_the_conflict_check_of_an_append_reads_its_own_partitions_at_once(table: Table) -> None:
    planned = table.snapshot(3)
    counting = CountingStore(table.store)
    with pytest.raises(ConflictError, match="sequence numbers"):
        commit_append(Table(counting, table.name), [message(table, DAYS[20])], planned_on=planned)
    assert manifests_read(counting) == 1
    assert counting.tally.calls["read_many"] == 3  # the snapshots since, their delta lists, one manifest
    assert commit_append(table, [message(table, "new")], planned_on=planned).changed


def test_a_read_of_one_partition_reads_its_manifests(table: Table) -> None:
    counting = CountingStore(table.store)
    wanted = StoredPartitions(table.schema()).selection([{"dt": DAYS[7]}, {"dt": DAYS[9]}])
    plan = plan_scan(Table(counting, table.name), selection=wanted)
    assert sorted(s.values for s in plan.splits) == [(DAYS[7],), (DAYS[9],)]
    assert manifests_read(counting) == 2


def test_selected_files_are_the_live_files_of_the_partitions_whatever_was_deleted_where(tmp_path: Path) -> None:
    """A manifest that is read may delete files of other partitions, which were added in manifests that are skipped."""
    table = make_table(tmp_path / "wh", manifest__merge_min_count="4")
    chance = random.Random(8)
    for number in range(40):
        days = chance.sample(DAYS[:6], chance.randint(1, 3))
        match chance.randrange(4):
            case 0:
                commit_overwrite(table, [message(table, d, seq=number) for d in days], partitions="dynamic")
            case 1:
                drop_partitions(table, [{"dt": d} for d in days])
            case 2:
                rewrite(table, days[0], seq=number)
            case _:
                append(table, days[0], seq=number)
        live, head, stored = files(table), table.latest_snapshot(), StoredPartitions(table.schema())
        for day in DAYS[:6]:
            chosen = stored.selection([{"dt": day}])
            found = {e.file.file_name for e in live_entries(table, head, chosen).values()}
            assert found == {n for (p, _), group in live.items() if stored.values(p) == (day,) for n in group}


# -- what statistics say -----------------------------------------------------------------------------------------------

TYPES = ("STRING", "INT", "BOOLEAN", "DOUBLE", "DATE", "DECIMAL(20,2)", "TIMESTAMP(6)", "BIGINT")
VALUES: tuple[st.SearchStrategy[Any], ...] = (
    st.sampled_from(["", "a", "ab", "b", "\uffff", "\U0001f600", "zz"]),
    st.integers(-3, 3),
    st.booleans(),
    st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    st.sampled_from([date(1, 1, 1), date(1969, 12, 31), date(2025, 1, 1)]),
    st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("12345678901234567.89")]),
    st.sampled_from([Timestamp(-1, 999_000), Timestamp(0, 0), Timestamp(0, 1000), Timestamp(5, 0)]),
    st.integers(-(2**63), 2**63 - 1),
)
ROWS = st.tuples(*(st.none() | v for v in VALUES))


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> TableSchema:
    columns = [("k", "INT"), *((f"p{i}", t) for i, t in enumerate(TYPES))]
    keys = [f"p{i}" for i in range(len(TYPES))]
    options = {"bucket": "-1"}
    return create_table(
        str(tmp_path_factory.mktemp("wh")), "d.t", columns, partition_keys=keys, options=options
    ).schema()


def manifest_of(schema: TableSchema, rows: list[tuple[Any, ...]]) -> ManifestFile:
    types = StoredPartitions(schema).types
    file = DataFile("f", 1, 1, b"", b"", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0)
    return describe_manifest("m", 1, [ManifestEntry(0, encode_partition(r, types), 0, -1, file) for r in rows], types)


@given(data=st.data(), rows=st.lists(ROWS, min_size=1, max_size=4))
def test_no_manifest_with_a_selected_partition_is_skipped(
    schema: TableSchema, data: st.DataObject, rows: list[tuple[Any, ...]]
) -> None:
    stored = StoredPartitions(schema)
    manifest = manifest_of(schema, rows)
    wanted = data.draw(st.lists(ROWS | st.sampled_from(rows), min_size=1, max_size=3))
    exact = stored.those(encode_partition(r, stored.types) for r in wanted)
    columns = data.draw(st.sets(st.sampled_from(schema.partition_keys), min_size=1))
    partial = stored.selection({k: r[schema.partition_keys.index(k)] for k in columns} for r in wanted)
    for selection in (exact, partial):
        if any(selection(encode_partition(r, stored.types)) for r in rows):
            assert selection.may_be_in(manifest)


def conditions(row: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[Predicate]:
    """Conditions on the columns of ``schema``; some compare with a value of another type."""

    def compared(at: int, op: Any, values: list[Any]) -> Condition:
        name = "k" if at == len(TYPES) else f"p{at}"
        return Condition(name, op, tuple(values) if op == "in" else values[0])

    columns = st.integers(0, len(TYPES))
    operators = st.sampled_from(["=", "in", "!=", "<", "<=", ">", ">=", "is null", "is not null"])
    own = st.builds(lambda at, op, rows: compared(at, op, [r[at % len(TYPES)] for r in rows]), columns, operators,
                    st.lists(row, min_size=1, max_size=3))  # fmt: skip
    strange = st.builds(lambda at, op, v: compared(at, op, [v]), columns, operators, st.sampled_from(["a", 1, 1.5]))
    inner = st.one_of(own, own, strange)

    def parts(kind: Any) -> st.SearchStrategy[Predicate]:
        return st.lists(inner, min_size=1, max_size=3).map(lambda found: kind(tuple(found)))

    return st.one_of(inner, parts(AllOf), st.lists(parts(AnyOf), min_size=1, max_size=2).map(lambda p: AllOf(tuple(p))))


@given(data=st.data(), rows=st.lists(ROWS, min_size=1, max_size=4))
def test_a_condition_selects_the_partitions_whose_rows_may_meet_it(
    schema: TableSchema, data: st.DataObject, rows: list[tuple[Any, ...]]
) -> None:
    predicate = data.draw(conditions(ROWS | st.sampled_from(rows)))
    selection = partitions_where(predicate, schema)
    known = restrict(predicate, set(schema.partition_keys))
    assert (selection is None) == (known is None)
    if selection is None:
        return
    types = {f.name: f.type for f in schema.partition_fields}
    meets = [may_match(known, dict(zip(schema.partition_keys, map(exactly, r), strict=True)), types) for r in rows]
    assert [selection(encode_partition(r, StoredPartitions(schema).types)) for r in rows] == meets
    assert selection.may_be_in(manifest_of(schema, rows)) or not any(meets)


def test_a_condition_excludes_manifests_by_bounds_that_may_be_cut_off(schema: TableSchema) -> None:
    row = ("day-0500", 1, True, 1.5, date(2025, 1, 1), Decimal("0.00"), Timestamp(0, 0), 7)
    manifest = manifest_of(schema, [row])
    cut = manifest._replace(partition_stats=manifest.partition_stats._replace(
        max_values=encode_row(("day-05", *row[1:]), StoredPartitions(schema).types)))  # fmt: skip
    for held in (manifest, cut):
        for op, value in (("=", "day-0500"), (">=", "day-0500"), ("in", ("x", "day-0500")), ("<", "day-06")):
            assert partitions_where(Condition("p0", op, value), schema).may_be_in(held)  # type: ignore[arg-type, union-attr]
        for op, value in (("=", "day-04"), ("<", "day-04"), (">", "day-06"), ("in", ("x", "y"))):
            assert not partitions_where(Condition("p0", op, value), schema).may_be_in(held)  # type: ignore[arg-type, union-attr]
    day, other = (partitions_where(Condition("p0", "=", v), schema) for v in ("day-0500", "x"))
    assert day is not None and other is not None
    assert either_of(day, other).may_be_in(manifest) and not both_of(day, other).may_be_in(manifest)


def test_a_read_with_a_condition_on_partition_columns_reads_their_manifests(table: Table) -> None:
    counting = CountingStore(table.store)
    view, day = Table(counting, table.name), Condition("dt", "=", DAYS[7])
    ((_, splits),) = plan_rows(view, ReadRequest(predicate=AllOf((day, Condition("v", "=", "x"))))).layers
    assert [s.bucket.values for s in splits] == [(DAYS[7],)]
    assert manifests_read(counting) == 1
    ((_, splits),) = plan_rows(view, ReadRequest(where=(pc.field("dt") >= DAYS[23]) & (pc.field("k") == 1))).layers
    assert sorted(s.bucket.values for s in splits) == [(DAYS[23],), (DAYS[24],)]
    assert manifests_read(counting) == 1 + 2
    plan_rows(view, ReadRequest(where=pc.field("v") == "x"))
    assert manifests_read(counting) == 1 + 2 + len(DAYS)


def chosen_by(schema: TableSchema, **values: Any) -> Any:
    return StoredPartitions(schema).selection([values])


def test_bounds_and_null_counts_exclude(schema: TableSchema) -> None:
    row = ("b", 1, True, 1.5, date(2025, 1, 1), Decimal("0.00"), Timestamp(0, 0), 7)
    manifest = manifest_of(schema, [row, ("d", 3, *row[2:])])
    for inside in ({"p0": "b"}, {"p0": "c"}, {"p1": 2}, {"p2": True}, {"p7": 7}):
        assert chosen_by(schema, **inside).may_be_in(manifest), inside
    for outside in ({"p0": "a"}, {"p0": "e"}, {"p1": 4}, {"p2": False}, {"p4": date(2025, 1, 2)}, {"p0": None},
                    {"p0": "b", "p1": 0}, {"p6": Timestamp(0, 1000)}):  # fmt: skip
        assert not chosen_by(schema, **outside).may_be_in(manifest), outside
    assert not StoredPartitions(schema).those([]).may_be_in(manifest)


def test_doubtful_statistics_exclude_nothing(schema: TableSchema) -> None:
    types = StoredPartitions(schema).types
    row = ("b", 1, True, 1.5, date(2025, 1, 1), Decimal("0.00"), Timestamp(0, 0), 7)
    manifest = manifest_of(schema, [row])
    assert chosen_by(schema, p3=99.0).may_be_in(manifest), "engines order floats differently"
    low, high, zeros = encode_row(row, types), encode_row(row, types), (0,) * len(types)
    for stats, wanted in (
        (Stats(EMPTY_ROW_BYTES, EMPTY_ROW_BYTES, ()), {"p0": "z"}),  # not collected
        (Stats(b"", b"", None), {"p0": "z"}),
        (Stats(low, high, None), {"p0": None}),  # nobody counted nulls
        (Stats(low, high, ()), {"p0": None}),
        (Stats(low, high, (None, *zeros[1:])), {"p0": None}),
        (Stats(encode_row((None, *row[1:]), types), high, zeros), {"p0": "a"}),  # half known
        (Stats(low, encode_row((None, *row[1:]), types), zeros), {"p0": "z"}),
        (Stats(low, high, zeros), {"p0": "bcd"}),  # an upper bound that was cut off and not rounded up
    ):
        assert chosen_by(schema, **wanted).may_be_in(manifest._replace(partition_stats=stats)), (stats, wanted)
    assert not chosen_by(schema, p0=None).may_be_in(manifest._replace(partition_stats=Stats(low, high, zeros)))


def test_stored_forms_of_one_partition_are_one(schema: TableSchema) -> None:
    stored = StoredPartitions(schema)
    nan = encode_row((None, None, None, math.nan, *[None] * 4), stored.types)
    other = nan.replace(bytes.fromhex("000000000000f87f"), bytes.fromhex("010000000000f87f"))
    assert other != nan
    assert stored.canonical(other) == stored.canonical(nan)
    assert stored.canonical(other) == stored.canonical(nan)
    minus, plus = (encode_row((None, None, None, z, *[None] * 4), stored.types) for z in (-0.0, 0.0))
    assert stored.canonical(minus) != stored.canonical(plus)
    assert stored.those([minus])(minus)
    assert not stored.those([minus])(plus)
    assert stored.those([minus, plus])(minus) and stored.those([minus, plus])(plus)
