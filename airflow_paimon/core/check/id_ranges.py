"""Which live files a check of row ids has to look at: the others are known by numbers only, about 60 bytes each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.check.live_states import live_entries_of
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.row_tracking.row_ids_plan import has_row_ids, ids_of, stored_ids
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import each_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.name_digests import ANY_NAME, Digests, digests_of_bytes
from airflow_paimon.core.table.table import Table

_Longs = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_NO_IDS = (0, -1)
"""The range of a file without ids, or without rows."""
_ANY = -2
"""The last id of a file with any of those that were given out."""


class _Entries(NamedTuple):
    """``files``: digests of what identifies them. ``without``: files without ids. ``last``: may be ``_ANY``."""

    files: Digests
    added: _Mask
    without: _Mask
    first: _Longs
    last: _Longs


def files_to_check(view: Table, head: Snapshot) -> list[DataFile]:
    """Return the live files without ids, with ids that were not given out yet, and those that have ids in the range of
    another one; all files where manifests contradict each other.

    Raises:
        FormatError: as ``live_entries`` does.
    """
    next_row_id = head.next_row_id or 0
    known = _joined([_numbers(entries) for entries in _blocks(view, head)])
    live = live_entries_of(known.files, known.added)
    if live is None:
        return [e.file for e in live_entries(view, head).values()]
    last = np.where(known.last == _ANY, max(0, next_row_id - 1), known.last)
    wanted = known.files[live & (known.without | (last >= next_row_id))]
    ranged = live & (last >= known.first)
    shared = known.files[ranged][sharing(known.first[ranged], last[ranged])]
    names = set(np.concatenate([wanted, shared]).tolist())
    found: dict[int, DataFile] = {}
    for entries in _blocks(view, head) if names else ():
        for digest, entry in zip(_digests(entries).tolist(), entries, strict=True):
            if digest in names and entry.kind == FileKind.ADD:
                found[digest] = entry.file
    return list(found.values())


def sharing(first: _Longs, last: _Longs) -> _Mask:
    """Return which ranges overlap another one, directly or by way of others (``row_ids_plan.overlapping``)."""
    order = np.argsort(first, kind="stable")
    begins = np.ones(len(order), bool)
    begins[1:] = first[order][1:] > np.maximum.accumulate(last[order])[:-1]
    group = np.cumsum(begins) - 1
    found = np.zeros(len(order), bool)
    found[order] = np.bincount(group)[group] > 1 if len(order) else False
    return found


def _blocks(view: Table, head: Snapshot) -> Iterator[list[ManifestEntry]]:
    return (entries for _, entries in each_entries(view, all_manifests(view, head)))


def _joined(parts: Sequence[_Entries]) -> _Entries:
    return _Entries(*(np.concatenate(column) for column in zip(*(parts or [_numbers([])]), strict=True)))


def _numbers(entries: Sequence[ManifestEntry]) -> _Entries:
    files = [e.file for e in entries]
    ranges = [_range_of(f) if has_row_ids(f) and f.row_count else _NO_IDS for f in files]
    return _Entries(
        files=_digests(entries),
        added=np.array([e.kind == FileKind.ADD for e in entries], bool),
        without=np.array([not has_row_ids(f) for f in files], bool),
        first=np.array([low for low, _ in ranges], np.int64),
        last=np.array([high for _, high in ranges], np.int64),
    )


def _range_of(file: DataFile) -> tuple[int, int]:
    """Return what ``ids_of`` gives, also where that depends on the ids that were given out."""
    return ids_of(file, 0) if file.first_row_id is not None else stored_ids(file) or (0, _ANY)


def _digests(entries: Sequence[ManifestEntry]) -> Digests:
    return digests_of_bytes([repr(e.identifier).encode(errors=ANY_NAME) for e in entries])
