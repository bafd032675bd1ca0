"""create_chain_table beside others that set up or alter the same table, and killed at any call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_paimon.core.chain.layout import check_chain_branches
from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from tests.core.chain.setups import CONVERT, ENDS, NEW, plain_table, setup, shape, warehouse
from tests.core.tables import alter_table, run
from tests.randomness import moments
from tests.stores import Crash, FaultStore


@pytest.mark.parametrize("where", ["branch/branch-snapshot/schema/schema-0", "schema/schema-0"])
def test_two_set_up_the_same_table_at_the_same_moment(where: str) -> None:
    """The one who comes in between finishes what is there; the other one has the same, or is told to run again."""
    table = open_table(warehouse(), "d.t")
    others: list[OperationResult] = []

    def compete(method: str, path: str) -> None:
        if path == where and not others:
            others.append(run(table, "create_chain_table", **{**NEW, "now": "2026-01-01T00:00:00+00:00"}))

    late = {**NEW, "now": "2026-01-02T00:00:00+00:00"}
    try:
        faulty(table, late, FaultStore(table.store, on_mutation=compete))
    except ConflictError:
        assert where.startswith("branch")
    assert others[0].changed
    assert not run(table, "create_chain_table", **late).changed
    gather_chain(table)


def test_somebody_else_alters_it_at_the_same_moment() -> None:
    folder = warehouse()
    table = plain_table(folder)

    def compete(method: str, path: str) -> None:
        if path == "schema/schema-2":
            alter_table(table, [AddColumn(name="w", type="INT")])

    with pytest.raises(ConflictError, match="run it again"):
        faulty(table, CONVERT, FaultStore(table.store, on_mutation=compete))
    with pytest.raises(InvalidInputError, match="other columns than main"):
        setup(folder, **CONVERT)


def faulty(table: Table, values: Mapping[str, Any], fault: FaultStore) -> OperationResult:
    folder = table.store.uri.rsplit("/", 2)[0]
    request = build_request("create_chain_table", {"warehouse": folder, "table": table.name, **values})
    context = open_context(request)
    return perform(Context(context.request, Table(fault, table.name), context.now_ms, context.started), request)


def check_state_between(table: Table) -> None:
    """What Paimon can read and write: no branch with a part of the chain options, main's chain only when complete."""
    options = ("chain-table.enabled", "scan.fallback-snapshot-branch", "scan.fallback-delta-branch")
    for name in ENDS:
        if table.branch(name).exists():
            assert len([o for o in options if o in table.branch(name).schema().options]) in (0, 3), name
    if table.exists() and "chain-table.enabled" in table.schema().options:
        check_chain_branches(table.name, *(table.branch(n).schema() for n in ENDS))


@pytest.mark.parametrize("operation_id", [None, "op"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("new", [True, False], ids=["new", "converted"])
def test_killed_between_any_two_store_calls(new: bool, after: bool, operation_id: str | None) -> None:
    values = {**(NEW if new else CONVERT), **({"operation_id": operation_id} if operation_id else {})}

    def fresh() -> Table:
        folder = warehouse()
        return open_table(folder, "d.t") if new else plain_table(folder, "CN/20250101")

    whole = fresh()
    probe = FaultStore(whole.store)
    faulty(whole, values, probe)
    assert len(probe.mutations) >= 5
    for step in moments(len(probe.mutations) + 1, 3):
        table = fresh()
        with pytest.raises(Crash):
            faulty(table, values, FaultStore(table.store, step, after=after))
        check_state_between(table)
        if table.exists():
            assert len(plan_scan(table).splits) == (0 if new else 1)
        result = run(table, "create_chain_table", **values)
        assert result.changed or operation_id is None
        assert shape(table) == shape(whole)
        assert run(table, "check_table").details["findings"] == []
        found = run(table, "check_chain_table").details
        assert found["errors"] == 0, found["findings"]
        assert run(table, "create_chain_table", **values).changed == (operation_id is not None)


def test_leftovers_of_an_interrupted_run_are_not_used_for_another_request() -> None:
    table = open_table(warehouse(), "d.t")
    with pytest.raises(Crash):
        faulty(table, NEW, FaultStore(table.store, 3))
    with pytest.raises(AlreadyExistsError, match="repeat that request"):
        run(table, "create_chain_table", **{**NEW, "option": ["bucket=4"]})
