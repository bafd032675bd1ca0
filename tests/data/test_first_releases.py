"""Tables whose schema files are those of Paimon 0.7 and 0.8, which say less than later ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import sql, write_table
from tests.core.tables import run
from tests.data.test_compact import run as run_compact
from tests.data.test_rescale import run as run_rescale
from tests.spark.jobs.operations import correct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [{"id": 0, "name": "a", "type": "INT NOT NULL"}, {"id": 1, "name": "p", "type": "STRING"}]


def old_table(
    warehouse: Path, version: int, *, partitioned: bool = False, keyed: bool = False, **options: str
) -> Table:
    folder = warehouse / "d.db" / "t" / "schema"
    folder.mkdir(parents=True)
    schema = {"version": version, "id": 0, "fields": COLUMNS, "highestFieldId": 1, "options": options, "timeMillis": 1,
              "partitionKeys": ["p"] if partitioned else [], "primaryKeys": ["a"] if keyed else []}  # fmt: skip
    (folder / "schema-0").write_text(json.dumps(schema))
    return open_table(str(warehouse), "d.t")


def rows(*numbers: int) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int32()), "p": ["x"] * len(numbers)})


def places(table: Table) -> set[tuple[int, int]]:
    head = table.latest_snapshot()
    assert head is not None
    return {(e.bucket, e.total_buckets) for e in live_entries(table, head).values()}


def numbers(table: Table) -> list[int]:
    found: list[int] = sorted(read_arrow(table).column("a").to_pylist())
    return found


@pytest.mark.parametrize("partitioned", [True, False])
def test_an_append_table_of_0_7_has_one_bucket(spark: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    table = old_table(tmp_path, 1, partitioned=partitioned)
    write_arrow(table, rows(1, 2))
    write_table(spark.createDataFrame([(3, "x"), (4, "x")], "a int, p string"), str(tmp_path), "d.t")
    assert sql(spark, str(tmp_path), "UPDATE d.t SET a = 10 WHERE a = 1")["details"]["rows_updated"] == 1
    assert numbers(table) == [2, 3, 4, 10] and places(table) == {(0, 1)}
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    correct(spark, tmp_path, "DELETE FROM branch WHERE a = 2")
    run(table, "merge_branch", branch="fix")
    assert run_compact(table, min_files=2).changed
    run(table, "alter_table", change=["add column extra STRING"])
    write_arrow(table, rows(5).append_column("extra", pa.array(["y"])))
    run(table, "expire_snapshots", retain_max=1)
    assert numbers(table) == [3, 4, 5, 10] and places(table) == {(0, 1)}
    with pytest.raises(UnsupportedFeatureError, match="copy the rows to a new table"):
        run_rescale(table, 2)


def test_a_table_of_0_8_has_dynamic_buckets(tmp_path: Path) -> None:
    table = old_table(tmp_path, 2, keyed=True)
    assert TableOptions(table.schema().options).bucket == -1
    write_arrow(table, rows(1, 2))
    write_arrow(table, rows(2, 3))
    assert numbers(table) == [1, 2, 3] and places(table) == {(0, -1)}
    assert (tmp_path / "d.db" / "t" / "index").is_dir()


@pytest.mark.parametrize(("version", "options"), [(2, {"bucket": "1"}), (3, {"bucket": "1"}), (1, {"bucket": "3"})])
def test_what_no_paimon_opens_is_not_written(tmp_path: Path, version: int, options: dict[str, Any]) -> None:
    table = old_table(tmp_path, version, **options)
    with pytest.raises(UnsupportedFeatureError, match=r"without bucket-key, .*; copy the rows to a new table"):
        write_arrow(table, rows(1))
