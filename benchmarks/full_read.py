"""The plan of a read of all files, of the tables of ``planning``: in the driver at once and group by group, by Spark's
tasks, and what the data source's process does before its tasks. The same of chain tables and, but for Spark's tasks, of
branches that are read together, and of column files (``layered_tables``).

CPU seconds, of the driver (Python) and of the JVM and its workers, and by how much the memory of the driver and of
the largest worker grew, each way in a process of its own. The files are manifest entries only, so nothing is read of
them: tasks plan their groups, and others count the files that they get. The environment variable ``SIZES`` sets the
numbers of files, ``LAYERED_SIZES`` those of the other tables, ``REPEATS`` how often each way is run: the least CPU and
memory count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import grouped_read, whole_read
from airflow_paimon.data.chain.grouped_read import plan_chain_by_groups
from airflow_paimon.data.chain.scan import ChainRead, is_chain_read
from airflow_paimon.data.chain.splits import ChainSplit
from airflow_paimon.data.chain.whole_read import WholeChain, plan_chain_or_whole
from airflow_paimon.data.grouped_read import plan_by_groups
from airflow_paimon.data.scan import ReadSplit
from airflow_paimon.data.whole_read import WholeRead, plan_or_whole, unpacked
from airflow_paimon.spark.datasource import PaimonReader
from airflow_paimon.spark.tasks import forgetting_zip_importers, map_in_arrow, set_imports_apart
from airflow_paimon.spark.whole_read import planned_chains, planned_files
from benchmarks.large_tables import make_table_by_day
from benchmarks.layered_tables import MAKE
from benchmarks.spark_read_write import cpu_of_processes, session

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SIZES = [int(n) for n in os.environ.get("SIZES", "100000,1000000").split(",") if n]
LAYERED_SIZES = [int(n) for n in os.environ.get("LAYERED_SIZES", "100000").split(",") if n]
REPEATS = int(os.environ.get("REPEATS", "1"))
WAYS = ("driver", "groups", "tasks", "data source", "data source at once")


def in_process(table: Table, *, at_once: bool) -> dict[str, float]:
    """As ``read_batches`` plans, or all at once."""
    before, used = _peak_mb(), time.process_time()
    grouped_read.MANY_ENTRIES = 1 << 62 if at_once else 0
    if is_chain_read(table):
        files = sum(map(_files_of_chain, plan_chain_by_groups(table).reads))
    else:
        files = sum(len(s.files) for _, splits in plan_by_groups(table).layers for s in splits)
    return {"files": files, "driver_cpu": time.process_time() - used, "driver_mb": _peak_mb() - before}


def _files_of_chain(read: ChainRead) -> int:
    stored = sum(len(s.files) for _, splits in read.layers for s in splits)
    return stored + sum(map(_files_of, read.splits))


def _files_of(split: ReadSplit | ChainSplit) -> int:
    """Count files once: an anchor is read as it is stored as well."""
    if isinstance(split, ReadSplit):
        return len(split.files)
    return sum(not split.parts[split.part_of[f.file_name]].is_anchor for f in split.files)


def in_data_source(table: Table, *, at_once: bool) -> dict[str, float]:
    grouped_read.MANY_ENTRIES = 1 << 62 if at_once else 0
    mode = "full" if is_chain_read(table) else None
    reader = PaimonReader(table, None, None, list(table.schema().field_names), None, "empty", mode)
    before, used = _peak_mb(), time.process_time()
    parts = reader.partitions()
    return {
        "tasks": len(parts),
        "driver_cpu": time.process_time() - used,
        "driver_mb": _peak_mb() - before,
        "mb_for_the_jvm": sum(len(part.value) for part in parts) / (1 << 20),
    }


def counted(spark: SparkSession, whole: WholeRead | WholeChain) -> list[Row]:
    """Plan all groups, and return how many files each task has got."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            pieces = (unpacked(data) for batch in batches for data in batch.column(1).to_pylist())
            files = sum(_files_of(split) for *_, splits in pieces for split in splits)
        yield pa.RecordBatch.from_pydict({"files": [files], "mb": [_peak_mb()]})

    planned = planned_chains if isinstance(whole, WholeChain) else planned_files
    return map_in_arrow(planned(spark, whole), count, "files long, mb double").collect()


def in_tasks(table: Table, folder: Path) -> dict[str, float]:
    whole_read.MANY_ENTRIES = 0
    with session(folder) as spark:
        spark.range(16).mapInArrow(lambda batches: batches, "id long").collect()  # starts the workers
        before, used, all_used = _peak_mb(), time.process_time(), cpu_of_processes()
        whole = plan_chain_or_whole(table) if is_chain_read(table) else plan_or_whole(table)
        assert isinstance(whole, WholeRead | WholeChain)
        rows = counted(spark, whole)
        cpu = time.process_time() - used
        return {
            "files": sum(row.files for row in rows),
            "tasks": len(rows),
            "driver_cpu": cpu,
            "others_cpu": cpu_of_processes() - all_used - cpu,
            "driver_mb": _peak_mb() - before,
            "worker_mb": max(row.mb for row in rows),
        }


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
                ways = [way for way in WAYS if way != "tasks" or kind == "chain"]
                compare(warehouse, f" of {kind}", make(warehouse, size), ways)
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
        beside = best["data source at once" if way.startswith("data source") else "driver"]
        ratio = (found["driver_cpu"] + found.get("others_cpu", 0)) / beside["driver_cpu"]
        print(f"{files:,} files{kind}, planned in {way}: {figures}; CPU of it at once: {ratio:.2f}", flush=True)


def measure(warehouse: Path, way: str) -> None:
    table = open_table(str(warehouse), "d.big")
    if way == "tasks":
        found = in_tasks(table, warehouse.parent / "spark")
    elif way.startswith("data source"):
        found = in_data_source(table, at_once=way != "data source")
    else:
        found = in_process(table, at_once=way == "driver")
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main())
