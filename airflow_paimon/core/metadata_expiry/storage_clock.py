"""The storage's clock, which has written the times of all files; the workers' clocks differ from it."""

from __future__ import annotations

import uuid

from airflow_paimon.core.commit.put import delete_files, put_new
from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

_CLOCK = f"{PRIVATE_DIR}/clock"
_HOUR_MS = 3_600_000


def storage_now(table: Table) -> int:
    """Ask the storage for its time, in epoch milliseconds: put a small file and look at its time.

    Raises:
        UnsupportedStorageError: it keeps no times.
    """
    name = f"now-{uuid.uuid4()}"
    put_new(table, f"{_CLOCK}/{name}", b"")
    infos = table.store.list(_CLOCK)
    now = next((i.modified_ms for i in infos if i.name == name), None)
    left = [i.name for i in infos if now and i.modified_ms and i.modified_ms < now - _HOUR_MS]  # by killed runs
    delete_files(table, [f"{_CLOCK}/{n}" for n in dict.fromkeys([name, *left])])
    if now is None:
        raise UnsupportedStorageError(
            f"{table.name}: this storage doesn't report when a file was written, so its age is unknown; nothing was "
            "deleted"
        )
    return now
