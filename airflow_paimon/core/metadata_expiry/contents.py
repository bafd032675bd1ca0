"""Reads what roots name, each manifest once and in columns, into numbered files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_paimon.core.format.manifest import EntryNames, FileKind, ManifestFile
from airflow_paimon.core.metadata_expiry.contents_plan import Changes, Contents, FileNumbers, NamedFiles
from airflow_paimon.core.metadata_expiry.references import RootNames, followed, read_names
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, Root
from airflow_paimon.core.store.base import batches
from airflow_paimon.core.table.scan import read_entry_names
from airflow_paimon.core.table.table import Table


@dataclass(slots=True)
class NumberedFiles:
    """Numbers files: data files and metadata by their names, which are unique in a table, all else by its path.

    ``sizes``: bytes of the files that were listed, by the same keys. ``bytes``: of each number; of a data file that was
    not listed, what its manifest says. ``external``: data files outside of the table's folder.
    """

    sizes: Mapping[str, int]
    numbers: dict[str, int] = field(default_factory=dict)
    bytes: list[int] = field(default_factory=list)
    external: set[int] = field(default_factory=set)

    def of(self, key: str, size: int = 0) -> int:
        """Return the number of a file, a new one if need be. ``size``: in bytes, for one that was not listed."""
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.bytes)
            self.bytes.append(self.sizes.get(key, size))
        return number

    def array(self, keys: Iterable[str]) -> FileNumbers:
        """Return the numbers of several files."""
        return np.fromiter((self.of(key) for key in keys), np.int32)


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
    return Contents(files=len(numbered.bytes), changes=changes, named=named)


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
    found: dict[str, Changes] = {}
    for some in batches(manifests):
        for manifest, columns in zip(some, read_entry_names(table, some), strict=True):
            found[manifest.file_name] = _changes_of(columns, numbered)
    return found


def _changes_of(names: EntryNames, numbered: NumberedFiles) -> Changes:
    """Count how often each file is added less how often it is deleted; its own index files go with it."""
    files = [numbered.of(name, size) for name, size in zip(names.file_names, names.file_sizes, strict=True)]
    signs = [1 if kind == FileKind.ADD else -1 for kind in names.kinds]
    numbered.external.update(n for n, path in zip(files, names.external_paths, strict=True) if path is not None)
    for at, extra in enumerate(names.extra_files):
        if extra:
            files += map(numbered.of, extra)
            signs += [signs[at]] * len(extra)
    unique, where = np.unique(np.array(files, np.int32), return_inverse=True)
    counts = np.bincount(where, weights=np.array(signs, np.float64), minlength=len(unique))
    return Changes(unique.astype(np.int32), counts.astype(np.int32))
