"""Chain tables that expire: made from lines of text, and what is left of them as text."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.data.chain.test_read import Row, Writes, chain_table, seen, set_options

NOW = "2025-03-31T00:00:00+00:00"
OLD = {"expiration_time": "30 d", "now": NOW}
GROUPED = {"region": "STRING", "dt": "STRING"}


def writes(snapshot: str, delta: str) -> Writes:
    """A row for each partition (``0101`` or ``US/0101``): key = the day, in deltas also a version of key 1."""
    out: list[tuple[str, str, Sequence[Row]]] = []
    for branch, text in (("delta", delta), ("snapshot", snapshot)):
        for name in text.split():
            *group, day = name.split("/")
            own = (int(day), int(day), f"{branch}-{day}")
            rows = [own, (1, int(day), day)] if branch == "delta" else [own]
            out.append((branch, "/".join((*group, f"2025{day}")), rows))
    return out


def made(snapshot: str, delta: str, folder: Any = None, **options: str) -> Table:
    grouped = "/" in snapshot + delta
    return chain_table(
        folder or f"memory://{uuid.uuid4()}/wh",
        writes(snapshot, delta),
        partitions=GROUPED if grouped else {"dt": "STRING"},
        chain_keys="dt" if grouped else "",
        buckets=1,
        **options,
    )


def held(table: Table, branch: str) -> str:
    """What a branch holds, as ``writes`` takes it."""
    found = partition_contents(plan_scan(table.branch(branch)))
    return " ".join("/".join((*h.values[:-1], str(h.values[-1])[4:])) for h in found)


def both(table: Table) -> tuple[str, str]:
    return held(table, "snapshot"), held(table, "delta")


def add_row(view: Table, row: dict[str, Any]) -> None:
    """Append as another engine does, without what our writes look after: the branch is no chain's for a moment."""
    set_options(view, {"chain-table.enabled": "false"})
    write_arrow(view, pa.Table.from_pylist([row], schema=row_types(row)))
    set_options(view, {"chain-table.enabled": "true"})


def row_types(row: dict[str, Any]) -> pa.Schema:
    return pa.schema([(n, pa.int32() if isinstance(v, int) else pa.string()) for n, v in row.items()])


def rows_of(table: Table, days: Iterable[str]) -> list[Row]:
    wanted = set(days)
    return [r for r in seen(table) if r[-1][4:] in wanted or f"{r[-2]}/{r[-1][4:]}" in wanted]
