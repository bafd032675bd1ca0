"""Undo on one branch of a chain table, killed at every store call: the table stays readable, and a retry finishes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.chain.check import find_chain_problems
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import run
from tests.data.chain.compactions import compact
from tests.data.chain.tables import Row, Writes, chain_table, seen, write
from tests.randomness import moments
from tests.stores import Crash, FaultStore

WRITES: Writes = [
    ("snapshot", "20260201", [(1, 1, "a"), (2, 1, "a")]),
    ("delta", "20260202", [(1, 2, "b")]),
    ("delta", "20260203", [(2, 3, "c")]),
]


def made() -> Table:
    """Both branches have one more commit that can be taken back: a compaction, and a delta of 20260204."""
    table = chain_table(f"memory://{uuid.uuid4()}/wh", WRITES, buckets=1)
    compact(table, "dt=20260202")
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20260204", [(3, 4, "d")])
    return table


def problems(table: Table) -> list[str]:
    return [f.message for f in find_chain_problems(table).findings if f.severity in (ERROR, WARNING)]


def undo(table: Table, fault: FaultStore, values: dict[str, Any]) -> None:
    folder = table.store.uri.rsplit("/", 2)[0]
    context = open_context(build_request("rollback_to", {"warehouse": folder, "table": table.name, **values}))
    perform(Context(context.request, Table(fault, table.name), context.now_ms, context.started), context.request)


def rolled_back(branch: str) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """The request, and the rows before and after it."""
    table = made()
    back_to = (table.branch(branch).latest_snapshot_id() or 0) - 1
    asked: dict[str, Any] = {"branch": branch, "snapshot": back_to, "operation_id": "op"}
    before = seen(table)
    run(table, "rollback_to", **asked)
    return asked, before, seen(table)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("branch", ["snapshot", "delta"])
def test_killed_between_any_two_store_calls(branch: str, after: bool) -> None:
    asked, before, expected = rolled_back(branch)
    assert (before == expected) == (branch == "snapshot"), "a chain reads the same whether it is compacted or not"
    whole = made()
    probe = FaultStore(whole.store)
    undo(whole, probe, asked)
    assert len(probe.mutations) >= 5
    for step in moments(len(probe.mutations) + 1):
        table = made()
        with pytest.raises(Crash):
            undo(table, FaultStore(table.store, step, after=after), asked)
        assert seen(table) in (before, expected), step
        assert run(table, "rollback_to", **asked).changed
        assert seen(table) == expected and problems(table) == [], step
        found = [f for f in run(table, "check_table").details["findings"] if f["severity"] != INFO]  # e.g. an old hint
        assert found == [], step
        assert table.branch(branch).latest_snapshot_id() == whole.branch(branch).latest_snapshot_id()
        # and the undo can be undone
        run(table, "rollback_to", branch=branch, tag="airflow-paimon-undo-op")
        assert seen(table) == before and problems(table) == [], step


def test_an_undo_that_needed_rows_forbid_names_the_way_out() -> None:
    """The delta of the next day builds on the only anchor: rolling the load back would lose its rows."""
    table = made()
    compact(table, "dt=20260204")
    snapshot = table.branch("snapshot")
    write(snapshot, ["k", "s", "v"], ["dt"], "20260210", [(9, 9, "loaded")])
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20260211", [(8, 9, "on top")])
    before, head = seen(table), snapshot.latest_snapshot_id() or 0
    with pytest.raises(UnsafeOperationError, match=r"20260210 can't be dropped.*compact_chain_table"):
        run(table, "rollback_to", branch="snapshot", snapshot=head - 1)
    assert snapshot.latest_snapshot_id() == head and seen(table) == before and problems(table) == []
