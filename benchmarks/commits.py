"""8 processes commit to one table, each to a partition of its own: lost commits, commits per second, retries, CPU.

A third of the commits overwrites the process's partition. Data files are tiny placeholders: the benchmark measures the
commit, not the writing of rows. ``s3``: on SeaweedFS, with 20 ms more a request; ``far``: in a folder in memory where
each request takes 20 ms, so that no server shares the cores: what the order of requests allows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.stores import _Wrapper

PROCESSES, COMMITS = 8, 200
DELAY_MS = 20

_WORKER = """
import json, sys, time
from airflow_paimon.core.table.table import Table, open_table
from benchmarks.commits import Slow
from tests.core.tables import append, overwrite
me, count = "p" + sys.argv[3], int(sys.argv[4])
table = open_table(path=sys.argv[1], storage_options=json.loads(sys.argv[2]))
if sys.argv[5] == "far":
    table = Table(Slow(table.store), table.name)
table.store.before_create()
append(table, me)  # modules are loaded on the first commit
print("ready", flush=True)
sys.stdin.readline()
attempts, files, started = 0, 1, time.process_time()
for i in range(count):
    if i % 3 == 2:
        receipt, files = overwrite(table, me, seq=i), 1
    else:
        receipt, files = append(table, me, seq=i), files + 1
    attempts += receipt.attempts
print(json.dumps({"attempts": attempts, "files": files, "cpu": time.process_time() - started}))
"""


class Slow(_Wrapper):
    """A folder as a remote storage: each request takes its time."""

    remote = True

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if "bucket-" not in path:  # placeholders of data files are no part of a commit
            time.sleep(DELAY_MS / 1000)
        return action()


@contextmanager
def local_folder(above: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give a warehouse and its storage options."""
    with tempfile.TemporaryDirectory(dir=above) as folder:
        yield str(Path(folder) / "wh"), {}


@contextmanager
def remote_s3() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Start a server, and a proxy before it that delays; give a warehouse and its storage options."""
    from benchmarks.remote_stores import Delay
    from tests import s3_server
    from tests.seaweed_server import seaweed_server

    with tempfile.TemporaryDirectory() as folder, seaweed_server(Path(folder)) as endpoint:
        proxy = Delay(urlsplit(endpoint).netloc, DELAY_MS)
        try:
            yield f"s3://{s3_server.make_bucket(endpoint)}/wh", s3_server.storage_options(f"http://{proxy.address}")
        finally:
            proxy.close()


def measure(place: str, warehouse: str, options: Mapping[str, Any], where: str, processes: int, commits: int) -> None:
    """Commit side by side, and print the figures."""
    from airflow_paimon.core.schema.tables import create_table
    from tests.core.tables import COLUMNS, names

    table = create_table(warehouse, "d.t", COLUMNS, partition_keys=["dt"], options={"bucket": "-1"},
                         storage_options=options or None)  # fmt: skip
    given = [f"{warehouse}/d.db/t", json.dumps(dict(options))]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *given, str(n), str(commits), place], stdin=pipe, stdout=pipe, text=True
        )
        for n in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    started = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [json.loads(worker.communicate(timeout=1200)[0]) for worker in workers]
    seconds = time.perf_counter() - started
    ids = table.snapshot_ids()
    total = processes * commits
    made = total + processes
    retries = sum(a["attempts"] for a in answers) - total
    kept, wanted = len(names(table)), sum(a["files"] for a in answers)
    print(f"{processes} processes x {commits} commits to one table (a third overwrites), {where}:")
    print(f"  snapshots {len(ids)} of {made}, contiguous: {ids == list(range(1, made + 1))}; lost: {made - len(ids)}")
    print(f"  live files {kept}, expected {wanted}")
    print(f"  {total / seconds:.1f} commits per second, {retries} retries ({retries / total:.2f} per commit), "
          f"{sum(a['cpu'] for a in answers) / total * 1000:.1f} ms of CPU each")  # fmt: skip


def main(place: str = "local", processes: int = PROCESSES, commits: int = 0) -> None:
    """Run it and print the figures."""
    if place == "s3":
        with remote_s3() as (warehouse, options):
            measure(
                place, warehouse, options, f"S3 with {DELAY_MS} ms more a request", processes, commits or COMMITS // 5
            )
    elif place == "far":
        with local_folder("/dev/shm") as (warehouse, options):
            measure(place, warehouse, options, f"{DELAY_MS} ms a request", processes, commits or COMMITS // 2)
    else:
        with local_folder(None) as (warehouse, options):
            measure(place, warehouse, options, "local disk with fsync", processes, commits or COMMITS)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
