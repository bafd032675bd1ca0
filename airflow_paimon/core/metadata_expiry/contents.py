"""Reads what roots name, each manifest once and in columns: as digests of names, which become numbers of files by
ranges, so that a part of them is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind, ManifestFile
from airflow_paimon.core.metadata_expiry.contents_plan import Changes, Contents, FileNumbers, Mask, NamedFiles
from airflow_paimon.core.metadata_expiry.references import RootNames, followed, read_names
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, Root
from airflow_paimon.core.parallel.sorted_runs import Ranges, Run, SortedRuns, pieces_between
from airflow_paimon.core.parallel.workers import Workers
from airflow_paimon.core.table.name_digests import Digests, digests_of
from airflow_paimon.core.table.scan import each_columns
from airflow_paimon.core.table.table import Table


class NumberedFiles:
    """Numbers files: data files and metadata by their names, which are unique in a table, all else by its path.

    Of ``listed`` files, given by the digests of these keys, with their ``sizes`` in bytes, a number is the position
    in the sorted digests; others get the numbers after them. ``external``: data files outside of the table's folder.
    """

    def __init__(self, listed: Digests | None = None, sizes: npt.NDArray[np.int64] | None = None) -> None:
        if listed is None or sizes is None:
            listed, sizes = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self.listed, first = np.unique(listed, return_index=True)
        self._sizes = sizes[first]
        self._others: dict[int, int] = {}
        self._other_sizes: list[int] = []
        self._external: list[FileNumbers] = []

    def __len__(self) -> int:
        return len(self.listed) + len(self._others)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of each number; of a data file that was not listed, what its manifest says."""
        return np.concatenate([self._sizes, np.array(self._other_sizes, np.int64)])

    @property
    def external(self) -> FileNumbers:
        return np.unique(np.concatenate(self._external)) if self._external else np.zeros(0, np.int32)

    def array(self, keys: Sequence[str], sizes: Sequence[int] | None = None) -> FileNumbers:
        """Return the number of each file, a new one if need be. ``sizes``: in bytes, for those that were not listed."""
        return self.of(digests_of(keys), np.array(sizes, np.int64) if sizes is not None else None)

    def of(self, digests: Digests, sizes: npt.NDArray[np.int64] | None = None) -> FileNumbers:
        """Return the number of each file, given by the digest of its key, as ``array`` does."""
        found = self._listed(digests)
        for at in (found < 0).nonzero()[0].tolist():
            digest = int(digests[at])
            number = self._others.get(digest)
            if number is None:
                number = self._others[digest] = len(self)
                self._other_sizes.append(int(sizes[at]) if sizes is not None else 0)
            found[at] = number
        return found

    def find(self, keys: Sequence[str]) -> FileNumbers:
        """Return the number of each file, -1 for one that has none."""
        digests = digests_of(keys)
        found = self._listed(digests)
        for at in (found < 0).nonzero()[0].tolist():
            found[at] = self._others.get(int(digests[at]), -1)
        return found

    def _listed(self, digests: Digests) -> FileNumbers:
        at = np.searchsorted(self.listed, digests)
        at[at == len(self.listed)] = 0
        known = self.listed[at] == digests if len(self.listed) else np.zeros(len(digests), bool)
        return np.where(known, at, -1).astype(np.int32)

    def note_external(self, numbers: FileNumbers) -> None:
        """Note which data files lie elsewhere."""
        if len(numbers):
            self._external.append(numbers)


_LONGEST = 300
"""Manifests that a state is followed by: more are as slow as those that were merged from them."""
_Manifests = tuple[ManifestFile, ...]
_NO_CUTS = np.zeros(0, np.uint64)


class _Named(NamedTuple):
    """What one root names. ``others``: sorted digests."""

    state: tuple[str, ...]
    changelog: tuple[str, ...]
    others: Digests


@dataclass(frozen=True, slots=True)
class StoredContents:
    """What roots name, in their order. ``changes``: of each manifest, by its name, the files that it names, each once:
    digest, by how much it changes how often the file is there, size, and whether it lies elsewhere.
    """

    named: Sequence[_Named]
    changes: Mapping[str, Run]

    @property
    def rows(self) -> int:
        """How many files the manifests name, those of each for themselves."""
        return sum(run.rows for run in self.changes.values())

    def by_ranges(self, cuts: Digests) -> ContentsByRange:
        """Divide the files by ranges of digests."""
        others = [pieces_between(one.others, cuts) for one in self.named]
        return ContentsByRange(self, Ranges(list(self.changes.values()), cuts), others)


@dataclass(frozen=True, slots=True)
class ContentsByRange:
    """See ``StoredContents.by_ranges``."""

    stored: StoredContents
    ranges: Ranges
    others: Sequence[Sequence[int]]

    def at(self, number: int, numbered: NumberedFiles) -> Contents:
        """Return what the roots name of a range. ``numbered``: gives the numbers; those listed of this range."""
        changes = {}
        for name, (digests, counts, sizes, elsewhere) in zip(
            self.stored.changes, self.ranges.parts(number), strict=True
        ):
            files = numbered.of(digests, sizes)
            numbered.note_external(files[elsewhere])
            changes[name] = Changes(files, counts)
        named = [
            NamedFiles(
                state=one.state,
                changelog=one.changelog,
                others=numbered.of(one.others[edges[number] : edges[number + 1]]),
            )
            for one, edges in zip(self.stored.named, self.others, strict=True)
        ]
        return Contents(files=len(numbered), changes=changes, named=named)


def read_contents(table: Table, roots: Sequence[Root], numbered: NumberedFiles, *, follows: bool = False) -> Contents:
    """Read what roots name, all of it into memory; otherwise as ``store_contents``."""
    runs = SortedRuns(1 << 62)
    return store_contents(table, roots, runs, follows=follows).by_ranges(_NO_CUTS).at(0, numbered)


def store_contents(
    table: Table,
    roots: Sequence[Root],
    runs: SortedRuns,
    workers: Workers | None = None,
    *,
    follows: bool = False,
    only: Digests | None = None,
) -> StoredContents:
    """Read what roots name.

    ``follows``: take a snapshot's state for that of the one before with its own changes, where it says so, instead of
    reading manifests that were only merged: much faster, and right unless another engine has damaged the table. Not for
    whoever deletes what no root names. ``only``: leave out all other data files; sorted.

    Raises:
        FormatError: a list or manifest of one is missing or unreadable; names it and the root.
    """
    names = read_names(table, roots)
    states = _followed_states(names) if follows else [n.state for n in names]
    manifests = {m.file_name: m for some in (*states, *(n.changelog for n in names)) for m in some}
    entries = [m.num_added_files + m.num_deleted_files for m in manifests.values()]
    read = partial(_read_changes, table, only)
    found = (workers or Workers()).each(read, list(manifests.values()), entries)
    changes = {name: runs.add(columns) for name, columns in found}
    named = [
        _Named(tuple(m.file_name for m in state), tuple(m.file_name for m in n.changelog), _others_of(n))
        for n, state in zip(names, states, strict=True)
    ]
    return StoredContents(named, changes)


def _followed_states(names: Sequence[RootNames]) -> list[_Manifests]:
    """Return manifests that give each root's state, as few different ones as can be; a tag has its snapshot's."""
    before = followed(names)
    states: dict[int, _Manifests] = {}
    by_snapshot: dict[str, _Manifests] = {}
    for one in sorted(names, key=lambda n: n.root.snapshot.id):
        earlier = states.get(id(before[id(one)])) if id(one) in before else None
        follows = earlier is not None and len(earlier) < _LONGEST
        states[id(one)] = (*(earlier or ()), *one.delta) if follows else one.state
        if one.root.kind == SNAPSHOT:
            by_snapshot[one.root.snapshot.identity] = states[id(one)]
    return [
        states[id(one)] if one.root.is_changelog else by_snapshot.get(one.root.snapshot.identity, one.state)
        for one in names
    ]


def _others_of(names: RootNames) -> Digests:
    """What a root names besides data files; its own file is among them."""
    others = {path.rpartition("/")[2] for path in names.metadata_paths} | {e.file_name for e in names.index}
    return np.sort(digests_of([*others, names.root.path]))


_Changes = tuple[Digests, npt.NDArray[np.int32], npt.NDArray[np.int64], Mask]


def _read_changes(
    table: Table, only: Digests | None, manifests: Sequence[ManifestFile]
) -> Iterator[tuple[str, _Changes]]:
    for manifest, columns in each_columns(table, manifests):
        changes = _changes_of(columns)
        if only is not None:
            kept = np.isin(changes[0], only)
            changes = changes[0][kept], changes[1][kept], changes[2][kept], changes[3][kept]
        yield manifest.file_name, changes


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
    outside = np.bincount(where, weights=elsewhere, minlength=len(unique)) > 0
    return unique, counts, sizes[first], outside
