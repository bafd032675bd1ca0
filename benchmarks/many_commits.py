"""100,000 small commits to one table: what a commit and an expiry of 10 snapshots cost when 100 to 100,000 exist.

Each commit appends one file to one of 100 partitions; data files are not written, only named. Between the measurements
one process commits, in a folder in memory, by a store that remembers what it wrote. A commit and an expiry are measured
in processes of their own, on the plain store: CPU, store requests and bytes, the size of the base manifest list, and
peak memory. Draws ``docs/_static/commits.svg``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from benchmarks.metadata import new_file
from tests.stores import CountingStore

SIZES = (100, 1_000, 10_000, 100_000)
MEASURED, PARTITIONS, EXPIRED, REMEMBERED = 60, 100, 10, 1000
PLOT = Path(__file__).parent.parent / "docs/_static/commits.svg"


def messages(table: Table) -> Iterator[CommitMessage]:
    types = table.schema().partition_types
    file = new_file(0, b"")
    for number in range(sys.maxsize):
        yield CommitMessage(
            partition=encode_row((f"p{number % PARTITIONS:03}",), types),
            bucket=0,
            total_buckets=-1,
            new_files=(file._replace(file_name=f"data-{uuid.uuid4()}-0.parquet"),),
        )


class Quick(StoreWrapper):
    """A folder that only this process writes, so that it need not read what it wrote last, nor sync anything."""

    def __init__(self, inner: Store, folder: str) -> None:
        super().__init__(inner)
        self.folder = folder
        self.last: dict[str, bytes] = {}

    def create(self, path: str, data: bytes) -> None:
        with open(f"{self.folder}/{path}", "xb", buffering=0) as file:
            file.write(data)
        self._remember(path, data)

    def hint(self, path: str, data: bytes) -> None:
        self._remember(path, data)

    def _remember(self, path: str, data: bytes) -> None:
        self.last.pop(path, None)
        self.last[path] = data
        if len(self.last) > REMEMBERED:
            self.last.pop(next(iter(self.last)))

    def read(self, path: str) -> bytes:
        found = self.last.get(path)
        return self.inner.read(path) if found is None else found

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def exists(self, path: str) -> bool:
        return path in self.last or self.inner.exists(path)

    def names_if_few(self, path: str) -> list[str] | None:
        return None


def grow(path: str, commits: int) -> None:
    """Commit, and leave the hint that was not written meanwhile."""
    table = open_table(path=path)
    for name in ("snapshot", "manifest"):
        Path(path, name).mkdir(exist_ok=True)
    quick = Quick(table.store, path)
    on, new = Table(quick, table.name), messages(table)
    for _ in range(commits):
        commit_append(on, [next(new)], planned_on=None)
    table.store.replace(table.paths.latest_hint, quick.last[table.paths.latest_hint])


def commit_costs(path: str) -> dict[str, Any]:
    store = CountingStore(open_table(path=path).store)
    table = Table(store, "d.t")
    new = messages(table)
    cpu, wall = [], []
    commit_append(table, [next(new)], planned_on=None)
    store.tally.reset()
    for _ in range(MEASURED):
        message = next(new)
        started, cpu_started = time.perf_counter(), time.process_time()
        commit_append(table, [message], planned_on=None)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
    head = table.latest_snapshot()
    assert head is not None
    return {
        "cpu_ms": median(cpu) * 1000,
        "mean_ms": sum(cpu) / MEASURED * 1000,
        "wall_ms": median(wall) * 1000,
        "requests": store.tally.requests / MEASURED,
        "kilobytes": (store.tally.bytes_read + store.tally.bytes_written) / MEASURED / 1000,
        "base_list_kb": (head.base_manifest_list_size or 0) / 1000,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def expiry_costs(path: str) -> dict[str, Any]:
    store = CountingStore(open_table(path=path).store)
    values = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True, "max_deletes": EXPIRED}
    request = build_request("expire_snapshots", {"warehouse": "w", "table": "d.t", **values})
    context = Context(request, Table(store, "d.t"), int(time.time() * 1000) + 1000, time.monotonic())
    started = time.process_time()
    perform(context, request)
    return {
        "cpu_s": time.process_time() - started,
        "requests": store.tally.requests,
        "megabytes": store.tally.bytes_read / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_process(what: str, path: str, *more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.many_commits", what, path, *map(str, more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measured(what: str, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(in_process(what, path).communicate()[0])
    return answer


def main(sizes: tuple[int, ...]) -> None:
    """Print a line for each size, and draw the plot."""
    from airflow_paimon.core.schema.tables import create_table
    from benchmarks._plot import draw
    from tests.core.tables import COLUMNS

    found: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        table = create_table(f"{folder}/wh", "d.t", COLUMNS, partition_keys=["dt"], options={"bucket": "-1"})
        path = f"{folder}/wh/d.db/t"
        for size in sizes:
            missing = size - len(table.snapshot_ids())
            if missing > 0:
                assert in_process("grow", path, missing).wait() == 0
            found[size] = measured("commit", path), measured("expiry", path)
            commit, expiry = ({k: round(v, 2) for k, v in costs.items()} for costs in found[size])
            print(
                f"{len(table.snapshot_ids()):>7} snapshots: a commit {commit}; 10 of them expired: {expiry}", flush=True
            )
    series = {
        "commit: CPU (ms)": [(n, c["cpu_ms"]) for n, (c, _) in found.items()],
        "commit: requests": [(n, c["requests"]) for n, (c, _) in found.items()],
        "base manifest list (kB)": [(n, c["base_list_kb"]) for n, (c, _) in found.items()],
        "expire 10 snapshots: CPU (s)": [(n, e["cpu_s"]) for n, (_, e) in found.items()],
    }
    draw(PLOT, series, title="Cost of a commit and an expiry", x="snapshots of the table", y="ms, requests, kB, s")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["grow", path, commits]:
            grow(path, int(commits))
        case ["commit", path]:
            print(json.dumps(commit_costs(path)))
        case ["expiry", path]:
            print(json.dumps(expiry_costs(path)))
        case sizes:
            main(tuple(map(int, sizes)) or SIZES)
