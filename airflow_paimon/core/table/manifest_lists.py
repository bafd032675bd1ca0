"""Manifest lists of a snapshot: the manifests that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_paimon.core.errors import FormatError, LostMetadataError, NotFoundError
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.manifest_io import read_manifest_list
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.read_cache import read_files
from airflow_paimon.core.table.table import Table


def read_both_manifest_lists(table: Table, snapshot: Snapshot) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Read the base and the delta manifest list, at once; raises as ``read_manifest_lists``."""
    base, delta = read_manifest_lists(table, [base_list(snapshot), delta_list(snapshot)])
    return base, delta


def read_delta_lists(table: Table, snapshots: Sequence[Snapshot]) -> list[ManifestFile]:
    """Read the delta manifest lists of several snapshots, at once, as one; raises as ``read_manifest_lists``."""
    return [m for rows in read_each_delta_list(table, snapshots) for m in rows]


def read_each_delta_list(table: Table, snapshots: Sequence[Snapshot]) -> list[list[ManifestFile]]:
    """Read the delta manifest lists of several snapshots, at once; raises as ``read_manifest_lists``."""
    return read_manifest_lists(table, list(map(delta_list, snapshots)))


def all_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Read both lists as one, in order: these manifests determine the live files of the snapshot."""
    base, delta = read_both_manifest_lists(table, snapshot)
    return base + delta


def count_live_files(table: Table, snapshot: Snapshot | None) -> int:
    """Return how many files are live, from the lists alone: each entry that deletes takes one away that another has
    added.
    """
    manifests = [] if snapshot is None else all_manifests(table, snapshot)
    return sum(m.num_added_files - m.num_deleted_files for m in manifests)


class ManifestListRef(NamedTuple):
    """A manifest list to read: its name, its size if known, and whose it is, for messages."""

    name: str
    size: int | None
    whose: str


def base_list(snapshot: Snapshot, whose: str | None = None) -> ManifestListRef:
    """Name a snapshot's base manifest list. ``whose``: None = the snapshot's."""
    whose = whose or f"snapshot {snapshot.id}"
    return ManifestListRef(snapshot.base_manifest_list, snapshot.base_manifest_list_size, whose)


def delta_list(snapshot: Snapshot, whose: str | None = None) -> ManifestListRef:
    """Name a snapshot's delta manifest list, as ``base_list``."""
    whose = whose or f"snapshot {snapshot.id}"
    return ManifestListRef(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, whose)


def read_changelog_list(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Read the changelog manifest list of a snapshot, empty without one; raises as ``read_manifest_lists``."""
    name, size = snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
    return read_manifest_lists(table, [ManifestListRef(name, size, f"snapshot {snapshot.id}")])[0] if name else []


def read_manifest_lists(table: Table, wanted: Sequence[ManifestListRef]) -> list[list[ManifestFile]]:
    """Read manifest lists by their names, at once.

    Raises:
        FormatError: one is missing or corrupt; the message names it and the snapshot.
    """
    try:
        blobs = read_files(table.store, [manifest_path(w.name) for w in wanted])
    except NotFoundError:
        lost = next((w for w in wanted if not table.store.exists(manifest_path(w.name))), wanted[0])
        raise lost_metadata(table, f"manifest list {lost.name}", lost.whose) from None
    for one, data in zip(wanted, blobs, strict=True):
        check_file_size(table, one.name, len(data), one.size)
    names = [f"{table.label}: {w.name}" for w in wanted]
    return [read_manifest_list(data, name=name) for data, name in zip(blobs, names, strict=True)]


def check_file_size(table: Table, name: str, found: int, size: int | None) -> None:
    """Avro itself does not detect a file truncated at the end of a block."""
    if size is not None and found != size:
        raise FormatError(
            f"{table.label}: {name} has {found} bytes instead of {size}: it is truncated or replaced; "
            f"restore it from a backup"
        )


def lost_metadata(table: Table, what: str, whose: str) -> LostMetadataError:
    return LostMetadataError(
        f"{table.label}: {what} of {whose} is missing: the snapshot was expired, its branch was deleted, or another "
        f"engine deleted a file that is still referenced; run check_table"
    )
