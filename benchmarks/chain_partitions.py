"""The cost of a commit to a chain of many partitions: CPU seconds of writes that add few delta partitions.

One group of 10,000 days, a full partition every 100 days, in an in-memory store: manifests are real, data files are
only referenced. The environment variable ``PARTITIONS`` sets the number of days.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import date, timedelta

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table

PARTITIONS = int(os.environ.get("PARTITIONS", "10000"))
OPTIONS = {
    "bucket": "1",
    "sequence.field": "s",
    "chain-table.enabled": "true",
    "scan.fallback-snapshot-branch": "snapshot",
    "scan.fallback-delta-branch": "delta",
    "partition.timestamp-pattern": "$dt",
    "partition.timestamp-formatter": "yyyyMMdd",
}


def main() -> None:
    table = make_table()
    delta = table.branch("delta")
    end = PARTITIONS
    report("50 partitions in one commit", lambda: add(delta, days(end - 50, end)))
    report("1 partition in each of 10 commits", lambda: [add(delta, days(n, n + 1)) for n in range(end, end + 10)])


def report(what: str, act: Callable[[], object]) -> None:
    started = time.process_time()
    act()
    print(f"{what}, among {PARTITIONS:,}: {time.process_time() - started:.2f} s of CPU", flush=True)


def make_table() -> Table:
    columns = [("k", "BIGINT NOT NULL"), ("s", "BIGINT"), ("dt", "STRING NOT NULL")]
    warehouse = f"memory://{uuid.uuid4()}/wh"
    table = create_table(warehouse, "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options=OPTIONS)
    for name in ("snapshot", "delta"):
        branch = table.branch(name)
        branch.store.create(branch.paths.schema(0), table.store.read(table.paths.schema(0)))
    add(table.branch("snapshot"), days(0, PARTITIONS, 100))
    full = frozenset(days(0, PARTITIONS, 100))
    add(table.branch("delta"), [d for d in days(0, PARTITIONS - 50) if d not in full])
    return table


def days(first: int, end: int, step: int = 1) -> list[str]:
    return [(date(2000, 1, 1) + timedelta(n)).strftime("%Y%m%d") for n in range(first, end, step)]


def add(branch: Table, texts: Iterable[str]) -> None:
    types, key = branch.schema().partition_types, encode_row((1,), (branch.schema().field("k").type,))
    messages = [
        CommitMessage(partition=encode_row((t,), types), bucket=0, total_buckets=1, new_files=(_file(key),))
        for t in texts
    ]
    commit_append(branch, messages, planned_on=branch.latest_snapshot())


def _file(key: bytes) -> DataFile:
    return DataFile(f"data-{uuid.uuid4()}-0.parquet", 1000, 10, key, key, EMPTY_STATS, EMPTY_STATS, 0, 9, 0, 0,
                    file_source=0, delete_row_count=0, value_stats_cols=())  # fmt: skip


if __name__ == "__main__":
    main()
