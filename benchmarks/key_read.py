"""Reading one key of 10 million rows that need merging: in this process and in Spark, compared with Paimon's connector.

8 buckets of rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING) and five upserts of 2 % each; runs alternate.
The connector (0.9.0, on Spark 3.5 in its own JVM) runs if ``make oracles`` has prepared it. The environment variable
``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import read_table, register
from benchmarks._connector import connector
from benchmarks.spark_read_write import BUCKETS, DELTAS, ROWS, Work, drain, in_turns, report, rows, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 5
KEY = 4_321_007 % ROWS


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        columns = [("k", "BIGINT NOT NULL"), ("seq", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]
        options = {"bucket": str(BUCKETS), "sequence.field": "seq"}
        table = create_table(warehouse, "d.t", columns, primary_keys=["k"], options=options)
        write_arrow(table, rows(spark, ROWS).drop("dt").toArrow())
        for number in range(DELTAS):
            write_arrow(table, rows(spark, ROWS // 50, step=49 + number, seq=number + 2).drop("dt").toArrow())
        print(f"{ROWS:,} rows, {BUCKETS} buckets, {DELTAS} upserts of {ROWS // 50:,} rows to merge")
        works = _works(spark, warehouse, table)
        with connector(warehouse, folder) as run:
            theirs = {} if run is None else _works_of_connector(run)
            report("reading", in_turns({**theirs, **works}, RUNS))


def _works_of_connector(run: Callable[[str], None]) -> dict[str, Work]:
    return {
        "connector, one key": lambda: run(f"SELECT * FROM paimon.d.t WHERE k = {KEY}"),
        "connector, an empty job": lambda: run("SELECT * FROM range(1)"),
        "connector, all rows": lambda: run("SELECT * FROM paimon.d.t"),
    }


def _works(spark: SparkSession, warehouse: str, table: Table) -> dict[str, Work]:
    register(spark)
    source = spark.read.format("airflow_paimon").options(warehouse=warehouse, table="d.t")
    return {
        "read_arrow, one key": lambda: _one(table),
        "read_arrow, all rows": lambda: _all(table),
        "read_table, one key": lambda: drain(read_table(spark, warehouse, "d.t", where=f"k = {KEY}")),
        "read_table, all rows": lambda: drain(read_table(spark, warehouse, "d.t")),
        "data source, one key": lambda: drain(source.option("where", f"k = {KEY}").load()),
        "an empty job": lambda: drain(spark.range(1)),
    }


def _all(table: Table) -> None:
    assert read_arrow(table).num_rows >= ROWS


def _one(table: Table) -> None:
    assert read_arrow(table, where=pc.field("k") == KEY).num_rows == 1


if __name__ == "__main__":
    main()
