"""Plans a schema change of one branch (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import HeadIs, Plan, PutNew
from airflow_paimon.core.schema.mapping_plan import plan_schemas
from airflow_paimon.core.schema.schema_plan import SchemaChange, apply_changes
from airflow_paimon.core.table.paths import BranchPaths

OPERATION = "alter_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBranch:
    """A branch that may be published: its schemas, ascending, and main's at its branch point. None: it has none."""

    schemas: Sequence[TableSchema]
    base: TableSchema | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """``schemas``: the branch's versions, ascending. ``snapshot``: its newest, None while it has no data."""

    table: str
    branch: str
    schemas: Sequence[TableSchema]
    snapshot: int | None

    @property
    def current(self) -> TableSchema:
        return self.schemas[-1]


def plan_alter_table(altered: Altered, changes: Sequence[SchemaChange], now_ms: int) -> Plan:
    """Plan the changes as one new version; no action if the newest version is the result of these changes already.

    Raises:
        InvalidInputError: a rule is broken.
    """
    if not changes:
        raise InvalidInputError(f"{altered.table}: name at least one change")
    current, has_data = altered.current, altered.snapshot is not None
    try:
        new = apply_changes(current, changes, has_data=has_data, now_ms=now_ms)
    except InvalidInputError as error:
        if not any(has_made(pair, changes, has_data) for pair in pairwise(altered.schemas[-2:])):
            error.set_message(f"{altered.table}: {error.message}")
            raise
        new = current
    put = [] if _same(new, current) else [new]
    reason = f"{len(changes)} changes, one version"
    path = BranchPaths(altered.branch).schema
    relied = HeadIs(branch=altered.branch, snapshot_id=altered.snapshot, schema_id=current.id)
    return Plan(
        operation=OPERATION,
        table=altered.table,
        preconditions=(relied,),
        actions=tuple(PutNew(path=path(s.id), data=s.to_bytes(), reason=reason) for s in put),
        summary={"branch": altered.branch, "schema_id": (put or [current])[0].id},
    )


def has_made(versions: tuple[TableSchema, TableSchema], changes: Sequence[SchemaChange], has_data: bool) -> bool:
    """Whether the second of two versions is the result of these changes to the first."""
    before, after = versions
    try:
        return _same(apply_changes(before, changes, has_data=has_data, now_ms=0), after)
    except InvalidInputError:
        return False


def _same(one: TableSchema, other: TableSchema) -> bool:
    return replace(one, id=0, time_millis=0, version=0) == replace(other, id=0, time_millis=0, version=0)


def publishable(
    table: str, main: Sequence[TableSchema], branches: Mapping[str, OpenBranch], now_ms: int
) -> dict[str, str]:
    """Say of each branch what these schemas of main mean for its publish: ``possible``, or why it is refused."""
    out = {}
    for name, branch in branches.items():
        if branch.base is None:
            out[name] = "it shares no snapshot with main, so it can't be published"
            continue
        try:
            plan_schemas(table, branch.base, main, branch.schemas, set(), now_ms)
            out[name] = "possible"
        except (ConflictError, UnsupportedFeatureError) as error:
            out[name] = error.message
    return out
