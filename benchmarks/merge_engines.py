"""Reading rows that need merging, engine by engine, beside Spark's own reader on the same files.

8 buckets of rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING) and five upserts of 2 % each; the engines read the
same files in turn, by other options of the table. First-row and deletion vectors (a row in ten is deleted)
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

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.deletion_vectors import FILE_VERSION, MAGIC_32
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.spark import read_table
from airflow_paimon.spark.row_positions import ROW_INDEX
from benchmarks.spark_read_write import (
    BUCKETS,
    DELTAS,
    ROWS,
    Work,
    drain,
    in_turns,
    report,
    rows,
    session,
    with_positions,
)

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
        _delete_a_tenth(table)
        works = {
            "a condition on positions of rows (floor)": _every_tenth_left_out(spark, table),
            "deletion vectors": _read(spark, table, options, {"deletion-vectors.enabled": "true"}),
        }
        report("reading", in_turns({"Spark's Parquet reader": _native(spark, table), **works}, RUNS))
        _set(table, options)
        for number in range(DELTAS):
            write_arrow(table, rows(spark, ROWS // 50, step=49 + number, seq=number + 2).drop("dt").toArrow())
        print(f"{DELTAS} upserts of {ROWS // 50:,} rows to merge")
        works = {name: _read(spark, table, options, more) for name, more in ENGINES.items()}
        report("reading", in_turns({"Spark's Parquet reader": _native(spark, table), **works}, RUNS))


def _delete_a_tenth(table: Table) -> None:
    """Put a deletion vector on each file, as an engine does that deletes rows without writing files again."""
    entries = []
    for split in plan_scan(table).splits:
        name, data, ranges = f"index-{split.bucket}", bytes([FILE_VERSION]), []
        for file in split.files:
            positions = np.arange(3, file.row_count, 10)
            stored = struct.pack(">i", MAGIC_32) + _bitmap(positions)
            ranges.append(DeletionVectorRange(file.file_name, len(data), len(stored), len(positions)))
            data += struct.pack(">i", len(stored)) + stored + struct.pack(">I", zlib.crc32(stored))
        table.store.create(f"index/{name}", data)
        entries.append(
            IndexEntry(
                0, split.partition, split.bucket, "DELETION_VECTORS", name, len(data), len(ranges), tuple(ranges)
            )
        )
    schema = table.schema()
    commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=entries, schema=schema))


def _bitmap(positions: npt.NDArray[np.int64]) -> bytes:
    """A portable roaring bitmap: containers of 65,536 rows, as bits or, with few of them, as a list."""
    keys, counts = np.unique(positions >> 16, return_counts=True)
    containers = np.split((positions & 0xFFFF).astype("<u2"), np.cumsum(counts)[:-1])
    headers = np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    return struct.pack("<II", 12346, len(keys)) + headers + bytes(4 * len(keys)) + b"".join(map(_container, containers))


def _container(values: npt.NDArray[np.uint16]) -> bytes:
    if len(values) <= 4096:
        return values.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _native(spark: SparkSession, table: Table) -> Work:
    names = [name for name, _ in COLUMNS]
    return lambda: drain(spark.read.parquet(f"{table.store.uri}/bucket-*").select(names))


def _every_tenth_left_out(spark: SparkSession, table: Table) -> Work:
    """The least that leaving out rows by their position takes Spark."""
    names = [name for name, _ in COLUMNS]
    found = with_positions(spark, f"{table.store.uri}/bucket-*")
    return lambda: drain(found().where(f"{ROW_INDEX.name} % 10 != 3").select(names))


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
