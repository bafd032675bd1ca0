"""The plan of a read of all files, of the tables of ``planning``: at once and group by group, and the same with what
its tasks get, as the data source and ``read_table`` plan it. Also of chain tables, of branches that are read together,
and of column files (``layered_tables``).

CPU seconds, and by how much the memory of the process grew, each way in a process of its own. The files are manifest
entries only, so nothing is read of them. The environment variable ``SIZES`` sets the numbers of files,
``LAYERED_SIZES`` those of the other tables, ``REPEATS`` how often each way is run: the least CPU and memory count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.chain.branch_states import is_chain_read
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read_groups import GroupPlan, GroupSizes, ReadPlan
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.spark.shares import task_shares
from benchmarks.large_tables import make_table_by_day
from benchmarks.layered_tables import MAKE

SIZES = [int(n) for n in os.environ.get("SIZES", "100000,1000000").split(",") if n]
LAYERED_SIZES = [int(n) for n in os.environ.get("LAYERED_SIZES", "100000").split(",") if n]
REPEATS = int(os.environ.get("REPEATS", "1"))
WAYS = ("at once", "groups", "tasks at once", "tasks")


def planned(table: Table, *, at_once: bool) -> ReadPlan:
    request = ReadRequest(mode="full" if is_chain_read(table) else None)
    return plan_rows(table, request, GroupSizes(entries=1 << 62 if at_once else 0))


def planned_files(plan: ReadPlan) -> dict[str, float]:
    return {"files": sum(map(_files_of, plan.groups))}


def _files_of(group: GroupPlan) -> int:
    """Count files once: an anchor is read as it is stored as well."""
    stored = sum(len(s.files) for _, splits in group.layers for s in splits)
    return stored + sum(not s.parts[s.part_of[f.file_name]].is_anchor for s in group.chains for f in s.files)


def planned_tasks(plan: ReadPlan) -> dict[str, float]:
    shares = list(task_shares(plan))
    return {"tasks": len(shares), "mb_for_tasks": sum(map(len, shares)) / (1 << 20)}


def _peak_mb() -> float:
    # not by getrusage, which goes on from the peak of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder:
        for size in SIZES:
            warehouse = Path(folder) / str(size)
            make_table_by_day(warehouse, size)
            compare(warehouse, "", size, WAYS)
        for kind, make in MAKE.items():
            for size in LAYERED_SIZES:
                warehouse = Path(folder) / kind / str(size)
                compare(warehouse, f" of {kind}", make(warehouse, size), WAYS)
    return 0


def compare(warehouse: Path, kind: str, files: int, ways: Sequence[str]) -> None:
    """Run each way in a process of its own, one after the other, and print the least of each figure."""
    runs: dict[str, list[dict[str, float]]] = {}
    for way in [way for _ in range(REPEATS) for way in ways]:
        command = [sys.executable, "-m", "benchmarks.full_read", str(warehouse), way]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.pop("files", files) == files
        runs.setdefault(way, []).append(found)
    best = {way: {name: min(run[name] for run in some) for name in some[0]} for way, some in runs.items()}
    for way, found in best.items():
        figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        beside = best["tasks at once" if way.startswith("tasks") else "at once"]
        ratio = found["cpu"] / beside["cpu"]
        print(f"{files:,} files{kind}, planned in {way}: {figures}; CPU of it at once: {ratio:.2f}", flush=True)


def measure(warehouse: Path, way: str) -> None:
    table = open_table(str(warehouse), "d.big")
    before, used = _peak_mb(), time.process_time()
    plan = planned(table, at_once=way.endswith("at once"))
    found = planned_tasks(plan) if way.startswith("tasks") else planned_files(plan)
    print(json.dumps({**found, "cpu": time.process_time() - used, "mb": _peak_mb() - before}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main())
