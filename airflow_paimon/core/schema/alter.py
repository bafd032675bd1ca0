"""alter_table: changes of columns and options, on main or any branch, as one schema version."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from airflow_paimon.core.commit.committer import put_new
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.plan import Plan, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import AlterTable
from airflow_paimon.core.schema.alter_plan import Altered, OpenBranch, has_made, plan_alter_table, publishable
from airflow_paimon.core.schema.schema_plan import RemoveOption, SchemaChange, SetOption
from airflow_paimon.core.schema.tables import check_alterable
from airflow_paimon.core.schema.text import parse_change
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

_ATTEMPTS = 20
_BRANCHES = 50
"""Branches whose publish is looked at."""


def alter(context: Context, request: AlterTable) -> OperationResult:
    """Run ``alter_table`` for a job or operator. Data files stay as they are: readers map old ones to the new columns.

    Raises:
        InvalidInputError: a rule is broken, or the branch belongs to a chain table. UnsafeOperationError: the option
            keeps a branch's files from expiring. ConflictError: concurrent schema changes kept winning.
    """
    view = context.table.branch(request.branch).require()
    changes = [parse_change(text) for text in request.change]
    check_alterable(view, changes)
    if request.dry_run:
        altered = _look(view)
        return _result(context, altered, plan_alter_table(altered, changes, context.now_ms), changes, changed=None)
    with attempt_of(context, request.branch) as tried:
        altered = _look(view)
        if tried.retried and any(has_made(p, changes, True) for p in pairwise(altered.schemas)):
            plan = Plan(operation=request.operation, table=view.name, summary={"schema_id": altered.current.id})
        else:
            altered, plan = _carry_out(context, view, altered, changes)
    changed = bool(plan) or tried.retried
    if not changed:
        tried.forget()
    return _result(context, altered, plan, changes, changed)


def _look(view: Table) -> Altered:
    return Altered(
        table=view.label, branch=view.branch_name, schemas=view.schemas(), snapshot=view.latest_snapshot_id()
    )


def _carry_out(
    context: Context, view: Table, altered: Altered, changes: Sequence[SchemaChange]
) -> tuple[Altered, Plan]:
    for _ in range(_ATTEMPTS):
        plan = plan_alter_table(altered, changes, context.now_ms)
        try:
            for action in plan.actions:
                assert isinstance(action, PutNew)
                put_new(context.table, action.path, action.data)
            return altered, plan
        except AlreadyExistsError:
            altered = _look(view)
    raise ConflictError(f"{view.label}: concurrent schema changes kept winning; try again")


def _result(
    context: Context, altered: Altered, plan: Plan, changes: Sequence[SchemaChange], changed: bool | None
) -> OperationResult:
    new = [parse_schema(a.data, a.path) for a in plan.actions if isinstance(a, PutNew)]
    schema = (new or [altered.current])[-1]
    details = {
        "schema_id": schema.id,
        "columns": [f"{f.name} {f.type}" for f in schema.fields],
        "publish": _publish(context, altered, new, changes),
    }
    return context.result(
        plan,
        branch=altered.branch,
        changed=bool(plan) if changed is None else changed,
        before=altered.snapshot,
        after=altered.snapshot,
        details=details,
    )


def _publish(
    context: Context, altered: Altered, new: Sequence[TableSchema], changes: Sequence[SchemaChange]
) -> dict[str, str]:
    """Say what new columns mean for the publish of open branches; options are not published."""
    if not new or all(isinstance(c, SetOption | RemoveOption) for c in changes):
        return {}
    main = context.table
    names = main.branch_names()[:_BRANCHES] if altered.branch == MAIN else [altered.branch]
    branches = {name: _open_branch(main, name) for name in names}
    if altered.branch == MAIN:
        return publishable(main.name, [*altered.schemas, *new], branches, context.now_ms)
    changed = OpenBranch(schemas=[*altered.schemas, *new], base=branches[altered.branch].base)
    return publishable(main.name, main.schemas(), {altered.branch: changed}, context.now_ms)


def _open_branch(main: Table, name: str) -> OpenBranch:
    branch = main.branch(name)
    point = branch_point(main, branch)
    schemas = branch.schemas()
    by_id = {s.id: s for s in schemas}
    base = None if point is None else by_id.get(point.schema_id) or main.schema(point.schema_id)
    return OpenBranch(schemas=schemas, base=base)
