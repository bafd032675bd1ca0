"""What each look-up shows of a table or a warehouse."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_paimon.core.audit.records import moments, read_audits, records_of
from airflow_paimon.core.audit.text import as_json, render
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.health.table_health import read_healths
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.publish.main_state import main_state_text
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, is_pattern
from airflow_paimon.core.table.table import (
    Table,
    find_databases,
    find_tables,
    matching_tables,
    named_tables,
    open_table,
)
from airflow_paimon.core.table.table_sets import TableSet, find_set, set_folder, set_names
from airflow_paimon.shown import branches as shown_branches
from airflow_paimon.shown import glance, lists, live_files
from airflow_paimon.shown.commits import commit_of, commits
from airflow_paimon.shown.listing import Listing, View, heads, limited, utc_time


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
    """List main and the branches: their heads, what they were made from, and which one main is the state of. A branch
    that can't be read says so.
    """
    main = table.require().branch(MAIN)
    found: list[tuple[str, shown_branches.BranchFacts | PaimonError]] = []
    for name in (MAIN, *main.branch_names()):
        try:
            found.append((name, shown_branches.branch_facts(main, name)))
        except PaimonError as error:
            if name == MAIN:
                raise
            found.append((name, error))
    roles = shown_branches.roles_of(TableOptions(table.schema().options), main_state_text(main))
    return shown_branches.branches(found, roles).first(limit)


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
    found = [(table.branch_name, commit_of(s)) for s in table.snapshots(list(ids))]
    return replace(commits(found, several=False), left=left, note=_elsewhere(table))


def partitions(table: Table, limit: int, at: Snapshot | None = None) -> Listing:
    """List the partitions of a snapshot (None: the branch's newest one), the last one first."""
    small = live_files.small_below(TableOptions(table.schema().options))
    live = live_files.read_live_files(table, at or table.latest_snapshot(), small)
    listing = live_files.partitions(live.partitions.sort_by([("partition", "descending")]))
    return replace(listing.first(limit), note=_elsewhere(table))


def files(table: Table, limit: int, at: Snapshot | None = None) -> Listing:
    """List the data files of a snapshot (None: the branch's newest one), by partition and bucket."""
    live = live_files.read_live_files(table, at or table.latest_snapshot(), 1).files
    order = [("partition", "descending"), ("bucket", "ascending"), ("level", "ascending")]
    shown = live.sort_by(order)
    most = limit or live.num_rows
    listing = live_files.files(shown.slice(0, most), table.schema())
    return replace(listing, left=max(0, live.num_rows - most), note=_elsewhere(table))


def storage(table: Table, limit: int) -> Listing:
    """List what holds files of the table, of all branches, with what its end would free, the most first."""
    return lists.holders(read_usage(table, _now_ms())).first(limit)


def sets(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int, name: str | None = None) -> Listing:
    """List the sets of a warehouse with their newest versions, or the versions of one set, newest first.

    Raises:
        NotFoundError: no set of that name has a version, or there is no such warehouse. UnsupportedCatalogError: the
            catalog has no sets.
    """
    catalog = open_catalog(warehouse, storage_options)
    if name is None:
        newest = (set_folder(catalog, one).latest() for one in set_names(catalog))
        found = [one for one in newest if one is not None]
        if not found:
            find_databases(catalog)
    else:
        find_set(catalog, name)
        found = set_folder(catalog, name).versions()[::-1]
    shown, left = limited(found, limit)
    columns = heads("table set | number: number | created: utc | tag | tables")
    return Listing(title="table sets" if name is None else "versions", columns=columns,
                   rows=[_of_set(one) for one in shown], left=left)  # fmt: skip


def _of_set(one: TableSet) -> list[Any]:
    tables = [f"{name}@{pin.snapshot_id}" for name, pin in one.tables.items()]
    return [one.name, one.number, utc_time(one.created_ms), one.tag, tables]


def audit(
    warehouse: str,
    storage_options: Mapping[str, Any] | None,
    name: str,
    limit: int,
    since: str | None,
    until: str | None,
    form: str | None,
) -> View:
    """Look up who changed a table, or several (see ``named_tables``), why, by what, and who approved it.

    ``since`` and ``until``: ISO times with an offset, or dates (midnight UTC). ``form``: None = a table for people.
    """
    first, end = moments(("--from", since), ("--to", until), name)
    if is_pattern(name):
        tables = named_tables(open_catalog(warehouse, storage_options), name)
    else:
        tables = [open_table(warehouse, name, storage_options=storage_options).require()]
    found = records_of(read_audits(tables, first, end))
    text = lists.records(found).first(limit).to_text() if form is None else render(found, form).rstrip("\n")
    return View([as_json(one) for one in found], text)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _elsewhere(table: Table) -> str:
    """Say which rows of a chain table main doesn't show, so that it isn't taken for empty."""
    options = TableOptions(table.schema().options)
    if table.branch_name != MAIN or not options.chain_table:
        return ""
    names = " or ".join(f"--branch {name}" for name in (options.snapshot_branch, options.delta_branch))
    return f"That is main alone. {table.name} is a chain table: see {names}, or the command chain"


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
