"""Schema changes of chain tables: of all three branches at once (alter_chain_table), or of one, checked.

A change of all three is made in all or in none; repeating an interrupted run finishes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from airflow_paimon.core.chain.schema_checks import branch_problems, schema_problems
from airflow_paimon.core.chain.setup import carry_out, carry_out_once, look_at_branch
from airflow_paimon.core.chain.setup_plan import new_chain_problems, plan_alter, set_up_problems
from airflow_paimon.core.commit.committer import require_committable
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import AlterChainTable
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.schema.schema_plan import RemoveOption, SchemaChange, SetOption, apply_changes
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
    options = TableOptions(main.current.options)
    if not (options.chain_table and options.snapshot_branch and options.delta_branch):
        raise InvalidInputError(
            f"{table.name} is not a chain table (option chain-table.enabled): alter an ordinary table with "
            f"alter_table; create_chain_table makes it a chain table"
        )
    branches = [look_at_branch(table, name) for name in (options.snapshot_branch, options.delta_branch)]
    earlier = [i for i in table.schema_ids() if i < main.current.id]
    previous = table.schema(earlier[-1]) if earlier else None
    return plan_alter(table.name, main, branches, previous, changes, now_ms)


def check_new_table(schema: TableSchema, name: str) -> None:
    """Refuse a table with chain options that ``create_chain_table`` would refuse; its branches may come later.

    Raises:
        InvalidInputError: all problems are listed.
    """
    problems = new_chain_problems(schema, name) if TableOptions(schema.options).chain_table else []
    if problems:
        raise InvalidInputError(
            f"{name} can't be created as a chain table: {'; '.join(problems)}. create_chain_table creates it with its "
            f"branches",
            details={"problems": problems},
        )


def check_one_branch(branch: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse changes of one branch after which the three branches would not be a chain table, or not the same one.

    What makes branches agree again that another engine has altered alone is allowed.

    Raises:
        InvalidInputError: names the problems and the way out.
    """
    main = branch.branch(MAIN).require().schema()
    current = main if branch.branch_name == MAIN else branch.schema()
    try:
        has_data = branch.latest_snapshot_id() is not None
        new = apply_changes(current, changes, has_data=has_data, now_ms=0)
    except InvalidInputError:
        return  # said with the table's name when the changes are made, or they have been made already
    after = new if branch.branch_name == MAIN else main
    if not any(TableOptions(s.options).chain_table for s in (main, after)):
        return
    parts = _parts(main)
    if branch.branch_name != MAIN and branch.branch_name.lower() not in map(str.lower, parts):
        return
    if all(parts) and not all(isinstance(c, SetOption | RemoveOption) for c in changes):
        raise InvalidInputError(
            f"{branch.label} is a branch of a chain table, whose three branches must have the same columns; use "
            f"alter_chain_table, which alters them together"
        )
    known = _problems(branch, main, current) if TableOptions(main.options).chain_table else []
    problems = [p for p in _problems(branch, after, new) if p not in known]
    if problems:
        raise InvalidInputError(
            f"{branch.label}: nothing was changed, as its three branches would not be one chain table any more: "
            f"{'; '.join(problems)}. Options that may change are altered in all three by alter_chain_table; "
            f"create_chain_table makes an ordinary table a chain table",
            details={"problems": problems},
        )


def _parts(main: TableSchema) -> tuple[str, ...]:
    options = TableOptions(main.options)
    return options.snapshot_branch or "", options.delta_branch or ""


def _problems(branch: Table, main: TableSchema, own: TableSchema) -> list[str]:
    """Return the rules that the three branches would break if ``branch`` had the schema ``own``, and main ``main``."""

    def schema_of(name: str) -> TableSchema | None:
        if not name or name.lower() == branch.branch_name.lower():
            return own if name else None
        view = branch.branch(name)
        return view.schema() if view.exists() else None

    snapshot, delta = map(schema_of, _parts(main))
    return schema_problems(own) + set_up_problems(own) + branch_problems(main, snapshot, delta)
