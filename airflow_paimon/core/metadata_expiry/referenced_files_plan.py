"""Which root names which files, as numbers: what many roots share is counted once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.table.name_digests import Digests, places_in

FileNumbers = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sums:
    """How many files, with their ``bytes``; ``first_ms``: when the oldest of them was written, None if unknown."""

    files: int = 0
    bytes: int = 0
    first_ms: int | None = None

    def __add__(self, other: Sums) -> Sums:
        times = [ms for ms in (self.first_ms, other.first_ms) if ms is not None]
        return Sums(self.files + other.files, self.bytes + other.bytes, min(times, default=None))

    def to_json(self) -> dict[str, int]:
        return {"files": self.files, "bytes": self.bytes}


class ManifestChanges(NamedTuple):
    """The files that a manifest names, each once, and by how much it changes how often each is there."""

    files: FileNumbers
    counts: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFiles:
    """What one root names: the files that are live by ``state``, all that ``changelog`` adds, and ``others``.

    ``state`` and ``changelog`` are names of manifests, in order. Of a changelog also what a manifest adds as often as
    it deletes it: a file that was moved to another level is deleted on one and added on the other.
    """

    state: tuple[str, ...]
    changelog: tuple[str, ...]
    others: FileNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedFiles:
    """What roots name, in their order. The number of a file is the place of its digest in ``digests``.

    ``sizes``: in bytes; ``changes``: of each manifest, by its name; ``external``: data files out of the table's folder.
    """

    digests: Digests
    sizes: npt.NDArray[np.int64]
    external: Mask
    changes: Mapping[str, ManifestChanges]
    named: Sequence[RootFiles]

    def __len__(self) -> int:
        return len(self.digests)

    def numbers(self, digests: Digests) -> FileNumbers:
        """Return the number of each file, -1 for one that is not there."""
        return places_in(self.digests, digests)

    def sums(self, chosen: Mask) -> Sums:
        """Sum up some files."""
        return Sums(int(chosen.sum()), int(self.sizes[chosen].sum()))

    def each(self, roots: Sequence[int]) -> Iterator[Mask]:
        """Return which files each of some roots names; fast where one shares most manifests with the one before."""
        state, counts = frozenset[str](), np.zeros(len(self), np.int32)
        for at in roots:
            named, before = self.named[at], state
            state = frozenset(named.state)  # the sum of its manifests, in whatever order
            for name in before - state:
                counts[self.changes[name].files] -= self.changes[name].counts
            for name in state - before:
                counts[self.changes[name].files] += self.changes[name].counts
            held: Mask = counts != 0
            for name in named.changelog:
                change = self.changes[name]
                held[change.files[change.counts >= 0]] = True
            held[named.others] = True
            yield held

    def times(self) -> npt.NDArray[np.int32]:
        """Return how many roots name each file.

        A file counts as named where a manifest deletes it more often than it is added: such a state is broken.
        """
        times = np.zeros(len(self), np.int32)
        for held in self.each(range(len(self.named))):
            times += held
        return times

    def live(self, at: int) -> Mask:
        """Return the data files that are live by the state of the root at a position."""
        counts = np.zeros(len(self), np.int32)
        for name in self.named[at].state:
            counts[self.changes[name].files] += self.changes[name].counts
        live: Mask = counts > 0
        return live
