"""What expire_snapshots takes where each request takes 20 ms, 16 at a time in one reading of many: 1,000 snapshots.

With nothing to do; with 100 that expire, whose files wait for the grace time; and with their files deleted at once.
Then 100 tags whose retention is over.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform, run_operation
from benchmarks.expiry import replace_files
from benchmarks.metadata import make_large_table
from tests.stores import CountingStore

SNAPSHOTS, EXPIRED, REQUEST_S, AT_ONCE = 1000, 100, 0.02, 16


class FarStore(CountingStore):
    """Each call takes its time; ``read_many`` that of its objects, some at once."""

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        time.sleep(REQUEST_S)
        return super()._call(method, path, action)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        time.sleep(REQUEST_S * max(0, -(-len(paths) // AT_ONCE) - 1))
        return super().read_many(paths) if paths else []


def expire(table: Table, operation: str = "expire_snapshots", **values: Any) -> tuple[float, int]:
    """Return seconds and requests."""
    store = FarStore(table.store)
    asked = {"warehouse": "w", "table": table.name, **values}
    request = build_request(operation, asked)
    started = time.monotonic()
    perform(Context(request, Table(store, table.name), int(time.time() * 1000) + 1000, started), request)
    return time.monotonic() - started, store.tally.requests


def main() -> int:
    """Print the seconds and requests of each."""
    some = {"older_than": "0 s", "retain_min": 1, "max_deletes": EXPIRED}
    cases: dict[str, dict[str, Any]] = {
        "nothing to do": {"older_than": "9 d"},
        f"{EXPIRED} expire": some,
        f"{EXPIRED} expire, files deleted": {**some, "grace": "0 s", "writers_stopped": True},
    }
    with tempfile.TemporaryDirectory() as folder:
        table = make_large_table(Path(folder), 1_000, 1)
        replace_files(table, SNAPSHOTS)
        for name, values in cases.items():
            seconds, requests = expire(table, **values)
            print(f"{name:>30}: {seconds:6.1f} s, {requests:>6} requests")
        for number in range(EXPIRED):
            asked = {"warehouse": folder, "table": table.name, "tag": f"t{number}", "time_retained": "1 ms"}
            run_operation(build_request("create_tag", asked))
        seconds, requests = expire(table, "expire_tags")
        print(f"{f'{EXPIRED} tags expire':>30}: {seconds:6.1f} s, {requests:>6} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
