"""Where deletion vectors lie, and whether they can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_paimon.core.errors import FormatError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import bucket_folder
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

Deletion = tuple[str, DeletionVectorRange]
"""Path of an index file, and where a vector lies in it."""


def find_deletions(entries: Iterable[IndexEntry], schema: TableSchema) -> list[Deletion]:
    """Find all deletion vectors of a snapshot."""
    stored = StoredPartitions(schema) if TableOptions(schema.options).flag("index-file-in-data-file-dir") else None

    def path(entry: IndexEntry) -> str:
        folder = INDEX_DIR if stored is None else bucket_folder(schema, stored.values(entry.partition), entry.bucket)
        return entry.external_path or f"{folder}/{entry.file_name}"

    return [
        (path(entry), where) for entry in entries for where in entry.deletion_vector_ranges or () if where is not None
    ]


def unreadable_vectors(table: Table, schema: TableSchema, entries: Iterable[IndexEntry]) -> Iterator[str]:
    """Read all deletion vectors; for each file that is damaged or of a later version, return what is wrong with it."""
    by_path: dict[str, list[DeletionVectorRange]] = {}
    for path, where in find_deletions(entries, schema):
        by_path.setdefault(path, []).append(where)
    for path, ranges in by_path.items():
        try:
            read_deletion_vectors(table.store.read(path), ranges, name=path)
        except (FormatError, UnsupportedFeatureError) as error:
            yield error.message
        except NotFoundError:
            yield f"{path} is missing"
