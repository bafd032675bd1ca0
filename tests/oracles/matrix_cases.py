"""Rows, tables and comparisons that the interoperability matrix is made of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from tests.data.tables import any_row, make_table, rows_of
from tests.oracles.canonical import assert_same_rows
from tests.oracles.matrix import SCALARS, Columns, Connector, Engine, Probes, Pypaimon, Rust

ENGINES = {
    "o1": ("pypaimon_oracle", Pypaimon),
    "o2": ("rust_oracle", Rust),
    "o4": ("connector_oracle", Connector),
}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests of an engine: the connector keeps a catalog for each warehouse."""
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, warehouse: Path) -> Engine:
    oracle, kind = ENGINES[request.param]
    return kind(request.getfixturevalue(oracle), warehouse)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A table of the test's own."""
    return "d." + "".join(c if c.isalnum() else "_" for c in request.node.name)


def ours(engine: Engine, name: str, branch: str = "main") -> Table:
    return open_table(str(engine.warehouse), name, branch=branch)


def same(engine: Engine, name: str, expected: pa.Table, branch: str | None = None, **version: Any) -> None:
    """Both of us read these rows."""
    assert_same_rows(engine.read(name, branch=branch, **version), expected)
    at = version.get("tag") or version.get("snapshot")
    assert_same_rows(read_arrow(ours(engine, name, branch or "main"), version=at), expected)


def without(columns: Columns, lacking: dict[str, str]) -> Columns:
    return {name: type_ for name, type_ in columns.items() if name not in lacking}


def a_row(i: int, engine: Engine, file_format: str = "parquet", *, they_write: bool = False) -> dict[str, Any]:
    """A row of every type. Timestamps of the years 1 and 9999 are in it where the way there can carry them: Arrow reads
    ORC in nanoseconds, and Spark refuses to take early ones out of the Parquet file in which we hand them over."""
    row = any_row(i)
    if "t6" in row and (file_format == "orc" or (they_write and engine.name == "Spark connector")):
        row["t6"] = dt.datetime(1960, 1, 1, 1, 1, 1, i)
    return row


def latest(*tables: pa.Table) -> pa.Table:
    """The rows with the last one of each key ``k``."""
    rows = pa.concat_tables(tables)
    last = {key: at for at, key in enumerate(rows.column("k").to_pylist())}
    return rows.take(pa.array(last.values(), pa.int64()))


# Not compared with a literal: floats (no equal NaN), CHAR (engines differ in padding), binaries and the nested ones.
COMPARED = [name for name in SCALARS if name not in ("k", "f32", "f64", "fixed", "three", "bytes")]
COMPARED_COLUMNS: Columns = {name: SCALARS[name] for name in ("k", *COMPARED)}


def with_values(engine: Engine, name: str, write: Callable[[pa.Table], object]) -> list[dict[str, Any]]:
    """A table of two files with COMPARED; its rows."""
    make_table(engine.warehouse, COMPARED_COLUMNS, name=name)
    rows = [a_row(i, engine, they_write=True) for i in range(24)]
    rows = [{column: row.get(column) for column in COMPARED_COLUMNS} for row in rows]
    for at in (0, 12):
        write(rows_of(COMPARED_COLUMNS, rows[at : at + 12]))
    return rows


def probes(rows: list[dict[str, Any]], lacking: Mapping[str, str]) -> Probes:
    """For each column a value of the second file."""
    found = {name: next(row[name] for row in rows[12:] if row[name] is not None) for name in COMPARED}
    return {name: (SCALARS[name], value) for name, value in found.items() if name not in lacking}


def keys_of(rows: list[dict[str, Any]], given: Probes) -> dict[str, list[int]]:
    return {c: sorted(row["k"] for row in rows if row[c] == value) for c, (_, value) in given.items()}
