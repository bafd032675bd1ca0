"""No manifest is read twice in an operation, and a list only where what was planned is committed on it."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.operations import perform
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.stores import CountingStore


def rows(day: str, *keys: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": ["x"] * len(keys), "dt": [day] * len(keys)})


@pytest.fixture(scope="module")
def used() -> Table:
    """A table of three partitions after a few commits."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                         primary_keys=["dt", "k"], options={"bucket": "2"})  # fmt: skip
    for turn in range(6):
        write_arrow(table, rows("abc"[turn % 3], *random.Random(turn).sample(range(20), 5)))
    run(table, "create_tag", tag="base")
    return table


def asked(operation: str, **values: Any) -> Callable[[Table], object]:
    def perform_on(table: Table) -> None:
        request = build_request(operation, {"warehouse": "w", "table": table.name, **values})
        perform(Context(request, table, int(time.time() * 1000), time.monotonic()), request, None)

    return perform_on


OPERATIONS: dict[str, tuple[int, Callable[[Table], object]]] = {
    "read": (1, read_arrow),
    "read of a partition": (1, lambda t: read_arrow(t, where=pc.field("dt") == "a")),
    "create_branch": (1, asked("create_branch", branch="more", tag="base")),
    "write": (2, lambda t: write_arrow(t, rows("a", 1, 2, 3))),
    "overwrite": (2, lambda t: write_arrow(t, rows("b", 1), mode="dynamic_overwrite")),
    "compact_manifest": (1, asked("compact_manifest")),
}
"""How often an operation reads one list: a plan, and the commit on it."""


def test_nothing_is_read_twice(used: Table) -> None:
    for name, (lists, operation) in OPERATIONS.items():
        store = CountingStore(used.store)
        operation(Table(store, used.name))
        read: Counter[str] = Counter()
        for method, uri in store.tally.log:
            if method in ("read", "read_many", "read_parts"):
                read.update(part.rpartition("/")[2] for part in uri.split(", "))
        often = {file: count for file, count in read.items() if file.startswith("manifest-") and count > 1}
        of_lists = {file: often.pop(file) for file in list(often) if file.startswith("manifest-list-")}
        assert not often, (name, often)
        assert max(of_lists.values(), default=1) <= lists, (name, of_lists)
        assert name == "create_branch" or any(file.startswith("manifest-") for file in read), name
