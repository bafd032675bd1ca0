"""Reads a table through ``scan.fallback-branch`` or ``scan.primary-branch``: partition by partition.

A partition with a live file in the first branch is read only there, even if it has no rows left.

See docs/contributing/format.md, Fallback branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from airflow_paimon.core.chain.layout import ChainLayout
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType, type_to_json, with_nullable
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions, both_of, partitions_that, partitions_where
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan, scan_without_files, with_planned_files
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.data.files.key_lookup import chosen_files
from airflow_paimon.data.files.pruning import bind_where, keep
from airflow_paimon.data.row_columns import with_row_columns


@dataclass(frozen=True, slots=True)
class PinnedState:
    """One state of a view, from which any number of reads can be planned.

    ``states``: of the branches that are read, without their files. Of a chain table main, the snapshot and the delta
    branch; of others the first one hides partitions of the second. The first has the table's columns. ``travels``: it
    is an earlier state. ``chain``: of a view that is read through a chain.
    """

    states: tuple[ScanPlan, ...]
    travels: bool
    chain: ChainLayout | None = None


def choose_branches(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> PinnedState:
    """Choose the state of a table that is no chain table for one read; raises as ``plan_branches``."""
    travels = version is not None or timestamp is not None
    own = _first_state(table, version, timestamp)
    name = other_branch(own)
    if name is None:
        return PinnedState((own,), travels)
    other = _other_state(own, own.table.branch(name), version, timestamp)
    if timestamp is not None and own.snapshot is None and other.snapshot is None:
        raise no_snapshot_as_early(own.table, timestamp)
    if travels:
        own, other = with_common_schema([own, other], newest=timestamp is not None)
    check_types(own.table.label, other.table.label, own.schema, other.schema)
    return PinnedState((other, own) if TableOptions(own.schema.options).primary_branch else (own, other), travels)


def files_of_filter(
    schema: TableSchema, *, by_bucket: bool, where: pc.Expression | None = None, predicate: Predicate | None = None
) -> Selection | None:
    """Select the files whose rows a filter can keep; None: it says nothing of partitions and buckets."""
    try:
        rows = bind_where(where, predicate, with_row_columns(schema).fields, "")
    except InvalidInputError:
        return None  # what is wrong with it is said with the names of the table
    partitions = _partitions(where, predicate, schema)
    return chosen_files(where, rows.columns, predicate, schema, partitions, by_bucket=by_bucket)


def _partitions(where: pc.Expression | None, predicate: Predicate | None, schema: TableSchema) -> Selection | None:
    """Return the partitions that can hold rows of a filter; None: it says nothing of them."""
    if not schema.partition_keys:
        return None
    found = partitions_where(predicate, schema)
    condition = bind_where(where, None, with_row_columns(schema).fields, "")
    if condition.columns.isdisjoint(schema.partition_keys):
        return found
    own = partitions_that(lambda bounds: keep(condition, [bounds], schema)[0], schema)
    return own if found is None else both_of(found, own)


def plan_visible_files(
    states: Sequence[ScanPlan], selections: Sequence[Selection | None], *, statistics: bool = True
) -> tuple[ScanPlan, ...]:
    """Plan the selected files, of the second branch without the partitions that readers see in the first one: what is
    wrong with entries of these is no matter to a read.
    """
    (first, *others), (selection, *rest) = states, selections
    plan = with_planned_files(first, selection, statistics=statistics)
    key = partition_key(first.schema)
    hidden = frozenset(key(s.values) for s in plan.splits)
    return (
        plan,
        *(
            with_planned_files(o, visible_selection(o, hidden, s), statistics=statistics)
            for o, s in zip(others, rest, strict=True)
        ),
    )


def visible_selection(
    state: ScanPlan, hidden: frozenset[tuple[Any, ...]], selection: Selection | None
) -> Selection | None:
    """Select what is selected of a branch (None: all) but hidden partitions, which are given by ``partition_key``."""
    if not hidden:
        return selection
    key = partition_key(state.schema)
    shown = StoredPartitions(state.schema).where(lambda values: key(values) not in hidden)
    return shown if selection is None else both_of(selection, shown)


def other_branch(plan: ScanPlan) -> str | None:
    """Return the branch that this table is read together with; a reference to itself is ignored."""
    options = TableOptions(plan.schema.options)
    if options.chain_table:
        return None
    if options.fallback_branch and options.primary_branch:
        return None  # refused by check_readable
    other = options.fallback_branch or options.primary_branch
    return None if other == plan.table.branch_name else other


def _other_state(state: ScanPlan, table: Table, version: int | str | None, timestamp: int | str | None) -> ScanPlan:
    label = state.table.label
    if not table.exists():
        raise NotFoundError(
            f"{label} is read together with branch {table.branch_name!r} (options scan.fallback-branch, "
            f"scan.primary-branch), which does not exist: create it, or reset the option"
        )
    if isinstance(version, int) and state.snapshot is not None:
        return state_at_time_of(table, state.snapshot)
    if isinstance(version, str) and state.snapshot is not None and ("/" in version or table.find_tag(version) is None):
        version, timestamp = None, state.snapshot.time_millis
    if timestamp is not None and had_no_snapshot_at(table, timestamp):
        return ScanPlan(table, None, table.schema())
    return scan_without_files(table, version, timestamp)


def _first_state(table: Table, version: int | str | None, timestamp: int | str | None) -> ScanPlan:
    """Choose the table's own state, without its files; one without a snapshot where only the other branch has one as
    early.
    """
    if timestamp is not None and had_no_snapshot_at(table, timestamp):
        state = ScanPlan(table, None, table.schema())
        if other_branch(state) is not None:
            return state
    return scan_without_files(table, version, timestamp)


def had_no_snapshot_at(table: Table, timestamp: int | str) -> bool:
    """Return whether a branch had no snapshot yet at a time; False also if its snapshots may have expired."""
    try:
        resolve_version(table, timestamp=timestamp)
    except NotFoundError:
        first = min(table.snapshot_ids(), default=1)
        if first == 1:
            return True
        record = read_branch_record(table.branch(MAIN), table.branch_name)
        return record is not None and record.snapshot_id == first
    return False


def no_snapshot_as_early(table: Table, timestamp: int | str) -> NotFoundError:
    return NotFoundError(f"No branch of {table.label} has a snapshot as early as {timestamp}")


def plan_head_of_other(plan: ScanPlan) -> ScanPlan | None:
    """Plan the head of the branch that a table is read together with, all of its partitions; None: there is none.

    Raises:
        NotFoundError: that branch does not exist. InvalidInputError: its columns have other types.
        UnsupportedFeatureError: they have other names.
    """
    name = other_branch(plan)
    if name is None:
        return None
    other = with_planned_files(_other_state(plan, plan.table.branch(name), None, None))
    check_types(plan.table.label, other.table.label, plan.schema, other.schema)
    return other


def visible_in_other(plan: ScanPlan, other: ScanPlan) -> ScanPlan:
    """Leave out the partitions of the other branch that readers see in the table's own branch."""
    return other if TableOptions(plan.schema.options).primary_branch else _without_partitions(other, plan)


def visible_in_own(plan: ScanPlan, other: ScanPlan) -> ScanPlan:
    """Leave out the partitions of the table's own branch that readers see in the other one."""
    return _without_partitions(plan, other) if TableOptions(plan.schema.options).primary_branch else plan


def state_at_time_of(table: Table, snapshot: Snapshot) -> ScanPlan:
    """Choose the branch's newest snapshot at the commit time of the other branch's; else its earliest, if any."""
    try:
        found = resolve_version(table, timestamp=snapshot.time_millis)[1]
        number = None if found is None else found.id
    except NotFoundError:
        number = min(table.snapshot_ids(), default=None)
    return ScanPlan(table, None, table.schema()) if number is None else scan_without_files(table, number)


def with_common_schema(plans: Sequence[ScanPlan], *, newest: bool) -> list[ScanPlan]:
    """Choose the schema for time travel over branches that are read together. ``plans[0]`` is the table's own.

    A snapshot has the schema of its commit; after an ALTER of all branches only some may have been written. ``newest``:
    use the latest of those schemas, in the order of the table's versions; otherwise the table's own, if it has a
    snapshot. Plans without such a version are left for ``check_types``.
    """
    columns = [_columns(p.schema) for p in plans]
    if all(c == columns[0] for c in columns):
        return list(plans)
    wanted = columns[0]
    if newest or plans[0].snapshot is None:
        versions = [_columns(s) for s in plans[0].table.schemas()]
        known = [c for p, c in zip(plans, columns, strict=True) if p.snapshot is not None and c in versions]
        wanted = max(known, key=lambda c: len(versions) - versions[::-1].index(c), default=wanted)
    return [_in_version(p, wanted) for p in plans]


def _in_version(plan: ScanPlan, wanted: Sequence[Any]) -> ScanPlan:
    if _columns(plan.schema) == wanted:
        return plan
    found = [s for s in plan.table.schemas() if _columns(s) == wanted]
    return replace(plan, schema=found[-1]) if found else plan


def _columns(schema: TableSchema) -> list[Any]:
    return [(f.name, f.id, _comparable_type(f.type)) for f in schema.fields]


def check_types(label: str, other_label: str, schema: TableSchema, other: TableSchema) -> None:
    """Check types and names. Paimon compares only types by position, and would mix up columns of other names."""
    ours = [(f.name, _comparable_type(f.type)) for f in schema.fields]
    theirs = [(f.name, _comparable_type(f.type)) for f in other.fields]
    if len(ours) != len(theirs) or [t for _, t in ours] != [t for _, t in theirs]:
        raise InvalidInputError(f"{label} and {other_label} are read together, but their column types differ")
    if [n for n, _ in ours] != [n for n, _ in theirs] or schema.partition_keys != other.partition_keys:
        raise UnsupportedFeatureError(
            f"{label} and {other_label} are read together, but name their columns or partition columns differently"
        )


def _comparable_type(data_type: DataType) -> Any:
    """Return a type without nullability and field ids."""
    if isinstance(data_type, RowType):
        return "ROW", tuple(_comparable_type(f.type) for f in data_type.fields)
    if isinstance(data_type, MapType):
        return "MAP", _comparable_type(data_type.key), _comparable_type(data_type.value)
    if isinstance(data_type, ArrayType):
        return data_type.root, _comparable_type(data_type.element)
    return type_to_json(with_nullable(data_type, True))


def _without_partitions(plan: ScanPlan, first: ScanPlan) -> ScanPlan:
    """Leave out partitions that the first branch has."""
    key = partition_key(first.schema)
    taken = {key(s.values) for s in first.splits}
    return replace(plan, splits=tuple(s for s in plan.splits if key(s.values) not in taken))


def partition_key(schema: TableSchema) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Give what is equal of the values of one partition in both branches, and only of those."""
    floats = [t.root in ("FLOAT", "DOUBLE") for t in schema.partition_types]
    # NaN is not equal to itself, and 0.0 is another partition than -0.0
    return lambda values: tuple(repr(v) if f else v for v, f in zip(values, floats, strict=True))
