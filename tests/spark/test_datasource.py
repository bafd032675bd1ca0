"""The data source ``airflow_paimon``: options, modes, pruning, and one commit for many tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import register
from airflow_paimon.spark.datasource import PaimonDataSource
from tests.core.tables import alter_table
from tests.spark.jobs.operations import make_branch, put, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that knows the format."""
    register(spark)
    return spark


def reader(session: SparkSession, warehouse: Path, **options: Any) -> DataFrameReader:
    return session.read.format("airflow_paimon").options(**{"warehouse": str(warehouse), "table": "d.t", **options})


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in frame.collect())


def test_reads(session: SparkSession, tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    put(main, [(0, "again", "a"), (99, "more", "c")])
    run(tmp_path, "create_tag", tag="later")
    assert collected(reader(session, tmp_path).load()) == rows_of(main)
    assert collected(reader(session, tmp_path, branch="fix").load()) == rows_of(fix)
    assert collected(reader(session, tmp_path, version="3").load()) == rows_of(fix)
    for version in ({"version": "fix.3"}, {"table": "d.t@3"}, {"table": "d.t$branch_fix@3"}, {"table": "d.t@fix.3"}):
        assert reader(session, tmp_path, columns="k, v, dt", **version).load().count() == len(rows_of(fix))
    with pytest.raises(Exception, match=r"InvalidInputError.*name two versions"):
        reader(session, tmp_path, table="d.t@3", version="later").load()
    moment = str(fix.snapshot(3).time_millis)
    points = {"scan.snapshot-id": "3", "scan.version": "3", "scan.timestamp-millis": moment, "scan.branch": "fix"}
    for point in ({name: text} for name, text in points.items()):
        assert collected(reader(session, tmp_path, **point).load()) == rows_of(fix)
    assert collected(reader(session, tmp_path, **{"scan.tag-name": "later"}).load()) == rows_of(main)
    with pytest.raises(Exception, match=r"InvalidInputError.*give one of them"):
        reader(session, tmp_path, **{"scan.tag-name": "later", "version": "3"}).load().count()
    tagged = reader(session, tmp_path, version="later", columns="k, dt").load()
    assert collected(tagged.where("dt = 'c' and k > 8")) == [(9, "c"), (99, "c")]
    # what a filter excludes is not opened
    for file in (tmp_path / "d.db" / "t" / "dt=b").rglob("*.parquet"):
        file.unlink()
    asked = reader(session, tmp_path, where="dt IN ('a', 'c') AND (k < 1 OR k = 99)").load()
    assert collected(asked) == [(0, "again", "a"), (0, "c0", "c"), (99, "more", "c")]


def test_writes(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    main, _ = make_branch(tmp_path)

    def write(rows: DataFrame, save: str, **options: str) -> None:
        options = {"warehouse": str(tmp_path), "table": "d.t", **options}
        rows.write.format("airflow_paimon").options(**options).mode(save).save()

    def rows(*given: tuple[Any, ...]) -> DataFrame:
        return spark.createDataFrame(list(given), "k long, v string, dt string")

    head = main.latest_snapshot_id() or 0
    write(spark.range(20, 30, 1, 4).selectExpr("id as k", "'w' as v", "'a' as dt"), "append", **{"operation-id": "op"})
    write(spark.range(20, 30, 1, 4).selectExpr("id as k", "'w' as v", "'a' as dt"), "append", **{"operation-id": "op"})
    assert main.latest_snapshot_id() == head + 1, "many tasks, one commit; and the same operation only once"
    assert len(rows_of(main)) == 40
    write(rows((1, "x", "b")), "overwrite", partition="dt=b")
    write(rows((2, "x", "c")), "overwrite", mode="dynamic_overwrite")
    write(rows((3, "x", "c")), "overwrite", partition=json.dumps({"dt": "c"}))
    assert [r for r in rows_of(main) if r[2] != "a"] == [(1, "x", "b"), (3, "x", "c")]
    with pytest.raises(Exception, match=r"InvalidInputError.*missing columns dt"):
        write(rows((3, "x", "c")).drop("dt"), "append")
    with pytest.raises(Exception, match=r"InvalidInputError.*has no option 'nonsense'"):
        write(rows((3, "x", "c")), "append", nonsense="1")
    with pytest.raises(Exception, match=r"InvalidInputError.*only a batch read takes a version \(1\)"):
        write(rows((3, "x", "c")), "append", table="d.t@1")
    with pytest.raises(Exception, match=r"InvalidInputError.*lie outside"):
        write(rows((3, "x", "c")), "overwrite", partition="dt=b")
    write(rows((7, "all", "z")), "overwrite")
    assert rows_of(main) == [(7, "all", "z")]


def test_a_view_has_a_name_and_a_table_of_spark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    main, _ = make_branch(tmp_path)
    using = f"USING airflow_paimon OPTIONS (warehouse '{tmp_path}', table 'd.t')"
    spark.sql(f"CREATE TEMPORARY VIEW named {using}")
    try:
        spark.sql("INSERT INTO named VALUES (77, 'new', 'a')")
        assert collected(spark.read.table("named")) == rows_of(main)
        assert (77, "new", "a") in rows_of(main)
    finally:
        spark.catalog.dropTempView("named")
    with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW orders USING airflow_paimon OPTIONS"):
        spark.sql(f"CREATE TABLE named {using}")
    spark.sql(f"CREATE TABLE named (k BIGINT, v STRING, dt STRING) {using}")  # Spark doesn't ask
    try:
        with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW orders USING airflow_paimon OPTIONS"):
            spark.read.table("named").collect()
    finally:
        spark.sql("DROP TABLE named")
    assert len(rows_of(main)) == 31


def test_of_two_tasks_with_one_key_one_wins_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    """No two rows of a key have the same sequence number, so no reader can take the tie another way."""
    register(spark)
    main, _ = make_branch(tmp_path, bucket="1")
    twins = spark.range(0, 2, 1, 2).selectExpr("1L as k", "concat('task', id) as v", "'a' as dt")
    twins.write.format("airflow_paimon").options(warehouse=str(tmp_path), table="d.t").mode("append").save()
    assert (1, "task1", "a") in rows_of(main)
    put(main, [(1, "later", "a")])
    assert (1, "later", "a") in rows_of(main)


def test_a_write_uses_up_no_more_numbers_than_it_has_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Else a writer that stays open over it would lose its newer rows to this write's until it has counted that far."""
    register(spark)
    main, _ = make_branch(tmp_path, bucket="1")
    highest = max(f.max_sequence_number for s in plan_scan(main).splits for f in s.files)
    rows = spark.range(0, 4000, 1, 8).selectExpr("id as k", "'w' as v", "'a' as dt")
    rows.write.format("airflow_paimon").options(warehouse=str(tmp_path), table="d.t").mode("append").save()
    files = [f for s in plan_scan(main).splits for f in s.files]
    assert max(f.max_sequence_number for f in files) <= highest + 500, "tasks of 500 rows that share no key"
    assert len([r for r in rows_of(main) if r[2] == "a"]) == 4000


COLUMNS = [("k", "INT"), ("s", "STRING"), ("d", "DECIMAL(6, 2)"), ("day", "DATE"), ("b", "BOOLEAN"), ("f", "DOUBLE"),
           ("at", "TIMESTAMP(3)"), ("odd name", "BIGINT")]  # fmt: skip


@pytest.fixture
def typed(tmp_path: Path) -> Table:
    return create_table(str(tmp_path), "d.typed", COLUMNS)


def test_points_are_for_tables_with_the_columns_of_today(tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    alter_table(main, [AddColumn(name="more", type="INT")])
    source = PaimonDataSource({"warehouse": str(tmp_path), "table": "d.t", "scan.snapshot-id": "3"})
    schema = source.schema()
    with pytest.raises(InvalidInputError, match=r"had other columns .* give the option version=3 instead"):
        source.reader(schema)


def test_a_stream_gives_row_ids(tmp_path: Path) -> None:
    table = create_table(
        str(tmp_path), "d.t", [("k", "INT"), ("v", "STRING")], options={"row-tracking.enabled": "true"}
    )
    write_arrow(table, pa.table({"k": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}))
    options = {"warehouse": str(tmp_path), "table": "d.t", "columns": "_ROW_ID, k, _SEQUENCE_NUMBER"}
    source = PaimonDataSource(options)
    stream = source.streamReader(source.schema())

    def batch(start: dict[str, Any]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        end = stream._latest()
        found = [b for part in stream.partitions(start, end) for b in stream.read(part)]
        return sorted(tuple(row.values()) for b in found for row in b.to_pylist()), end

    first, end = batch(stream.initialOffset())
    assert first == [(0, 1, 1), (1, 2, 1)]
    write_arrow(table, pa.table({"k": pa.array([3], pa.int32()), "v": ["c"]}))
    assert batch(end)[0] == [(2, 3, 2)]
