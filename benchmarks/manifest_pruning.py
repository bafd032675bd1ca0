"""What a plan of one partition reads after many small commits to random partitions, on our merging and beside Java's.

The same commits, one file each, are made by this package and by Paimon's Java engine; then our planner looks for one
partition after another in both tables. ``COMMITS`` sets their number, ``TARGETS`` the values of the option
``manifest.target-file-size``: small ones stand for a table with so many more files. Java's side runs if ``make
oracles`` has prepared it. With ``TMPDIR`` in memory, commits don't wait for the disk.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.format.avro.container import read_header
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES, encode_row
from airflow_paimon.core.format.manifest_blocks import indexed_blocks
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table, open_table
from benchmarks.metadata import new_file
from tests.oracles import layout
from tests.oracles.java_driver import JavaOracle

COMMITS = int(os.environ.get("COMMITS", "10000"))
TARGETS = os.environ.get("TARGETS", "8 mb,128 kb").split(",")
DAYS = [f"day-{d:03d}" for d in range(200)]
ASKED = DAYS[::10]


def commit_ours(warehouse: Path, days: list[str], target: str) -> Table:
    options = {"bucket": "-1", "manifest.target-file-size": target}
    table = create_table(
        str(warehouse), "d.t", [("k", "INT"), ("dt", "STRING")], partition_keys=["dt"], options=options
    )
    types = table.schema().partition_types
    for number, day in enumerate(days):
        file = new_file(number, EMPTY_ROW_BYTES)
        message = CommitMessage(partition=encode_row((day,), types), bucket=0, total_buckets=-1, new_files=(file,))
        commit_append(table, [message], planned_on=table.latest_snapshot())
    return table


def commit_theirs(warehouse: Path, days: list[str], target: str, java: JavaOracle) -> Table:
    options = {"bucket": "-1", "manifest.target-file-size": target, "write-only": "true",
               "metadata.stats-mode": "none"}  # fmt: skip
    java.create_table(warehouse, "d.t", {"k": "INT", "dt": "STRING"}, partition_keys=["dt"], options=options)
    with java.open_stream_writer(warehouse, "d.t") as writer:
        for number, day in enumerate(days):
            writer.write(pa.table({"k": pa.array([number], pa.int32()), "dt": [day]}))
            writer.commit()
    return open_table(str(warehouse), "d.t")


def measure(table: Table) -> dict[str, float]:
    """Return the costs of a plan of one partition, on average of some."""
    head, stored = table.latest_snapshot(), StoredPartitions(table.schema())
    assert head is not None
    rows = all_manifests(table, head)
    number = size = unpacked = 0
    for day in ASKED:
        selection = stored.selection([{"dt": day}])
        for manifest in filter(selection.may_be_in, rows):
            number, size = number + 1, size + manifest.file_size
            data = table.store.read(manifest_path(manifest.file_name))
            blocks = indexed_blocks(read_header(data), len(data))
            wanted = None if blocks is None else filter(selection.may_be_in, blocks)
            unpacked += len(data) if wanted is None else sum(block.end - block.start for block in wanted)
    cpu = min(timed(table, stored) for _ in range(3))
    found = {"all": len(rows), "manifests": number, "kB": size / 1e3, "kB unpacked": unpacked / 1e3, "ms": cpu * 1e3}
    return {name: value if name == "all" else value / len(ASKED) for name, value in found.items()}


def timed(table: Table, stored: StoredPartitions) -> float:
    head = table.latest_snapshot()
    started = time.process_time()
    for day in ASKED:
        live_entries(table, head, stored.selection([{"dt": day}]))
    return time.process_time() - started


def main() -> int:
    """Print the costs on both tables, and ratios."""
    draw = random.Random(1)
    days = [draw.choice(DAYS) for _ in range(COMMITS)]
    print(
        f"{COMMITS:,} commits of one file to random partitions out of {len(DAYS)}; a plan of one partition, on average"
    )
    for target in TARGETS:
        found = {}
        with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder:
            found["ours"] = measure(commit_ours(Path(folder) / "ours", days, target))
            if layout.BUNDLE_JAR.exists():
                java = JavaOracle(Path(folder) / "java")
                try:
                    found["Java 1.4.2"] = measure(commit_theirs(Path(folder) / "theirs", days, target, java))
                finally:
                    java.close()
        print(f"manifest.target-file-size = {target}")
        for name, costs in found.items():
            print(f"  {name:>10}: " + ", ".join(f"{value:,.1f} {unit}" for unit, value in costs.items()))
        if len(found) == 2:
            ours, theirs = found.values()
            ratios = (f"{unit} {theirs[unit] / ours[unit]:.1f}" for unit in ours if ours[unit])
            print(f"  Java's in times of ours: {', '.join(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
