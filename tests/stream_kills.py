"""``python -m tests.stream_kills KILLS``: kills streams at random moments; no row may be lost or come twice.

A process runs two queries, from an append table and from a primary-key table into branches of two others. This one
writes to the sources and sends SIGKILL: to one of the processes that Spark has started for Python, or, one time in
four, to the whole session with its JVM. In the end the targets must have the sources' rows.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.environment import REPO_ROOT
from tests.randomness import VARIABLE, choose_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAIRS = ("plain", "keyed")
_ROUND_SECONDS = 300.0
_POLL_SECONDS = 0.05
_AGAIN_SECONDS = 3.0
"""From one start of a query to the next: Spark gives Python 10 s to start, and leaves late processes behind."""


def make_tables(warehouse: Path) -> None:
    """Create ``d.<pair>_in`` and a branch ``b`` of ``d.<pair>_out`` for each pair."""
    for pair in PAIRS:
        keys = ["k"] if pair == "keyed" else []
        options = {"bucket": "2"} if keys else {}
        columns = [("k", "BIGINT NOT NULL"), ("v", "STRING")]
        for name in ("in", "out"):
            table = create_table(str(warehouse), f"d.{pair}_{name}", columns, primary_keys=keys, options=options)
        write_arrow(table, rows_of([(-1, "base", "+I")], keyed=bool(keys)))
        run(table, "create_tag", tag="t")
        run(table, "create_branch", branch="b", tag="t")


def rows_of(rows: list[tuple[int, str, str]], *, keyed: bool) -> pa.Table:
    k, v, kinds = map(list, zip(*rows, strict=True))
    columns: dict[str, Any] = {"k": pa.array(k, pa.int64()), "v": v}
    return pa.table({**columns, "_row_kind": kinds} if keyed else columns)


def feed(warehouse: Path, draw: random.Random, number: int) -> None:
    """Commit to both sources; every row of the plain one occurs once."""
    write_arrow(source(warehouse, "plain"), rows_of([(number * 10 + i, f"p{i}", "+I") for i in range(3)], keyed=False))
    keys = draw.sample(range(20), 4)
    changes = [(k, f"n{number}", draw.choice(["+I", "+I", "-D"])) for k in keys]
    write_arrow(source(warehouse, "keyed"), rows_of(changes, keyed=True))


def source(warehouse: Path, pair: str) -> Table:
    return open_table(str(warehouse), f"d.{pair}_in")


def target(warehouse: Path, pair: str) -> Table:
    return open_table(str(warehouse), f"d.{pair}_out", "b")


def contents(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_arrow(table).to_pylist() if row["k"] >= 0)


def start(spark: SparkSession, warehouse: Path, pair: str, trigger: dict[str, Any]) -> StreamingQuery:
    """Start the query of a pair, always with the same checkpoint."""
    for left in (warehouse / f"checkpoint-{pair}" / "offsets").glob(".*.tmp*"):
        left.unlink()  # Spark 4.1 refuses batch 0 beside what its own interrupted write left
    options = {"warehouse": str(warehouse), "poll-interval": "100 ms", "maxFilesPerTrigger": "4"}
    options |= {"table": f"d.{pair}_in", "row-kind": str(pair == "keyed").lower()}
    frame = spark.readStream.format("airflow_paimon").options(**options).load()
    writer = frame.writeStream.format("airflow_paimon").options(warehouse=str(warehouse), table=f"d.{pair}_out")
    writer = writer.option("branch", "b").option("checkpointLocation", str(warehouse / f"checkpoint-{pair}"))
    return writer.trigger(**trigger).start()


def python_processes(root: int) -> list[int]:
    """Return the Python processes that a process has started, directly or not."""
    parents: dict[int, int] = {}
    names: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(pid for pid in found - {root} if b"python" in names.get(pid, b"").partition(b"\0")[0])


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def check(warehouse: Path) -> list[str]:
    """Compare targets with sources; returns what is wrong."""
    faults = []
    for pair in PAIRS:
        expected, found = contents(source(warehouse, pair)), contents(target(warehouse, pair))
        if expected != found:
            missing, extra = (sorted(set(a) - set(b)) for a, b in ((expected, found), (found, expected)))
            faults.append(f"{pair}: {len(expected)} rows, {len(found)} arrived; missing {missing}, extra {extra}")
    return faults


def serve(warehouse: Path) -> None:
    """Keep both queries running until this process is killed."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    spark = session(warehouse)
    queries: dict[str, StreamingQuery] = {}
    started = dict.fromkeys(PAIRS, 0.0)
    while True:
        for pair in PAIRS:
            ended = pair not in queries or not queries[pair].isActive
            if ended and time.monotonic() >= started[pair] + _AGAIN_SECONDS:
                started[pair] = time.monotonic()
                # A Python process may be killed that Spark has asked for the schema.
                with contextlib.suppress(PySparkException, Py4JJavaError):
                    queries[pair] = start(spark, warehouse, pair, {"processingTime": "0 seconds"})
        time.sleep(_POLL_SECONDS)


def session(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from airflow_paimon.spark import register

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.local.dir", str(warehouse.parent / "local")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


def main(kills: int) -> int:
    """Kill ``kills`` times; 0 = the targets have exactly the sources' rows."""
    draw = random.Random(choose_seed(new=True))
    with tempfile.TemporaryDirectory(prefix="stream-kills-") as folder:
        warehouse = Path(folder) / "warehouse"
        make_tables(warehouse)
        child: subprocess.Popen[bytes] | None = None
        try:
            for number in range(kills):
                if child is None or child.poll() is not None:
                    child = run_child(warehouse)
                strike(warehouse, child, draw, number)
            if child is None or child.poll() is not None:
                child = run_child(warehouse)
            faults = settled(warehouse)
        finally:
            if child is not None:
                end(child)
        sizes = {pair: len(contents(source(warehouse, pair))) for pair in PAIRS}
        snapshots = {pair: target(warehouse, pair).latest_snapshot_id() for pair in PAIRS}
    print(f"{kills} kills; rows {sizes}, snapshots {snapshots}: {'; '.join(faults) or 'every row once'}", flush=True)
    if faults:
        print(f"repeat it with {VARIABLE}={choose_seed()}", flush=True)
    return 1 if faults else 0


def strike(warehouse: Path, child: subprocess.Popen[bytes], draw: random.Random, number: int) -> None:
    """Feed until the targets get something, wait a random moment, kill."""
    before = [target(warehouse, pair).latest_snapshot_id() for pair in PAIRS]
    deadline = time.monotonic() + _ROUND_SECONDS
    feed(warehouse, draw, number * 2)
    while [target(warehouse, pair).latest_snapshot_id() for pair in PAIRS] == before:
        if child.poll() is not None:
            raise RuntimeError(f"kill {number + 1}: the session has ended by itself ({child.returncode})")
        if time.monotonic() > deadline:
            raise RuntimeError(f"kill {number + 1}: the stream has written nothing for {_ROUND_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    feed(warehouse, draw, number * 2 + 1)
    time.sleep(draw.uniform(0, 3))
    pythons = python_processes(child.pid)
    whole = draw.random() < 0.25 or not pythons
    print(f"kill {number + 1}: {'the session' if whole else 'a Python process'}", flush=True)
    if whole:
        end(child)
    else:
        kill(draw.choice(pythons))


def settled(warehouse: Path) -> list[str]:
    """Wait until everything has arrived; returns what has not."""
    deadline = time.monotonic() + _ROUND_SECONDS
    while faults := check(warehouse):
        if time.monotonic() > deadline:
            return faults
        time.sleep(1)
    return []


def run_child(warehouse: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.stream_kills", "serve", str(warehouse)]
    return subprocess.Popen(command, cwd=REPO_ROOT, process_group=0, stderr=subprocess.DEVNULL)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a session: its Python, its JVM and what that has started (Python workers have groups of their own)."""
    for pid in (*python_processes(child.pid), child.pid):
        kill(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
        sys.exit(main(int(sys.argv[1])))
