"""What ``airflow_paimon.open_table_set`` returns: the tables of one version, whatever is published later."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon import create_table, open_table_set
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.conftest import require
from tests.core.tables import run

NAMES = ("sales.orders", "crm.people")


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    """Two tables with two rows each in version 1 of set ``nightly``, and two more since."""
    columns = [("id", "BIGINT NOT NULL"), ("v", "STRING")]
    made = [create_table(str(tmp_path), NAMES[0], columns, primary_keys=["id"], options={"bucket": "1"}),
            create_table(str(tmp_path), NAMES[1], columns)]  # fmt: skip
    for table in made:
        write_arrow(table, pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]}))
    run(made[0], "create_table_set", table_set="nightly", member=[NAMES[1]])
    for table in made:
        write_arrow(table, pa.table({"id": pa.array([2, 3], pa.int64()), "v": ["later"] * 2}))
    return made


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


def test_the_tables_stay_as_the_version_has_them(tables: list[Table], tmp_path: Path) -> None:
    found = open_table_set(str(tmp_path), "nightly")
    run(tables[0], "create_table_set", table_set="nightly", member=[NAMES[1]])
    assert (found.name, found.number, found.version) == ("nightly", 1, "set:nightly@1")
    assert [table.tag(found.tag).snapshot.id for table in tables] == [1, 1]
    assert (found.tables, list(found), len(found), found.created.tzinfo is not None) == (NAMES, list(NAMES), 2, True)
    assert [ids(found[name].to_arrow()) for name in NAMES] == [[1, 2], [1, 2]]
    newest = open_table_set(str(tmp_path), "nightly")
    assert [ids(newest.table(name).to_arrow()) for name in NAMES] == [[1, 2, 3], [1, 2, 2, 3]]
    for again in (1, "set:nightly@1"):
        assert open_table_set(str(tmp_path), "nightly", again) == found
    assert "crm.people at 1" in repr(found)
    assert [ids(read_arrow(table, found.version)) for table in tables] == [[1, 2], [1, 2]]


def test_reads_take_columns_conditions_and_limits(tables: list[Table], tmp_path: Path) -> None:
    one = open_table_set(str(tmp_path), "nightly")[NAMES[0]]
    assert one.snapshot_id == 1
    assert one.to_arrow(["v"], "id = 2").to_pylist() == [{"v": "b"}]
    assert one.to_batches(["id"], pc.field("id") > 1).read_all().to_pylist() == [{"id": 2}]
    assert (one.to_arrow(limit=1).num_rows, one.count(), one.count("id = 3"), len(one.head(1))) == (1, 2, 0, 1)
    assert one.table.latest_snapshot_id() == 2, "the table itself goes on"


def test_the_libraries_of_a_notebook(tables: list[Table], tmp_path: Path) -> None:
    one = open_table_set(str(tmp_path), "nightly")[NAMES[1]]
    for package in ("pandas", "polars", "duckdb"):
        require(find_spec(package), f"{package} is not installed: make venv")
    assert sorted(one.to_pandas()["v"]) == sorted(one.to_polars()["v"]) == ["a", "b"]
    assert one.to_duckdb().count("*").fetchall() == [(2,)]


def test_what_is_not_there_is_named(tables: list[Table], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no table d\.t \(it has crm\.people, sales\.orders\)"):
        open_table_set(str(tmp_path), "nightly").table("d.t")
    with pytest.raises(NotFoundError, match="its sets: nightly"):
        open_table_set(str(tmp_path), "weekly")
    for version in (True, "set:weekly@1", "7", 1.5):
        with pytest.raises(InvalidInputError, match="version"):
            open_table_set(str(tmp_path), "nightly", version)  # type: ignore[arg-type]
