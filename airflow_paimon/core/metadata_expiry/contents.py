"""Reads what roots name, each manifest once and in columns, into numbered files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryNames, FileKind, ManifestFile
from airflow_paimon.core.metadata_expiry.contents_plan import Changes, Contents, FileNumbers, NamedFiles
from airflow_paimon.core.metadata_expiry.references import RootNames, followed, read_names
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, Root
from airflow_paimon.core.table.name_digests import Digests, digests_of
from airflow_paimon.core.table.scan import each_entry_names
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
        digests = digests_of(keys)
        found = self._listed(digests)
        for at in (found < 0).nonzero()[0].tolist():
            digest = int(digests[at])
            number = self._others.get(digest)
            if number is None:
                number = self._others[digest] = len(self)
                self._other_sizes.append(sizes[at] if sizes is not None else 0)
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


def read_contents(table: Table, roots: Sequence[Root], numbered: NumberedFiles, *, follows: bool = False) -> Contents:
    """Read what roots name.

    ``follows``: take a snapshot's state for that of the one before with its own changes, where it says so, instead of
    reading manifests that were only merged: much faster, and right unless another engine has damaged the table. Not for
    whoever deletes what no root names.

    Raises:
        FormatError: a list or manifest of one is missing or unreadable; names it and the root.
    """
    names = read_names(table, roots)
    states = _followed_states(names) if follows else [n.state for n in names]
    manifests = {m.file_name: m for some in (*states, *(n.changelog for n in names)) for m in some}
    changes = _read_changes(table, list(manifests.values()), numbered)
    named = [_named(n, state, numbered) for n, state in zip(names, states, strict=True)]
    return Contents(files=len(numbered), changes=changes, named=named)


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


def _named(names: RootNames, state: _Manifests, numbered: NumberedFiles) -> NamedFiles:
    """What a root names; the root's own file is among the others."""
    others = {path.rpartition("/")[2] for path in names.metadata_paths} | {e.file_name for e in names.index}
    return NamedFiles(
        state=tuple(m.file_name for m in state),
        changelog=tuple(m.file_name for m in names.changelog),
        others=numbered.array([*sorted(others), names.root.path]),
    )


def _read_changes(table: Table, manifests: Sequence[ManifestFile], numbered: NumberedFiles) -> dict[str, Changes]:
    return {m.file_name: _changes_of(names, numbered) for m, names in each_entry_names(table, manifests)}


def _changes_of(names: EntryNames, numbered: NumberedFiles) -> Changes:
    """Count how often each file is added less how often it is deleted; its own index files go with it."""
    files = numbered.array(names.file_names, names.file_sizes)
    signs = np.where(np.array(names.kinds, np.int8) == FileKind.ADD, 1, -1).astype(np.int8)
    if any(names.external_paths):
        numbered.note_external(files[[at for at, path in enumerate(names.external_paths) if path is not None]])
    if any(names.extra_files):
        extra = numbered.array([name for some in names.extra_files for name in some])
        files, signs = (
            np.concatenate([files, extra]),
            np.concatenate([signs, np.repeat(signs, list(map(len, names.extra_files)))]),
        )
    unique, where = np.unique(files, return_inverse=True)
    counts = np.bincount(where, weights=signs, minlength=len(unique))
    return Changes(unique, counts.astype(np.int32))
