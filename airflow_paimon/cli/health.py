"""The look-up health: why a table's score is what it is, or all tables of a warehouse, the worst first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.health.health_plan import TableHealth
from airflow_paimon.core.health.table_health import read_healths
from airflow_paimon.core.table.table import Table, matching_tables
from airflow_paimon.shown import lists
from airflow_paimon.shown.listing import Listing, counted, size_text


def tables(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int) -> Listing:
    """List the tables of a warehouse's catalog; those that can't be read come first, then the worst.

    Raises:
        NotFoundError: it has no database.
    """
    found = read_healths(matching_tables(open_catalog(warehouse, storage_options), ["*"]), _now_ms())
    return lists.healths(found).first(limit)


def one(table: Table, limit: int) -> Listing:
    """List the reasons of a table's score, those that cost the most points first."""
    health = read_health(table, _now_ms())
    return lists.reasons(health, facts_text(health)).first(limit)


def facts_text(health: TableHealth) -> str:
    """Say in a line what a table is made of."""
    files, held = health.files, health.held
    facts = [
        f"Score {health.score}: {counted(files.files, 'file')} with {size_text(files.bytes)}",
        f"{files.small_files:,} of them small",
        f"{counted(files.most_runs, 'sorted run')} at most" if files.most_runs else "",
        f"waiting for a compaction: {counted(files.waiting_rows, 'row')}" if files.waiting_rows else "",
        f"{counted(held.snapshots, 'snapshot')}, {counted(held.tags, 'tag')}, {counted(held.branches, 'branch')}",
        counted(health.manifests.count, "manifest"),
        _oldest_text(health),
    ]
    return "; ".join(filter(None, facts))


def _oldest_text(health: TableHealth) -> str:
    oldest = health.held.oldest
    if oldest is None:
        return ""
    day = datetime.fromtimestamp(oldest.since_ms / 1000, UTC).date().isoformat()
    return f"the oldest state, of {day}, is held by {oldest.kind} {oldest.name}"


def _now_ms() -> int:
    return int(time.time() * 1000)
