"""8 processes commit to one table, each to a partition of its own: lost commits, commits per second, retries, CPU.

A third of the commits overwrites the process's partition. Data files are tiny placeholders: the benchmark measures the
commit, not the writing of rows. ``s3``: on SeaweedFS, with 20 ms more a request; ``far``: in a folder in memory where
each request takes 20 ms, so that no server shares the cores: what the order of requests allows. ``java``: each commit
writes a file of one row, first by us and then, to the same table, by as many processes of Paimon's Java engine
(``make oracles``). In a folder in memory, as Java syncs nothing. Of its renames some replace each other's snapshots.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_paimon.core.commit.lost_races import lost_races
from airflow_paimon.core.table.table import Table, open_table
from benchmarks._delay import Delay
from tests.core.tables import append, overwrite
from tests.stores import _Wrapper

PROCESSES, COMMITS = 8, 200
DELAY_MS = 20

_WORKER = """
import json, sys, time
from airflow_paimon.core.table.table import Table, open_table
from benchmarks.commits import Slow, commit_one
me, count, kind = "p" + sys.argv[3], int(sys.argv[4]), sys.argv[5]
table = open_table(path=sys.argv[1], storage_options=json.loads(sys.argv[2]))
if kind == "far":
    table = Table(Slow(table.store), table.name)
table.store.before_create()
commit_one(kind, table, me, 0)  # modules are loaded on the first commit
print("ready", flush=True)
sys.stdin.readline()
attempts, files, started = 0, 1, time.process_time()
for i in range(count):
    attempts += commit_one(kind, table, me, i)
    files = 1 if i % 3 == 2 else files + 1
print(json.dumps({"attempts": attempts, "files": files, "cpu": time.process_time() - started}))
"""


def commit_one(kind: str, table: Table, me: str, number: int) -> int:
    """Make one commit to a partition, every third one overwrites it; return how many attempts it took."""
    replaces = number % 3 == 2
    if kind != "java":
        return (overwrite if replaces else append)(table, me, seq=number).attempts
    import pyarrow as pa

    from airflow_paimon.data import write_arrow

    before, rows = lost_races(), pa.table({"k": pa.array([number], pa.int64()), "v": ["v"], "dt": [me]})
    write_arrow(table, rows, **({"mode": "overwrite", "partition": {"dt": me}} if replaces else {}))
    return 1 + lost_races() - before


def commit_in_java(place: Place, processes: int, commits: int) -> None:
    """Commit side by side by processes of Java, and print the figures."""
    import pyarrow as pa

    from tests.oracles.java_driver import JavaOracle

    def work(java: JavaOracle, me: str) -> None:
        java.open_session(place.warehouse, "s")
        for number in range(-1, commits):
            if number == 0:  # the first one has loaded classes
                start.wait()
            rows = pa.table({"k": pa.array([number], pa.int64()), "v": ["v"], "dt": [me]})
            how = {"mode": "overwrite", "partition": {"dt": me}} if number % 3 == 2 else {}
            java.write(place.warehouse, "d.t", rows, session="s", **how)

    start = threading.Barrier(processes + 1)
    table = open_table(place.warehouse, "d.t")
    with tempfile.TemporaryDirectory() as scratch:
        engines = [JavaOracle(Path(scratch) / str(n)) for n in range(processes)]
        threads = [threading.Thread(target=work, args=(java, f"p{n}")) for n, java in enumerate(engines)]
        for thread in threads:
            thread.start()
        start.wait()
        began, before = time.perf_counter(), len(table.snapshot_ids())
        for thread in threads:
            thread.join()
        seconds, committed = time.perf_counter() - began, len(table.snapshot_ids()) - before
        for java in engines:
            java.close()
    total = processes * commits
    print(f"the same by as many of Java: {total / seconds:.1f} commits per second; lost: {total - committed}")


class Slow(_Wrapper):
    """A folder as a remote storage: each request takes its time."""

    remote = True

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if "bucket-" not in path:  # placeholders of data files are no part of a commit
            time.sleep(DELAY_MS / 1000)
        return action()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a table is made. ``serving``: processes that share the cores with those that commit, by name."""

    warehouse: str
    options: Mapping[str, Any] = field(default_factory=dict)
    serving: Mapping[str, int] = field(default_factory=dict)

    def cpu_s(self) -> dict[str, float]:
        """Return how much CPU these processes have used."""
        return {name: cpu_of(pid) for name, pid in self.serving.items()}


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used; on Linux only."""
    _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    user, system = rest.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def local_folder(above: str | None) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir=above) as folder:
        yield Place(warehouse=str(Path(folder) / "wh"))


@contextmanager
def remote_s3() -> Iterator[Place]:
    """Start a server, and a proxy before it that delays."""
    from tests import s3_server
    from tests.seaweed_server import seaweed_server

    with tempfile.TemporaryDirectory() as folder, seaweed_server(Path(folder)) as endpoint:
        server = int(Path("/proc/thread-self/children").read_text())
        proxy = Delay(urlsplit(endpoint).netloc, DELAY_MS)
        try:
            yield Place(
                warehouse=f"s3://{s3_server.make_bucket(endpoint)}/wh",
                options=s3_server.storage_options(f"http://{proxy.address}"),
                serving={"server": server, "proxy": proxy.pid},
            )
        finally:
            proxy.close()


def measure(kind: str, place: Place, where: str, processes: int, commits: int) -> None:
    """Commit side by side, and print the figures."""
    from airflow_paimon.core.schema.tables import create_table
    from tests.core.tables import COLUMNS, names

    options = {"bucket": "-1", "commit.max-retries": "1000"}  # Java gives up after 10
    table = create_table(place.warehouse, "d.t", COLUMNS, partition_keys=["dt"], options=options,
                         storage_options=place.options or None)  # fmt: skip
    given = [f"{place.warehouse}/d.db/t", json.dumps(dict(place.options))]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *given, str(n), str(commits), kind], stdin=pipe, stdout=pipe, text=True
        )
        for n in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    started, used = time.perf_counter(), place.cpu_s()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [json.loads(worker.communicate(timeout=1200)[0]) for worker in workers]
    seconds = time.perf_counter() - started
    serving = {name: now - used[name] for name, now in place.cpu_s().items()}
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
    if serving:
        others = ", ".join(f"{name} {cpu / total * 1000:.1f} ms" for name, cpu in serving.items())
        print(f"  beside that CPU of others for each commit: {others}")


def main(kind: str = "local", processes: int = PROCESSES, commits: int = 0) -> None:
    """Run it and print the figures."""
    if kind == "s3":
        with remote_s3() as place:
            measure(kind, place, f"S3 with {DELAY_MS} ms more a request", processes, commits or COMMITS // 5)
    elif kind == "java":
        with local_folder("/dev/shm") as place:
            measure(kind, place, "a folder in memory", processes, commits or COMMITS // 4)
            commit_in_java(place, processes, commits or COMMITS // 4)
    elif kind == "far":
        with local_folder("/dev/shm") as place:
            measure(kind, place, f"{DELAY_MS} ms a request", processes, commits or COMMITS // 2)
    else:
        with local_folder(None) as place:
            measure(kind, place, "local disk with fsync", processes, commits or COMMITS)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
