"""Two Spark drivers run statements on a row-tracking table beside four processes that write it without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import sql
from tests.data.test_row_races import change_rows, race, work

pytestmark = [pytest.mark.random, pytest.mark.slow]

STATEMENTS = 6


def test_spark_drivers_beside_other_writers(java_home: Path, tmp_path: Path) -> None:
    race(tmp_path, ["tests.spark.test_statement_races"] * 2 + ["tests.data.test_row_races"] * 4)


def main(folder: str, number: int, seed: int) -> None:
    from pyspark.sql import SparkSession

    scratch = Path(folder) / f"spark-{number}"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(scratch))
        .config("spark.local.dir", str(scratch))
        .getOrCreate()
    )

    def do(table: Table, folder: str, kind: str, key: int, new: int) -> None:
        statements = {
            "update": f"UPDATE d.t SET n = n + 1 WHERE k = {key}",
            "delete": f"DELETE FROM d.t WHERE k = {key}",
            "append": f"INSERT INTO d.t VALUES ({new}, 0)",
            "merge": f"MERGE INTO d.t USING (SELECT explode(array({key}, {new})) AS k) AS s ON t.k = s.k "
            f"WHEN MATCHED THEN UPDATE SET n = t.n + 1 "
            f"WHEN NOT MATCHED AND s.k = {new} THEN INSERT (k, n) VALUES (s.k, 0)",
        }
        if kind == "compact":
            change_rows(table, folder, kind, key, new)
        else:
            sql(spark, f"{folder}/wh", statements[kind])

    print(json.dumps(work(folder, number, seed, do, STATEMENTS)))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
