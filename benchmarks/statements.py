"""UPDATE, DELETE and MERGE on an append table with row tracking, beside rewriting the same files by Spark.

The same on one with deletion vectors.

10 million rows in 8 files, one warm session. The floor reads and writes those files, without changing a row. The
environment variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import sql, write_table
from benchmarks.spark_read_write import in_turns, report, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("ROWS", "10000000"))
FILES, RUNS = 8, 3
TRACKED = {"bucket": "-1", "row-tracking.enabled": "true", "target-file-size": "1 gb"}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        table = make_table(warehouse, "d.t")
        make_table(warehouse, "d.marked", **{"deletion-vectors.enabled": "true"})
        for name in ("d.t", "d.marked"):
            write_table(rows(spark, ROWS, FILES), warehouse, name)
        found = paths(table)
        print(f"{ROWS:,} rows in {len(found)} files, Spark {spark.version}, {spark.sparkContext.master}")
        bench_statements(spark, warehouse, found, f"{folder}/floor")


def make_table(warehouse: str, name: str, **options: str) -> Table:
    columns = [("k", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]
    return create_table(warehouse, name, columns, options=TRACKED | options)


def rows(spark: SparkSession, count: int, parts: int) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr(
        "id as k", "cast(id % 1000 as int) as a", "id / 7 as b", "concat('value-', id % 100000) as v"
    )


def paths(table: Table) -> list[str]:
    plan = plan_scan(table)
    root = table.store.uri.removeprefix("file://")
    return [f"{root}/{data_file_path(plan.schema, s.values, s.bucket, f)}" for s in plan.splits for f in s.files]


def rewrite(spark: SparkSession, files: list[str], target: str) -> None:
    spark.read.parquet(*files).write.mode("overwrite").option("compression", "zstd").parquet(target)


def bench_statements(spark: SparkSession, warehouse: str, files: list[str], target: str) -> None:
    number = iter(range(1, 10_000))
    source = "(SELECT id * 100 + {0} AS k, id AS n FROM range(" + str(ROWS // 100) + "))"
    few = "(SELECT id * 100 + {0} AS k, id AS n FROM range(" + str(ROWS // 100 // FILES) + "))"

    def run(statement: str) -> None:
        sql(spark, warehouse, statement.format(next(number) % 100))

    one_file = f"UPDATE d.t SET a = a + {{0}} WHERE k < {ROWS // FILES} AND k % 100 = 7"
    merge = (
        "MERGE INTO d.t USING %s AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET b = s.n "
        "WHEN NOT MATCHED THEN INSERT (k, b) VALUES (s.k, s.n)"
    )
    best = in_turns(
        {
            "floor: all files read and written by Spark": lambda: rewrite(spark, files, target),
            "floor: one file read and written by Spark": lambda: rewrite(spark, files[:1], target),
            "UPDATE of 1 % of the rows, in all files": lambda: run("UPDATE d.t SET a = a + 1 WHERE k % 100 = {0}"),
            "MERGE of 1 % of the rows, in all files": lambda: run(merge % source),
            "DELETE of 0.01 % of the rows, in all files": lambda: run("DELETE FROM d.t WHERE k % 10000 = {0}"),
            "UPDATE of 1 % of the rows, by deletion vectors": lambda: run(
                "UPDATE d.marked SET a = a + 1 WHERE k % 100 = {0}"
            ),
            "MERGE of 1 % of the rows, by deletion vectors": lambda: run(
                (merge % source).replace("d.t", "d.marked AS t")
            ),
            "DELETE of 1 % of the rows, by deletion vectors": lambda: run("DELETE FROM d.marked WHERE k % 100 = {0}"),
            "DELETE of 1 % of the rows": lambda: run("DELETE FROM d.t WHERE k % 100 = {0}"),
            "UPDATE of rows of one file": lambda: run(one_file),
            "MERGE of rows of one file": lambda: run(merge % few),
        },
        RUNS,
    )
    report("statement", best)


if __name__ == "__main__":
    main()
