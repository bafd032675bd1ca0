"""Which files are referenced, and whether they exist: data files, index files, deletion vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_paimon.core.errors import FormatError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.history import difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR, checked_name
from airflow_paimon.core.table.scan import bucket_folder, data_file_path, legacy_schema
from airflow_paimon.core.table.table import Table

_AT_ONCE = 16
"""Listings that are made at the same time."""


def entry_paths(schema: TableSchema, entries: Iterable[ManifestEntry]) -> list[str]:
    """Return the data file path of each entry, and of its extra files."""
    values = StoredPartitions(schema).values
    paths = []
    for entry in entries:
        path = data_file_path(schema, values(entry.partition), entry.bucket, entry.file)
        folder = path.rpartition("/")[0]
        paths += [path, *(f"{folder}/{checked_name(extra)}" for extra in entry.file.extra_files)]
    return paths


def missing_files(table: Table, schema: TableSchema, entries: Sequence[ManifestEntry]) -> list[str]:
    """Return the missing data files (relative to the table root) of these entries. One listing per partition."""
    lost = _missing(table, entry_paths(schema, entries))
    other = legacy_schema(schema) if lost else None
    if other is None:
        return lost
    known = set(lost)
    pairs = zip(entry_paths(schema, entries), entry_paths(other, entries), strict=True)
    elsewhere = {legacy: path for path, legacy in pairs if path in known}
    return sorted(elsewhere[p] for p in _missing(table, elsewhere))


def missing_index_files(table: Table, schema: TableSchema, entries: Sequence[IndexEntry]) -> list[str]:
    """Return the index files (deletion vectors, hash indexes) missing from the table's index folder.

    Not checked where the option ``index-file-in-data-file-dir`` or an external path puts them elsewhere.
    """
    wanted = {e.file_name for e in entries if e.external_path is None}
    if not wanted or TableOptions(schema.options).flag("index-file-in-data-file-dir"):
        return []
    return [f"{INDEX_DIR}/{name}" for name in sorted(wanted - set(table.store.names(INDEX_DIR)))]


def _missing(table: Table, paths: Iterable[str]) -> list[str]:
    """Return the missing paths. All buckets of one partition are checked with one listing, partitions side by side."""
    by_parent: dict[str, dict[str, set[str]]] = {}
    for path in paths:
        if "://" not in path:
            folder, _, name = path.rpartition("/")
            by_parent.setdefault(folder.rpartition("/")[0], {}).setdefault(folder, set()).add(name)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda group: _missing_below(table, *group), by_parent.items())
        return sorted(path for paths in found for path in paths)


def _missing_below(table: Table, parent: str, folders: Mapping[str, set[str]]) -> list[str]:
    if len(folders) > 1 and parent:
        there = set(table.store.walk(parent))
        return [p for folder, names in folders.items() for name in names if (p := f"{folder}/{name}") not in there]
    return [f"{folder}/{name}" for folder, names in folders.items() for name in names - set(table.store.names(folder))]


def replaced_since(table: Table, snapshot: Snapshot, head: Snapshot | None) -> list[ManifestEntry]:
    """Return the files of ``snapshot`` that are no longer live in ``head``: only these can an expiry delete.

    Reads only the manifests that the two don't share.
    """
    if head is None:
        return []
    return [e for group in difference(table, snapshot, head).removed.values() for e in group.values()]


def lost_between(table: Table, snapshot: Snapshot) -> list[str]:
    """Return the files of ``snapshot`` that an expiry has already deleted. No reads when it is the newest snapshot."""
    head = table.latest_snapshot()
    gone = replaced_since(table, snapshot, head)
    return missing_files(table, table.schema(snapshot.schema_id), gone)


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
