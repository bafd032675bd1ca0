"""Which files are referenced, and whether they exist: data files, index files, deletion vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from airflow_paimon.core.errors import FormatError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import (
    DeletionVectorRange,
    EntryColumns,
    IndexEntry,
    ManifestEntry,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.data_file_paths import bucket_folder, legacy_schema
from airflow_paimon.core.table.history import difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR, checked_name, is_outside
from airflow_paimon.core.table.table import Table

_PARTITIONS_AT_ONCE = 32
"""Of partitions of which few files are wanted."""


class FilePlace(NamedTuple):
    """What says where a data file lies: fields of its manifest entry."""

    partition: bytes
    bucket: int
    file_name: str
    extra_files: tuple[str, ...]
    external_path: str | None


def entry_paths(schema: TableSchema, entries: Iterable[ManifestEntry]) -> list[str]:
    """Return the data file path of each entry, and of its extra files."""
    return _paths(schema, map(_place_of, entries))


def _place_of(entry: ManifestEntry) -> FilePlace:
    f = entry.file
    return FilePlace(entry.partition, entry.bucket, f.file_name, f.extra_files, f.external_path)


def column_places(columns: EntryColumns) -> Iterator[FilePlace]:
    """Return the places of files, in order."""
    c = columns
    return map(
        FilePlace._make, zip(c.partitions, c.buckets, c.file_names, c.extra_files, c.external_paths, strict=True)
    )


def each_path(schema: TableSchema, places: Iterable[FilePlace]) -> Iterator[tuple[int, str]]:
    """Return the path of each data file, and after it those of its extra files, with the number of its place.

    Raises:
        FormatError: a name leads out of its folder.
    """
    values = StoredPartitions(schema).values
    folders: dict[tuple[bytes, int], str] = {}
    for at, (partition, bucket, file_name, extra_files, external) in enumerate(places):
        if external is not None:
            path, folder = external, external.rpartition("/")[0]
        else:
            known = folders.get((partition, bucket))
            if known is None:
                known = folders[partition, bucket] = bucket_folder(schema, values(partition), bucket)
            folder = known
            path = f"{folder}/{checked_name(file_name)}"
        yield at, path
        for extra in extra_files:
            yield at, f"{folder}/{checked_name(extra)}"


def _paths(schema: TableSchema, places: Iterable[FilePlace]) -> list[str]:
    return [path for _, path in each_path(schema, places)]


def missing_files(table: Table, schema: TableSchema, entries: Iterable[ManifestEntry]) -> list[str]:
    """Return the missing data files (relative to the table root) of these entries. One listing per partition."""
    return missing_at(table, schema, list(map(_place_of, entries)))


def missing_at(table: Table, schema: TableSchema, places: Sequence[FilePlace]) -> list[str]:
    """Return the missing data files as ``missing_files`` does."""
    lost = _missing(table, _paths(schema, places))
    other = legacy_schema(schema) if lost else None
    if other is None:
        return lost
    known = set(lost)
    pairs = zip(_paths(schema, places), _paths(other, places), strict=True)
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
        if not is_outside(path):
            folder, _, name = path.rpartition("/")
            by_parent.setdefault(folder.rpartition("/")[0], {}).setdefault(folder, set()).add(name)
    found = map_parallel(lambda group: _missing_below(table, *group), by_parent.items(), _PARTITIONS_AT_ONCE)
    return sorted(path for paths in found for path in paths)


def _missing_below(table: Table, parent: str, folders: Mapping[str, set[str]]) -> list[str]:
    if len(folders) > 1 and parent:
        there = set(table.store.walk(parent))
        return [p for folder, names in folders.items() for name in names if (p := f"{folder}/{name}") not in there]
    return [f"{folder}/{name}" for folder, names in folders.items() for name in names - set(table.store.names(folder))]


def lost_between(table: Table, snapshot: Snapshot) -> list[str]:
    """Return the files of ``snapshot`` that an expiry has already deleted. No reads when it is the newest snapshot."""
    head = table.latest_snapshot()
    removed = {} if head is None else difference(table, snapshot, head).removed  # only these can an expiry delete
    gone = [e for group in removed.values() for e in group.values()]
    return missing_files(table, table.schema(snapshot.schema_id), gone)


DeletionVectorPlace = tuple[str, DeletionVectorRange]
"""Path of an index file, and where a vector lies in it."""


def find_deletion_vectors(entries: Iterable[IndexEntry], schema: TableSchema) -> list[DeletionVectorPlace]:
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
    for path, where in find_deletion_vectors(entries, schema):
        by_path.setdefault(path, []).append(where)
    for path, ranges in by_path.items():
        try:
            read_deletion_vectors(table.store.read(path), ranges, name=path)
        except (FormatError, UnsupportedFeatureError) as error:
            yield error.message
        except NotFoundError:
            yield f"{path} is missing"
