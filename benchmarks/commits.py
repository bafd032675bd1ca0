"""8 processes commit to one table, each to a partition of its own: lost commits, commits per second, retries, CPU.

A third of the commits overwrites the process's partition. Data files are tiny placeholders: the benchmark measures the
commit, not the writing of rows. ``s3``: on SeaweedFS, with 20 ms more a request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROCESSES, COMMITS = 8, 200
DELAY_MS = 20

_WORKER = """
import json, sys, time
from airflow_paimon.core.table.table import open_table
from tests.core.tables import append, overwrite
me, count = "p" + sys.argv[3], int(sys.argv[4])
table = open_table(path=sys.argv[1], storage_options=json.loads(sys.argv[2]))
table.store.before_create()
print("ready", flush=True)
sys.stdin.readline()
attempts, files, started = 0, 0, time.process_time()
for i in range(count):
    if i % 3 == 2:
        receipt, files = overwrite(table, me, seq=i), 1
    else:
        receipt, files = append(table, me, seq=i), files + 1
    attempts += receipt.attempts
print(json.dumps({"attempts": attempts, "files": files, "cpu": time.process_time() - started}))
"""


@contextmanager
def local_disk() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give a warehouse and its storage options."""
    with tempfile.TemporaryDirectory() as folder:
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


def measure(warehouse: str, options: Mapping[str, Any], where: str, processes: int, commits: int) -> None:
    """Commit side by side, and print the figures."""
    from airflow_paimon.core.schema.tables import create_table
    from tests.core.tables import COLUMNS, names

    table = create_table(warehouse, "d.t", COLUMNS, partition_keys=["dt"], options={"bucket": "-1"},
                         storage_options=options or None)  # fmt: skip
    given = [f"{warehouse}/d.db/t", json.dumps(dict(options))]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *given, str(n), str(commits)], stdin=pipe, stdout=pipe, text=True
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
    retries = sum(a["attempts"] for a in answers) - total
    kept, wanted = len(names(table)), sum(a["files"] for a in answers)
    print(f"{processes} processes x {commits} commits to one table (a third overwrites), {where}:")
    print(
        f"  snapshots {len(ids)} of {total}, contiguous: {ids == list(range(1, total + 1))}; lost: {total - len(ids)}"
    )
    print(f"  live files {kept}, expected {wanted}")
    print(f"  {total / seconds:.1f} commits per second, {retries} retries ({retries / total:.2f} per commit), "
          f"{sum(a['cpu'] for a in answers) / total * 1000:.1f} ms of CPU each")  # fmt: skip


def main(place: str = "local", processes: int = PROCESSES, commits: int = 0) -> None:
    """Run it and print the figures."""
    if place == "s3":
        with remote_s3() as (warehouse, options):
            measure(warehouse, options, f"S3 with {DELAY_MS} ms more a request", processes, commits or COMMITS // 5)
    else:
        with local_disk() as (warehouse, options):
            measure(warehouse, options, "local disk with fsync", processes, commits or COMMITS)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
