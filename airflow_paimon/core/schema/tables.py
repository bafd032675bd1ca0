"""create_table, and alter_table: changes of columns and options, on main or any branch, as one schema version."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from airflow_paimon.core.chain.setup import check_new_table, check_one_branch
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import put_new, require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
    naming_table,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.plan import Plan, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import AlterTable
from airflow_paimon.core.schema.alter_plan import Altered, OpenBranch, has_made, plan_alter_table, publishable
from airflow_paimon.core.schema.drop_table import refuse_being_dropped
from airflow_paimon.core.schema.option_checks import check_options, warn_of_options
from airflow_paimon.core.schema.schema_plan import RemoveOption, SchemaChange, SetOption, check_opening, new_schema
from airflow_paimon.core.schema.text import parse_change
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS, READ_TOGETHER
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_or_place, register


def create_table(
    warehouse: str,
    name: str,
    columns: Sequence[tuple[str, str | DataType]],
    *,
    partition_keys: Sequence[str] = (),
    primary_keys: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
    comments: Mapping[str, str] | None = None,
    if_exists: str = "fail",
    storage_options: Mapping[str, Any] | None = None,
) -> Table:
    """Create a table in the catalog of a warehouse. ``columns``: (name, type in Paimon's notation), in order.

    Options that no engine knows, misspelt ones for instance, are set all the same; the log warns of them.

    Raises:
        AlreadyExistsError: it exists (with ``if_exists="skip"``: with other columns or keys). InvalidInputError: a rule
            is broken (also of chain tables), or ``if_exists`` is neither fail nor skip (a table is never replaced).
    """
    if if_exists not in ("fail", "skip"):
        raise InvalidInputError(f"create_table: if_exists must be 'fail' or 'skip', got {if_exists!r}")
    table = open_or_place(warehouse, name, storage_options)
    if table.branch_name != MAIN:
        raise InvalidInputError(f"{name}: a table can't be created through a branch; use create_branch")
    require_committable(table)
    refuse_being_dropped(table)
    with naming_table(table.name):
        schema = new_schema(
            columns,
            partition_keys=partition_keys,
            primary_keys=primary_keys,
            options=options,
            comment=comment,
            comments=comments,
            now_ms=int(time.time() * 1000),
        )
        check_options(schema)
        check_opening(schema)
        _check_alone(schema, table.name)
        check_new_table(schema, table.name)
    warn_of_options(table.name, schema.options)
    try:
        if table.exists():
            raise AlreadyExistsError(f"Table {table.name} exists")
        put_new(table, table.paths.schema(0), schema.to_bytes())
    except AlreadyExistsError:
        current = table.schema()
        if if_exists == "skip" and _same(current, schema):
            register(table, current)
            return table
        raise AlreadyExistsError(
            f"Table {table.name} exists at {table.store.uri}"
            + (" with other columns or keys" if if_exists == "skip" else "; if_exists='skip' uses it as it is")
        ) from None
    register(table, schema)
    return table


def _check_alone(schema: TableSchema, table: str) -> None:
    for key in READ_TOGETHER:
        if schema.options.get(key, "").strip() not in ("", MAIN):
            raise InvalidInputError(
                f"{table}: a new table has no branch that {key}={schema.options[key]} could name; create the table, "
                f"then the branch, then set the option with alter_table"
            )


def _same(current: TableSchema, wanted: TableSchema) -> bool:
    def shape(s: TableSchema) -> object:
        return [(f.name, str(f.type)) for f in s.fields], s.partition_keys, s.primary_keys

    return shape(current) == shape(wanted)


def check_alterable(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse changes of a branch's protection, or of one branch of a chain table.

    Raises:
        InvalidInputError: a chain table's branches would not be one chain table any more (``alter_chain_table``).
        UnsafeOperationError: the option keeps a branch's files from expiring.
    """
    require_committable(table)
    _check_protection(table, changes)
    _check_other_branch(table, changes)
    check_one_branch(table, changes)


def _check_other_branch(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse a branch to read together with that does not exist: every read would fail from then on."""
    for change in changes:
        if not isinstance(change, SetOption) or change.key not in READ_TOGETHER:
            continue
        name = change.value.strip()
        if name and not table.branch(name).exists():
            raise InvalidInputError(
                f"{table.label}: {change.key}={name} names no branch of the table (its branches: "
                f"{', '.join([MAIN, *table.branch_names()])}); create the branch first"
            )


def _check_protection(table: Table, changes: Sequence[SchemaChange]) -> None:
    touched = [c.key for c in changes if isinstance(c, SetOption | RemoveOption) and c.key in PROTECTIVE_OPTIONS]
    if not touched or table.branch_name == MAIN:
        return
    record = matching_branch_record(table.branch(MAIN), table.branch_name)
    if record is not None and record.snapshot_id is not None:
        raise UnsafeOperationError(
            f"{table.label}: option {touched[0]} keeps every engine from expiring this branch, which shares files with "
            f"{record.from_branch}; delete the branch when you are done with it instead"
        )


_ATTEMPTS = 20
_BRANCHES = 50
"""Branches whose publish is looked at."""


def alter(context: Context, request: AlterTable) -> OperationResult:
    """Run ``alter_table`` for a job or operator. Data files stay as they are: readers map old ones to the new columns.

    Raises:
        InvalidInputError: a rule is broken, or the branch belongs to a chain table. UnsafeOperationError: the option
            keeps a branch's files from expiring. ConflictError: concurrent schema changes kept winning.
    """
    return alter_by(context, request, [parse_change(text) for text in request.change])


def alter_by(context: Context, request: AlterTable, changes: Sequence[SchemaChange]) -> OperationResult:
    """Run ``alter_table`` with changes that are no texts; the texts of the request only tell it from others.

    Raises:
        PaimonError: as ``alter``.
    """
    view = context.table.branch(request.branch).require()
    check_alterable(view, changes)
    if request.dry_run:
        altered = _gather(view)
        return _result(context, altered, plan_alter_table(altered, changes, context.now_ms), changes, changed=None)
    with attempt_of(context, request.branch) as tried:
        altered = _gather(view)
        if tried.retried and any(has_made(p, changes, True) for p in pairwise(altered.schemas)):
            plan = Plan(operation=request.operation, table=view.name, summary={"schema_id": altered.current.id})
        else:
            altered, plan = _execute(context, view, altered, changes)
    changed = bool(plan) or tried.retried
    if not changed:
        tried.forget()
    return _result(context, altered, plan, changes, changed)


def set_option(context: Context, view: Table, key: str, value: str) -> bool:
    """Set an option of a branch as one schema version. False: the newest version has it already.

    Raises:
        PaimonError: as ``alter`` does.
    """
    changes = [SetOption(key=key, value=value)]
    check_alterable(view, changes)
    return bool(_execute(context, view, _gather(view), changes)[1])


def _gather(view: Table) -> Altered:
    return Altered(
        table=view.label, branch=view.branch_name, schemas=view.schemas(), snapshot=view.latest_snapshot_id()
    )


def _execute(context: Context, view: Table, altered: Altered, changes: Sequence[SchemaChange]) -> tuple[Altered, Plan]:
    for _ in range(_ATTEMPTS):
        plan = plan_alter_table(altered, changes, context.now_ms)
        try:
            for action in plan.actions:
                assert isinstance(action, PutNew)
                put_new(context.table, action.path, action.data)
            return altered, plan
        except AlreadyExistsError:
            altered = _gather(view)
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
        **warn_of_options(altered.table, [c.key for c in changes if isinstance(c, SetOption)]),
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
