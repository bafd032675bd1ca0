"""Reading, merging and writing a bucket with one thread, compared with pyarrow on the same bytes.

2 million rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING, dt STRING) in one bucket, and five upserts of 40,000.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split

ROWS, UPSERTS, CHANGED, BEST_OF = 2_000_000, 5, 40_000, 5
COLUMNS = [
    ("k", "BIGINT NOT NULL"),
    ("seq", "BIGINT"),
    ("a", "INT"),
    ("b", "DOUBLE"),
    ("v", "STRING"),
    ("dt", "STRING"),
]
NAMES = [name for name, _ in COLUMNS]


def rows(keys: np.ndarray, version: int) -> pa.Table:
    chance = np.random.default_rng(version)
    count = len(keys)
    columns = [
        pa.array(keys),
        pa.array(np.full(count, version, np.int64)),
        pa.array(chance.integers(0, 1000, count, dtype=np.int32)),
        pa.array(chance.random(count)),
        pa.array([f"value-{k}" for k in (keys % 100_000).tolist()]),
        pa.array(["2025-01-01"]).take(pa.array(np.zeros(count, np.int64))),
    ]
    return pa.table(columns, names=NAMES)


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs."""
    seconds = []
    for _ in range(BEST_OF):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def read_plain(folder: Path) -> int:
    found = 0
    for path in sorted(folder.rglob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(131_072, columns=NAMES, use_threads=False):
            found += batch.num_rows
    return found


def read_table(table: Table) -> int:
    layers = plan_rows(table).layers
    return sum(b.num_rows for read, splits in layers for s in splits for b in read_split(read, s))


def main() -> None:
    pa.set_cpu_count(1)
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        table = create_table(scratch, "d.t", COLUMNS, primary_keys=["k"], options={"bucket": "1"})
        data = rows(chance.permutation(ROWS).astype(np.int64), 0)

        def write_plain() -> None:
            ordered = data.sort_by("k")
            pq.write_table(
                ordered, Path(scratch) / "plain", compression="zstd", compression_level=1, use_dictionary=["v", "dt"]
            )

        plain = best(write_plain)
        start = time.perf_counter()
        write_arrow(table, data)
        ours = time.perf_counter() - start
        print(
            f"write {ROWS:,} rows: {ours:.2f} s; sorted and written by pyarrow {plain:.2f} s; ratio {ours / plain:.2f}"
        )
        folder = Path(scratch) / "d.db" / "t"
        plain, ours = best(lambda: read_plain(folder)), best(lambda: read_table(table))
        print(f"read, nothing to merge: {ours:.2f} s; pyarrow {plain:.2f} s; ratio {ours / plain:.2f}")
        for version in range(1, UPSERTS + 1):
            write_arrow(table, rows(chance.choice(ROWS, CHANGED, replace=False).astype(np.int64), version))
        plain, ours = best(lambda: read_plain(folder)), best(lambda: read_table(table))
        print(
            f"read, {UPSERTS} upserts of {CHANGED:,} merged: {ours:.2f} s; pyarrow {plain:.2f} s; "
            f"ratio {ours / plain:.2f}"
        )


if __name__ == "__main__":
    main()
