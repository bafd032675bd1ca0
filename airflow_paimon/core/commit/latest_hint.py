"""The LATEST hint of a branch, which Paimon reads first to find the newest snapshot."""

from __future__ import annotations

import logging

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


def refresh_hint(table: Table, snapshot_id: int) -> None:
    """Write the LATEST hint. It may be older than the one that another writer has just written: whoever reads a hint
    looks for the next snapshot as well.
    """
    try:
        table.store.hint(table.paths.latest_hint, str(snapshot_id).encode())
        if not table.store.remote and not table.store.exists(table.paths.snapshot(snapshot_id)):
            table.store.delete(table.paths.latest_hint)  # expired meanwhile, or the table was made anew
        if table.branch_name != MAIN and not table.exists():  # deleted meanwhile, and this would be its only file
            table.store.delete(table.paths.latest_hint)
    except PaimonError as error:
        log.warning("%s: LATEST hint not refreshed (%s); readers list the folder instead", table.label, error)
