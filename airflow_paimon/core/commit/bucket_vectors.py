"""Deletion vectors of buckets that are written again: Paimon deletes rows without touching a data file."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

Place = tuple[Any, int]
"""A partition's identity and a bucket."""


def check_vectors(
    table: Table,
    stored: StoredPartitions,
    places: Container[Place],
    read: Sequence[IndexEntry],
    now: Sequence[IndexEntry],
) -> None:
    """Refuse to replace buckets whose deletion vectors are not those that were ``read``.

    Raises:
        ConflictError: another commit has deleted rows of them.
    """
    if _files(stored, places, read) != _files(stored, places, now):
        raise ConflictError(
            f"{table.label}: another commit deleted rows of a bucket while it was written again; run it again",
            table=table.name,
        )


def _files(stored: StoredPartitions, places: Container[Place], index: Sequence[IndexEntry]) -> set[tuple[Place, str]]:
    """Return the files with the vectors of these buckets: new vectors have a new file."""
    placed = [((stored.identity(i.partition), i.bucket), i) for i in index if i.deletion_vector_ranges]
    return {(place, i.file_name) for place, i in placed if place in places}
