"""Which files of a chain table are planned together: those of some segments, of a large segment those of some buckets,
as what a chain merges lies in one bucket. Pure.

A segment is a full partition with the chains that it anchors, or a partition of main.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.data.chain.branch_states import Counts, partitions_of

_Place = tuple[int, Values]
"""The number of a branch (main, snapshot, delta), and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainGroups:
    """Groups of files. ``segments``: the reads of each. ``segments_of``: of each group. ``places``: the segment of each
    partition of the three branches. ``groups_of``: the group of each segment, or of each of its buckets.
    """

    segments: Sequence[Sequence[PartitionRead]]
    segments_of: Sequence[Sequence[int]]
    places: tuple[Mapping[Values, int], ...]
    groups_of: Sequence[int | Mapping[int, int]]

    def __len__(self) -> int:
        return len(self.segments_of)

    def find(self, branch: int, values: Values, bucket: int) -> int | None:
        """Return the group of a bucket; None: it is not read, or has no live file."""
        segment = self.places[branch].get(values)
        found = None if segment is None else self.groups_of[segment]
        return found.get(bucket) if isinstance(found, Mapping) else found

    def reads(self, group: int) -> list[PartitionRead]:
        """Return the partitions that are read in a group."""
        return [read for segment in self.segments_of[group] for read in self.segments[segment]]


def count_files(reads: Sequence[PartitionRead], counts: Sequence[Counts]) -> int:
    """Return how many live files the partitions have that are read."""
    return sum(_buckets_of(_places(reads), counts).values())


def divide_chain(reads: Sequence[PartitionRead], counts: Sequence[Counts], files: int) -> ChainGroups:
    """Divide the partitions that are read into groups of about so many files: a larger one is one bucket of one
    segment.
    """
    segments = segments_of(reads)
    groups_of = list[int | dict[int, int]]()
    places: tuple[dict[Values, int], ...] = tuple({} for _ in counts)
    filling = _Filling(files)
    for number, some in enumerate(segments):
        by_bucket = _buckets_of(_places(some), counts)
        size = sum(by_bucket.values())
        if size <= files:
            groups_of.append(filling.add(number, size))
        else:
            groups_of.append({b: filling.add(number, n) for b, n in sorted(by_bucket.items())})
        for branch, values in _places(some):
            places[branch][values] = number
    return ChainGroups(segments=segments, segments_of=filling.groups, places=places, groups_of=groups_of)


class _Filling:
    """Fills one group after the other."""

    def __init__(self, files: int) -> None:
        self.groups: list[list[int]] = []
        self._files, self._filled = files, 0

    def add(self, segment: int, files: int) -> int:
        """Put files of a segment into a group, and return its number."""
        if not self.groups or self._filled + files > self._files:
            self.groups.append([])
            self._filled = 0
        self._filled += files
        if self.groups[-1][-1:] != [segment]:
            self.groups[-1].append(segment)
        return len(self.groups) - 1


def _places(reads: Sequence[PartitionRead]) -> Iterator[_Place]:
    return ((branch, v) for branch, values in enumerate(partitions_of(reads)) for v in values)


def _buckets_of(places: Iterable[_Place], counts: Sequence[Counts]) -> Counter[int]:
    found: Counter[int] = Counter()
    for branch, values in places:
        found.update(counts[branch].get(values, {}))
    return found


def segments_of(reads: Sequence[PartitionRead]) -> list[list[PartitionRead]]:
    """Divide reads so that no partition of a branch is read for two of the parts."""
    segments: dict[int, tuple[list[PartitionRead], set[_Place]]] = {}
    owner: dict[_Place, int] = {}
    for number, some in enumerate(_by_chain(reads)):
        places = set(_places(some))
        others = sorted({owner[place] for place in places if place in owner})
        into = others[0] if others else number
        held = segments.setdefault(into, ([], set()))
        for own, new in ((some, places), *(segments.pop(other) for other in others[1:])):
            held[0].extend(own)
            held[1].update(new)
            owner.update(dict.fromkeys(new, into))
    return [some for some, _ in segments.values()]


def _by_chain(reads: Sequence[PartitionRead]) -> Iterable[list[PartitionRead]]:
    """Put the reads together whose chains begin with the same partition, in order."""
    found: dict[tuple[Any, ...], list[PartitionRead]] = {}
    for read in reads:
        start = read.anchor or (read.deltas[0] if read.deltas else read.target)
        found.setdefault((read.source == Source.MAIN, read.source == Source.DELTA, start), []).append(read)
    return found.values()
