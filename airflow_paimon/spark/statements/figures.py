"""What the snapshot of a statement says of it, and what an INSERT did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.sql_text.recorded import statement_properties
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table

OPERATION = "sql"
"""Snapshot property with the result's details, by which a retry gives the first try's result."""


def committed_figures(table: Table, committed: Snapshot) -> Mapping[str, Any]:
    """Return the figures of an INSERT of an earlier try; none when the snapshot before it has expired."""
    if committed.id - 1 in table.snapshot_ids():
        return figures_of(table, table.snapshot(committed.id - 1), committed)
    return {} if committed.id > 1 else figures_of(table, None, committed)


def figures_of(table: Table, before: Snapshot | None, after: Snapshot | None) -> Mapping[str, Any]:
    """Say what an INSERT did, from the files of the snapshots before and after it. ``after``: None = no commit."""
    old = live_entries(table, before)
    now = live_entries(table, after) if after is not None else old
    new = [e.file for i, e in now.items() if i not in old]
    gone = [e.file for i, e in old.items() if i not in now]
    return {
        "rows_updated": 0,
        "rows_deleted": sum(f.row_count for f in gone),
        "rows_inserted": sum(f.row_count for f in new),
        "files_added": len(new),
        "bytes_added": sum(f.file_size for f in new),
        "files_rewritten": len(gone),
        "bytes_rewritten": sum(f.file_size for f in gone),
        "files_kept": len(old) - len(gone),
        "bytes_kept": sum(e.file.file_size for e in old.values()) - sum(f.file_size for f in gone),
    }


def made_of(table: Table, statement: str) -> dict[str, str]:
    """Return the snapshot properties that say what was run."""
    return {OPERATION_PROPERTY: OPERATION, **statement_properties(table, statement)}
