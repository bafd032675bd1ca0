"""The LATEST hint of a branch, which Paimon reads first to find the newest snapshot."""

from __future__ import annotations

import logging

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import read_if_there
from airflow_paimon.core.table.paths import MAIN, hint_number
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_HINTS_BEHIND = 4
"""How many snapshots the hint may be behind while the next ones are put."""


def refresh_hint(table: Table, snapshot_id: int) -> None:
    """Write the LATEST hint. Where a look costs nothing, not over that of whoever has put the next snapshot meanwhile:
    it writes its own, unless it finds another one, too. So none is left that is old.
    """
    try:
        if not table.store.remote and table.store.exists(table.paths.snapshot(snapshot_id + 1)):
            hint = hint_number(read_if_there(table.store, table.paths.latest_hint) or b"")
            if hint is not None and hint >= snapshot_id - _HINTS_BEHIND:
                return
        table.store.hint(table.paths.latest_hint, str(snapshot_id).encode())
        if not table.store.remote and not table.store.exists(table.paths.snapshot(snapshot_id)):
            table.store.delete(table.paths.latest_hint)  # expired meanwhile, or the table was made anew
        if table.branch_name != MAIN and not table.exists():  # deleted meanwhile, and this would be its only file
            table.store.delete(table.paths.latest_hint)
    except PaimonError as error:
        log.warning("%s: LATEST hint not refreshed (%s); readers list the folder instead", table.label, error)
