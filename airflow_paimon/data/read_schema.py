"""The schema of a read, which engines need before any file is planned."""

from __future__ import annotations

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.data.chain.scan import is_chain_read
from airflow_paimon.data.fallback_branches import (
    had_no_snapshot_at,
    no_snapshot_as_early,
    other_branch,
    with_common_schema,
)


def read_schema(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> TableSchema:
    """Return the table's latest schema, or with time travel that of the snapshot. For a ``timestamp`` it is the newest
    schema of the branches that are read together.

    Raises:
        NotFoundError: no such snapshot or tag, or no branch has a snapshot as early.
    """
    if timestamp is None:
        view, snapshot = resolve_version(table, version)
        return view.schema(snapshot.schema_id if version is not None and snapshot is not None else None)
    if not is_chain_read(table):
        return _read_together(table, timestamp).schema
    options = TableOptions(table.schema().options)
    views = [table, *(table.branch(n) for n in (options.snapshot_branch, options.delta_branch) if n)]
    found = [_at_or_nothing(view, timestamp) for view in views if view.exists()]
    if all(p.snapshot is None for p in found):
        raise no_snapshot_as_early(table, timestamp)
    return with_common_schema(found, newest=True)[0].schema


def _read_together(table: Table, timestamp: int | str) -> ScanPlan:
    """Plan no files: for the schema."""
    empty = ScanPlan(table, None, table.schema())
    is_early = other_branch(empty) is not None and had_no_snapshot_at(table, timestamp)
    first = empty if is_early else _at(table, timestamp)
    name = other_branch(first)
    if name is None or not table.branch(name).exists():
        return _at(table, timestamp)
    other = table.branch(name)
    is_early = had_no_snapshot_at(other, timestamp)
    second = ScanPlan(other, None, other.schema()) if is_early else _at(other, timestamp)
    if first.snapshot is None and second.snapshot is None:
        raise no_snapshot_as_early(table, timestamp)
    return with_common_schema([first, second], newest=True)[0]


def _at(table: Table, timestamp: int | str) -> ScanPlan:
    view, snapshot = resolve_version(table, timestamp=timestamp)
    return ScanPlan(view, snapshot, view.schema(None if snapshot is None else snapshot.schema_id))


def _at_or_nothing(table: Table, timestamp: int | str) -> ScanPlan:
    try:
        return _at(table, timestamp)
    except NotFoundError:
        return ScanPlan(table, None, table.schema())
