"""compact in Spark tasks: all groups of files of a round in one commit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.execution import run_here
from airflow_paimon.spark import compaction
from airflow_paimon.spark.datasource import register
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.read import read_table
from airflow_paimon.spark.tasks import collect
from tests import replay_kills
from tests.core.tables import alter_table, forget_results
from tests.data.chain.examples import mark_deleted
from tests.data.row_statements import statement, with_ids
from tests.data.tables import rows_of as data_rows
from tests.data.test_compact import add, names, partitioned, wrong_count
from tests.data.test_compact_keyed import COLUMNS, assert_merged, changes, keyed, rows, stored, upsert
from tests.randomness import chance
from tests.spark.jobs.operations import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def _tasks() -> Iterator[None]:
    with in_tasks():
        yield


def test_partitions_in_parallel_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = partitioned(tmp_path, **{"row-tracking.enabled": "true"})
    for i in range(6):
        add(table, *((100 * i + day, f"d{day}") for day in range(5)))
    statement(table, lambda row: {**row, "id": -row["id"]} if row["id"] % 7 == 3 else row)
    before = with_ids(table)
    request = build_request("compact", {"warehouse": str(tmp_path / "wh"), "table": "d.p", "operation_id": "op"})
    result = run_spark_operation(spark, request)
    assert (result.details["partitions"], result.details["files_before"], result.details["files_after"]) == (5, 30, 5)
    assert result.details["snapshots"] == [8]
    assert with_ids(table) == before
    assert len(names(table)) == 5
    forget_results(table)
    assert run_spark_operation(spark, request).details == result.details
    columns = ["id", "dt", "_ROW_ID", "_SEQUENCE_NUMBER"]
    rows = read_table(spark, str(tmp_path / "wh"), "d.p", columns=columns).collect()
    assert sorted(map(tuple, rows), key=lambda r: r[2]) == before
    third = before[3]
    found = read_table(spark, str(tmp_path / "wh"), "d.p", where=f"_row_id = {third[2]}").collect()
    assert [tuple(r) for r in found] == [third[:2]]
    register(spark)
    source = spark.read.format("airflow_paimon").options(warehouse=str(tmp_path / "wh"), table="d.p")
    assert source.load().columns == ["id", "dt"]
    asked = source.option("columns", "_ROW_ID,id").option("where", f"_ROW_ID = {third[2]}").load()
    assert [tuple(r) for r in asked.collect()] == [(third[2], third[0])]


def waiting(warehouse: Path, **options: str) -> Table:
    """A table whose writers leave compaction to others: two partitions of two buckets, with eight runs each."""
    table = keyed(warehouse, **options)
    for i in range(8):
        upsert(table, *((p, k, f"{i}") for p in ("a", "b") for k in range(i, 40, 1 + i % 3)))
    upsert(table, ("a", 3, "gone"), ("b", 39, "gone"), kind="-D")
    return table


def asked(warehouse: Path, **more: object) -> Request:
    return build_request("compact", {"warehouse": str(warehouse), "table": "d.t", **more})


def test_buckets_of_key_tables_in_parallel_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = waiting(tmp_path, changelog_producer="lookup")
    expected = rows(table)
    result = run_spark_operation(spark, asked(tmp_path, operation_id="op"))
    assert (result.details["partitions"], result.details["files_before"], result.details["rows"]) == (2, 34, 78)
    assert result.details["snapshots"] == [10]
    assert rows(table) == expected
    assert sorted(map(tuple, read_table(spark, str(tmp_path), "d.t").collect())) == expected
    assert_merged(table)
    assert sorted(changes(table, 10)) == sorted(f"+I {p}{k} {v}" for p, k, _, v in expected)
    forget_results(table)
    assert run_spark_operation(spark, asked(tmp_path, operation_id="op")).details == result.details
    upsert(table, ("a", 1, "x"))
    assert not run_spark_operation(spark, asked(tmp_path, operation_id="night", max_sorted_runs=5)).changed


@pytest.mark.random
def test_plain_python_leaves_the_rows_and_files_that_spark_leaves(spark: SparkSession, tmp_path: Path) -> None:
    """Of the same random life, keyed and append, in one process and in two."""
    random = chance("compact-plain")
    kept = keyed(tmp_path / "0", **random.choice([{}, {"sequence.field": "s"}, {"target_file_size": "1 kb"}]))
    for _ in range(random.randint(6, 9)):
        given = [(random.choice("ab"), k, random.randrange(9), f"v{k}") for k in random.sample(range(60), 20)]
        upsert(kept, *given, kind=random.choice(["+I", "+I", "-D"]))
    loose = partitioned(tmp_path / "0", **{"row-tracking.enabled": "true"})
    for i in range(random.randint(6, 9)):
        add(loose, *((100 * i + n, f"d{random.randrange(3)}") for n in range(10)))
    statement(loose, lambda row: {**row, "id": -row["id"]} if row["id"] % 7 == 3 else row)
    folders = [Path(kept.store.uri.removeprefix("file://")).parents[1], tmp_path / "0" / "wh"]
    for folder, name in zip(folders, (kept.name, loose.name), strict=True):
        found = []
        for way in ("spark", 1, 2):
            copy = shutil.copytree(folder, tmp_path / f"{way}-{name}")
            request = build_request("compact", {"warehouse": str(copy), "table": name, "min_files": 2})
            result = run_spark_operation(spark, request) if way == "spark" else run_here(request, int(way))
            table = open_table(str(copy), name)
            content = stored(table) if name == kept.name else with_ids(table)
            found.append((content, len(names(table)), {k: v for k, v in result.details.items() if "bytes" not in k}))
        assert found[0] == found[1] == found[2]
        assert found[0][2]["files_before"] > found[0][2]["files_after"]


def test_writers_that_commit_between_plan_and_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a writer replaces are planned again; what it adds to a bucket stays above the result."""
    table = waiting(tmp_path)
    tries: list[int] = []

    def and_then_write(frame: DataFrame) -> list[Any]:
        outputs = collect(frame)
        tries.append(len(outputs))
        upsert(table, ("a", 1, f"beside {len(tries)}"))
        if len(tries) == 1:
            write_arrow(table, data_rows(COLUMNS, [{"p": "b", "k": 5, "v": "over"}]), "overwrite", {"p": "b"})
        return outputs

    monkeypatch.setattr(compaction, "collect", and_then_write)
    expected = {(p, k): (p, k, s, v) for p, k, s, v in rows(table) if p == "a"}
    expected |= {("a", 1): ("a", 1, None, "beside 2"), ("b", 5): ("b", 5, None, "over")}
    on_disk = len(list(tmp_path.rglob("data-*")))
    result = run_spark_operation(spark, asked(tmp_path))
    assert tries == [4, 2], "all buckets, and those that the overwrite has left"
    assert rows(table) == sorted(expected.values())
    (committed,) = result.details["snapshots"]
    assert table.snapshot(committed).commit_kind == CommitKind.COMPACT
    written = 3 + result.details["files_after"]  # the writer's, and those of the try that landed
    assert len(list(tmp_path.rglob("data-*"))) == on_disk + written, "what a refused try has written was deleted"


@pytest.mark.thorough
def test_a_compaction_that_is_killed_when_it_has_written_files(spark: SparkSession, tmp_path: Path) -> None:
    """Run again with the same operation id: the same rows, compacted once."""
    table = waiting(tmp_path / "warehouse")
    expected, head = rows(table), table.latest_snapshot_id()
    before = set(tmp_path.rglob("data-*"))
    options = {"table": "d.t", "operation_id": "op"}
    job = replay_kills.start_program("compact", tmp_path / "warehouse", options, as_if_large=True)
    replay_kills.kill_when_it_has_written(job, tmp_path, before)
    assert rows(table) == expected
    result = run_spark_operation(spark, asked(tmp_path / "warehouse", operation_id="op"))
    assert (result.changed, result.details["files_before"]) == (True, 34)
    assert rows(table) == expected
    assert_merged(table)
    assert (table.latest_snapshot_id() or 0) == (head or 0) + len(result.details["snapshots"]) == (head or 0) + 1


def test_a_refusal_of_a_task_is_the_operations(spark: SparkSession, tmp_path: Path) -> None:
    table = wrong_count(tmp_path)
    with pytest.raises(FormatError, match="have 6 rows instead of the 7 in their manifest"):
        run_spark_operation(spark, build_request("compact", {"warehouse": str(tmp_path / "wh"), "table": table.name}))
    assert table.latest_snapshot_id() == 6


@pytest.mark.every(2)
@pytest.mark.parametrize("same_size", [False, True])
def test_row_ids_of_files_that_spark_reads_itself(spark: SparkSession, tmp_path: Path, same_size: bool) -> None:
    """Plain and stored files, beside a file of another schema and one with deleted rows."""
    table = partitioned(tmp_path, **{"row-tracking.enabled": "true", "deletion-vectors.enabled": "true"})
    for i in range(3):
        rows = range(1000 * i, 1000 * i + (7 if same_size else 10**i))
        add(table, *((n, f"d{n % 2 if same_size else 0}") for n in rows))
    statement(table, lambda row: {**row, "id": -row["id"]} if row["id"] in (1001, 2000) else row)
    add(table, (90, "gone"), (91, "gone"))
    mark_deleted(table, ("gone",), [0])
    alter_table(table, [AddColumn(name="n", type="INT")])
    write_arrow(table, pa.table({"id": pa.array([99], pa.int32()), "dt": ["d1"], "n": pa.array([7], pa.int32())}))
    expected = with_ids(table)
    sizes = [e.file.file_size for e in live_entries(table, table.latest_snapshot()).values()]
    assert not same_size or len(set(sizes)) < len(sizes)
    columns = ["id", "dt", "n", "_ROW_ID", "_SEQUENCE_NUMBER"]
    frame = read_table(spark, str(tmp_path / "wh"), "d.p", columns=columns)
    assert "FileScan parquet" in frame._jdf.queryExecution().toString()
    assert sorted(map(tuple, frame.collect()), key=lambda r: r[3]) == expected
    versions = read_table(spark, str(tmp_path / "wh"), "d.p", columns=["_SEQUENCE_NUMBER"], where="id < 0").collect()
    assert [r[0] for r in versions] == [4, 4]
    last = read_table(spark, str(tmp_path / "wh"), "d.p", where=f"_ROW_ID >= {expected[-1][3]}").collect()
    assert [tuple(r) for r in last] == [(99, "d1", 7)]
