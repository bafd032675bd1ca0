"""What expire_snapshots costs: 10 of 1,000 snapshots of a table of 100,000 files, and of one of 1,000 files, in turns.

Each snapshot replaces one file, all over the table, so that no partition tells the files apart. CPU seconds, store
requests and bytes read; they should follow what expires and the number of snapshots that stay, not the table's size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from benchmarks.metadata import make_large_table, new_file
from tests.stores import CountingStore

SNAPSHOTS, EXPIRED, ROUNDS = 1000, 10, 3


@dataclass
class Cost:
    cpu_s: float
    requests: int
    bytes_read: int
    freed: int


def replace_files(table: Table, snapshots: int) -> None:
    """Commit snapshots that replace one file each, all over the table."""
    schema = table.schema()
    live = list(live_entries(table, table.latest_snapshot()).values())
    step = max(1, len(live) // snapshots)
    for number in range(snapshots):
        old = live[number * step % len(live)]
        new = old._replace(file=new_file(number, old.file.min_key))
        live[number * step % len(live)] = new
        draft = Draft(kind=CommitKind.OVERWRITE, only_new=True, entries=[old.deleted(), new], schema=schema)
        commit(table, lambda head, draft=draft: draft)  # type: ignore[misc]


def expire(table: Table) -> Cost:
    """Expire the oldest snapshots, and delete their files at once."""
    store = CountingStore(table.store)
    values = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True, "max_deletes": EXPIRED}
    request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **values})
    context = Context(request, Table(store, table.name), int(time.time() * 1000) + 1000, time.monotonic())
    started = time.process_time()
    result = perform(context, request)
    cpu = time.process_time() - started
    return Cost(cpu, store.tally.requests, store.tally.bytes_read, result.details["deleted"]["data_files"])


def main() -> int:
    """Print both tables' costs, and the ratio of the best rounds."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {files: make_large_table(Path(folder) / str(files), files, 1) for files in (1_000, 100_000)}
        for table in tables.values():
            replace_files(table, SNAPSHOTS)
        costs: dict[int, list[Cost]] = {files: [] for files in tables}
        for _ in range(ROUNDS):
            for files, table in tables.items():
                costs[files].append(expire(table))
    for files, found in costs.items():
        best = min(found, key=lambda c: c.cpu_s)
        print(
            f"{files:>7} files: {best.cpu_s:.2f} s CPU, {best.requests} requests, {best.bytes_read / 1e6:.2f} MB read, "
            f"{best.freed} data files freed"
        )
    small, large = (min(c.cpu_s for c in found) for found in costs.values())
    fewer, more = (min(c.requests for c in found) for found in costs.values())
    print(f"100 times the files: {large / small:.2f} x CPU, {more / fewer:.2f} x requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
