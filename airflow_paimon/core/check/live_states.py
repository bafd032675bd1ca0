"""The live files of many states of a table as numbers: each manifest is read once, each folder listed once, for all
branches and tags, with 25 bytes for an entry or a file beside its own, and 8 for a listed file, of which a part is in
memory at a time.

What the numbers can't tell is read as values. They are digests (see ``name_digests``); entries that contradict each
other, or whose digests are the same, are among what is read so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store.base import Store, batches
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_entries import each_columns
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.name_digests import Digests, digests_of, digests_of_bytes, places_in
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import is_file_name, is_outside
from airflow_paimon.core.table.reachability import LISTINGS_AT_ONCE, FilePlace, column_places, missing_at
from airflow_paimon.core.table.spill import (
    MEMORY_BYTES,
    DigestRanges,
    SortedColumns,
    SpillBuffer,
    concat_columns,
    cuts_for,
)
from airflow_paimon.core.table.table import Table

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LEVEL = np.uint64(0xD6E8FEB86659FD93)
_ROW_BYTES = 120
"""Of an entry, while it is compared."""
_A_RUN = 1 << 18
_READ_BYTES = 64 << 20
"""The memory for a read: half of it for what is known of all entries, half for what is compared at a time."""
_TYPES = (np.uint64, np.uint64, bool, np.int32, np.int32)
_Mask = npt.NDArray[np.bool_]
_FolderNaming = tuple[object, ...]


class _Key(NamedTuple):
    """A partition and bucket. ``is_external``: of files outside of the table, for which no look is taken."""

    partition: bytes
    bucket: int
    is_external: bool


class _EntryDigests(NamedTuple):
    """The entries of one manifest, and after them the files that lie beside theirs. ``places``: digests of folder and
    name; ``files``: of what identifies the entry as well. ``folders``: positions in ``keys``. ``entries``: numbers of
    the entries. ``schemas``: of all files.
    """

    places: Digests
    files: Digests
    added: _Mask
    folders: npt.NDArray[np.int32]
    totals: npt.NDArray[np.int32]
    keys: list[_Key]
    entries: npt.NDArray[np.int32]
    schemas: frozenset[int]


@dataclass(frozen=True, slots=True)
class _LiveState:
    """``live``: which entries of each range are live, as bits. ``totals``: for each folder, how many live files are for
    which number of buckets.
    """

    manifests: Sequence[ManifestFile]
    parts: Sequence[SortedColumns]
    cuts: Digests
    live: Sequence[npt.NDArray[np.uint8]]
    totals: Mapping[int, BucketFiles]


BucketFiles = Mapping[int, int]
"""How many live files of a bucket are for which number of buckets, files beside them included."""


@dataclass
class LiveStates:
    """What a check has read so far. ``main``: any view of the table."""

    main: Table
    memory_bytes: int = MEMORY_BYTES
    _parts: dict[str, SortedColumns | None] = field(default_factory=dict)
    _schemas: dict[str, frozenset[int]] = field(default_factory=dict)
    _folders: dict[_Key, int] = field(default_factory=dict)
    _listed: dict[_FolderNaming, _Listed] = field(default_factory=dict)
    _complete: set[tuple[_FolderNaming, tuple[str, ...]]] = field(default_factory=set)
    _newest: tuple[tuple[str, ...], _LiveState | None] | None = None

    def __post_init__(self) -> None:
        self._runs = SpillBuffer(self.memory_bytes // 2)

    def missing(self, view: Table, schema: TableSchema, snapshot: Snapshot) -> list[str]:
        """Return the missing data files of a snapshot, as ``missing_at`` does; raises as ``scan.live_columns``."""
        manifests = all_manifests(view, snapshot)
        naming, names = _folder_naming(schema), _names(manifests)
        if (naming, names) in self._complete:
            return []
        state = self._state(view, manifests)
        if state is None:
            return missing_at(view, schema, list(column_places(live_columns(view, snapshot))))
        listed = self._listed.setdefault(naming, _Listed(self._runs))
        self._list_new_folders(schema, state, listed)
        lost = _lost(state, listed, np.array([key.is_external for key in self._folders], bool))
        if len(lost):
            return missing_at(view, schema, list(_places_of_files(view, state, lost)))
        self._complete.add((naming, names))
        return []

    def has_schemas(self, view: Table, snapshot: Snapshot, ids: Container[int]) -> bool:
        """Whether no other schemas than these are named by its manifests; false also if it needs a read as values."""
        manifests = all_manifests(view, snapshot)
        self._state(view, manifests)
        found = [self._schemas.get(m.file_name) for m in manifests]
        return all(some is not None and all(i in ids for i in some) for some in found)

    def live_buckets(self, view: Table, snapshot: Snapshot) -> Mapping[tuple[bytes, int], BucketFiles]:
        """Return the stored partitions and buckets that have live files; raises as ``scan.live_columns``."""
        found: dict[tuple[bytes, int], Counter[int]] = {}
        state = self._state(view, all_manifests(view, snapshot))
        if state is None:
            c = live_columns(view, snapshot)
            for partition, bucket, total in zip(c.partitions, c.buckets, c.total_buckets, strict=True):
                found.setdefault((partition, bucket), Counter())[total] += 1
            return found
        keys = list(self._folders)
        for folder, files in state.totals.items():
            found.setdefault((keys[folder].partition, keys[folder].bucket), Counter()).update(files)
        return found

    def _state(self, view: Table, manifests: Sequence[ManifestFile]) -> _LiveState | None:
        names = _names(manifests)
        if self._newest is None or self._newest[0] != names:
            self._newest = names, self._merged(view, manifests)
        return self._newest[1]

    def _merged(self, view: Table, manifests: Sequence[ManifestFile]) -> _LiveState | None:
        new = [m for m in manifests if m.file_name not in self._parts]
        for manifest, columns in each_columns(view, new):
            found = entries_of(columns)
            self._parts[manifest.file_name] = None if found is None else self._spill(found)
            self._schemas |= {} if found is None else {manifest.file_name: found.schemas}
        parts = [self._parts[m.file_name] for m in manifests]
        plain = [p for p in parts if p is not None]
        return self._state_of(manifests, plain) if len(plain) == len(parts) else None

    def _spill(self, found: _EntryDigests) -> SortedColumns:
        known = self._folders
        numbers = np.array([known.setdefault(key, len(known)) for key in found.keys], np.int32)
        return self._runs.add((found.places, found.files, found.added, numbers[found.folders], found.totals))

    def _state_of(self, manifests: Sequence[ManifestFile], parts: Sequence[SortedColumns]) -> _LiveState | None:
        """Merge entries in order; None: a file is added twice, or deleted without having been added."""
        cuts = cuts_for(sum(p.rows for p in parts), _ROW_BYTES, self.memory_bytes // 2)
        ranges, bits = DigestRanges(parts, cuts, columns=(1, 2, 3, 4)), []
        totals: dict[int, Counter[int]] = {}
        for at in range(len(ranges)):
            identities, added, folders, counts = concat_columns(ranges.parts(at), _TYPES[1:])
            live = live_entries_of(identities, added)
            if live is None:
                return None
            bits.append(np.packbits(live))
            pairs = folders[live].astype(np.int64) << 32 | counts[live].astype(np.int64) & 0xFFFFFFFF
            for pair, number in zip(*(a.tolist() for a in np.unique(pairs, return_counts=True)), strict=True):
                total = pair & 0xFFFFFFFF
                total = total - (1 << 32) if total >= 1 << 31 else total
                totals.setdefault(pair >> 32, Counter())[total] += number
        return _LiveState(manifests, parts, cuts, bits, totals)

    def _list_new_folders(self, schema: TableSchema, state: _LiveState, listed: _Listed) -> None:
        """List the folders of live files that were not listed before. Those of one partition are listed at once."""
        values, keys = StoredPartitions(schema).values, list(self._folders)
        new = sorted(n for n in state.totals.keys() - listed.folders if not keys[n].is_external)
        listed.folders.update(new)
        of_parent: dict[str, dict[str, int]] = {}
        for n, digest in zip(new, _folder_digests([keys[n] for n in new]).tolist(), strict=True):
            path = bucket_folder(schema, values(keys[n].partition), keys[n].bucket)
            of_parent.setdefault(path.rpartition("/")[0], {})[path] = digest
        groups: list[dict[str, int]] = []
        for parent, some in of_parent.items():
            groups += [some] if parent else [{path: n} for path, n in some.items()]
        for at_once in batches(groups):
            for places in map_parallel(partial(_list, self.main.store), at_once, LISTINGS_AT_ONCE):
                listed.add(places)
        listed.seal()


def live_states_for_read(table: Table) -> LiveStates:
    """Return what finds the buckets that a read concerns, in no more memory than the rest of the read is planned in."""
    return LiveStates(table, _READ_BYTES)


class _Listed:
    """Digests of the files in the folders that were listed."""

    def __init__(self, runs: SpillBuffer) -> None:
        self.folders: set[int] = set()
        self.runs: list[SortedColumns] = []
        self._kept_in = runs
        self._some: list[Digests] = []
        self._rows = 0

    def add(self, places: Digests) -> None:
        """Add what was found in some folders."""
        self._some.append(places)
        self._rows += len(places)
        if self._rows >= _A_RUN:
            self.seal()

    def seal(self) -> None:
        """Make what was added readable."""
        if self._some:
            self.runs.append(self._kept_in.add((np.concatenate(self._some),)))
            self._some, self._rows = [], 0


def _names(manifests: Sequence[ManifestFile]) -> tuple[str, ...]:
    return tuple(m.file_name for m in manifests)


def entries_of(c: EntryColumns) -> _EntryDigests | None:
    """Return entries as numbers. None: a file lies where only reading it as a value tells."""
    number = len(c.kinds)
    special = _with_more_than_a_file(c)
    if any(not _is_plain(c.extra_files[at], c.external_paths[at]) for at in special):
        return None
    keys = list(map(_Key, c.partitions, c.buckets, (path is not None for path in c.external_paths)))
    positions = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    folders = np.fromiter(map(positions.__getitem__, keys), np.int32, number)
    folder_digests = _folder_digests(list(positions))
    places = _places(digests_of(c.file_names), folder_digests[folders])
    files = places ^ (np.array(c.levels, np.int64).astype(np.uint64) + np.uint64(1)) * _LEVEL
    if special:
        more = [repr((c.extra_files[at], c.embedded_file_indexes[at], c.external_paths[at])) for at in special]
        files[special] ^= digests_of(more)
    added, totals = np.array(c.kinds, np.int8) == FileKind.ADD, np.array(c.total_buckets, np.int32)
    numbers = np.arange(number, dtype=np.int32)
    found = _EntryDigests(places, files, added, folders, totals, list(positions), numbers, frozenset(c.schema_ids))
    beside = [(at, name) for at in special if c.external_paths[at] is None for name in c.extra_files[at]]
    return _with_files_beside(found, beside, folder_digests) if beside else found


def _with_more_than_a_file(c: EntryColumns) -> list[int]:
    """Return which entries have further files beside theirs, are external, or hold an index."""
    number = len(c.kinds)
    if not any(c.extra_files) and c.external_paths.count(None) == c.embedded_file_indexes.count(None) == number:
        return []
    fields = enumerate(zip(c.extra_files, c.external_paths, c.embedded_file_indexes, strict=True))
    return [at for at, (extra, path, index) in fields if extra or path is not None or index is not None]


def _is_plain(extra_files: Sequence[str], external_path: str | None) -> bool:
    """Whether ``reachability`` looks for the files in the folder of their bucket, or for none of them."""
    return (external_path is None or is_outside(external_path)) and all(map(is_file_name, extra_files))


def _with_files_beside(
    found: _EntryDigests, beside: Sequence[tuple[int, str]], folder_digests: Digests
) -> _EntryDigests:
    """Add the files beside others: each comes and goes with the entry that names it."""
    owners = np.array([at for at, _ in beside], np.int32)
    names = digests_of([name for _, name in beside])
    rows = np.r_[np.arange(len(found.files), dtype=np.int32), owners]
    return _EntryDigests(
        places=np.r_[found.places, _places(names, folder_digests[found.folders[owners]])],
        files=np.r_[found.files, _places(names, found.files[owners])],
        added=found.added[rows],
        folders=found.folders[rows],
        totals=found.totals[rows],
        keys=found.keys,
        entries=rows,
        schemas=found.schemas,
    )


def _folder_digests(keys: Sequence[_Key]) -> Digests:
    return digests_of_bytes([key.partition + key.bucket.to_bytes(4, "little", signed=True) for key in keys])


def _places(names: Digests, folders: Digests) -> Digests:
    return (names ^ folders * _FACTOR) * _LEVEL


def _list(store: Store, folders: Mapping[str, int]) -> Digests:
    """List folders, given by path with their digests, which have one parent, or are one folder."""
    one = next(iter(folders))
    if len(folders) == 1:
        names = store.names(one)
        return _places(digests_of(names), np.full(len(names), folders[one], np.uint64))
    split = [path.rpartition("/") for path in store.walk(one.rpartition("/")[0])]
    inside = [(folders[folder], name) for folder, _, name in split if folder in folders]
    return _places(digests_of([name for _, name in inside]), np.array([n for n, _ in inside], np.uint64))


def _folder_naming(schema: TableSchema) -> _FolderNaming:
    """What the names of a branch's folders depend on."""
    o = TableOptions(schema.options)
    return schema.partition_keys, o.data_path_directory, o.partition_default_name, o.legacy_partition_name


def live_entries_of(files: Digests, added: _Mask) -> _Mask | None:
    """Merge entries in order; None: a file is added twice, or deleted without having been added."""
    if not len(files):
        return np.zeros(0, bool)
    order = np.argsort(files, kind="stable")
    same = files[order]
    first = np.r_[True, same[1:] != same[:-1]]
    starts = first.nonzero()[0]
    at = np.arange(len(same)) - np.repeat(starts, np.diff(np.r_[starts, len(same)]))
    if not np.array_equal(added[order], at % 2 == 0):
        return None
    live = np.zeros(len(same), bool)
    live[order] = np.r_[first[1:], True] & added[order]
    return live


def _lost(state: _LiveState, listed: _Listed, external: _Mask) -> Digests:
    """Return the live files that no listing has. ``external``: folders for which no look is taken."""
    ranges, there = DigestRanges(state.parts, state.cuts, columns=(0, 1, 3)), DigestRanges(listed.runs, state.cuts)
    lost: list[Digests] = [np.zeros(0, np.uint64)]
    for at, bits in enumerate(state.live):
        places, files, folders = concat_columns(ranges.parts(at), (*_TYPES[:2], _TYPES[3]))
        found = np.sort(concat_columns(there.parts(at), _TYPES[:1])[0])
        live = np.unpackbits(bits, count=len(places)).view(bool)
        lost.append(files[live & ~external[folders] & (places_in(found, places) < 0)])
    return np.concatenate(lost)


def _places_of_files(view: Table, state: _LiveState, lost: Digests) -> Iterator[FilePlace]:
    """Read again which entries name lost files."""
    wanted = np.sort(lost)
    for _, columns in each_columns(view, state.manifests):
        entries = entries_of(columns)
        assert entries is not None, "it was read so before"
        chosen = np.zeros(len(columns.kinds), bool)
        chosen[entries.entries[(places_in(wanted, entries.files) >= 0) & entries.added]] = True
        if chosen.any():
            yield from _some(column_places(columns), chosen)


def _some(places: Iterable[FilePlace], chosen: _Mask) -> Iterator[FilePlace]:
    return (place for place, is_chosen in zip(places, chosen.tolist(), strict=True) if is_chosen)
