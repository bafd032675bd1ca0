"""Each way to append rows to a branch of a primary-key table is published: the publish folds the buckets first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import register, sql, write_table
from airflow_paimon.spark.streaming.batch_writer import batch_writer
from tests.spark.jobs.operations import make_branch, put, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "k BIGINT, v STRING, dt STRING"
ROWS = [(1, "fixed", "a"), (50, "new", "d")]


def target(warehouse: Path) -> dict[str, str]:
    return {"warehouse": str(warehouse), "table": "d.t", "branch": "fix"}


def by_arrow(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    put(fix, ROWS)


def by_write_table(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    write_table(spark.createDataFrame(ROWS, COLUMNS), str(warehouse), "d.t", branch="fix")


def by_data_source(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    register(spark)
    frame = spark.createDataFrame(ROWS, COLUMNS)
    frame.write.format("airflow_paimon").options(**target(warehouse)).mode("append").save()


def by_insert(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    sql(spark, str(warehouse), "INSERT INTO d.`t$branch_fix` VALUES (1, 'fixed', 'a'), (50, 'new', 'd')")


def by_stream(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    register(spark)
    writer = _source(spark, warehouse).writeStream.format("airflow_paimon").options(**target(warehouse))
    _run(writer, warehouse)


def by_foreach_batch(spark: SparkSession, warehouse: Path, fix: Table) -> None:
    register(spark)
    write = batch_writer(str(warehouse), "d.t", branch="fix")
    _run(_source(spark, warehouse).writeStream.foreachBatch(write), warehouse)


def _source(spark: SparkSession, warehouse: Path) -> DataFrame:
    source = create_table(str(warehouse), "d.s", [("k", "BIGINT"), ("v", "STRING"), ("dt", "STRING")])
    put(source, ROWS)
    return spark.readStream.format("airflow_paimon").options(warehouse=str(warehouse), table="d.s").load()


def _run(writer: Any, warehouse: Path) -> None:
    query = writer.option("checkpointLocation", str(warehouse / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def highest(table: Table) -> dict[BucketKey, int]:
    splits = plan_scan(table).splits
    return {BucketKey(s.partition, s.bucket): max(f.max_sequence_number for f in s.files) for s in splits}


@pytest.mark.every(3)
@pytest.mark.parametrize("how", [by_arrow, by_write_table, by_data_source, by_insert, by_stream, by_foreach_batch])
def test_appended_rows_are_published_as_those_of_a_correction(
    spark: SparkSession, tmp_path: Path, how: Callable[[SparkSession, Path, Table], None]
) -> None:
    main, fix = make_branch(tmp_path)
    before = highest(main)
    how(spark, tmp_path, fix)
    expected = sorted([r for r in rows_of(main) if r[::2] != (1, "a")] + ROWS)
    assert rows_of(fix) == expected
    diff = run(tmp_path, "merge_branch", branch="fix", dry_run=True)
    assert (diff.changed, len(diff.details["folds"])) == (True, 2)
    assert run(tmp_path, "merge_branch", branch="fix").changed
    assert rows_of(main) == expected
    assert all(number <= before.get(key, -1) for key, number in highest(main).items()), "open writers would lose"
