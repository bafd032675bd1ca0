"""create_chain_table: a new chain table, or an existing primary-key table made one, with both branches and all options.

And schema changes of chain tables: of all three branches at once (alter_chain_table), or of one, checked. Nothing is
written before everything is checked; an interrupted run is finished by running it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_paimon.core.chain import setup_plan
from airflow_paimon.core.chain.layout import ChainLayout, branch_problems, chain_layout, schema_problems
from airflow_paimon.core.chain.setup_plan import BranchNow
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import execute, require_committable
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import AlterChainTable, CreateChainTable
from airflow_paimon.core.schema.option_checks import warn_of_options
from airflow_paimon.core.schema.schema_plan import (
    RemoveOption,
    SchemaChange,
    SetOption,
    apply_changes,
    check_opening,
    new_schema,
)
from airflow_paimon.core.schema.text import parse_change, parse_column, parse_options
from airflow_paimon.core.table.branch_record import BranchRecord, require_ready
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.options import CHAIN_BRANCHES, TableOptions
from airflow_paimon.core.table.paths import MAIN, check_branch_name
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, register

_NAMED = 5


def create_chain(context: Context, request: CreateChainTable) -> OperationResult:
    """Create a chain table, or without columns convert an existing primary-key table into one.

    Raises:
        InvalidInputError: rules are broken; all are listed, nothing is written. AlreadyExistsError: the new
            table exists with other columns. ConflictError: the table was altered meanwhile: run it again.
    """
    options = parse_options(request.option)
    plan = _plan_set_up(context.table, request, setup_plan.wanted_options(request, options), context.now_ms)
    warned = warn_of_options(context.table.name, options)
    result = _execute_once(context, plan, {"created": bool(request.column), **plan.summary, **warned})
    if not request.dry_run:
        register(context.table, context.table.schema())
    return result


def _new_schema(request: CreateChainTable, wanted: Mapping[str, str], now_ms: int) -> TableSchema | None:
    if not request.column:
        if request.primary_key or request.partition_key:
            raise InvalidInputError(
                "create_chain_table: primary_key and partition_key are for a new table; give its columns, too"
            )
        return None
    parsed = [parse_column(text) for text in request.column]
    return new_schema(
        [(name, data_type) for name, data_type, _ in parsed],
        partition_keys=request.partition_key,
        primary_keys=request.primary_key,
        options=wanted,
        comments={name: comment for name, _, comment in parsed if comment is not None},
        now_ms=now_ms,
    )


def _plan_set_up(table: Table, request: CreateChainTable, wanted: Mapping[str, str], now_ms: int) -> Plan:
    require_committable(table)
    names = (request.snapshot_branch.strip(), request.delta_branch.strip())
    records = {
        n: _branch_record(n, role, now_ms, request.operation_id)
        for n, role in zip(names, ("full", "changed"), strict=True)
    }
    schema = _new_schema(request, wanted, now_ms)
    if schema is not None and not table.exists():
        _check_names(names)
        plan = setup_plan.plan_new_chain(table.name, schema, [_gather_branch(table, n) for n in names], records)
        check_opening(schema)
        return plan
    if schema is not None and not setup_plan.same_schema(table.schema(), schema):
        raise AlreadyExistsError(
            f"Table {table.name} exists at {table.store.uri} with other columns, keys or options; leave the "
            f"columns out to make it a chain table"
        )
    if not table.exists():
        raise NotFoundError(
            f"There is no table {table.name} at {table.store.uri} to convert; give its columns and keys to create it"
        )
    main = _gather_branch(table, MAIN)
    branches = [_gather_branch(table, n) for n in names]
    _check_names([b.name for b in branches if b.schema is None])
    plan, target = setup_plan.plan_conversion(table.name, main, branches, wanted, records, now_ms)
    _check_partitions(table, target, [MAIN, *names])
    return plan


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        check_branch_name(name)


def _branch_record(branch: str, role: str, now_ms: int, operation_id: str | None) -> BranchRecord:
    made, reason = utc_text(now_ms, "milliseconds"), f"{role} partitions of the chain table"
    return BranchRecord(branch=branch, created_at=made, reason=reason, operation_id=operation_id)


def _gather_branch(table: Table, name: str) -> BranchNow:
    """Read the state of a branch."""
    if "/" in name:
        return BranchNow(name=name)
    view = table.branch(name)
    ids = view.schema_ids()
    require_ready(view)  # after the look: what is being made may be visible by now
    if not ids:
        return BranchNow(name=name)
    head = view.latest_snapshot_id()
    shared = name != MAIN and head is not None and branch_point(table, view) is not None
    return BranchNow(name=name, schema=view.schema(ids[-1]), head=head, shared=shared)


def _check_partitions(table: Table, target: TableSchema, names: Sequence[str]) -> None:
    """Check that every partition has a partition time: Paimon silently skips others, or fails."""
    layout = chain_layout(target, table.name)
    problems = [p for name in names for p in _partition_problems(table.branch(name), layout)]
    if problems:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InvalidInputError(
            f"{table.name} can't become a chain table: {'; '.join(problems[:_NAMED])}{more}",
            details={"problems": problems[:100]},
        )


def _partition_problems(view: Table, layout: ChainLayout) -> list[str]:
    problems = []
    for values in sorted({s.values for s in plan_scan(view).splits} if view.exists() else (), key=layout.text_of):
        try:
            layout.time_of(values)
        except PaimonError as error:
            problems.append(error.message.replace(f"{layout.label}: ", f"branch {view.branch_name}: ", 1))
    return problems


def _execute_once(context: Context, plan: Plan, details: dict[str, Any]) -> OperationResult:
    """Put the schemas unless it is a dry run. A concurrent operation that has put one of them is a conflict.

    An operation has changed something also if an earlier try of it made the changes. A run without changes leaves no
    operation record.
    """
    changed = bool(plan)
    if not context.request.dry_run:
        with attempt_of(context) as tried:
            try:
                execute(context.table, plan.actions)
            except AlreadyExistsError as error:
                raise ConflictError(
                    f"{context.table.name}: it was altered, or a branch was set up, at the same time; run it again"
                ) from error
        changed = changed or tried.retried
        if not changed:
            tried.forget()
    head = context.table.latest_snapshot_id()
    return context.result(plan, branch=MAIN, changed=changed, before=head, after=head, details=details)


def alter_chain(context: Context, request: AlterChainTable) -> OperationResult:
    """Apply changes to all branches of a chain table. Changes that all branches already have are not an error.

    Raises:
        InvalidInputError: a rule is broken, or a branch can't take it: nothing was changed. NotFoundError: a branch
            does not exist. ConflictError: a branch was altered meanwhile: run it again.
    """
    changes = [parse_change(text) for text in request.change]
    plan = _plan_alter(context.table, changes, context.now_ms)
    warned = warn_of_options(context.table.name, [c.key for c in changes if isinstance(c, SetOption)])
    return _execute_once(context, plan, {**plan.summary, **warned})


def _plan_alter(table: Table, changes: Sequence[SchemaChange], now_ms: int) -> Plan:
    require_committable(table)
    main = _gather_branch(table.require(), MAIN)
    options = TableOptions(main.current.options)
    if not (options.chain_table and all(options.chain_branches)):
        raise InvalidInputError(
            f"{table.name} is not a chain table (option chain-table.enabled): alter an ordinary table with "
            f"alter_table; create_chain_table makes it a chain table"
        )
    branches = [_gather_branch(table, name) for name in options.chain_branches]
    earlier = [i for i in table.schema_ids() if i < main.current.id]
    previous = table.schema(earlier[-1]) if earlier else None
    return setup_plan.plan_alter(table.name, main, branches, previous, changes, now_ms)


def check_new_table(schema: TableSchema, name: str) -> None:
    """Refuse a table with chain options that ``create_chain_table`` would refuse; its branches, and the options that
    name them, may come later.

    Raises:
        InvalidInputError: all problems are listed.
    """
    options = TableOptions(schema.options)
    later = {} if any(options.chain_branches) else dict(zip(CHAIN_BRANCHES, ("snapshot", "delta"), strict=True))
    complete = replace(schema, options={**schema.options, **later})
    problems = setup_plan.new_chain_problems(complete, name) if options.chain_table else []
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
    parts = TableOptions(main.options).chain_branches
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
            f"{branch.label}: nothing was changed, as its three branches would no longer form one chain table: "
            f"{'; '.join(problems)}. Use alter_chain_table to change options in all three, or create_chain_table to "
            "convert a table",
            details={"problems": problems},
        )


def _problems(branch: Table, main: TableSchema, own: TableSchema) -> list[str]:
    """Return the rules that the three branches would break if ``branch`` had the schema ``own``, and main ``main``.

    Another branch that has no names of branches yet is taken as if it had main's: when a table is set up by hand, they
    are put into one branch after the other. Until all have them, reads are refused.
    """
    names = TableOptions(main.options).chain_branches

    def schema_of(name: str) -> TableSchema | None:
        if not name or name.lower() == branch.branch_name.lower():
            return own if name else None
        view = branch.branch(name)
        found = view.schema() if view.exists() else None
        if found is None or any(TableOptions(found.options).chain_branches):
            return found
        return replace(found, options={**found.options, **dict(zip(CHAIN_BRANCHES, names, strict=True))})

    snapshot, delta = map(schema_of, names)
    problems = branch_problems(main, snapshot, delta)
    return [*schema_problems(own), *setup_plan.set_up_problems(own), *problems.values()]
