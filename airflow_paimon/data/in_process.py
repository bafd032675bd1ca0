"""Which work is so small that starting tasks for it takes longer than doing it in this process."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.manifest import DataFile

LIMIT_BYTES = 32 << 20
"""What one process reads in about a second, and holds in memory several times over without harm."""
OPEN_BYTES = 128 << 10
"""What opening a file counts as: an object store answers 256 requests in a few seconds."""
LIMIT_ROWS = 2_000_000
"""Files that compress well hold many rows in few bytes."""


def fits_in_process(files: Iterable[DataFile], limit: int | None = None) -> bool:
    """Whether files are few and small enough to be read by this process alone, one after the other."""
    size = rows = 0
    for file in files:
        size, rows = size + file.file_size + OPEN_BYTES, rows + file.row_count
    return size <= (LIMIT_BYTES if limit is None else limit) and rows <= LIMIT_ROWS
