"""Reading one key of 10 million rows that need merging, beside reading all of them: in this process and in Spark.

8 buckets of rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING) and five upserts of 2 % each, in turns. ``ROWS`` in
the environment makes it smaller.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.compute as pc

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import read_table, register
from benchmarks.spark_read_write import BUCKETS, DELTAS, ROWS, drain, in_turns, report, rows, session

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
        report("read_arrow", in_turns({"all rows": lambda: _all(table), "one key": lambda: _one(table)}, RUNS))
        register(spark)
        source = spark.read.format("airflow_paimon").options(warehouse=warehouse, table="d.t")
        best = in_turns(
            {
                "read_table, all rows": lambda: drain(read_table(spark, warehouse, "d.t")),
                "read_table, one key": lambda: drain(read_table(spark, warehouse, "d.t", where=f"k = {KEY}")),
                "data source, one key": lambda: drain(source.option("where", f"k = {KEY}").load()),
                "an empty job": lambda: drain(spark.range(1)),
            },
            RUNS,
        )
        report("Spark", best)


def _all(table: Table) -> None:
    assert read_arrow(table).num_rows >= ROWS


def _one(table: Table) -> None:
    assert read_arrow(table, where=pc.field("k") == KEY).num_rows == 1


if __name__ == "__main__":
    main()
