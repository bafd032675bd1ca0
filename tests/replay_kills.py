"""``python -m tests.replay_kills KILLS``: kills replay jobs at random moments and runs them again.

Each replay copies what came to ``d.up`` after its first snapshot into a branch of ``d.down``: as a batch of four
writes, or as a stream of one file a batch. The process of the job gets SIGKILL. In the end the branch must have every
row once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.bundled import job_path
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.replays import batch_key, find_replay
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.environment import REPO_ROOT
from tests.randomness import VARIABLE, choose_seed
from tests.stream_kills import end, kill, python_processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = "tests.replay_kills"
MODES = ("batch", "stream")
WRITES = 4
OPERATION = "replay"
_COMMITS = 5
_SECONDS = 240.0
_POLL_SECONDS = 0.02
_SMALL_SPARK = """
spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.sql.shuffle.partitions 1
spark.ui.enabled false
"""


def in_batches(spark: SparkSession, sources: Any, targets: Any, start: Mapping[str, int]) -> None:
    """Append the changes in four parts."""
    changed = sources["up"].changes().drop("_row_kind")
    for part in range(WRITES):
        targets["down"].write(changed.where(f"k % {WRITES} = {part}"), mode="append")


def in_streams(spark: SparkSession, sources: Any, targets: Any, start: Mapping[str, int]) -> None:
    """Append the changes, a file of the source in each batch."""
    targets["down"].write_stream(sources["up"].stream(maxFilesPerTrigger="1"))


def make_tables(warehouse: Path) -> None:
    """Create ``d.up`` with six snapshots, and ``d.down`` with the rows of the first, and a branch for each mode."""
    for name in ("up", "down"):
        table = create_table(str(warehouse), f"d.{name}", [("k", "BIGINT")])
        write_arrow(table, pa.table({"k": pa.array([-1], pa.int64())}))
    for mode in MODES:
        run(table, "create_branch", branch=mode, snapshot=1)
    for number in range(_COMMITS):
        feed(warehouse, number)


def feed(warehouse: Path, number: int) -> None:
    """Commit eight rows that occur once to the source."""
    rows = pa.table({"k": pa.array(range(number * 8, number * 8 + 8), pa.int64())})
    write_arrow(open_table(str(warehouse), "d.up"), rows)


def target(warehouse: Path, mode: str) -> Table:
    return open_table(str(warehouse), "d.down", mode)


def rows_of(table: Table, snapshot: int | None = None) -> list[int]:
    return sorted(read_arrow(table, snapshot).column("k").to_pylist())


def source_rows(warehouse: Path, snapshot: int | None) -> list[int]:
    return rows_of(open_table(str(warehouse), "d.up"), snapshot)


def read_in_batch(warehouse: Path) -> int:
    """Return the snapshot of the source that all tries of the batch read: a try that came far enough recorded it."""
    record = find_replay(target(warehouse, "batch"), batch_key(OPERATION))
    assert record is not None
    return record.ends["up"]


def asked(mode: str, operation_id: str = OPERATION) -> dict[str, Any]:
    """Return the options of a replay; streams go on until nothing is new."""
    values: dict[str, Any] = {"table": "d.down", "branch": mode, "source": ["up=d.up"], "snapshot": ["1"]}
    values |= {"function": f"{HERE}:in_{'batches' if mode == 'batch' else 'streams'}"}
    return values | ({"operation_id": operation_id} if mode == "batch" else {"available_now": True})


def start_job(warehouse: Path, mode: str) -> subprocess.Popen[bytes]:
    """Start the job as a program, in a process group of its own."""
    return start_program("replay_branch", warehouse, asked(mode))


_AS_IF_LARGE = "from airflow_paimon.data import read_splits; read_splits.LIMIT_BYTES = -1; "


def start_program(
    operation: str, warehouse: Path, options: Mapping[str, Any], *, as_if_large: bool = False
) -> subprocess.Popen[bytes]:
    """Start a job as a program, in a process group of its own. ``as_if_large``: in Spark, however small its files."""
    flags = [f"--warehouse={warehouse}"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [f"{flag}={v}" for v in (value if isinstance(value, list) else [value])]
    conf = warehouse.parent / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text(f"{_SMALL_SPARK}spark.local.dir {warehouse.parent / 'local'}\n")
    env = {**os.environ, "SPARK_CONF_DIR": str(conf), "PYTHONPATH": str(REPO_ROOT)}
    main = f"{_AS_IF_LARGE}from airflow_paimon.spark.launch import main; main({operation!r})"
    program = ["-c", main] if as_if_large else [str(job_path(operation))]
    flags += ["--local-execution=none"] if as_if_large else []
    return subprocess.Popen(
        [sys.executable, *program, *flags],
        cwd=REPO_ROOT,
        env=env,
        process_group=0,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_when_it_has_written(job: subprocess.Popen[bytes], folder: Path, before: set[Path]) -> None:
    """Kill a job as soon as data files are below a folder that were not there ``before``."""
    deadline = time.monotonic() + 900
    try:
        while not set(folder.rglob("data-*")) - before and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        code = kill_job(job)
    assert code == -9
    assert set(folder.rglob("data-*")) - before, "it had written files"


def run_to_end(warehouse: Path, mode: str) -> int:
    """Run the job, and return its exit code."""
    job = start_job(warehouse, mode)
    try:
        return job.wait(_SECONDS)
    finally:
        if job.poll() is None:
            end(job)


def wait_for_snapshot(table: Table, job: subprocess.Popen[bytes], snapshot: int) -> None:
    """Wait until a job has committed so much, or ended."""
    deadline = time.monotonic() + _SECONDS
    while (table.latest_snapshot_id() or 0) < snapshot and job.poll() is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the replay into {table.label} has not committed snapshot {snapshot} in {_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def kill_job(job: subprocess.Popen[bytes]) -> int:
    """Send SIGKILL to the job's process alone, and return its exit code; what it had started ends, or is ended."""
    started = python_processes(job.pid)
    kill(job.pid)
    code = job.wait()
    deadline = time.monotonic() + 20
    while _group_lives(job.pid) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid in started:
        kill(pid)
    end(job)
    return code


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main(kills: int) -> int:
    """Kill ``kills`` times, each mode in turn, then let both end; 0 = the branches have the source's rows."""
    draw = random.Random(choose_seed(new=True))
    with tempfile.TemporaryDirectory(prefix="replay-kills-") as folder:
        warehouse = Path(folder) / "warehouse"
        make_tables(warehouse)
        for number in range(kills):
            mode = MODES[number % len(MODES)]
            if mode == "stream":
                feed(warehouse, _COMMITS + number)
            view = target(warehouse, mode)
            job = start_job(warehouse, mode)
            try:
                if draw.random() < 0.5:
                    wait_for_snapshot(view, job, (view.latest_snapshot_id() or 0) + 1)
                    time.sleep(draw.uniform(0, 2))
                else:
                    time.sleep(draw.uniform(3, 15))
            finally:
                code = kill_job(job)
            print(f"kill {number + 1}: {mode}, exit code {code}, snapshot {view.latest_snapshot_id()}", flush=True)
        codes = {mode: run_to_end(warehouse, mode) for mode in MODES}
        expected = {"batch": source_rows(warehouse, read_in_batch(warehouse)), "stream": source_rows(warehouse, None)}
        found = {mode: rows_of(target(warehouse, mode)) for mode in MODES}
    faults = [f"{m}: exit code {codes[m]}, {found[m]} instead of {expected[m]}" for m in MODES
              if codes[m] or found[m] != expected[m]]  # fmt: skip
    print(f"{kills} kills of replays: {'; '.join(faults) or 'every row once'}", flush=True)
    if faults:
        print(f"repeat it with {VARIABLE}={choose_seed()}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    sys.exit(main(int(sys.argv[1])))
