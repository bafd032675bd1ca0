"""The live files of many states of a table as numbers: each manifest is read once, each folder listed once, for all
branches and tags, with about 25 bytes for an entry and 8 for a file.

What the numbers can't tell is left to whoever reads the files as values: ``None`` says so. They are digests (see
``name_digests``); entries that contradict each other, or whose digests are the same, are among what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryPlaces, FileKind, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.name_digests import Digests, digests_of
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.reachability import LISTINGS_AT_ONCE, FilePlace, column_places, missing_at
from airflow_paimon.core.table.scan import all_manifests, bucket_folder, each_entry_places
from airflow_paimon.core.table.table import Table

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LEVEL = np.uint64(0xD6E8FEB86659FD93)
_Folders = npt.NDArray[np.int32]
_Mask = npt.NDArray[np.bool_]
_Naming = tuple[object, ...]


class _Part(NamedTuple):
    """The entries of one manifest. ``places``: digests of folder and name; ``files``: with the level as well.
    ``folders``: numbers of folders.
    """

    added: _Mask
    files: Digests
    places: Digests
    folders: _Folders
    totals: npt.NDArray[np.int32]


class _State(NamedTuple):
    """``live``: which entries of ``parts`` are live, in their order."""

    manifests: Sequence[ManifestFile]
    parts: Sequence[_Part]
    live: _Mask


@dataclass
class LiveStates:
    """What a check has read so far. ``main``: any view of the table."""

    main: Table
    _parts: dict[str, _Part | None] = field(default_factory=dict)
    _folders: dict[tuple[bytes, int], int] = field(default_factory=dict)
    _seen: dict[tuple[_Naming, str], _Mask] = field(default_factory=dict)
    _states: dict[tuple[str, ...], _State | None] = field(default_factory=dict)

    def missing(self, view: Table, schema: TableSchema, snapshot: Snapshot) -> list[str] | None:
        """Return the missing data files of a snapshot, as ``missing_at`` does; None: read them as values."""
        state = self._state(view, snapshot)
        if state is None:
            return None
        if not state.parts:
            return []
        keys = [(_naming(schema), m.file_name) for m in state.manifests]
        for key, part in zip(keys, state.parts, strict=True):
            self._seen.setdefault(key, np.zeros(len(part.files), bool))
        pending = state.live & ~np.concatenate([self._seen[key] for key in keys])
        if not pending.any():
            return []
        places, folders = (
            np.concatenate(some) for some in zip(*((p.places, p.folders) for p in state.parts), strict=True)
        )
        lost = self._lost(schema, places, folders, pending)
        start = 0
        for key in keys:
            end = start + len(self._seen[key])
            self._seen[key] |= (pending & ~lost)[start:end]
            start = end
        return missing_at(view, schema, list(_chosen(view, state, lost))) if lost.any() else []

    def bucket_counts(self, view: Table, snapshot: Snapshot) -> Mapping[bytes, set[int]] | None:
        """Return the numbers of fixed buckets that the live files of each stored partition are for; None: read them
        as values.
        """
        state = self._state(view, snapshot)
        if state is None:
            return None
        found: dict[bytes, set[int]] = {}
        partitions = [partition for partition, _ in self._folders]
        start = 0
        for part in state.parts:
            live = state.live[start : start + len(part.files)] & (part.totals > 0)
            start += len(part.files)
            pairs = np.unique(np.stack([part.folders[live], part.totals[live]]), axis=1)
            for folder, total in pairs.T.tolist():
                found.setdefault(partitions[folder], set()).add(total)
        return found

    def _state(self, view: Table, snapshot: Snapshot) -> _State | None:
        manifests = all_manifests(view, snapshot)
        names = tuple(m.file_name for m in manifests)
        if names not in self._states:
            self._states[names] = self._merged(view, manifests)
        return self._states[names]

    def _merged(self, view: Table, manifests: Sequence[ManifestFile]) -> _State | None:
        new = [m for m in manifests if m.file_name not in self._parts]
        for manifest, columns in each_entry_places(view, new):
            self._parts[manifest.file_name] = self._part(columns)
        parts = [self._parts[m.file_name] for m in manifests]
        plain = [p for p in parts if p is not None]
        live = _live(plain) if len(plain) == len(parts) else None
        return None if live is None else _State(manifests, plain, live)

    def _part(self, c: EntryPlaces) -> _Part | None:
        """None: a file has further files beside it, or lies elsewhere."""
        number = len(c.kinds)
        if any(c.extra_files) or {c.external_paths.count(None), c.embedded_file_indexes.count(None)} != {number}:
            return None
        folders = self._numbers(c)
        names = digests_of(c.file_names)
        places = _places(names, folders)
        return _Part(
            added=np.array(c.kinds, np.int8) == FileKind.ADD,
            files=places ^ (np.array(c.levels, np.int64).astype(np.uint64) + np.uint64(1)) * _LEVEL,
            places=places,
            folders=folders,
            totals=np.array(c.total_buckets, np.int32),
        )

    def _numbers(self, c: EntryPlaces) -> _Folders:
        known = self._folders
        keys = list(zip(c.partitions, c.buckets, strict=True))
        for key in dict.fromkeys(keys):
            known.setdefault(key, len(known))
        return np.fromiter(map(known.__getitem__, keys), np.int32, len(keys))

    def _lost(self, schema: TableSchema, places: Digests, folders: _Folders, pending: _Mask) -> _Mask:
        """Return which of the pending entries have no file. Folders of one partition are listed at once."""
        values, keys = StoredPartitions(schema).values, list(self._folders)
        of_parent: dict[str, dict[str, int]] = {}
        for number in np.unique(folders[pending]).tolist():
            partition, bucket = keys[number]
            path = bucket_folder(schema, values(partition), bucket)
            of_parent.setdefault(path.rpartition("/")[0], {})[path] = number
        groups: list[dict[str, int]] = []
        for parent, some in of_parent.items():
            groups += [some] if parent else [{path: n} for path, n in some.items()]
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            there = list(pool.map(self._list, groups))
        lost = pending.copy()
        if there:
            lost[pending] = ~np.isin(places[pending], np.concatenate(there))
        return lost

    def _list(self, folders: Mapping[str, int]) -> Digests:
        store, one = self.main.store, next(iter(folders))
        if len(folders) == 1:
            names = store.names(one)
            return _places(digests_of(names), np.full(len(names), folders[one], np.int32))
        split = [path.rpartition("/") for path in store.walk(one.rpartition("/")[0])]
        inside = [(folders[folder], name) for folder, _, name in split if folder in folders]
        return _places(digests_of([name for _, name in inside]), np.array([n for n, _ in inside], np.int32))


def _naming(schema: TableSchema) -> _Naming:
    """What the names of a branch's folders depend on."""
    o = TableOptions(schema.options)
    return schema.partition_keys, o.data_path_directory, o.partition_default_name, o.legacy_partition_name


def _places(names: Digests, folders: _Folders) -> Digests:
    mixed = (folders.astype(np.uint64) + np.uint64(1)) * _FACTOR
    return (names ^ mixed) * _LEVEL


def _live(parts: Sequence[_Part]) -> _Mask | None:
    """Merge entries in order; None: a file is added twice, or deleted without having been added."""
    if not parts:
        return np.zeros(0, bool)
    files, added = np.concatenate([p.files for p in parts]), np.concatenate([p.added for p in parts])
    order = np.argsort(files, kind="stable")
    same = files[order]
    first = np.r_[True, same[1:] != same[:-1]] if len(same) else np.zeros(0, bool)
    starts = first.nonzero()[0]
    at = np.arange(len(same)) - np.repeat(starts, np.diff(np.r_[starts, len(same)]))
    if not np.array_equal(added[order], at % 2 == 0):
        return None
    last = np.r_[first[1:], True] if len(same) else first
    live = np.zeros(len(same), bool)
    live[order] = last & added[order]
    return live


def _chosen(view: Table, state: _State, chosen: _Mask) -> Iterator[FilePlace]:
    """Read again which files some entries name."""
    start = 0
    wanted: list[tuple[ManifestFile, _Mask]] = []
    for manifest, part in zip(state.manifests, state.parts, strict=True):
        some = chosen[start : start + len(part.files)]
        start += len(part.files)
        if some.any():
            wanted.append((manifest, some))
    found = each_entry_places(view, [m for m, _ in wanted])
    for (_, some), (_, columns) in zip(wanted, found, strict=True):
        yield from (place for place, is_chosen in zip(column_places(columns), some.tolist(), strict=True) if is_chosen)
