"""The plan of a read of all files, of the tables of ``planning``: in the driver at once and group by group, by Spark's
tasks, and what the data source's process does before its tasks.

CPU seconds, of the driver (Python) and of the JVM and its workers, and by how much the memory of the driver and of
the largest worker grew, each way in a process of its own. The files are manifest entries only, so nothing is read of
them: tasks plan their groups, and others count the files that they get. The environment variable ``SIZES`` sets the
numbers of files.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import grouped_read, whole_read
from airflow_paimon.data.grouped_read import plan_by_groups
from airflow_paimon.data.layers import plan_table_read
from airflow_paimon.data.whole_read import WholeRead, plan_or_whole, unpacked
from airflow_paimon.spark.datasource import PaimonReader
from airflow_paimon.spark.tasks import forgetting_zip_importers, map_in_arrow, set_imports_apart
from airflow_paimon.spark.whole_read import planned_files
from benchmarks.large_tables import make_table_by_day
from benchmarks.metadata import new_file
from benchmarks.spark_read_write import cpu_of_processes, session

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SIZES = [int(n) for n in os.environ.get("SIZES", "100000,1000000").split(",")]
ROWS_A_FILE = new_file(0, b"").row_count
WAYS = ("driver", "groups", "tasks", "data source", "data source at once")


def in_driver(table: Table) -> dict[str, float]:
    before, used = _peak_mb(), time.process_time()
    [(_, splits)] = plan_table_read(table)
    return {
        "files": sum(len(s.files) for s in splits),
        "driver_cpu": time.process_time() - used,
        "driver_mb": _peak_mb() - before,
    }


def in_groups(table: Table) -> dict[str, float]:
    """As ``read_batches`` plans."""
    before, used = _peak_mb(), time.process_time()
    grouped_read.MANY_ENTRIES = 0
    files = sum(len(s.files) for _, splits in plan_by_groups(table).layers for s in splits)
    return {"files": files, "driver_cpu": time.process_time() - used, "driver_mb": _peak_mb() - before}


def in_data_source(table: Table, *, at_once: bool) -> dict[str, float]:
    grouped_read.MANY_ENTRIES = 1 << 62 if at_once else 0
    reader = PaimonReader(table, None, None, list(table.schema().field_names), None, "empty", None)
    before, used = _peak_mb(), time.process_time()
    parts = reader.partitions()
    return {
        "files": table.snapshot(1).total_record_count // ROWS_A_FILE,
        "tasks": len(parts),
        "driver_cpu": time.process_time() - used,
        "driver_mb": _peak_mb() - before,
        "mb_for_the_jvm": sum(len(part.value) for part in parts) / (1 << 20),
    }


def counted(spark: SparkSession, whole: WholeRead) -> list[Row]:
    """Plan all groups, and return how many files each task has got."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            pieces = (unpacked(data) for batch in batches for data in batch.column(1).to_pylist())
            files = sum(len(s.files) for _, splits in pieces for s in splits)
        yield pa.RecordBatch.from_pydict({"files": [files], "mb": [_peak_mb()]})

    return map_in_arrow(planned_files(spark, whole), count, "files long, mb double").collect()


def in_tasks(table: Table, folder: Path) -> dict[str, float]:
    whole_read.MANY_ENTRIES = 0
    with session(folder) as spark:
        whole = plan_or_whole(table)
        assert isinstance(whole, WholeRead)
        counted(spark, replace(whole, listed=whole.listed[:1], files=16))  # starts the workers
        before, used, all_used = _peak_mb(), time.process_time(), cpu_of_processes()
        whole = plan_or_whole(table)
        assert isinstance(whole, WholeRead)
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder:
        for size in SIZES:
            warehouse = Path(folder) / str(size)
            make_table_by_day(warehouse, size)
            for way in WAYS:
                command = [sys.executable, "-m", "benchmarks.full_read", str(warehouse), way]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                assert found.pop("files") == size
                figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
                print(f"{size:,} files, planned in {way}: {figures}", flush=True)
    return 0


def measure(warehouse: Path, way: str) -> None:
    table = open_table(str(warehouse), "d.big")
    if way == "tasks":
        found = in_tasks(table, warehouse.parent / "spark")
    elif way.startswith("data source"):
        found = in_data_source(table, at_once=way != "data source")
    else:
        found = in_driver(table) if way == "driver" else in_groups(table)
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main())
