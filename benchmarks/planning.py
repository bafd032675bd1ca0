"""What operations on one day, and on the whole table, cost in tables of 10,000 to 1,000,000 files laid out by day.

CPU seconds (best of ``ROUNDS``, 3 by default; a publish, a rollback and an expiry run once), store requests, bytes read
and the growth of the process's memory, each operation in a process of its own. The files of the table are manifest
entries only, which its store lists as if they were there; making up these listings is part of the figures of
check_table, remove_orphan_files and storage_usage. The environment variable ``SIZES`` sets the numbers of files, up to
``10000,100000,1000000,10000000``; ``PLOT`` is an SVG file to draw the seconds into.
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

from airflow_paimon.core.garbage import collect_seldom
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Compact, DiffBranches
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.diff.run_diff import small_diff
from airflow_paimon.data.local import rewrite_files
from airflow_paimon.execution import perform
from benchmarks._plot import draw
from benchmarks.large_tables import DAYS, ListedStore, make_table_by_day
from benchmarks.metadata import change_files
from tests.stores import CountingStore

SIZES = [int(n) for n in os.environ.get("SIZES", "10000,100000,1000000").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "3"))
DAY = "day-0500"


def request(table: Table, operation: str, **values: Any) -> None:
    built = build_request(operation, {"warehouse": "w", "table": table.name, **values})
    context = Context(built, table, int(time.time() * 1000), time.monotonic())
    if isinstance(built, DiffBranches):
        assert small_diff(context, built) is not None
    else:
        perform(context, built)


def write_a_day(table: Table) -> None:
    rows = pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": [DAY, DAY]})
    write_arrow(table, rows)


def read_a_day(table: Table) -> None:
    selection = StoredPartitions(table.schema()).selection([{"dt": DAY}])
    assert plan_scan(table, selection=selection).splits


def overwrite_a_small_day(table: Table) -> None:
    rows = pa.table({"k": pa.array([1], pa.int64()), "v": ["a"], "dt": ["other"]})
    write_arrow(table, rows, mode="overwrite", partition={"dt": "other"})


def expire(table: Table) -> None:
    values = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True, "max_deletes": 10}
    built = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **values})
    found = perform(Context(built, table, int(time.time() * 1000) + 1000, time.monotonic()), built)
    assert found.changed


def plan_compaction(table: Table) -> None:
    built = build_request(
        "compact", {"warehouse": "w", "table": table.name, "partitions": f"dt={DAY}", "dry_run": True}
    )
    assert isinstance(built, Compact)
    context = Context(built, table, int(time.time() * 1000), time.monotonic())
    assert rewrite_files(context, built).details["files_before"]


def clean(table: Table) -> None:
    request(table, "remove_orphan_files", dry_run=True)


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "write of 2 rows into a day": write_a_day,
    "plan of a read of a day": read_a_day,
    "plan of a compaction of a day": plan_compaction,
    "create_branch": lambda t: request(t, "create_branch", branch=f"b{time.time_ns()}", tag="base"),
    "merge_branch of 1,000 changed files": lambda t: request(t, "merge_branch", branch="fix"),
    "diff_branches, nothing changed": lambda t: request(t, "diff_branches", branch="same"),
    "rollback_to before a write": lambda t: request(t, "rollback_to", snapshot=(t.latest_snapshot_id() or 0) - 1),
    "expire_snapshots, 10 snapshots": expire,
    "check_table": lambda t: request(t, "check_table"),
    "remove_orphan_files, dry run": clean,
    "storage_usage": lambda t: request(t, "storage_usage"),
    "plan of a read of all": plan_scan,
}
ONCE = ("merge_branch", "rollback_to", "expire_snapshots")
WHOLE = ("plan of a read of all",)
MOST_OBJECTS = 1_000_000
"""Files of which a plan makes objects: about 650 bytes each."""


def prepare(table: Table, what: str, files: int) -> None:
    if "base" not in table.tag_names():
        request(table, "create_tag", tag="base")
    if what.startswith("merge_branch"):
        request(table, "create_branch", branch="fix", tag="base")
        days = [{"dt": f"day-{d:04d}"} for d in range(max(1, 1000 // (files // DAYS)))]
        change_files(table.branch("fix"), 1000, StoredPartitions(table.schema()).selection(days))
    if what.startswith("diff_branches") and "same" not in table.branch_names():
        request(table, "create_branch", branch="same", tag="base")
    if what.startswith("rollback_to"):
        write_a_day(table)
    for _ in range(12 if what.startswith("expire_snapshots") else 0):
        overwrite_a_small_day(table)


def measure(warehouse: str, what: str) -> None:
    """Run an operation in this process, which is as those that this package starts, and print its costs as JSON."""
    collect_seldom()
    files = int(Path(warehouse).name)
    plain = open_table(warehouse, "d.big")
    prepare(plain, what, files)
    store = CountingStore(ListedStore(plain.store, files // DAYS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, wall = time.process_time(), time.monotonic()
    OPERATIONS[what](Table(store, plain.name))
    cpu, wall = time.process_time() - started, time.monotonic() - wall
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    tally = store.tally
    print(json.dumps({"cpu": cpu, "wall": wall, "requests": tally.requests, "mb": tally.bytes_read / 1e6,
                      "memory": grown / 1024}))  # fmt: skip


def cost_of(warehouse: Path, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.planning", str(warehouse), what]
    found = []
    once = what.startswith(ONCE) or int(warehouse.name) > MOST_OBJECTS
    for _ in range(1 if once else ROUNDS):
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
                if what in WHOLE and size > MOST_OBJECTS:
                    continue
                found.append(cost_of(Path(folder) / str(size), what))
                print(f"{what}: {_shown(size, found)}", flush=True)
    for what, found in costs.items():
        print(what)
        for at in range(len(found)):
            print(f"  {_shown(SIZES[at], found[: at + 1])}")
    if path := os.environ.get("PLOT"):
        series = {what: [(s, c["cpu"]) for s, c in zip(SIZES, found, strict=False)] for what, found in costs.items()}
        draw(Path(path), series, title="Tables laid out by 1,000 days", x="live files", y="seconds of CPU")
    return 0


def _shown(size: int, found: list[dict[str, float]]) -> str:
    cost = found[-1]
    cpu = f"{cost['cpu']:.3f} s CPU ({cost['cpu'] / found[0]['cpu']:.1f} times)"
    read = f"{cost['requests']:.0f} requests, {cost['mb']:.2f} MB read"
    return f"{size:>10,} files: {cpu}, {cost['wall']:.1f} s, {read}, {cost['memory']:.0f} MB of memory"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
    else:
        sys.exit(main())
