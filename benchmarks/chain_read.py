"""Chain reads beside Spark's own reader: an anchor of 10 million rows and 5 deltas of 2 %, in one warm Spark session.

The table is that of ``benchmarks.chain``. Reading its last day merges the anchor and all deltas. The baseline is
Spark's Parquet reader on the same files, without merging. The environment variables ``ROWS`` and ``RUNS`` set the
number of rows and of runs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import read_table
from airflow_paimon.spark.datasource import register
from benchmarks.chain import BUCKETS, DELTAS, KEYS, LAST, ROWS, make_chain
from benchmarks.spark_read_write import drain, in_turns, report, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = int(os.environ.get("RUNS", "5"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        print(f"{ROWS:,} rows, {BUCKETS} buckets, {DELTAS} deltas, Spark {spark.version}, {spark.sparkContext.master}")
        register(spark)
        for key in os.environ.get("KEYS", ",".join(KEYS)).split(","):
            bench(spark, make_chain(f"{folder}/{key}", key, ROWS, BUCKETS), f"{folder}/{key}", key)


def bench(spark: SparkSession, table: Table, warehouse: str, key: str) -> None:
    names = list(table.schema().field_names)
    files = [p for b in ("snapshot", "delta") for p in _files(table.branch(b))]
    last = f"dt = '{LAST}'"
    options = {"warehouse": warehouse, "table": "d.t", "where": last}
    best = in_turns(
        {
            f"plain parquet, {len(files)} files": lambda: drain(spark.read.parquet(*files).select(*names)),
            "read_table": lambda: drain(read_table(spark, warehouse, "d.t", where=last)),
            "data source": lambda: drain(spark.read.format("airflow_paimon").options(**options).load()),
        },
        RUNS,
    )
    report(f"chain read, {key} key", best)


def _files(branch: Table) -> list[str]:
    plan = plan_scan(branch)
    root = branch.store.uri.removeprefix("file://")
    return [f"{root}/{data_file_path(plan.schema, s.values, s.bucket, f)}" for s in plan.splits for f in s.files]


if __name__ == "__main__":
    main()
