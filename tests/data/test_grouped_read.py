"""Reads that one process plans group by group: the rows of a plan of all files."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.predicate import Condition
from airflow_paimon.core.table.scan import data_file_path, plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import (
    count_rows,
    grouped_read,
    read_arrow,
    read_batches,
    system_tables,
    whole_read,
    write_arrow,
)
from airflow_paimon.data.arrow_read import pin_rows
from airflow_paimon.data.grouped_read import Group, grouped, plan_by_groups
from airflow_paimon.data.layers import plan_table_read
from airflow_paimon.data.system_tables import plan_system_table, read_system_table
from airflow_paimon.data.whole_read import WholeRead, plan_or_whole
from airflow_paimon.spark.datasource import PaimonReader
from tests.core.tables import alter_table
from tests.data.test_whole_read import KINDS, branch_of_columns, compacted, make_anew, parts_of, put, rows_of, used
from tests.randomness import chance, lives
from tests.stores import CountingStore


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(whole_read, "_AT_ONCE", 2)


def rows_in(found: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def groups_of(table: Table, **given: Any) -> Sequence[Group]:
    found = plan_or_whole(table, more_than=0)
    assert isinstance(found, WholeRead)
    return [group for branch in found.branches for group in grouped(branch, **given).groups]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("life", range(lives(1, 20)))
def test_the_same_rows(kind: str, life: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = chance(f"grouped {kind} {life}")
    monkeypatch.setattr(grouped_read, "_FILES", draw.choice([1, 3, 50]))
    monkeypatch.setattr(grouped_read, "_MEMORY_BYTES", draw.choice([0, 1000, 1 << 20]))
    table = used(kind, draw)
    ids = ["_ROW_ID", "k", "_SEQUENCE_NUMBER"] if kind in ("append", "data evolution") else ["v", "k"]
    asked: list[dict[str, Any]] = [
        {},
        {"columns": ids},
        {"version": "then"},
        {"where": pc.field("v") > draw.randint(0, 99), "columns": ["k", "v"]},
        {"where": (pc.field("dt") >= draw.choice(" ab")) & (pc.field("v") < draw.randint(0, 99))},
    ]
    for given in asked:
        expected = plan_table_read(table, **given)
        found = plan_by_groups(table, **given)
        assert found.read.output_schema == expected[0][0].output_schema
        assert parts_of(list(found.layers)) == parts_of(expected), given
        rows = rows_of(expected)
        assert rows_in(read_arrow(table, **given)) == rows
        about = {key: value for key, value in given.items() if key != "columns"}
        assert count_rows(table, **about) == len(rows)
        assert read_batches(table, **given, limit=3).read_all().num_rows == min(3, len(rows))
    groups = groups_of(table, files=1)
    # A hash of their names, which are random, divides files: few of them may be in one group.
    few = sum(group.files for group in groups) < 8
    assert len(groups) > 1 or few or kind in ("dynamic buckets", "hidden level 0")


def test_a_branch_that_is_made_anew_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "_FILES", 1)
    branch = branch_of_columns(f"memory://{uuid.uuid4()}/wh")
    expected = rows_in(read_arrow(branch))
    batches, planned = read_batches(branch), plan_by_groups(branch)
    reader = PaimonReader(branch, None, None, ["k", "a", "b", "c"], None, "empty", None)
    tasks = reader.partitions()
    make_anew(branch)
    assert rows_in(batches.read_all()) == rows_of(list(planned.layers)) == expected
    of_tasks = [row.values() for task in tasks for b in reader.read(task) for row in b.to_pylist()]
    assert sorted(map(tuple, of_tasks), key=repr) == expected


def test_a_schema_of_files_that_are_gone_may_be_missing() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", [("k", "INT")], options={"bucket": "-1"})
    for mode, column in (("append", "a"), ("overwrite", "b")):
        values = pa.array([0], pa.int32())
        write_arrow(table, pa.table(dict.fromkeys(table.schema().field_names, values)), mode=mode)
        alter_table(table, [AddColumn(name=column, type="INT")])
    table.store.delete(table.paths.schema(0))
    assert rows_in(read_arrow(table)) == [(0, 0, None)]


def test_large_files_make_small_groups() -> None:
    table = used("append", random.Random(1))
    sizes = [f.file_size for s in plan_scan(table).splits for f in s.files]
    assert len(groups_of(table)) == 1
    assert len(groups_of(table, most_bytes=1)) > 2
    assert len(groups_of(table, most_bytes=sum(sizes) * 2)) == 1


def test_few_buckets_make_large_groups() -> None:
    for kind, are_large in (("keyed", True), ("append", False)):
        table = used(kind, random.Random(8))
        for _ in range(30):
            put(table, random.Random(9), "z")
        groups = groups_of(table, files=10, most_bytes=1 << 40)
        assert any(group.is_large for group in groups) == are_large
        assert not any(group.is_large for group in groups_of(table, files=100, most_bytes=1 << 40))
        assert any(group.is_large for group in groups_of(table, files=1, most_bytes=1))


def test_no_schema_is_read_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "_FILES", 1)
    table = used("append", random.Random(10))
    assert len(groups_of(table, files=1)) > 3
    store = CountingStore(table.store)
    assert rows_in(read_arrow(Table(store, table.name))) == rows_of(plan_table_read(table))
    assert len([uri for _, uri in store.tally.log if uri.endswith("schema-0")]) == 1


def test_the_files_are_chosen_when_a_read_is_planned() -> None:
    table = used("keyed", random.Random(2))
    expected, batches, pinned = read_arrow(table), read_batches(table), pin_rows(table)
    put(table, random.Random(3))
    assert rows_in(batches.read_all()) == rows_in(pinned.batches().read_all()) == rows_in(expected)
    assert rows_in(read_arrow(table)) != rows_in(expected)


def test_a_pinned_state_of_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.data.layers.FEW_FILES", 0)
    table = used("keyed", random.Random(4))
    pinned, expected = pin_rows(table, version="then"), rows_in(read_arrow(table, version="then", columns=["v"]))
    put(table, random.Random(5))
    assert rows_in(pinned.batches(columns=["v"]).read_all()) == expected
    some = pinned.batches(columns=["v"], where=pc.field("v") < 50).read_all()
    assert rows_in(some) == [row for row in expected if row[0] < 50]


def test_what_is_wrong_with_a_file_is_said_when_its_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = used("append", random.Random(6))

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedFeatureError("not this file")

    batches = read_batches(table)
    split = plan_scan(table).splits[0]
    table.store.delete(data_file_path(table.schema(), split.values, split.bucket, split.files[0]))
    with pytest.raises(FormatError, match=split.files[0].file_name):
        batches.read_all()
    monkeypatch.setattr("airflow_paimon.data.scan.check_file", refuse)
    for ask in (read_arrow, count_rows):
        with pytest.raises(UnsupportedFeatureError, match="not this file"):
            ask(table)


def test_few_files_are_planned_at_once() -> None:
    table = used("append", random.Random(7))
    assert isinstance(plan_or_whole(table, more_than=1000), list)
    assert isinstance(plan_or_whole(table, predicate=Condition("v", ">", 10), more_than=1000), list)


@pytest.mark.parametrize("kind", ["keyed", "hidden level 0", "deletion vectors"])
def test_system_tables(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.data.layers.FEW_FILES", 0)
    draw = chance(f"system tables {kind}")
    table = used(kind, draw)
    compacted(table, 2)
    put(table, draw)
    asked: list[dict[str, Any]] = [
        {},
        {"version": "then", "columns": ["v"]},
        {"where": pc.field("v") > draw.randint(0, 99)},
    ]
    for name in ("audit_log", "ro"):
        for given in asked:
            monkeypatch.setattr(system_tables, "MANY_ENTRIES", 1 << 30)
            expected = read_system_table(table, name, **given)
            monkeypatch.setattr(system_tables, "MANY_ENTRIES", 0)
            assert isinstance(plan_system_table(table, name, **given, more_than=0), WholeRead)
            found = read_system_table(table, name, **given)
            assert found.schema == expected.schema
            assert rows_in(found) == rows_in(expected), (name, given)
    with pytest.raises(InvalidInputError, match="has no column 'x'"):
        read_system_table(table, "audit_log", columns=["x"])
