"""The index of a table's files: which root names which. Each manifest is read once and in columns, as digests of names,
which become numbers of files by ranges, so that a part of them is in memory at a time.

Data files and metadata are known by their names, which are unique in a table, all else by its path.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind
from airflow_paimon.core.metadata_expiry.referenced_files_plan import ManifestChanges, Mask, ReferencedFiles, RootFiles
from airflow_paimon.core.metadata_expiry.references import RootReferences, read_references
from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.table.manifest_entries import each_columns
from airflow_paimon.core.table.name_digests import Digests, digests_of, places_in
from airflow_paimon.core.table.spill import DigestRanges, SortedColumns, SpillBuffer, range_bounds
from airflow_paimon.core.table.table import Table

_NONE: Digests = np.zeros(0, np.uint64)


class _Named(NamedTuple):
    """What one root names. ``others``: sorted digests."""

    state: tuple[str, ...]
    changelog: tuple[str, ...]
    others: Digests


@dataclass(frozen=True, slots=True)
class StoredReferences:
    """What roots name, in their order. ``changes``: of each manifest, by its name, the files that it names, each once:
    digest, by how much it changes how often the file is there, size, and whether it lies elsewhere.
    """

    named: Sequence[_Named]
    changes: Mapping[str, SortedColumns]

    @property
    def rows(self) -> int:
        """How many files the manifests name, those of each for themselves."""
        return sum(run.rows for run in self.changes.values())

    def by_ranges(self, cuts: Digests) -> ReferencesByRange:
        """Divide the files by ranges of digests."""
        others = [range_bounds(one.others, cuts) for one in self.named]
        return ReferencesByRange(self, DigestRanges(list(self.changes.values()), cuts), others)

    def whole(self) -> ReferencedFiles:
        """Return it at once; see ``ReferencesByRange.at``."""
        return self.by_ranges(_NONE).at(0)


@dataclass(frozen=True, slots=True)
class ReferencesByRange:
    """See ``StoredReferences.by_ranges``."""

    stored: StoredReferences
    ranges: DigestRanges
    others: Sequence[Sequence[int]]

    def at(self, number: int, listed: Digests = _NONE, sizes: npt.NDArray[np.int64] | None = None) -> ReferencedFiles:
        """Return what the roots name of a range, and the ``listed`` files of this range, with their ``sizes`` in bytes.

        The size of a data file that was not listed is what its manifest says.
        """
        parts = self.ranges.parts(number)
        others = [
            one.others[edges[number] : edges[number + 1]]
            for one, edges in zip(self.stored.named, self.others, strict=True)
        ]
        named, known = [part[0] for part in parts], np.unique(np.concatenate([_NONE, *others]))
        digests, first = np.unique(np.concatenate([listed, *named, known]), return_index=True)
        given = sizes if sizes is not None else np.zeros(len(listed), np.int64)
        every = np.concatenate([given, *(part[2] for part in parts), np.zeros(len(known), np.int64)])
        external = np.zeros(len(digests), bool)
        changes = {}
        for name, (files, counts, _, elsewhere) in zip(self.stored.changes, parts, strict=True):
            numbers = places_in(digests, files)
            external[numbers[elsewhere]] = True
            changes[name] = ManifestChanges(numbers, counts)
        return ReferencedFiles(
            digests=digests,
            sizes=every[first],
            external=external,
            changes=changes,
            named=[
                RootFiles(state=one.state, changelog=one.changelog, others=places_in(digests, mine))
                for one, mine in zip(self.stored.named, others, strict=True)
            ],
        )


def read_referenced_files(table: Table, roots: Sequence[Root], runs: SpillBuffer | None = None) -> StoredReferences:
    """Read what roots name, into ``runs`` (None: all of it into memory).

    Raises:
        FormatError: a list or manifest of one is missing or unreadable; names it and the root.
    """
    names = read_references(table, roots)
    manifests = {m.file_name: m for n in names for m in (*n.state, *n.changelog)}
    runs = runs or SpillBuffer(sys.maxsize)
    found = each_columns(table, manifests.values())
    changes = {manifest.file_name: runs.add(_changes_of(columns)) for manifest, columns in found}
    named = [
        _Named(tuple(m.file_name for m in n.state), tuple(m.file_name for m in n.changelog), _others_of(n))
        for n in names
    ]
    return StoredReferences(named, changes)


def _others_of(names: RootReferences) -> Digests:
    """What a root names besides data files; its own file is among them."""
    others = {path.rpartition("/")[2] for path in names.metadata_paths} | {e.file_name for e in names.index}
    return np.sort(digests_of([*others, names.root.path]))


_Changes = tuple[Digests, npt.NDArray[np.int32], npt.NDArray[np.int64], Mask]


def _changes_of(names: EntryColumns) -> _Changes:
    """Count how often each file is added less how often it is deleted; its own index files go with it."""
    digests = digests_of(names.file_names)
    signs = np.where(np.array(names.kinds, np.int8) == FileKind.ADD, 1, -1).astype(np.int8)
    sizes = np.array(names.file_sizes, np.int64)
    elsewhere = np.array([path is not None for path in names.external_paths], bool)
    if any(names.extra_files):
        beside = list(map(len, names.extra_files))
        extra = digests_of([name for some in names.extra_files for name in some])
        digests, signs = np.concatenate([digests, extra]), np.concatenate([signs, np.repeat(signs, beside)])
        sizes, elsewhere = (
            np.concatenate([sizes, np.zeros(len(extra), np.int64)]),
            np.concatenate([elsewhere, np.zeros(len(extra), bool)]),
        )
    unique, first, where = np.unique(digests, return_index=True, return_inverse=True)
    counts = np.bincount(where, weights=signs, minlength=len(unique)).astype(np.int32)
    external = np.bincount(where, weights=elsewhere, minlength=len(unique)) > 0
    return unique, counts, sizes[first], external
