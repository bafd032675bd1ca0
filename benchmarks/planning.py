"""What operations on one day cost in tables of 10,000 to 1,000,000 files laid out by day: they should cost the same.

CPU seconds (best of 3; a publish runs once), store requests, bytes read and the growth of the process's memory, each
operation in a process of its own. The files of the table are manifest entries only. The environment variable ``SIZES``
sets the numbers of files, ``10000,10000000`` for example.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_paimon.core.commit.committer import Draft, commit
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.operations import perform
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import partition_types, plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.diff.compare import small_diff
from benchmarks.metadata import BUCKETS, change_files, make_empty_table, new_file
from tests.stores import CountingStore

SIZES = [int(n) for n in os.environ.get("SIZES", "10000,100000,1000000").split(",")]
DAYS, ROUNDS = 1000, 3
DAY = "day-0500"


def make_table_by_day(warehouse: Path, files: int) -> Table:
    """Make a primary-key table with that many live files; those of a day lie together, as its writers left them."""
    table = make_empty_table(warehouse)
    schema = table.schema()
    types, key = partition_types(schema), encode_row((1,), (schema.field("k").type,))
    per_day = files // DAYS
    days = [encode_row((f"day-{d:04d}",), types) for d in range(DAYS)]
    entries = [
        ManifestEntry(0, day, i % BUCKETS, BUCKETS, new_file(d * per_day + i, key))
        for d, day in enumerate(days)
        for i in range(per_day)
    ]
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=entries, schema=schema))
    return table


def request(table: Table, operation: str, **values: Any) -> None:
    built = build_request(operation, {"warehouse": "w", "table": table.name, **values})
    context = Context(built, table, int(time.time() * 1000), time.monotonic())
    if isinstance(built, DiffBranches):
        assert small_diff(context, built) is not None
    else:
        perform(context, built, None)


def write_a_day(table: Table) -> None:
    rows = pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": [DAY, DAY]})
    write_arrow(table, rows)


def read_a_day(table: Table) -> None:
    selection = StoredPartitions(table.schema()).selection([{"dt": DAY}])
    assert plan_scan(table, selection=selection).splits


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "write of 2 rows into a day": write_a_day,
    "plan of a read of a day": read_a_day,
    "plan of a read of all": plan_scan,
    "create_branch": lambda t: request(t, "create_branch", branch=f"b{time.time_ns()}", tag="base"),
    "merge_branch of 1,000 changed files": lambda t: request(t, "merge_branch", branch="fix"),
    "diff_branches, nothing changed": lambda t: request(t, "diff_branches", branch="same"),
}


def prepare(table: Table, what: str) -> None:
    if "base" not in table.tag_names():
        request(table, "create_tag", tag="base")
    if what.startswith("merge_branch"):
        request(table, "create_branch", branch="fix", tag="base")
        change_files(table.branch("fix"), 1000)
    if what.startswith("diff_branches") and "same" not in table.branch_names():
        request(table, "create_branch", branch="same", tag="base")


def measure(warehouse: str, what: str) -> None:
    """Run an operation in this process, and print its costs as JSON."""
    plain = open_table(warehouse, "d.big")
    prepare(plain, what)
    store = CountingStore(plain.store)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    OPERATIONS[what](Table(store, plain.name))
    cpu = time.process_time() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"cpu": cpu, "requests": store.tally.requests, "mb": store.tally.bytes_read / 1e6,
                      "memory": grown / 1024}))  # fmt: skip


def cost_of(warehouse: Path, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.planning", str(warehouse), what]
    found = []
    for _ in range(1 if what.startswith("merge_branch") else ROUNDS):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    best: dict[str, float] = min(found, key=lambda c: c["cpu"])
    return best


def main() -> int:
    """Print the costs at each size, and how they grow."""
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder:
        costs: dict[str, list[dict[str, float]]] = {what: [] for what in OPERATIONS}
        for size in SIZES:
            make_table_by_day(Path(folder) / str(size), size)
            for what, found in costs.items():
                found.append(cost_of(Path(folder) / str(size), what))
    for what, found in costs.items():
        print(what)
        for size, cost in zip(SIZES, found, strict=True):
            cpu = f"{cost['cpu']:.3f} s CPU ({cost['cpu'] / found[0]['cpu']:.1f} times)"
            read = f"{cost['requests']:.0f} requests, {cost['mb']:.2f} MB read"
            print(f"  {size:>10,} files: {cpu}, {read}, {cost['memory']:.0f} MB of memory")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
    else:
        sys.exit(main())
