"""Upserts of 2 % of a table's rows into dynamic buckets, compared with the same upserts into fixed buckets.

Two tables of 8 buckets, rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING). An upsert has known keys only, or new
ones only. Cold: no Python worker has the index of the buckets in memory, as each commit of new keys writes it again.
Runs alternate; the environment variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.spark import write_table
from benchmarks.spark_read_write import BUCKETS, ROWS, Work, in_turns, report, rows, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 4
COLUMNS = [("k", "BIGINT NOT NULL"), ("seq", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]
TABLES = {
    "fixed": {"bucket": str(BUCKETS)},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": str(ROWS // BUCKETS + ROWS // 100)},
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        for name, options in TABLES.items():
            more = {"write-only": "true", **options}
            table = create_table(warehouse, f"d.{name}", COLUMNS, primary_keys=["k"], options=more)
            write_arrow(table, rows(spark, ROWS).drop("dt").toArrow())
            if name == "dynamic":
                _leave_room(table)
            print(f"{name}: {ROWS:,} rows, {len(plan_scan(table).splits)} buckets", flush=True)
        numbers = count(2)
        fixed, dynamic = (_Upserts(spark, warehouse, f"d.{name}", numbers) for name in TABLES)
        # each of the dynamic ones leaves the next one what it needs: an index that is new, or one that was just read
        known = {"fixed": fixed.known, "dynamic, cold": dynamic.known, "dynamic, warm": dynamic.known}
        new: dict[str, Work] = {"fixed": fixed.new, "dynamic, warm": dynamic.new, "dynamic, cold": dynamic.new}
        best = in_turns(
            {f"{name}: known": w for name, w in known.items()} | {f"{n}: new": w for n, w in new.items()}, RUNS
        )
        for keys in ("known", "new"):
            report(f"upsert of {ROWS // 50:,} rows", {n: t for n, t in best.items() if n.endswith(keys)})


def _leave_room(table: Table) -> None:
    """Let new keys go to the buckets that there are: more buckets would be more tasks than with fixed ones."""
    schema = table.schema()
    options = {**schema.options, "dynamic-bucket.target-row-num": str(ROWS)}
    following = replace(schema, id=schema.id + 1, options=options)
    table.store.create(table.paths.schema(following.id), following.to_bytes())


class _Upserts:
    """Upserts into one table, each with other rows."""

    def __init__(self, spark: SparkSession, warehouse: str, table: str, numbers: Iterator[int]) -> None:
        self._spark = spark
        self._to = (warehouse, table)
        self._numbers = numbers
        self._end = ROWS

    def known(self) -> None:
        number = next(self._numbers)
        write_table(rows(self._spark, ROWS // 50, step=49, seq=number).drop("dt"), *self._to)

    def new(self) -> None:
        found = rows(self._spark, ROWS // 50, seq=next(self._numbers)).drop("dt")
        write_table(found.withColumn("k", found.k + self._end), *self._to)
        self._end += ROWS // 50


if __name__ == "__main__":
    main()
