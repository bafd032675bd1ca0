"""The files of many states of a table as numbers: each manifest is read once for all branches and tags, the table's
folder listed once, with 18 bytes for a file of an entry and 8 for a listed one, of which a part is in memory at a time.

They are digests (see ``name_digests``). A state of which they don't show that all its files are listed, such as one
whose entries contradict each other, is read as values.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.metadata_expiry.listed_files import list_in_parts
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_entries import each_columns
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.name_digests import Digests, digests_of, digests_of_bytes, places_in
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import is_outside
from airflow_paimon.core.table.reachability import column_places, each_path, missing_at
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
_PLAIN = ((), None, None)
_ROW_BYTES = 120
"""Of an entry, while it is compared."""
_PATHS = 1 << 15
"""Paths that are in memory at a time."""
_TYPES = (np.uint64, np.uint64, bool, bool)
_Mask = npt.NDArray[np.bool_]
_FolderNaming = tuple[object, ...]
_Manifest = tuple[_FolderNaming, str]


class EntryDigests(NamedTuple):
    """The files that the entries of a manifest name: data files, and those beside them.

    ``places``: digests of their paths; ``files``: of what identifies their entry as well. ``inside``: not those outside
    of the table, for which no look is taken.
    """

    places: Digests
    files: Digests
    added: _Mask
    inside: _Mask


@dataclass
class LiveStates:
    """What a check has read so far. ``main``: any view of the table; ``verify_files``: whether ``missing`` is asked.

    ``_values``: partition, number of buckets and schema of a manifest's entries.
    """

    main: Table
    memory_bytes: int = MEMORY_BYTES
    verify_files: bool = True
    _values: dict[_Manifest, frozenset[tuple[bytes, int, int]]] = field(default_factory=dict)
    _files: dict[_Manifest, SortedColumns] = field(default_factory=dict)
    _listed: list[SortedColumns] | None = None
    _complete: set[tuple[_FolderNaming, tuple[str, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._runs = SpillBuffer(self.memory_bytes // 2)

    def missing(self, view: Table, schema: TableSchema, snapshot: Snapshot) -> list[str]:
        """Return the missing data files of a snapshot, as ``missing_at`` does; raises as ``live_columns``."""
        manifests = all_manifests(view, snapshot)
        state = _folder_naming(schema), tuple(m.file_name for m in manifests)
        if state in self._complete:
            return []
        if not self._is_complete([self._files[m] for m in self._read(view, schema, manifests)]):
            return missing_at(view, schema, list(column_places(live_columns(view, snapshot))))
        self._complete.add(state)
        return []

    def has_schemas(self, view: Table, snapshot: Snapshot, ids: Container[int]) -> bool:
        """Whether its manifests name no other schemas than these."""
        manifests = self._read(view, view.schema(), all_manifests(view, snapshot))
        return all(schema_id in ids for m in manifests for _, _, schema_id in self._values[m])

    def totals(self, view: Table, snapshot: Snapshot) -> set[tuple[bytes, int]]:
        """Return the partitions and numbers of buckets of a snapshot's files, also of those that are deleted since."""
        manifests = self._read(view, view.schema(), all_manifests(view, snapshot))
        return {(partition, total) for m in manifests for partition, total, _ in self._values[m]}

    def _read(self, view: Table, schema: TableSchema, manifests: Sequence[ManifestFile]) -> list[_Manifest]:
        naming = _folder_naming(schema)
        for manifest, c in each_columns(view, [m for m in manifests if (naming, m.file_name) not in self._values]):
            if self.verify_files:  # not every value of a partition has a path
                self._files[naming, manifest.file_name] = self._runs.add(entry_digests(schema, c))
            values = frozenset(zip(c.partitions, c.total_buckets, c.schema_ids, strict=True))
            self._values[naming, manifest.file_name] = values
        return [(naming, m.file_name) for m in manifests]

    def _is_complete(self, manifests: Sequence[SortedColumns]) -> bool:
        """Whether all live files were listed; not where entries contradict each other."""
        if self._listed is None:
            self._listed = listed = []
            list_in_parts(
                self.main, lambda infos: listed.append(self._runs.add((digests_of([i.name for i in infos]),)))
            )
        cuts = cuts_for(sum(m.rows for m in manifests), _ROW_BYTES, self.memory_bytes // 2)
        ranges, there = DigestRanges(manifests, cuts), DigestRanges(self._listed, cuts)
        for at in range(len(ranges)):
            places, files, added, inside = concat_columns(ranges.parts(at), _TYPES)
            live = _live_entries_of(files, added)
            if live is None:
                return False
            found = np.sort(concat_columns(there.parts(at), _TYPES[:1])[0])
            if (places_in(found, places[live & inside]) < 0).any():
                return False
        return True


def entry_digests(schema: TableSchema, c: EntryColumns) -> EntryDigests:
    """Return the files of entries as numbers.

    Raises:
        FormatError: the name of a file leads out of its folder.
    """
    parts, found = [(np.zeros(0, np.int32), np.zeros(0, np.uint64))], each_path(schema, column_places(c))
    while some := list(islice(found, _PATHS)):
        parts.append((np.array([at for at, _ in some], np.int32), digests_of([path for _, path in some])))
    rows, places = map(np.concatenate, zip(*parts, strict=True))
    more = zip(c.extra_files, c.embedded_file_indexes, c.external_paths, strict=True)
    special = [at for at, fields in enumerate(more) if fields != _PLAIN]
    identities = digests_of_bytes(c.partitions) ^ np.array(c.levels, np.int64).astype(np.uint64)
    if special:
        columns = (c.buckets, c.file_names, c.extra_files, c.embedded_file_indexes, c.external_paths)
        identities[special] ^= digests_of([repr([some[at] for some in columns]) for at in special])
    inside = np.ones(len(c.kinds), bool)
    inside[[at for at in special if is_outside(c.external_paths[at] or "")]] = False
    added = np.array(c.kinds, np.int8) == FileKind.ADD
    is_beside = np.r_[False, rows[1:] == rows[:-1]][: len(rows)]
    files = ((identities[rows] + is_beside) * _FACTOR ^ places) * _FACTOR
    return EntryDigests(places, files, added[rows], inside[rows])


def _folder_naming(schema: TableSchema) -> _FolderNaming:
    """What the names of a branch's folders depend on."""
    o = TableOptions(schema.options)
    return schema.partition_keys, o.data_path_directory, o.partition_default_name, o.legacy_partition_name


def _live_entries_of(files: Digests, added: _Mask) -> _Mask | None:
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
