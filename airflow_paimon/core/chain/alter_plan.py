"""Plans one schema change for the three branches of a chain table (pure).

No engine can alter three schema logs at once, so main comes last, and an interrupted run is recognised from the
schemas: some branches have the changes already. Until all three agree, Paimon refuses to read main if columns differ;
the branches can always be read and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.chain.schema_checks import branch_problems, schema_problems
from airflow_paimon.core.chain.setup_plan import BranchNow, set_up_problems
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import Action, Plan, Precondition, PutNew
from airflow_paimon.core.schema.schema_plan import RemoveOption, SchemaChange, SetOption, apply_changes
from airflow_paimon.core.table.paths import MAIN, BranchPaths

OPERATION = "alter_chain_table"
_NEVER: Mapping[str, str] = {
    "chain-table.enabled": "main would be read alone from then on",
    "scan.fallback-snapshot-branch": "main would then be read through other data",
    "scan.fallback-delta-branch": "main would then be read through other data",
}
_MOVES_TIME = "the existing partitions would get another partition time, and every read other rows"
_REORDERS = "it decides which version of an existing row wins"
_WITH_DATA: Mapping[str, str] = {
    "bucket": "partitions with different numbers of buckets can't be merged into one",
    "chain-table.chain-partition-keys": "the existing partitions would form other chains",
    "partition.timestamp-pattern": _MOVES_TIME,
    "partition.timestamp-formatter": _MOVES_TIME,
    "sequence.field.sort-order": _REORDERS,
    "deletion-vectors.enabled": "existing deletes would be read in another way",
    "bucket-function.type": "existing rows would be looked up in other buckets",
    "partial-update.remove-record-on-delete": _REORDERS,
    "ignore-delete": _REORDERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """A schema version that the branches have, or had, in common, and the result of the changes on it."""

    before: TableSchema
    after: TableSchema


def plan_alter(
    table: str,
    main: BranchNow,
    branches: Sequence[BranchNow],
    previous: TableSchema | None,
    changes: Sequence[SchemaChange],
    now_ms: int,
) -> Plan:
    """Plan the steps until all three branches have the changes; none if they have them.

    ``previous``: the version before main's newest.

    Raises:
        InvalidInputError: a rule is broken, in any branch; nothing may be written then. NotFoundError: a branch.
    """
    if not changes:
        raise InvalidInputError(f"{table}: name at least one change")
    everyone = (*branches, main)
    has_data = any(b.has_data for b in everyone)
    for branch in everyone:
        if branch.schema is None:
            raise NotFoundError(f"{table}: branch {branch.name!r} does not exist; run check_chain_table")
    _check_options(table, changes, has_data)
    base = _find_base(table, everyone, previous, changes, has_data, now_ms)
    targets = {b.name: _target(table, b, base, changes, has_data, now_ms) for b in everyone}
    _check_targets(table, targets, main, branches)
    standing = [_schema(b) for b in everyone]
    new_id = max(s.id if targets[b.name] is s else s.id + 1 for b, s in zip(everyone, standing, strict=True))
    actions: list[Action] = [
        _put(b.name, replace(targets[b.name], id=new_id), f"{len(changes)} changes; main comes last")
        for b in everyone
        if targets[b.name] is not b.schema
    ]
    relied = tuple(Precondition(branch=b.name, snapshot_id=b.head, schema_id=_schema(b).id) for b in everyone)
    summary = {"branches": [b.name for b in everyone if targets[b.name] is not b.schema], "schema_id": new_id}
    return Plan(operation=OPERATION, table=table, preconditions=relied, actions=tuple(actions), summary=summary)


def _schema(branch: BranchNow) -> TableSchema:
    assert branch.schema is not None
    return branch.schema


def _check_options(table: str, changes: Sequence[SchemaChange], has_data: bool) -> None:
    reasons = {**_NEVER, **(_WITH_DATA if has_data else {})}
    for change in changes:
        if isinstance(change, SetOption | RemoveOption) and change.key in reasons:
            kind = "a chain table" if change.key in _NEVER else "a chain table with data"
            raise InvalidInputError(
                f"{table}: option {change.key} of {kind} can't be changed: {reasons[change.key]}; create a new chain "
                f"table and copy the rows"
            )


def _find_base(
    table: str,
    everyone: Sequence[BranchNow],
    previous: TableSchema | None,
    changes: Sequence[SchemaChange],
    has_data: bool,
    now_ms: int,
) -> _Base:
    """Find the version that every branch has, unchanged or with the changes.

    Raises:
        InvalidInputError: the changes break a rule, or a branch has another schema.
    """
    newest = _schema(everyone[-1])
    candidates = [newest, *(_schema(b) for b in everyone[:-1]), *([previous] if previous is not None else [])]
    first_error: InvalidInputError | None = None
    for before in candidates:
        try:
            after = apply_changes(before, changes, has_data=has_data, now_ms=now_ms)
        except InvalidInputError as error:
            first_error = first_error or error
            continue
        if all(_schema(b).content in (before.content, after.content) for b in everyone):
            return _Base(before=before, after=after)
    other = [b.name for b in everyone if _schema(b).content != newest.content]
    if first_error is not None and not other:
        raise InvalidInputError(f"{table}: {first_error.message}") from first_error
    raise InvalidInputError(
        f"{table}: branch {', '.join(map(repr, other))} has other columns or keys than main, and not those after these "
        f"changes; nothing was changed. Run check_chain_table and repair that first"
    )


def _target(
    table: str, branch: BranchNow, base: _Base, changes: Sequence[SchemaChange], has_data: bool, now_ms: int
) -> TableSchema:
    """Return the branch's next version; the same object when it already has the changes."""
    schema = _schema(branch)
    columns_done = schema.content == base.after.content and base.after.content != base.before.content
    left = [c for c in changes if isinstance(c, SetOption | RemoveOption)] if columns_done else list(changes)
    try:
        target = apply_changes(schema, left, has_data=has_data, now_ms=now_ms)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{table}: branch {branch.name!r} refuses the change, so nothing was changed: {error.message}"
        ) from None
    same = (target.fields, target.primary_keys, dict(target.options)) == (
        schema.fields,
        schema.primary_keys,
        dict(schema.options),
    )
    return schema if same else target


def _check_targets(
    table: str, targets: Mapping[str, TableSchema], main: BranchNow, branches: Sequence[BranchNow]
) -> None:
    def problems(schemas: Mapping[str, TableSchema]) -> list[str]:
        main_schema = schemas[MAIN]
        own = schema_problems(main_schema) + set_up_problems(main_schema)
        return own + branch_problems(main_schema, *(schemas[b.name] for b in branches))

    known = problems({b.name: _schema(b) for b in (main, *branches)})
    new = [p for p in problems(targets) if p not in known]
    if new:
        raise InvalidInputError(
            f"{table}: nothing was changed, as the result would not be a valid chain table: {'; '.join(new)}",
            details={"problems": new},
        )


def _put(branch: str, schema: TableSchema, reason: str) -> Action:
    return PutNew(path=BranchPaths(branch).schema(schema.id), data=schema.to_bytes(), same_ok=True, reason=reason)
