"""8 processes commit to one table concurrently: lost commits, commits per second, retries.

A third of the commits overwrites the process's own partition. Data files are tiny placeholders: the benchmark measures
the commit, not the writing of rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROCESSES, COMMITS = 8, 200

_WORKER = """
import json, sys, time
from airflow_paimon.core.table.table import open_table
from tests.core.tables import append, overwrite
table, me, count = open_table(path=sys.argv[1]), "p" + sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
attempts, files = 0, 0
for i in range(count):
    if i % 3 == 2:
        receipt, files = overwrite(table, me, seq=i), 1
    else:
        receipt, files = append(table, me, seq=i), files + 1
    attempts += receipt.attempts
print(json.dumps({"attempts": attempts, "files": files}))
"""


def main(processes: int = PROCESSES, commits: int = COMMITS) -> None:
    """Run it and print the figures."""
    from tests.core.tables import make_table, names

    with tempfile.TemporaryDirectory() as folder:
        table = make_table(Path(folder) / "wh", primary=False)
        path = str(Path(folder) / "wh" / "d.db" / "t")
        pipe = subprocess.PIPE
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, path, str(n), str(commits)], stdin=pipe, stdout=pipe, text=True
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
    print(f"{processes} processes x {commits} commits to one table (a third overwrites), local disk with fsync:")
    print(
        f"  snapshots {len(ids)} of {total}, contiguous: {ids == list(range(1, total + 1))}; lost: {total - len(ids)}"
    )
    print(f"  live files {kept}, expected {wanted}")
    print(f"  {total / seconds:.1f} commits per second, {retries} retries ({retries / total:.2f} per commit); "
          f"limit 100 attempts, waits up to 5 ms doubling to 1 s, full jitter")  # fmt: skip


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
