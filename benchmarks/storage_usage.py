"""What storage_usage costs: 500 tags and 1,000 snapshots of a table of 100,000 files, and of one of 1,000, in turns.

Each snapshot replaces one file, and every second one has a tag. Seconds, CPU seconds, store requests and bytes read.
The data files of these tables are not there, so the folder's listing has metadata only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.table.table import Table
from benchmarks.expiry import replace_files
from benchmarks.metadata import make_large_table
from tests.stores import CountingStore

SNAPSHOTS, ROUNDS = 1000, 3


@dataclass
class Cost:
    seconds: float
    cpu_s: float
    requests: int
    bytes_read: int


def tag_snapshots(table: Table) -> None:
    """Tag every second snapshot, as create_tag would, which looks whether the files are there."""
    for number in table.snapshot_ids()[::2]:
        snapshot = table.store.read(table.paths.snapshot(number))
        table.store.create(f"{table.paths.tag_dir}/tag-t{number}", snapshot)


def count(table: Table) -> Cost:
    """Count the bytes of a table once."""
    store = CountingStore(table.store)
    started, cpu = time.perf_counter(), time.process_time()
    found = read_usage(replace(table, store=store), int(time.time() * 1000))
    assert sum(u.group.kind == "tag" for u in found.usages) >= SNAPSHOTS / 2
    return Cost(time.perf_counter() - started, time.process_time() - cpu, store.tally.requests, store.tally.bytes_read)


def main() -> int:
    """Print both tables' costs, and the ratio of the best rounds."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {}
        for files in (1_000, 100_000):
            warehouse = Path(folder) / str(files)
            tables[files] = make_large_table(warehouse, files, 1)
            replace_files(tables[files], SNAPSHOTS)
            tag_snapshots(tables[files])
        costs: dict[int, list[Cost]] = {files: [] for files in tables}
        for _ in range(ROUNDS):
            for files, table in tables.items():
                costs[files].append(count(table))
    best = {files: min(found, key=lambda c: c.seconds) for files, found in costs.items()}
    for files, cost in best.items():
        print(
            f"{files:>7} files, {SNAPSHOTS // 2} tags: {cost.seconds:.2f} s, {cost.cpu_s:.2f} s CPU, "
            f"{cost.requests} requests, {cost.bytes_read / 1e6:.2f} MB read"
        )
    small, large = best.values()
    seconds, requests = large.seconds / small.seconds, large.requests / small.requests
    print(f"100 times the files: {seconds:.2f} x seconds, {requests:.2f} x requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
