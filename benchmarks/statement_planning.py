"""What UPDATE, DELETE and MERGE of one day cost the driver in tables of 10,000 to 1,000,000 files laid out by day.

They should cost the same. CPU seconds of the Python driver (best of 3, after a warm-up), store requests and bytes read,
the commit included; with and without a primary key. The files of the other days are manifest entries only. The
environment variable ``SIZES`` sets the numbers of files.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitOptions, Draft
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.spark.statements.parse import parse_statement
from airflow_paimon.spark.statements.run import commit_statement
from airflow_paimon.spark.statements.tables import NamedTables
from benchmarks.metadata import new_file
from benchmarks.spark_read_write import session
from tests.stores import CountingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = [int(n) for n in os.environ.get("SIZES", "10000,100000,1000000").split(",")]
DAYS, ROUNDS, BUCKETS = 1000, 3, 10
DAY = "day-0500"
SOURCE = f"(SELECT 1000 + id AS k, 'new' AS v, '{DAY}' AS dt FROM range(5))"
STATEMENTS = {
    "UPDATE": f"UPDATE d.t SET v = concat(v, 'x') WHERE dt = '{DAY}' AND k < 10",
    "DELETE": f"DELETE FROM d.t WHERE dt = '{DAY}' AND k = {{0}}",
    "MERGE": f"MERGE INTO d.t USING {SOURCE} AS s ON t.dt = s.dt AND t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
}


def make_table(warehouse: str, files: int, *, keyed: bool) -> Table:
    """Make a table with that many files, of which those of one day are real."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    options = {"bucket": str(BUCKETS) if keyed else "-1"}
    keys = ["dt", "k"] if keyed else []
    table = create_table(warehouse, "d.t", columns, partition_keys=["dt"], primary_keys=keys, options=options)
    schema, per_day = table.schema(), files // DAYS
    key = encode_row((1,), (schema.field("k").type,)) if keyed else b"\0\0\0\0"
    days = [(d, encode_row((f"day-{d:04d}",), schema.partition_types)) for d in range(DAYS)]
    entries = [
        ManifestEntry(0, day, i % BUCKETS if keyed else 0, BUCKETS if keyed else -1, new_file(d * per_day + i, key))
        for d, day in days
        for i in range(per_day)
        if f"day-{d:04d}" != DAY
    ]
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=entries, schema=schema))
    write_arrow(table, pa.table({"k": range(1000), "v": ["old"] * 1000, "dt": [DAY] * 1000}))
    return table


def run(spark: SparkSession, warehouse: str, table: Table, text: str) -> tuple[float, int, float]:
    """Return CPU seconds of this process, requests and megabytes read."""
    store = CountingStore(table.store)
    view, started = Table(store, table.name), time.process_time()
    statement = parse_statement(spark, text)
    assert statement is not None
    named = NamedTables(spark, warehouse, None, text, view)
    commit_statement(spark, statement, view, named, CommitOptions(), lambda outcome: {})
    return time.process_time() - started, store.tally.requests, store.tally.bytes_read / 1e6


def main() -> None:
    number = iter(range(1000))
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        for keyed in (False, True):
            tables = {n: make_table(f"{folder}/{n}-{keyed}", n, keyed=keyed) for n in SIZES}
            for kind, text in STATEMENTS.items():
                found: dict[int, list[tuple[float, int, float]]] = {n: [] for n in SIZES}
                for _ in range(ROUNDS + 1):
                    for size, table in tables.items():
                        asked = text.format(100 + next(number))
                        found[size].append(run(spark, f"{folder}/{size}-{keyed}", table, asked))
                print(f"{kind} of a day, {'primary key' if keyed else 'append table'}")
                first = min(found[SIZES[0]][1:])[0]
                for size, costs in found.items():
                    cpu, requests, read = min(costs[1:])
                    times = f"{cpu:.3f} s CPU ({cpu / first:.1f} times)"
                    print(f"  {size:>10,} files: {times}, {requests} requests, {read:.2f} MB read")


if __name__ == "__main__":
    main()
