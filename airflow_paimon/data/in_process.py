"""Decides whether work is so small that it is faster in this process than in tasks."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.manifest import DataFile

LIMIT_BYTES = 32 << 20
"""Bytes that one process reads in about a second and can hold in memory several times over."""
OPEN_BYTES = 128 << 10
"""The cost of opening a file, in bytes: an object store answers 256 requests in a few seconds."""
LIMIT_ROWS = 2_000_000
"""A limit on rows too, as files that compress well hold many rows in few bytes."""


def fits_in_process(files: Iterable[DataFile], limit: int | None = None) -> bool:
    """Whether the files are few and small enough to be read sequentially in this process."""
    size = rows = 0
    for file in files:
        size, rows = size + file.file_size + OPEN_BYTES, rows + file.row_count
    return size <= (LIMIT_BYTES if limit is None else limit) and rows <= LIMIT_ROWS
