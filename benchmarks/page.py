"""The page Paimon: response time of each tab of a large table, cold and warm."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from benchmarks.metadata import make_large_table

FILES, SNAPSHOTS = 100_000, 10_000
TABS = ("history", "branches", "tags", "schemas", "partitions", "files", "options")


def main() -> int:
    """Print seconds until the first response and until the tab is complete, beside a plain read of the live files."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(AIRFLOW_HOME=folder, AIRFLOW__CORE__LOAD_EXAMPLES="False")
        warehouse = Path(folder) / "wh"
        table = make_large_table(warehouse, FILES, SNAPSHOTS)
        value = {"conn_type": "paimon", "extra": {"warehouse": str(warehouse)}}
        os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(value)
        measure(table)
    return 0


def measure(table: Table) -> None:
    """Request each tab as the app does, without the auth manager."""
    from fastapi import Request

    from airflow_paimon.plugin import app, table_page
    from airflow_paimon.plugin.catalog import Warehouse
    from airflow_paimon.plugin.panel import PageQuery
    from airflow_paimon.plugin.reading import Reader

    pages = app.Pages(Path(app.__file__).parent / "templates")
    request = Request({"type": "http", "root_path": "/paimon", "headers": []})
    database, name = table.name.split(".")

    def answer(reader: Reader, tab: str) -> tuple[float, bool, int]:
        started = time.perf_counter()
        query = PageQuery(tab=tab)
        shown = table_page.show(Warehouse("bench"), reader, database, name, query, user=None, airflow="")
        body = pages.render(request, "table.html", **shown)
        return time.perf_counter() - started, bool(shown["pending"]), len(body)

    answer(Reader(), "options")  # what is imported at the first request
    started = time.perf_counter()
    pa.array([1])
    print(f"the first array of a process, with which pyarrow imports pandas: {time.perf_counter() - started:.2f} s")
    started = time.perf_counter()
    live_entries(table, table.latest_snapshot())
    print(f"{FILES:,} files, {SNAPSHOTS:,} snapshots; live_entries alone: {time.perf_counter() - started:.2f} s")
    for tab in TABS:
        reader = Reader()
        began = time.perf_counter()
        first, pending, _ = answer(reader, tab)
        while pending:
            _, pending, _ = answer(reader, tab)
        complete = time.perf_counter() - began
        again, _, size = answer(reader, tab)
        print(
            f"{tab:>10}: answers in {first:.2f} s, complete after {complete:.2f} s, again {again:.3f} s, {size:,} bytes"
        )


if __name__ == "__main__":
    sys.exit(main())
