"""Pruning never loses a row, whatever the filter; and it does leave files out."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.schema_plan import WidenColumn
from airflow_paimon.core.table.predicate import (
    AllOf,
    AnyOf,
    Bounds,
    Condition,
    Operator,
    Predicate,
    columns_of,
    may_match,
    restrict,
)
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.pruning import row_group_bounds
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from tests.core.tables import alter_table
from tests.data.tables import make_table, rows_of
from tests.oracles.canonical import assert_same_rows
from tests.randomness import lives

UTC = dt.UTC
COLUMNS = {
    "p": "STRING",
    "k": "INT NOT NULL",
    "s": "STRING",
    "d": "DECIMAL(9, 2)",
    "day": "DATE",
    "t": "TIMESTAMP(6)",
    "l": "TIMESTAMP(3) WITH LOCAL TIME ZONE",
    "flag": "BOOLEAN",
    "f": "DOUBLE",
    "c": "TIME(3)",
    "b": "BYTES",
}


def row(i: int) -> dict[str, Any]:
    some = None if i % 11 == 5 else i
    return {
        "p": "ab"[i % 2] if i % 7 else None,
        "k": i,
        "s": None if some is None else "x" * 20 + f"{i:03d}",
        "d": None if some is None else Decimal(i) / 4,
        "day": None if some is None else dt.date(2025, 1, 1) + dt.timedelta(days=i),
        "t": dt.datetime(2025, 1, 1) + dt.timedelta(hours=i),
        "l": dt.datetime(2025, 1, 1, tzinfo=UTC) + dt.timedelta(hours=i),
        "flag": i % 3 == 0,
        "f": float("nan") if i % 13 == 7 else i / 2 if i % 5 else -0.0,
        "c": dt.time(i % 24, i % 60),
        "b": bytes([i % 256]) * 20,
    }


TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@st.composite
def conditions(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    field, value = pc.field(name), row(draw(st.integers(0, 60)))[name]
    kind = draw(st.sampled_from([*TESTS, "in", "null", "valid", "not in"]))
    if kind in ("null", "valid") or value is None:
        return field.is_null() if kind == "null" else field.is_valid()
    if kind in ("in", "not in"):
        found = field.isin([value, row(draw(st.integers(0, 60)))[name]])
        return found if kind == "in" else ~found
    return TESTS[kind](field, value)


EXPRESSIONS = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
        inner.map(operator.inv),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    made = {}
    for name, options in {
        "append": {"partition_keys": ["p"]},
        "plain": {},
        "keyed": {"primary_keys": ["k"], "bucket": "2"},
    }.items():
        table = make_table(tmp_path_factory.mktemp(name), COLUMNS, **options)  # type: ignore[arg-type]
        for start in range(0, 60, 10):
            write_arrow(table, rows_of(COLUMNS, [row(i) for i in range(start, start + 10)]))
        if name == "keyed":
            change = [row(i) | {"s": "new", "d": Decimal(0)} for i in range(3, 60, 9)]
            write_arrow(table, rows_of(COLUMNS, change))
            gone = rows_of(COLUMNS, [row(i) for i in range(0, 60, 17)])
            write_arrow(table, gone.append_column("_row_kind", pa.array(["-D"] * gone.num_rows)))
        made[name] = table
    return made


@pytest.fixture(scope="module")
def wholes(tables: dict[str, Table]) -> dict[str, pa.Table]:
    return {name: read_arrow(table) for name, table in tables.items()}


@pytest.mark.parametrize("name", ["append", "plain", "keyed"])
@settings(max_examples=lives(8, 100))
@given(where=EXPRESSIONS)
def test_a_filtered_read_is_the_filtered_whole(
    tables: dict[str, Table], wholes: dict[str, pa.Table], name: str, where: pc.Expression
) -> None:
    table, expected = tables[name], wholes[name].filter(where)
    assert_same_rows(read_arrow(table, where=where), expected)
    assert_same_rows(read_arrow(table, where=where, columns=["b"]), expected.select(["b"]))


def files_read(table: Table, where: pc.Expression | None = None, predicate: Predicate | None = None) -> int:
    _, splits = plan_read(plan_scan(table), where=where, predicate=predicate)
    return sum(len(s.files) for s in splits)


def test_files_are_left_out(tables: dict[str, Table]) -> None:
    assert files_read(tables["plain"]) == 6
    moment = dt.datetime(2025, 1, 1, 5)
    for where, predicate in [
        (pc.field("k") == 33, Condition("k", "=", 33)),
        (pc.field("s") == "x" * 20 + "033", Condition("s", "=", "x" * 20 + "033")),
        (pc.field("d") == Decimal("8.25"), Condition("d", "=", Decimal("8.25"))),
        (pc.field("day") < dt.date(2025, 1, 3), Condition("day", "<", dt.date(2025, 1, 3))),
        (pc.field("t") == moment, Condition("t", "=", moment)),
        (pc.field("l") == moment.replace(tzinfo=UTC), Condition("l", "=", moment.replace(tzinfo=UTC))),
        (pc.field("b").isin([bytes([9]) * 20]), Condition("b", "in", (bytes([9]) * 20,))),
        (pc.field("k").is_null(), Condition("k", "is null")),
    ]:
        expected = 6 if "x" * 20 in str(where) else 0 if "is_null" in str(where) else 1
        assert files_read(tables["plain"], where) == expected, where
        assert files_read(tables["plain"], None, predicate) == expected, predicate
    assert files_read(tables["append"], pc.field("p") == "a") == files_read(
        tables["append"], None, Condition("p", "=", "a")
    )
    assert 0 < files_read(tables["append"], pc.field("p") == "a") < files_read(tables["append"])
    assert files_read(tables["append"], pc.field("p").is_null()) < files_read(tables["append"])


def test_value_statistics_do_not_prune_what_is_merged(tmp_path: Path) -> None:
    """The file with the newer version does not match; leaving it out would bring the older one back."""
    columns = {"k": "INT NOT NULL", "v": "INT"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(columns, [{"k": k, "v": 1} for k in range(3)]))
    write_arrow(table, rows_of(columns, [{"k": 1, "v": 2}]))
    assert read_arrow(table, where=pc.field("v") == 1, columns=["k"]).to_pydict() == {"k": [0, 2]}
    assert files_read(table, pc.field("v") == 1) == 2
    assert files_read(table, pc.field("k") == 0) == 1  # keys do
    write_arrow(table, rows_of(columns, [{"k": 100, "v": 3}]))
    assert files_read(table, pc.field("v") == 9) == 2  # the third file meets no other


def test_row_groups_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.data.files.write.ROW_GROUP_ROWS", 100)
    columns = {"k": "INT NOT NULL", "v": "STRING"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(columns, [{"k": k, "v": f"{k:05d}"} for k in range(1000)]))
    for where in (pc.field("k") == 555, pc.field("v") == "00555"):
        read, splits = plan_read(plan_scan(table), where=where)
        batches = [b for s in splits for b in read_split(read, s)]
        assert [b.num_rows for b in batches] == [1]
    assert read_arrow(table, where=pc.field("v") == "00555").num_rows == 1


def test_a_column_named_as_the_path_of_a_nested_field_has_statistics_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_paimon.data.files.write.ROW_GROUP_ROWS", 2)
    nested = {"type": "ROW", "fields": [{"id": 0, "name": "x", "type": "INT"}]}
    columns = {"c.x": "INT", "c": nested, "d": nested, "d.x": "INT"}
    table = make_table(tmp_path, columns)
    write_arrow(table, rows_of(columns, [{"c.x": i, "d.x": i, "c": {"x": 99}, "d": {"x": 99}} for i in range(4)]))
    for name in ("c.x", "d.x"):
        assert read_arrow(table, columns=[name], where=pc.field(name) == 3).to_pylist() == [{name: 3}]


def test_statistics_of_an_altered_type_are_not_used(tmp_path: Path) -> None:
    columns = {"k": "INT NOT NULL", "v": "INT"}
    table = make_table(tmp_path, columns)
    write_arrow(table, rows_of(columns, [{"k": 1, "v": 5}]))
    alter_table(table, [WidenColumn(name="v", type="BIGINT")])
    assert read_arrow(table, where=pc.field("v") == 5).num_rows == 1
    assert files_read(table, pc.field("v") == 6) == 1
    assert files_read(table, pc.field("k") == 2) == 0


INT, TEXT = parse_type("INT"), parse_type("STRING")
VALUES = st.one_of(st.none(), st.integers(-3, 3))


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Predicate:
    if depth and draw(st.booleans()):
        parts = tuple(draw(st.lists(predicates(depth - 1), min_size=1, max_size=3)))
        return draw(st.sampled_from([AllOf, AnyOf]))(parts)
    op: Operator = draw(st.sampled_from([*TESTS, "in", "is null", "is not null"]))  # type: ignore[arg-type]
    value = tuple(draw(st.lists(VALUES, max_size=3))) if op == "in" else draw(VALUES)
    return Condition(draw(st.sampled_from(["a", "b"])), op, value)


def holds(predicate: Predicate, values: dict[str, int | None]) -> bool:
    if isinstance(predicate, AllOf):
        return all(holds(p, values) for p in predicate.parts)
    if isinstance(predicate, AnyOf):
        return any(holds(p, values) for p in predicate.parts)
    value = values[predicate.column]
    if predicate.op in ("is null", "is not null"):
        return (value is None) == (predicate.op == "is null")
    if value is None:
        return False
    if predicate.op == "in":
        return value in [v for v in predicate.value if v is not None]
    return predicate.value is not None and bool(TESTS[predicate.op](value, predicate.value))


def bounds(column: list[int | None], known: bool) -> Bounds:
    present = [v for v in column if v is not None]
    low, high = (min(present), max(present)) if present else (None, None)
    return Bounds(low, high, column.count(None) if known else None, len(column))


@settings(max_examples=lives(40, 600))
@given(predicates(), st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4), st.booleans())
def test_a_group_with_a_matching_row_is_never_pruned(
    predicate: Predicate, rows: list[tuple[int | None, int | None]], known: bool
) -> None:
    table = [{"a": a, "b": b} for a, b in rows]
    around = {"a": bounds([a for a, _ in rows], known), "b": bounds([b for _, b in rows], known)}
    types = {"a": INT, "b": INT}
    if any(holds(predicate, values) for values in table):
        assert may_match(predicate, around, types)
        assert may_match(predicate, {"a": around["a"]}, types)
        part = restrict(predicate, {"a"})
        assert part is None or may_match(part, around, types)
    part = restrict(predicate, {"a"})
    assert part is None or columns_of(part) <= {"a"}


@pytest.mark.parametrize(
    "condition, low, high, expected",
    [
        (Condition("a", "starts with", "ab"), "aa", "ac", True),
        (Condition("a", "starts with", "ad"), "aa", "ac", False),
        (Condition("a", "starts with", "a"), "abc", "abd", True),
        (Condition("a", "=", 5), "a", "b", True),  # a literal of another type: not ours to say
        (Condition("a", "=", None), "a", "b", False),
        (Condition("a", "in", (None,)), "a", "b", False),
        (Condition("a", "!=", "a"), "a", "a", False),
        (Condition("a", "!=", "a"), "a", "b", True),
    ],
)
def test_conditions_on_text(condition: Condition, low: str, high: str, expected: bool) -> None:
    assert may_match(condition, {"a": Bounds(low, high, 0, 2)}, {"a": TEXT}) is expected


def test_a_literal_that_arrow_shows_without_a_part_of_a_character(tmp_path: Path) -> None:
    table = make_table(tmp_path, {"k": "INT NOT NULL", "s": "STRING NOT NULL"}, primary_keys=["k", "s"], bucket="1")
    long = "a" + "é" * 49
    rows = pa.table({"k": pa.array([1, 2], pa.int32()), "s": [long, "b"]})
    write_arrow(table, rows)
    assert read_arrow(table, where=pc.field("s").isin([long])).to_pylist() == rows.to_pylist()[:1]


def test_floats_and_strange_literals_never_prune() -> None:
    double, stamp = parse_type("DOUBLE"), parse_type("TIMESTAMP(6)")
    assert may_match(Condition("a", ">", 5.0), {"a": Bounds(1.0, 2.0, 0, 2)}, {"a": double})  # NaN, in Spark
    known = {"a": Bounds(Timestamp(0), Timestamp(10), 0, 2)}
    aware = dt.datetime(2025, 1, 1, tzinfo=UTC)
    assert may_match(Condition("a", "=", aware), known, {"a": stamp})
    assert not may_match(Condition("a", "=", aware.replace(tzinfo=None)), known, {"a": stamp})
    assert may_match(Condition("zzz", "=", 1), known, {"a": stamp})


def test_values_that_python_does_not_have_bound_no_row_group(tmp_path: Path) -> None:
    """Text that is no UTF-8, and a date outside of the years 1 to 9999, of another engine."""
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"s": text, "day": pa.array([4_000_000], pa.int32()).cast(pa.date32())}), tmp_path / "file")
    columns = {name: (name, parse_type(COLUMNS[name])) for name in ("s", "day")}
    found = row_group_bounds(pq.ParquetFile(tmp_path / "file").metadata, 0, columns)
    assert found == dict.fromkeys(columns, Bounds(None, None, 0, 1))
