"""The files of a read: a snapshot, its columns, its live files by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import (
    IndexEntry,
    ManifestEntry,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.store.base import read_if_exists, run_parallel
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.merge_options import options_in_older_names
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, resolve_version


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The files of one snapshot. ``table`` is the view whose schemas the files' schema ids refer to.

    ``stored_schema``: the schema of the read as it is stored, if ``schema`` has other options. ``schemas``: those of
    files that are known, by id, see ``with_schemas``.
    """

    table: Table
    snapshot: Snapshot | None
    schema: TableSchema
    splits: tuple[BucketSplit, ...] = ()
    index_entries: tuple[IndexEntry, ...] = ()
    stored_schema: TableSchema | None = None
    schemas: Mapping[int, TableSchema] = field(default_factory=dict, compare=False)

    @property
    def precondition(self) -> HeadIs:
        """The precondition of what is planned from it: the branch is as it was read."""
        return HeadIs.of(self.table.branch_name, self.snapshot, self.schema.id)


def plan_scan(table: Table, *, selection: Selection | None = None) -> ScanPlan:
    """Plan a read of the newest snapshot, of the selected partitions only (None: all).

    Partitions with equal values are merged into one, even if their stored bytes differ (nulls before Paimon 1.1).
    """
    return with_planned_files(scan_without_files(table), selection)


def scan_without_files(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> ScanPlan:
    """Choose the snapshot of a read and its columns; no file is planned.

    Time travel reads with that snapshot's columns, otherwise with the latest. The options are the latest ones in any
    case, as in Paimon: they say how versions of a key are merged. Columns that they name are found by their field ids.
    """
    view, snapshot = resolve_version(table, version, timestamp)
    travels = version is not None or timestamp is not None
    schema = view.schema()
    if travels and snapshot is not None and snapshot.schema_id != schema.id:
        stored = view.schema(snapshot.schema_id)
        travelled = replace(stored, options=options_in_older_names(schema, stored))
        return ScanPlan(view, snapshot, travelled, stored_schema=stored)
    return ScanPlan(view, snapshot, schema)


def with_planned_files(state: ScanPlan, selection: Selection | None = None, *, statistics: bool = True) -> ScanPlan:
    """Plan the files of a chosen state, of the selected partitions only (None: all). ``statistics``: see
    ``live_entries``.
    """
    plan = plan_snapshot(state.table, state.snapshot, state.schema, selection, statistics=statistics)
    return replace(plan, stored_schema=state.stored_schema, schemas=state.schemas)


def with_schemas(plan: ScanPlan, ids: Iterable[int] | None = None) -> ScanPlan:
    """Read the schemas of these ids, or of the plan's files, that are not known yet: a branch that is made anew before
    rows are read gives the same ids to others. One that is missing may be that of files which are gone.

    Raises:
        ConflictError: the branch was deleted, or made anew, after its columns were read.
    """
    view, stored = plan.table, plan.stored_schema or plan.schema
    known = {**plan.schemas, stored.id: stored}
    if ids is None:
        ids = {f.schema_id for split in plan.splits for f in split.files}
    missing = sorted({*ids} - known.keys())
    paths = [view.paths.schema(i) for i in missing]
    found = run_parallel(view.store, [partial(read_if_exists, view.store, path) for path in paths])
    read = ((i, data) for i, data in zip(missing, found, strict=True) if data is not None)
    known |= {i: parse_schema(data, f"{view.label}: schema-{i}") for i, data in read}
    if missing and view.branch_name != MAIN:
        _require_same_branch(view, stored)
    return replace(plan, schemas=known)


def _require_same_branch(view: Table, stored: TableSchema) -> None:
    """Look at the newest schema of a read once more: if it is the same, so are those before it."""
    data = read_if_exists(view.store, view.paths.schema(stored.id))
    now = None if data is None else parse_schema(data, f"{view.label}: schema-{stored.id}")
    if now is None or (now.fields, now.time_millis) != (stored.fields, stored.time_millis):
        raise ConflictError(f"{view.label} was deleted or recreated while its files were planned; read it again")


def with_schemas_of_branch(plan: ScanPlan) -> ScanPlan:
    """Read all schemas of a branch, for reads of files that are planned later. Those of main stay what they are."""
    return plan if plan.table.branch_name == MAIN else with_schemas(plan, plan.table.schema_ids())


def plan_snapshot(
    table: Table,
    snapshot: Snapshot | None,
    schema: TableSchema,
    selection: Selection | None = None,
    *,
    statistics: bool = True,
) -> ScanPlan:
    """Plan a read of exactly this snapshot with this schema. ``statistics``: see ``live_entries``."""
    if snapshot is None:
        return ScanPlan(table, None, schema)
    live = live_entries(table, snapshot, selection, statistics=statistics).values()
    return ScanPlan(table, snapshot, schema, splits_of(schema, live), tuple(read_index_entries(table, snapshot)))


def splits_of(schema: TableSchema, live: Iterable[ManifestEntry]) -> tuple[BucketSplit, ...]:
    """Group live files by bucket; partitions with equal values are one, see ``plan_scan``."""
    stored = StoredPartitions(schema)
    groups_of: dict[bytes, dict[int, list[ManifestEntry]]] = {}
    by_form: dict[bytes, dict[int, list[ManifestEntry]]] = {}
    for entry in live:
        partition = entry.partition
        groups = groups_of.get(partition)
        if groups is None:
            groups = groups_of[partition] = by_form.setdefault(stored.canonical(partition), {})
        groups.setdefault(entry.bucket, []).append(entry)
    return tuple(
        BucketSplit(g[0].partition, stored.values(g[0].partition), bucket, g[0].total_buckets, tuple(e.file for e in g))
        for groups in by_form.values()
        for bucket, g in groups.items()
    )
