"""Reading rows that need merging, engine by engine, beside Spark's own reader on the same files.

8 buckets of rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING) and five upserts of 2 % each; the engines read the
same files in turn, by other options of the table. First-row and deletion vectors (two rows of each file are deleted)
read it before the upserts, as they don't show level 0. The environment variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_paimon.core.commit.committer import Draft, commit
from airflow_paimon.core.format.deletion_vectors import FILE_VERSION, MAGIC_32
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.spark import read_table
from benchmarks.spark_read_write import BUCKETS, DELTAS, ROWS, Work, drain, in_turns, report, rows, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 3
PARTIAL = {"merge-engine": "partial-update"}
ENGINES: Mapping[str, Mapping[str, str]] = {
    "deduplicate": {},
    "partial-update": PARTIAL,
    "partial-update, a sequence group with a sum": {
        **PARTIAL,
        "fields.seq.sequence-group": "a,b",
        "fields.b.aggregate-function": "sum",
    },
    "aggregation: sum, max": {
        "merge-engine": "aggregation",
        "fields.a.aggregate-function": "sum",
        "fields.b.aggregate-function": "max",
    },
}
COLUMNS = [("k", "BIGINT NOT NULL"), ("seq", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        options = {"bucket": str(BUCKETS), "write-only": "true"}
        table = create_table(warehouse, "d.t", COLUMNS, primary_keys=["k"], options=options)
        write_arrow(table, rows(spark, ROWS).drop("dt").toArrow(), mode="overwrite")
        print(f"{ROWS:,} rows, {BUCKETS} buckets, no level 0")
        first = {"first-row": _read(spark, table, options, {"merge-engine": "first-row"})}
        report("reading", in_turns({"Spark's Parquet reader": _native(spark, table), **first}, RUNS))
        _delete_two_rows_a_file(table)
        works = {"deletion vectors": _read(spark, table, options, {"deletion-vectors.enabled": "true"})}
        report("reading", in_turns({"Spark's Parquet reader": _native(spark, table), **works}, RUNS))
        _set(table, options)
        for number in range(DELTAS):
            write_arrow(table, rows(spark, ROWS // 50, step=49 + number, seq=number + 2).drop("dt").toArrow())
        print(f"{DELTAS} upserts of {ROWS // 50:,} rows to merge")
        works = {name: _read(spark, table, options, more) for name, more in ENGINES.items()}
        report("reading", in_turns({"Spark's Parquet reader": _native(spark, table), **works}, RUNS))


def _delete_two_rows_a_file(table: Table) -> None:
    """Put a deletion vector on each file, as an engine does that deletes rows without writing files again."""
    bitmap = bytes.fromhex("3a300000 01000000 0000 0100 10000000 0200 0300")  # positions 2 and 3
    stored = struct.pack(">i", MAGIC_32) + bitmap
    one = struct.pack(">i", len(stored)) + stored + struct.pack(">I", zlib.crc32(stored))
    entries = []
    for split in plan_scan(table).splits:
        name = f"index-{split.bucket}"
        table.store.create(f"index/{name}", bytes([FILE_VERSION]) + one * len(split.files))
        ranges = tuple(
            DeletionVectorRange(f.file_name, 1 + at * len(one), len(stored), 2) for at, f in enumerate(split.files)
        )
        size = 1 + len(one) * len(split.files)
        entries.append(
            IndexEntry(0, split.partition, split.bucket, "DELETION_VECTORS", name, size, len(split.files), ranges)
        )
    schema = table.schema()
    commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=entries, schema=schema))


def _native(spark: SparkSession, table: Table) -> Work:
    names = [name for name, _ in COLUMNS]
    return lambda: drain(spark.read.parquet(f"{table.store.uri}/bucket-*").select(names))


def _read(spark: SparkSession, table: Table, options: Mapping[str, str], more: Mapping[str, str]) -> Work:
    warehouse = table.store.uri.rpartition("/d.db/")[0]

    def work() -> None:
        _set(table, {**options, **more})
        drain(read_table(spark, warehouse, "d.t"))

    return work


def _set(table: Table, options: Mapping[str, str]) -> None:
    """Put a schema version, as another engine would: these options can't be altered through us."""
    schema = table.schema()
    following = replace(schema, id=schema.id + 1, options=dict(options))
    table.store.create(table.paths.schema(following.id), following.to_bytes())


if __name__ == "__main__":
    main()
