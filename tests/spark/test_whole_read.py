"""Reads that Spark's tasks plan, also those of the data source: the rows of ``read_arrow``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.table.scan import data_file_path, plan_scan
from airflow_paimon.data import grouped_read, layers, read_arrow, whole_read, write_arrow
from airflow_paimon.data.system_tables import read_system_table
from airflow_paimon.spark import datasource, read_table, shares, sql
from airflow_paimon.spark import whole_read as in_tasks
from airflow_paimon.spark.datasource import PaimonReader
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.tasks import OPEN_COST_BYTES
from tests.data.test_whole_read import KINDS, NO_KEYS, make, put, used
from tests.randomness import chance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_same_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(in_tasks, "FILES_A_TASK", 4)
    monkeypatch.setattr(layers, "FEW_FILES", 0)
    for kind in ("keyed", "deletion vectors"):
        warehouse = str(tmp_path / kind.replace(" ", "_"))
        table = used(kind, chance(f"spark {kind}"), warehouse)
        expected = read_arrow(table)
        found = read_table(spark, warehouse, "d.t", columns=["dt", "v"], where="v > 40 AND k >= 0")
        high = [(r["dt"], r["v"]) for r in expected.to_pylist() if r["v"] > 40]
        assert sorted(map(tuple, found.collect())) == sorted(high)
        audit = read_system_table(table, "audit_log", columns=["rowkind", "v"]).to_pylist()
        rows = read_table(spark, warehouse, "d.t$audit_log", columns=["rowkind", "v"]).collect()
        assert sorted(map(tuple, rows)) == sorted((r["rowkind"], r["v"]) for r in audit)
    [row] = sql(spark, warehouse, "SELECT count(*), sum(v) FROM d.t WHERE v > 40").collect()
    assert tuple(row) == (len(high), sum(v for _, v in high) or None)


def test_each_group_has_its_task(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(in_tasks, "FILES_A_TASK", 1)
    table = make("append", str(tmp_path))
    for _ in range(12):
        put(table, chance("tasks"), "a")
    splits = plan_scan(table).splits
    files = sum(len(s.files) for s in splits)
    frame = read_table(spark, str(tmp_path), "d.t")
    tasks = frame.groupBy(sf.spark_partition_id()).count().count()
    assert 2 < tasks <= files == 12  # so many of 12 by chance, but for one time in 10^7
    with pytest.raises(InvalidInputError, match="no column 'x'"):
        read_table(spark, str(tmp_path), "d.t", columns=["x"])
    table.store.delete(data_file_path(table.schema(), splits[0].values, splits[0].bucket, splits[0].files[0]))
    with pytest.raises(FormatError, match=splits[0].files[0].file_name), task_errors():
        frame.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_the_data_source_plan_their_files(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource, "FILES_A_TASK", 2)
    monkeypatch.setattr(shares, "TASK_BYTES", 2 * OPEN_COST_BYTES + 1)
    draw = chance(f"data source {kind}")
    table = used(kind, draw)

    monkeypatch.setattr(layers, "FEW_FILES", 0)

    def read(where: str | None, columns: list[str], many: int = 0, system: str | None = None) -> tuple[int, list[str]]:
        monkeypatch.setattr(grouped_read, "MANY_ENTRIES", many)
        reader = PaimonReader(table, None, None, columns, where, "empty", None, system)
        tasks = reader.partitions()
        batches = [batch for task in tasks for batch in reader.read(task)]
        return len(tasks), sorted(repr(row) for b in batches for row in b.to_pylist())

    filters = [f"v > {draw.randint(0, 99)}", f"dt >= 'b' AND k < {draw.randint(5, 20)}", "k < 0"]
    for where in (None, *filters):
        columns = draw.sample(["dt", "k", "v"], draw.randint(1, 3))
        assert read(where, columns)[1] == read(where, columns, many=1 << 30)[1], where
    for system in ("audit_log", "ro"):
        assert read(None, ["v"], system=system)[1] == read(None, ["v"], many=1 << 30, system=system)[1]
    if kind in NO_KEYS:
        tasks, rows = read(None, ["k"])
        assert tasks > 1 and rows
        assert read("k < 0", ["v"]) == (1, [])  # a task without files


def test_the_files_of_one_bucket_are_divided_among_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_read, "MANY_ENTRIES", 0)
    monkeypatch.setattr(datasource, "FILES_A_TASK", 2)
    monkeypatch.setattr(shares, "TASK_BYTES", 2 * OPEN_COST_BYTES + 1)
    table = make("keyed")
    for k in range(9):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))
    reader = PaimonReader(table, None, None, ["k"], None, "empty", None, None)
    tasks = reader.partitions()
    assert len(tasks) >= 4  # of two buckets
    assert sorted(k for task in tasks for batch in reader.read(task) for k in batch.column(0).to_pylist()) == [
        *range(9)
    ]


def test_what_a_filter_leaves_is_divided_as_a_small_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("append")
    for k in range(40):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))

    def tasks(where: str, many: int) -> int:
        monkeypatch.setattr(grouped_read, "MANY_ENTRIES", many)
        return len(PaimonReader(table, None, None, ["k"], where, "empty", None).partitions())

    for where in ("k < 20", "k >= 0"):
        assert tasks(where, 0) == tasks(where, 1 << 30) > 5
