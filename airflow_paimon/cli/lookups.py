"""What each look-up shows of a table or a warehouse."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.health.table_health import read_healths
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.publish.replace_main import main_state_text
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table, find_databases, find_tables, matching_tables
from airflow_paimon.shown import glance, lists, live_files
from airflow_paimon.shown.listing import Listing, heads, limited, utc_time


def databases(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int) -> Listing:
    """List the databases of a warehouse's catalog with the number of their tables.

    Raises:
        NotFoundError: it has no database.
    """
    catalog = open_catalog(warehouse, storage_options)
    shown, left = limited(find_databases(catalog), limit)
    rows = [(name, len(find_tables(catalog, name))) for name in shown]
    return Listing(title="databases", columns=heads("database | tables: number"), rows=rows, left=left)


def tables(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int) -> Listing:
    """List the tables of a warehouse's catalog with their newest commit.

    Raises:
        NotFoundError: it has no database.
    """
    catalog = open_catalog(warehouse, storage_options)
    found = [t for database in find_databases(catalog) for t in find_tables(catalog, database)]
    shown, left = limited(found, limit)
    seen = [(t.name, glance.glance(t, with_state=True)) for t in shown]
    return replace(glance.tables([(name, one) for name, one in seen if one is not None]), left=left)


def healths(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int) -> Listing:
    """List the tables of a warehouse's catalog; those that can't be read come first, then the worst.

    Raises:
        NotFoundError: it has no database.
    """
    found = matching_tables(open_catalog(warehouse, storage_options), ["*"])
    return lists.healths(read_healths(found, _now_ms())).first(limit)


def health(table: Table, limit: int) -> Listing:
    """List the reasons of a table's score, those that cost the most points first."""
    return lists.reasons(read_health(table, _now_ms())).first(limit)


def branches(table: Table, limit: int) -> Listing:
    """List main and the branches: their heads, what they were made from, and which one main is the state of."""
    made = {row["branch_name"]: row for row in inspect(table, "branches").to_pylist()}
    options = TableOptions(table.schema().options)
    roles: dict[str | None, str | None] = {MAIN: main_state_text(table)}
    roles |= {options.snapshot_branch: "chain: full partitions", options.delta_branch: "chain: changes"}
    if options.fallback_branch:
        roles[options.fallback_branch] = "fallback"
    rows = []
    for name in (MAIN, *made):
        view = table.branch(name)
        head = view.latest_snapshot() if view.exists() else None
        schema = view.schema_ids()[-1] if view.exists() else None
        about = made.get(name, {})
        rows.append(
            [
                name,
                head.id if head else None,
                utc_time(head.time_millis) if head else None,
                schema,
                about.get("from_branch"),
                about.get("tag_name"),
                about.get("tagged_snapshot_id"),
                about.get("owner"),
                about.get("retention"),
                about.get("protected_by"),
                roles.get(name) or about.get("reason"),
            ]
        )
    shown, left = limited(rows, limit)
    columns = heads(
        "branch | snapshot: number | committed: utc | schema: number | from | tag | base: number | owner | "
        "retention | protected by | what for"
    )
    return Listing(title="branches", columns=columns, rows=shown, left=left)


def schema(table: Table, limit: int, at: Snapshot | None = None) -> Listing:
    """List the columns of the branch's newest schema or of a snapshot's, in their order."""
    return lists.columns(table.schema(None if at is None else at.schema_id)).first(limit)


def options(table: Table, limit: int) -> Listing:
    """List the options that are set on the branch, with Paimon's defaults."""
    return lists.options(table.schema().options).first(limit)


def tags(table: Table, limit: int) -> Listing:
    """List the branch's tags, the newest snapshot first."""
    return lists.tags(table.require().tags()).first(limit)


def snapshots(table: Table, limit: int) -> Listing:
    """List the branch's snapshots, the newest first; only those that are shown are read."""
    ids, left = limited(list(reversed(table.require().snapshot_ids())), limit)
    rows = [
        (
            s.id,
            utc_time(s.time_millis),
            s.commit_kind.value,
            s.properties.get(OPERATION_PROPERTY) or s.operation,
            s.total_record_count,
            s.delta_record_count,
            s.schema_id,
            s.commit_user,
        )
        for s in table.snapshots(list(ids))
    ]
    columns = heads(
        "snapshot: number | committed: utc | kind | operation | stored rows: number | "
        "stored change: number | schema: number | user"
    )
    return Listing(title="snapshots", columns=columns, rows=rows, left=left, note=_elsewhere(table))


def partitions(table: Table, limit: int, at: Snapshot | None = None) -> Listing:
    """List the partitions of a snapshot (None: the branch's newest one), the last one first."""
    small = live_files.small_below(TableOptions(table.schema().options))
    live = live_files.read_live_files(table, at or table.latest_snapshot(), small)
    listing = live_files.partitions(live.partitions.sort_by([("partition", "descending")]))
    return replace(listing.first(limit), note=_elsewhere(table))


def files(table: Table, limit: int, at: Snapshot | None = None) -> Listing:
    """List the data files of a snapshot (None: the branch's newest one), by partition and bucket."""
    order = [("partition", "descending"), ("bucket", "ascending"), ("level", "ascending")]
    rows = inspect(table, "files", at).sort_by(order).to_pylist()
    shown, left = limited(rows, limit)
    names = ("partition", "bucket", "level", "record_count", "file_size_in_bytes", "schema_id", "file_source")
    columns = heads(
        "partition | bucket: number | level: number | stored rows: number | size: size | schema: number | source | file"
    )
    found = [[*(r[n] for n in names), r["file_path"].removeprefix(f"{table.store.uri.rstrip('/')}/")] for r in shown]
    return Listing(title="files", columns=columns, rows=found, left=left, note=_elsewhere(table))


def storage(table: Table, limit: int) -> Listing:
    """List what holds files of the table, of all branches, with what its end would free, the most first."""
    return lists.holders(read_usage(table, _now_ms())).first(limit)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _elsewhere(table: Table) -> str:
    """Say which rows of a chain table main doesn't show, so that it isn't taken for empty."""
    options = TableOptions(table.schema().options)
    if table.branch_name != MAIN or not options.chain_table:
        return ""
    names = " or ".join(f"--branch {name}" for name in (options.snapshot_branch, options.delta_branch))
    return f"That is main alone. {table.name} is a chain table: see {names}, or the look-up chain"


OF_A_TABLE: Mapping[str, Callable[[Table, int], Listing]] = {
    "schema": schema,
    "options": options,
    "branches": branches,
    "tags": tags,
    "snapshots": snapshots,
    "partitions": partitions,
    "files": files,
    "storage": storage,
    "health": health,
}

OF_A_VERSION: Mapping[str, Callable[[Table, int, Snapshot], Listing]] = {
    "schema": schema,
    "partitions": partitions,
    "files": files,
}
