"""The entries of manifests and index manifests, read many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.manifest import EntryColumns, IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.format.manifest_blocks import EntryFilter
from airflow_paimon.core.format.manifest_io import (
    entry_blocks,
    read_index_manifest,
    read_manifest,
    read_manifest_columns,
)
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store.threads import AT_ONCE
from airflow_paimon.core.table.manifest_lists import check_file_size, lost_metadata, read_each_delta_list
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.read_cache import read_files
from airflow_paimon.core.table.table import Table

T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)


def read_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> list[list[ManifestEntry]]:
    """Read manifests, one list of entries each, in order: those of the selected partitions (None: all)."""
    return [found for _, found in _each(table, manifests, selection, read_manifest)]


def read_deltas(table: Table, snapshots: Sequence[Snapshot]) -> list[list[ManifestEntry]]:
    """Read what each of these snapshots added and deleted, in order."""
    lists = read_each_delta_list(table, snapshots)
    found = iter(read_entries(table, [manifest for manifests in lists for manifest in manifests]))
    return [[entry for _ in manifests for entry in next(found)] for manifests in lists]


def each_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """Read manifests as ``read_entries`` does: the entries of one block are in memory at a time."""
    for manifest, blocks in _each(table, manifests, selection, entry_blocks):
        for entries in blocks:
            yield manifest, entries


def each_columns(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> Iterator[tuple[ManifestFile, EntryColumns]]:
    """Read some fields of manifests one after the other, in order; three times as fast as ``each_entries``."""
    return _each(table, manifests, selection, read_manifest_columns)


def read_columns(table: Table, manifests: Iterable[ManifestFile]) -> list[EntryColumns]:
    """Read some fields of manifests, in order."""
    return [found for _, found in each_columns(table, manifests)]


class _Decode(Protocol[T_co]):
    def __call__(self, data: bytes, *, name: str | None, only: EntryFilter | None) -> T_co: ...


def _each(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None, decode: _Decode[T]
) -> Iterator[tuple[ManifestFile, T]]:
    for some in _batches(manifests):
        for manifest, data in zip(some, _read_manifests(table, some), strict=True):
            yield manifest, decode(data, name=f"{table.label}: {manifest.file_name}", only=selection)


_AT_ONCE_BYTES = 32 << 20


def _batches(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Divide manifests into batches that are read at once: small ones side by side, few large ones."""
    some: list[ManifestFile] = []
    size = 0
    for manifest in manifests:
        if some and (len(some) == AT_ONCE or size + manifest.file_size > _AT_ONCE_BYTES):
            yield some
            some, size = [], 0
        some.append(manifest)
        size += manifest.file_size
    if some:
        yield some


def _read_manifests(table: Table, manifests: Sequence[ManifestFile]) -> list[bytes]:
    names = [m.file_name for m in manifests]
    try:
        blobs = read_files(table.store, [manifest_path(n) for n in names])
    except NotFoundError:
        missing = next((n for n in names if not table.store.exists(manifest_path(n))), "one")
        raise lost_metadata(table, f"manifest {missing}", "a live snapshot") from None
    for manifest, blob in zip(manifests, blobs, strict=True):
        check_file_size(table, manifest.file_name, len(blob), manifest.file_size)
    return blobs


def read_index_entries(table: Table, snapshot: Snapshot | None) -> list[IndexEntry]:
    """Read the index manifest of a snapshot: deletion vectors, hash indexes. Empty when it has none."""
    if snapshot is None or snapshot.index_manifest is None:
        return []
    name = snapshot.index_manifest
    try:
        [data] = read_files(table.store, [manifest_path(name)])
    except NotFoundError:
        raise lost_metadata(table, f"index manifest {name}", f"snapshot {snapshot.id}") from None
    return read_index_manifest(data, name=f"{table.label}: {name}")


def selected_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None
) -> Iterator[ManifestEntry]:
    """Read the entries of the selected partitions (None: all), in order, from those manifests that can hold any."""
    wanted = [m for m in manifests if selection is None or selection.may_be_in(m)]
    return (e for _, some in each_entries(table, wanted, selection) for e in some)
