"""Runs on the cluster of ``cluster.py``, submitted: writes with a failing first attempt, reads back, prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession


def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt of one task, after rows of it have been handed on."""
    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
        raise OSError("a disk hiccup")


def where_from(_: Iterator[Any]) -> Iterator[str]:
    import airflow_paimon

    yield str(airflow_paimon.__file__)


def operations(spark: SparkSession, warehouse: str) -> dict[str, Any]:
    """Correct the branch, which must not be tried again when it is refused, and compare it with its base."""
    from airflow_paimon.core.errors import InvalidInputError
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.spark.jobs import run_spark_operation

    common = {"warehouse": warehouse, "table": "d.t", "branch": "fix"}
    query = {"sql": f"{warehouse}/query.sql", **common}
    try:
        run_spark_operation(spark, build_request("correct_branch", {**query, "partitions": ["dt=b"]}))
    except InvalidInputError as error:
        refused = error.message
    made = run_spark_operation(spark, build_request("correct_branch", {**query, "partitions": ["dt=a"]}))
    found = run_spark_operation(spark, build_request("diff_branches", common))
    return {"refused": refused, "rows": made.details["rows"], "total": found.details["total"]}


def main(warehouse: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    from airflow_paimon.spark import read_table, register, write_table
    from airflow_paimon.spark.tasks import map_in_arrow

    homes = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where_from).collect()
    plain = spark.range(0, 1000, 1, 4).selectExpr("id as k", "concat('v', id) as v", "concat('p', id % 3) as dt")
    shaky = map_in_arrow(plain, stumble, plain.schema)
    keyed = write_table(shaky, warehouse, "d.keyed")
    append = write_table(shaky, warehouse, "d.append")
    write_table(plain.where("k < 10").selectExpr("k", "'new' as v", "dt"), warehouse, "d.keyed")
    register(spark)
    source = spark.read.format("airflow_paimon").options(warehouse=warehouse, table="d.keyed").load()
    rows = sorted(tuple(r) for r in read_table(spark, warehouse, "d.keyed").collect())
    found = {
        "homes": sorted(set(homes)),
        "keyed": keyed["details"]["rows"],
        "append": append["details"]["rows"],
        "append_rows": read_table(spark, warehouse, "d.append").count(),
        "rows": rows,
        "operations": operations(spark, warehouse),
        "source_same": sorted(tuple(r) for r in source.collect()) == rows,
    }
    print("FOUND " + json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
