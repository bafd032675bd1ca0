"""A warehouse on S3, where Spark has no file system for it: our own store reads and writes, in every task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import read_table, register, write_table
from tests.s3_server import make_bucket, s3_server, storage_options
from tests.spark.jobs.operations import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


def test_reads_and_writes_on_s3(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    options: dict[str, Any] = storage_options(endpoint)
    warehouse = f"s3://{make_bucket(endpoint)}/warehouse"
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    create_table(warehouse, "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "2"},
                 storage_options=options)  # fmt: skip
    first = spark.range(0, 40, 1, 2).selectExpr("id as k", "concat('v', id) as v", "concat('p', id % 2) as dt")
    write_table(first, warehouse, "d.t", storage_options=options)
    write_table(first.where("k = 3").selectExpr("k", "'new' as v", "dt"), warehouse, "d.t", storage_options=options)
    expected = sorted((k, "new" if k == 3 else f"v{k}", f"p{k % 2}") for k in range(40))
    assert rows_of(open_table(warehouse, "d.t", storage_options=options)) == expected
    frame = read_table(spark, warehouse, "d.t", storage_options=options)
    assert sorted(tuple(r) for r in frame.collect()) == expected
    plan = str(frame._jdf.queryExecution().executedPlan())
    assert "FileScan" not in plan and options["secret"] not in plan
    register(spark)
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options))
    source = (
        spark.read.format("airflow_paimon").options(warehouse=warehouse, table="d.t").option("storage-options", file)
    )
    assert sorted(tuple(r) for r in source.load().where("dt = 'p1'").collect()) == [r for r in expected if r[2] == "p1"]


@pytest.mark.thorough
def test_a_stream_on_s3(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    options: dict[str, Any] = storage_options(endpoint)
    warehouse = f"s3://{make_bucket(endpoint)}/warehouse"
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options))
    for name in ("src", "dst"):
        table = create_table(warehouse, f"d.{name}", [("k", "BIGINT")], storage_options=options)
    register(spark)
    write_arrow(open_table(warehouse, "d.src", storage_options=options), pa.table({"k": range(5)}))
    named = {"warehouse": warehouse, "storage-options": str(file)}
    source = spark.readStream.format("airflow_paimon").options(**named, table="d.src", **{"consumer-id": "c"}).load()
    target = source.writeStream.format("airflow_paimon").options(**named, table="d.dst")
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        query = target.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert sorted(read_arrow(table).column("k").to_pylist()) == [0, 1, 2, 3, 4]
        (checkpoint / "commits" / "0").unlink()  # as if the session had ended before Spark noted the batch
        (checkpoint / "commits" / ".0.crc").unlink()
    assert table.snapshot_ids() == [1]
