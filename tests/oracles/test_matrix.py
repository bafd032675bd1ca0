"""Types and features against pypaimon (O1), pypaimon-rust (O2) and the Spark connector 0.9.0 (O4), both ways: they read
what we wrote, we read what they wrote, row for row. The same with Paimon's Java engine (O3) is tests/data/test_java.py.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RenameColumn, WidenColumn
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import alter_table, run
from tests.data.tables import arrow_schema_of, make_table, rows_of
from tests.oracles.interop import kv
from tests.oracles.matrix import (
    EVERYTHING,
    NOT_FILTERED,
    NOT_MADE,
    NOT_READ,
    NOT_WRITTEN,
    Columns,
    Engine,
)
from tests.oracles.matrix_cases import (
    COMPARED_COLUMNS,
    a_row,
    engine,
    keys_of,
    latest,
    name,
    ours,
    probes,
    same,
    warehouse,
    with_values,
    without,
)
from tests.randomness import every

__all__ = ["engine", "name", "warehouse"]

pytestmark = [pytest.mark.oracle, pytest.mark.every(3)]

LAYOUTS: dict[str, dict[str, Any]] = {
    "append": {},
    "fixed-bucket": {"bucket": "3", "bucket_key": "k"},
    "primary-key": {"keys": ["k"], "bucket": "2"},
    "orc": {"file__format": "orc"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_types_in_a_table_of_ours(engine: Engine, name: str, layout: str) -> None:
    """We write, they read; they write on top of it, we read."""
    columns = without(EVERYTHING, NOT_READ[engine.name])
    options = dict(LAYOUTS[layout])
    keys, file_format = options.pop("keys", []), options.get("file__format", "parquet")
    make_table(engine.warehouse, columns, name=name, primary_keys=keys, **options)
    first = rows_of(columns, [a_row(i, engine, file_format) for i in range(22)])
    write_arrow(ours(engine, name), first)
    same(engine, name, first)
    if file_format in NOT_WRITTEN[engine.name]:
        return
    rows = [a_row(i, engine, file_format, they_write=True) | {"text": "theirs"} for i in range(0, 30, 3)]
    changed = rows_of(columns, rows)
    engine.write(name, changed)
    both = latest(first, changed) if keys else pa.concat_tables([first, changed])
    same(engine, name, both)


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["append", "primary-key"])
def test_all_types_in_a_table_of_theirs(engine: Engine, name: str, keys: list[str]) -> None:
    """They make it and write, we read; we write on top of it, they read."""
    columns = without(EVERYTHING, NOT_MADE[engine.name])
    engine.create(name, columns, keys, **({"bucket": "2"} if keys else {}))
    assert ours(engine, name).schema().field_names == tuple(columns)
    first = rows_of(columns, [a_row(i, engine, they_write=True) for i in range(22)])
    engine.write(name, first)
    same(engine, name, first)
    changed = rows_of(columns, [a_row(i, engine) | {"text": "ours"} for i in range(0, 30, 3)])
    write_arrow(ours(engine, name), changed)
    both = latest(first, changed) if keys else pa.concat_tables([first, changed])
    same(engine, name, both)


PARTITION_VALUES: dict[str, list[Any]] = {
    "STRING": ["a", "", " ", "a/b=%: é", "2025-01-01", "#?*\"<>|{}[]\\^'", None],
    "INT": [-1, 0, 2**31 - 1, None],
    "BOOLEAN": [True, False, None],
    "DATE": [dt.date(1969, 12, 31), dt.date(2025, 2, 28), None],
    "DECIMAL(9, 2)": [Decimal("1.50"), Decimal("-0.01"), None],
    "DECIMAL(30, 3)": [Decimal("10000000000000000000000.125"), None],
    "DOUBLE": [1.5, -0.001, 1e10, None],
    "TIMESTAMP(3)": [dt.datetime(2025, 1, 2, 3, 4), dt.datetime(2025, 1, 2, 3, 4, 5, 120000), None],
    "TIMESTAMP(6)": [dt.datetime(2025, 1, 2, 3, 4, 5, 123456), None],
}


# The connector takes two seconds for each table, so its kinds are columns of one.
PARTITIONINGS = [
    *[("o1", (kind,), legacy) for kind in PARTITION_VALUES for legacy in ("true", "false")],
    *[("o2", (kind,), legacy) for kind in PARTITION_VALUES if kind != "DOUBLE" for legacy in ("true", "false")],
    ("o4", tuple(PARTITION_VALUES), "true"),
]


def case_id(value: object) -> str:
    return str(value) if isinstance(value, str) else value[0] if len(value) == 1 else "every-kind"  # type: ignore


@pytest.mark.parametrize(("engine", "kinds", "legacy"), every(3, PARTITIONINGS), indirect=["engine"], ids=case_id)
def test_partition_values(engine: Engine, name: str, kinds: tuple[str, ...], legacy: str) -> None:
    """Values of each type as partitions of a table of ours: read and appended to by them, overwritten by us."""
    names = [f"p{at}" for at in range(len(kinds))]
    columns = {**dict(zip(names, kinds, strict=True)), "k": "INT", "v": "STRING"}
    make_table(engine.warehouse, columns, name=name, partition_keys=names, partition__legacy_name=legacy)
    values = list(zip_longest(*(PARTITION_VALUES[kind] for kind in kinds)))

    def rows(v: str) -> pa.Table:
        return rows_of(columns, [{**dict(zip(names, p, strict=True)), "k": i, "v": v} for i, p in enumerate(values)])

    write_arrow(ours(engine, name), rows("ours"))
    same(engine, name, rows("ours"))
    engine.write(name, rows("theirs"))
    same(engine, name, pa.concat_tables([rows("ours"), rows("theirs")]))
    # They found our folders, but for blank strings: those share null's folder, so their rows make no new one either.
    shown = {tuple(None if str(one).strip() == "" else one for one in value) for value in values}
    assert len(partition_folders(engine, name)) == len(shown)
    write_arrow(ours(engine, name), rows("again"), mode="dynamic_overwrite")
    same(engine, name, rows("again"))


def partition_folders(engine: Engine, name: str) -> set[Path]:
    database, table = name.split(".")
    files = (engine.warehouse / f"{database}.db" / table).rglob("*.parquet")
    return {file.parent.parent for file in files}


EVOLVING: Columns = {"k": "INT NOT NULL", "a": "TINYINT", "b": "VARCHAR(3)", "c": "FLOAT", "d": "STRING"}
EVOLVED: Columns = {"k": "INT NOT NULL", "n": "INT", "a": "BIGINT", "c": "DOUBLE", "words": "STRING", "b": "DATE"}


EVOLVED_ROWS: list[dict[str, Any]] = [
    {"k": 1, "a": -128, "c": 0.5, "words": "one"},
    {"k": 2, "a": 2**40, "c": 1e300, "words": "two", "n": 22, "b": dt.date(2025, 8, 14)},
]


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["append", "primary-key"])
def test_a_schema_that_we_evolved(engine: Engine, name: str, keys: list[str]) -> None:
    table = make_table(engine.warehouse, EVOLVING, name=name, primary_keys=keys, **({"bucket": "1"} if keys else {}))
    first = rows_of(EVOLVING, [{"k": 1, "a": -128, "b": "old", "c": 0.5, "d": "one"}])
    write_arrow(table, first)
    alter_table(table, [DropColumn(name="b"), RenameColumn(name="d", to_name="words")])
    alter_table(table, [AddColumn(name="n", type="INT", after="k"), AddColumn(name="b", type="DATE")])
    alter_table(table, [WidenColumn(name="a", type="BIGINT"), WidenColumn(name="c", type="DOUBLE")])
    assert table.schema().field_names == tuple(EVOLVED)
    same(engine, name, rows_of(EVOLVED, EVOLVED_ROWS[:1]))
    engine.write(name, rows_of(EVOLVED, EVOLVED_ROWS[1:]))
    same(engine, name, rows_of(EVOLVED, EVOLVED_ROWS))
    same(engine, name, first, snapshot=1)


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["append", "primary-key"])
def test_a_schema_that_they_evolved(engine: Engine, name: str, keys: list[str]) -> None:
    engine.create(name, EVOLVING, keys, **({"bucket": "1"} if keys else {}))
    engine.write(name, rows_of(EVOLVING, [{"k": 1, "a": -128, "b": "old", "c": 0.5, "d": "one"}]))
    engine.evolve(name)
    same(engine, name, rows_of(EVOLVED, EVOLVED_ROWS[:1]))
    write_arrow(ours(engine, name), rows_of(EVOLVED, EVOLVED_ROWS[1:]))
    same(engine, name, rows_of(EVOLVED, EVOLVED_ROWS))


PARTS: Columns = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}


def parts(text: str) -> pa.Table:
    return rows_of(PARTS, kv(text))


def with_parts(engine: Engine, name: str, keys: list[str]) -> Table:
    options = {"bucket": "1"} if keys else {}
    return make_table(engine.warehouse, PARTS, name=name, primary_keys=keys, partition_keys=["p"], **options)


BOTH_KINDS = pytest.mark.parametrize("keys", [[], ["p", "k"]], ids=["append", "primary-key"])


@BOTH_KINDS
def test_tags_branches_and_publishes_of_ours(engine: Engine, name: str, keys: list[str]) -> None:
    table = with_parts(engine, name, keys)
    write_arrow(table, parts("x1=a x2=b y1=c"))
    run(table, "create_tag", tag="base")
    write_arrow(table, parts("z1=d"))
    run(table, "create_branch", branch="fix", tag="base")
    same(engine, name, parts("x1=a x2=b y1=c"), tag="base")
    same(engine, name, parts("x1=a x2=b y1=c"), snapshot=1)
    same(engine, name, parts("x1=a x2=b y1=c z1=d"))
    same(engine, name, parts("x1=a x2=b y1=c"), branch="fix")
    write_arrow(table.branch("fix"), parts("x1=A x2=b"), mode="overwrite", partition={"p": "x"})
    engine.write(name, parts("y2=theirs"), branch="fix")
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs"), branch="fix")
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs z1=d"))
    engine.write(name, parts("z2=late"))
    undo = run(table, "fast_forward", branch="fix", writers_stopped=True, discard_main=True).details["undo_tag"]
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs"))
    engine.write(name, parts("z3=later"))
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs z3=later"))
    run(table, "rollback_to", tag=undo)
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs z1=d z2=late"))
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs z1=d z2=late"), tag=undo)
    assert run(table, "check_table").details["ok"]


@BOTH_KINDS
@pytest.mark.parametrize("engine", ["o1", "o4"], indirect=True)
def test_tags_and_branches_of_theirs(engine: Engine, name: str, keys: list[str]) -> None:
    """O2 makes none: see test_what_the_rust_engine_can_not_do."""
    options = {"bucket": "1"} if keys else {}
    engine.create(name, PARTS, keys, ["p"], **options)
    engine.write(name, parts("x1=a x2=b y1=c"))
    engine.branch(name, tag="base", branch="fix")
    engine.write(name, parts("z1=d"))
    engine.write(name, parts("y2=theirs"), branch="fix")
    write_arrow(ours(engine, name, "fix"), parts("x1=A x2=b"), mode="overwrite", partition={"p": "x"})
    same(engine, name, parts("x1=a x2=b y1=c"), tag="base")
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs"), branch="fix")
    run(ours(engine, name), "merge_branch", branch="fix", writers_stopped=True)
    same(engine, name, parts("x1=A x2=b y1=c y2=theirs z1=d"))


@BOTH_KINDS
def test_overwrites(engine: Engine, name: str, keys: list[str]) -> None:
    table = with_parts(engine, name, keys)
    write_arrow(table, parts("x1=a x2=b y1=c"))
    engine.overwrite(name, parts("x7=theirs"), {"p": "x"})
    same(engine, name, parts("x7=theirs y1=c"))
    write_arrow(table, parts("y9=ours"), mode="overwrite", partition={"p": "y"})
    same(engine, name, parts("x7=theirs y9=ours"))
    write_arrow(table, parts("x8=ours z1=ours"), mode="dynamic_overwrite")
    same(engine, name, parts("x8=ours y9=ours z1=ours"))
    write_arrow(table, parts("q1=alone"), mode="overwrite")
    same(engine, name, parts("q1=alone"))


def test_deletes_and_sequence_fields(engine: Engine, name: str) -> None:
    columns = {"k": "INT NOT NULL", "seq": "INT", "v": "STRING"}
    make_table(engine.warehouse, columns, name=name, primary_keys=["k"], bucket="2", **{"sequence.field": "seq"})

    def rows(*given: tuple[int, int | None, str]) -> pa.Table:
        return rows_of(columns, [dict(zip(columns, row, strict=True)) for row in given])

    write_arrow(ours(engine, name), rows((1, 5, "a"), (2, 5, "b"), (3, 5, "c"), (4, None, "d")))
    engine.write(name, rows((1, 4, "too old"), (2, 6, "newer"), (4, 1, "known")))
    same(engine, name, rows((1, 5, "a"), (2, 6, "newer"), (3, 5, "c"), (4, 1, "known")))
    gone = rows((3, 6, "c"), (2, 1, "too old"))
    write_arrow(ours(engine, name), gone.append_column("_row_kind", pa.array(["-D", "-D"])))
    same(engine, name, rows((1, 5, "a"), (2, 6, "newer"), (4, 1, "known")))
    engine.write(name, rows((3, 7, "back")))
    same(engine, name, rows((1, 5, "a"), (2, 6, "newer"), (3, 7, "back"), (4, 1, "known")))


def test_statistics_of_ours_hide_no_row_from_their_filters(engine: Engine, name: str) -> None:
    rows = with_values(engine, name, lambda part: write_arrow(ours(engine, name), part))
    given = probes(rows, NOT_FILTERED[engine.name])
    assert engine.keys_where(name, given) == keys_of(rows, given)


def test_statistics_of_theirs_hide_no_row_from_our_filters(engine: Engine, name: str) -> None:
    rows = with_values(engine, name, lambda part: engine.write(name, part))
    given = probes(rows, {})
    found = {}
    for column, (_, value) in given.items():
        where = pc.field(column) == pa.scalar(value, arrow_schema_of(COMPARED_COLUMNS).field(column).type)
        found[column] = sorted(read_arrow(ours(engine, name), columns=["k"], where=where).column("k").to_pylist())
    assert found == keys_of(rows, given)
