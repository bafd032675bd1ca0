"""The cost of a small correction and its diff, compared with an empty ``spark-submit``.

3,000 rows in 3 partitions of 4 buckets are corrected by a query, an UPDATE and a MERGE; they are compared with the
branch's base, in Spark and in plain Python. Each round runs all programs one after the other. Printed
are wall-clock and CPU seconds of each program with its child processes, and the ratio to the empty job of the same
round. The environment variable ``ROUNDS`` sets the number of rounds (3).
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_paimon.bundled import job_path
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.java import find_java

ROUNDS = int(os.environ.get("ROUNDS", "3"))
DAYS = ("2025-01-01", "2025-01-02", "2025-01-03")
ROWS = 1000
LONGEST_S = 600
EMPTY = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n"
IMPORTS = "import pyspark.sql, airflow_paimon.spark.launch, airflow_paimon.spark.jobs.correct_branch\n"
UPDATE = f"UPDATE branch SET amount = amount * 2 WHERE dt IN {DAYS}"
QUERY = f"SELECT k, amount * 2 AS amount, name, dt FROM branch WHERE dt IN {DAYS}"
MERGE = (
    "MERGE INTO branch b USING main m ON b.dt = m.dt AND b.k = m.k WHEN MATCHED THEN UPDATE SET amount = m.amount * 3"
)


@dataclass(frozen=True)
class Took:
    """Seconds of one program: wall clock, CPU, and in the job itself (its result's ``duration_s``)."""

    wall: float
    cpu: float
    inside: float | None


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as name:
        folder = Path(name)
        (folder / "empty.py").write_text(EMPTY)
        (folder / "imports.py").write_text(IMPORTS)
        (folder / "query.sql").write_text(QUERY)
        (folder / "update.sql").write_text(UPDATE)
        (folder / "merge.sql").write_text(MERGE)
        make_table(folder / "warehouse")
        rounds = [one_round(folder, number) for number in range(ROUNDS)]
    print(f"{len(DAYS) * ROWS:,} rows, {ROUNDS} rounds; medians")
    print(f"{'program':28} {'wall':>8} {'CPU':>8} {'in the job':>10} {'wall/empty':>11} {'CPU/empty':>10}")
    for program in rounds[0]:
        took = [r[program] for r in rounds]
        inside = [t.inside for t in took if t.inside is not None]
        ratios = [(r[program].wall / r["empty spark-submit"].wall, r[program].cpu / r["empty spark-submit"].cpu)
                  for r in rounds]  # fmt: skip
        wall, cpu = statistics.median(t.wall for t in took), statistics.median(t.cpu for t in took)
        shown = f"{statistics.median(inside):9.1f}s" if inside else f"{'':10}"
        wall_ratio, cpu_ratio = (statistics.median(side) for side in zip(*ratios, strict=True))
        print(f"{program:28} {wall:7.1f}s {cpu:7.1f}s {shown} {wall_ratio:11.2f} {cpu_ratio:10.2f}")


def one_round(folder: Path, number: int) -> dict[str, Took]:
    branch = f"fix{number}"
    values = {"warehouse": str(folder / "warehouse"), "table": "d.t", "branch": branch, "tag": "base"}
    run_operation(build_request("create_branch", values))
    asked = [f"--warehouse={folder / 'warehouse'}", "--table=d.t", f"--branch={branch}"]
    correct = [str(job_path("correct_branch")), *asked, f"--sql={folder / 'query.sql'}"]
    correct += [f"--partitions=dt={day}" for day in DAYS]
    update = [str(job_path("correct_branch")), *asked, f"--sql={folder / 'update.sql'}"]
    merge = [str(job_path("correct_branch")), *asked, f"--sql={folder / 'merge.sql'}"]
    diff = [str(job_path("diff_branches")), *asked]
    submit = ["spark-submit", "--master", "local[2]"]
    return {
        "empty spark-submit": timed([*submit, str(folder / "empty.py")], folder),
        "imports alone": timed([sys.executable, str(folder / "imports.py")], folder),
        "correct_branch, submitted": timed([*submit, *correct], folder),
        "UPDATE, submitted": timed([*submit, *update], folder),
        "MERGE, submitted": timed([*submit, *merge], folder),
        "diff_branches, submitted": timed([*submit, *diff], folder),
        "diff_branches, python": timed([sys.executable, *diff], folder),
    }


def timed(command: Sequence[str], folder: Path) -> Took:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(), timeout=LONGEST_S, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = done.stdout.splitlines()
    return Took(wall, cpu, json.loads(lines[-1])["duration_s"] if lines else None)


def environment() -> dict[str, str]:
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    home = find_java(Path(__file__).parent.parent / ".java")
    return env if home is None else env | {"JAVA_HOME": str(home)}


def make_table(warehouse: Path) -> None:
    columns = [("k", "BIGINT NOT NULL"), ("amount", "BIGINT"), ("name", "STRING"), ("dt", "STRING NOT NULL")]
    table = create_table(
        str(warehouse), "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "4"}
    )
    for day in DAYS:
        keys = list(range(ROWS))
        write_arrow(table, pa.table({"k": keys, "amount": keys, "name": [f"n{k}" for k in keys], "dt": [day] * ROWS}))
    run_operation(build_request("create_tag", {"warehouse": str(warehouse), "table": "d.t", "tag": "base"}))


if __name__ == "__main__":
    main()
