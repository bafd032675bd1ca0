"""What the health of a warehouse costs: 500 tables of 1,000 files, with 20 snapshots and two tags each.

The tables are copies of one, whose data files are not there, as none is read. Seconds, CPU seconds, store requests of
each table.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.health.table_health import read_healths
from airflow_paimon.core.table.table import matching_tables
from benchmarks.expiry import replace_files
from benchmarks.metadata import make_large_table
from tests.stores import CountingStore, Tally

TABLES, FILES, SNAPSHOTS, ROUNDS = 500, 1000, 20, 3


def make_warehouse(folder: Path) -> None:
    """Make one table and copy its folder."""
    first = make_large_table(folder, FILES, 1)
    replace_files(first, SNAPSHOTS)
    for number in (1, 10):
        snapshot = first.store.read(first.paths.snapshot(number))
        first.store.create(f"{first.paths.tag_dir}/tag-t{number}", snapshot)
    for number in range(1, TABLES):
        shutil.copytree(folder / "d.db" / "big", folder / "d.db" / f"t{number:03}")


def main() -> int:
    """Print the best round."""
    best = cpu = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        make_warehouse(Path(folder))
        tables = matching_tables(open_catalog(folder), ["*"])
        assert len(tables) == TABLES
        for _ in range(ROUNDS):
            started, before = time.perf_counter(), time.process_time()
            reports = read_healths(tables, int(time.time() * 1000))
            best, cpu = min(best, time.perf_counter() - started), min(cpu, time.process_time() - before)
        tally = Tally()
        read_healths([replace(t, store=CountingStore(t.store, tally)) for t in tables], int(time.time() * 1000))
    files = sum(r.health.files.files for r in reports if r.health is not None)
    assert files == TABLES * FILES, files
    print(
        f"{TABLES} tables, {files:,} files: {best:.1f} s, {cpu:.1f} s CPU, {tally.requests / TABLES:.0f} requests each"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
