"""alter_chain_table: one schema change for all three branches, or none; repeating an interrupted run finishes it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from airflow_paimon.core.chain.alter_plan import plan_alter
from airflow_paimon.core.chain.setup import carry_out, carry_out_once, look_at_branch
from airflow_paimon.core.commit.committer import require_committable
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.chain_requests import AlterChainTable
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.schema.schema_plan import SchemaChange
from airflow_paimon.core.schema.text import parse_change
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table


def alter_chain_table(table: Table, changes: Sequence[SchemaChange]) -> TableSchema:
    """Apply changes to all branches of a chain table and return main's schema. ``table`` is main's view.

    Changes that all branches already have are not an error; nothing is done.

    Raises:
        InvalidInputError: a rule is broken, or a branch can't take it: nothing was changed. NotFoundError: a branch
            does not exist. ConflictError: a branch was altered meanwhile: run it again.
    """
    carry_out(table, _plan(table, changes, int(time.time() * 1000)))
    return table.schema()


def alter_chain(context: Context, request: AlterChainTable) -> OperationResult:
    """Run ``alter_chain_table`` for a job or operator."""
    table = context.table
    plan = _plan(table, [parse_change(text) for text in request.change], context.now_ms)
    changed = carry_out_once(context, plan)
    head = table.latest_snapshot_id()
    return context.result(plan, branch=MAIN, changed=changed, before=head, after=head, details=dict(plan.summary))


def _plan(table: Table, changes: Sequence[SchemaChange], now_ms: int) -> Plan:
    require_committable(table)
    if table.branch_name != MAIN:
        raise InvalidInputError(f"{table.label}: a chain table is altered through its main branch")
    main = look_at_branch(table.require(), MAIN)
    assert main.schema is not None
    options = TableOptions(main.schema.options)
    if not (options.chain_table and options.snapshot_branch and options.delta_branch):
        raise InvalidInputError(
            f"{table.name} is not a chain table (option chain-table.enabled): alter an ordinary table with "
            f"alter_table; create_chain_table makes it a chain table"
        )
    branches = [look_at_branch(table, name) for name in (options.snapshot_branch, options.delta_branch)]
    earlier = [i for i in table.schema_ids() if i < main.schema.id]
    previous = table.schema(earlier[-1]) if earlier else None
    return plan_alter(table.name, main, branches, previous, changes, now_ms)
