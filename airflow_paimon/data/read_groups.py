"""Plans of reads: of few files at once, of many group by group, so that only one group has objects.

For that the entries of manifests, and the deletion vectors, are sorted into groups, in 25 to 40 bytes each without
statistics: by bucket where rows or columns of several files are put together, else by file, and of chain tables by the
chains that share files. A group is planned as a read of few files is.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from airflow_paimon.core.format.manifest import DataFile, DeletionVectorRange, IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.table.features import check_index
from airflow_paimon.core.table.live_entries import without_statistics
from airflow_paimon.core.table.live_files import live_files_of
from airflow_paimon.core.table.manifest_entries import each_entries, read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.scan import ScanPlan, splits_of, with_schemas
from airflow_paimon.core.table.spill import SpillBuffer, SpilledBytes
from airflow_paimon.data.chain.splits import ChainSplit, Inputs
from airflow_paimon.data.read_splits import ReadSplit, TableRead

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Layer = tuple[TableRead, list[ReadSplit]]

_AT_ONCE = 50_000
"""Entries that are sorted at a time, at most."""
_MOST_GROUPS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """``entries`` of manifests above which a read is planned in groups: as objects with their splits they take 1 kB
    each, and 0.4 kB more where a filter needs their statistics. ``files`` of a group, about. ``memory_bytes``: what is
    kept in memory of what is sorted; the rest lies in a temporary file.
    """

    entries: int = 50_000
    files: int = 2000
    memory_bytes: int = 64 << 20

    def each(self, files: int) -> int:
        """Return how many files a group has of so many."""
        return max(self.files, -(-files // _MOST_GROUPS))


IN_PROCESS = GroupSizes()
IN_SPARK = GroupSizes(entries=500_000)
"""Spark's own reader takes up to so many files, all of which its driver lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What is read of some files. ``layers``: buckets, merged each by itself; ``chains``: chains, read with ``inputs``.

    The groups of a read have as many layers each, which differ in nothing but their files.
    """

    layers: tuple[Layer, ...]
    inputs: Inputs | None = None
    chains: tuple[ChainSplit, ...] = ()

    @property
    def files(self) -> Iterator[DataFile]:
        """The files that are read."""
        splits: list[ReadSplit | ChainSplit] = [s for _, found in self.layers for s in found]
        return (f for split in (*splits, *self.chains) for f in split.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """``read``: defines the output. ``groups``: one of few files, else one after the other, which can be taken once.
    The files are chosen by now; what is wrong with one of many is raised when its group is planned.
    """

    read: TableRead
    groups: Iterable[GroupPlan]
    is_large: bool = False

    @property
    def layers(self) -> list[Layer]:
        """The layers of all groups, of a read that is not of chains."""
        return [layer for group in self.groups for layer in group.layers]


def plan_of(*layers: Layer) -> ReadPlan:
    """Return the plan of a read whose files are planned already, of at least one layer."""
    return ReadPlan(read=layers[0][0], groups=[GroupPlan(layers=layers)])


GroupOf = Callable[[bytes, int, str], int | None]
"""Gives the group of a file, by its partition as it is stored, its bucket and its name; None: it is not read."""


class BranchFiles(NamedTuple):
    """Files of one branch to sort. ``manifests``: those that may have them, in order."""

    state: ScanPlan
    manifests: Sequence[ManifestFile]
    group_of: GroupOf


def manifests_of(state: ScanPlan) -> list[ManifestFile]:
    """Return the manifests of a state."""
    return [] if state.snapshot is None else all_manifests(state.table, state.snapshot)


def entries_of(manifests: Iterable[ManifestFile]) -> int:
    """Return how many entries manifests have, additions and deletions."""
    return sum(m.num_added_files + m.num_deleted_files for m in manifests)


@dataclass(slots=True)
class SortedFiles:
    """``states``: of the branches, without their files, but with the schemas of these. ``parts``: of each group, in the
    order of their manifests: the number of their branch, and ``packed`` entries and deletion vectors.
    """

    states: tuple[ScanPlan, ...]
    parts: dict[int, list[tuple[int, SpilledBytes]]] = field(default_factory=dict)

    def each(self) -> Iterator[list[ScanPlan]]:
        """Yield the files of one group after the other; raises as ``plans``."""
        return (self.plans(group) for group in sorted(self.parts))

    def plans(self, group: int) -> list[ScanPlan]:
        """Return the files of a group.

        Raises:
            FormatError: a file is added twice or deleted without having been added.
        """
        entries: list[list[ManifestEntry]] = [[] for _ in self.states]
        index: list[list[IndexEntry]] = [[] for _ in self.states]
        for branch, part in self.parts.get(group, ()):
            some, vectors = unpacked(part.read())
            entries[branch] += some
            index[branch] += vectors
        return list(map(_with_files, self.states, entries, index))


def _with_files(state: ScanPlan, entries: Sequence[ManifestEntry], index: Sequence[IndexEntry]) -> ScanPlan:
    if state.snapshot is None:
        return state
    live = live_files_of(entries, f"{state.table.label}: snapshot {state.snapshot.id}")
    return replace(state, splits=splits_of(state.schema, live.values()), index_entries=tuple(index))


def sort_files(branches: Sequence[BranchFiles], sizes: GroupSizes, *, statistics: bool) -> SortedFiles:
    """Sort the files of a read into groups. ``statistics``: see ``live_entries``.

    Raises:
        FormatError: a manifest is missing or corrupt. UnsupportedFeatureError: an index file that is not read here.
        StorageError: the disk of temporary files is full. ConflictError: as ``with_schemas``.
    """
    kept, found = SpillBuffer(sizes.memory_bytes), SortedFiles(())
    states = []
    for number, branch in enumerate(branches):
        schema_ids: set[int] = set()
        for group, part in _parts(branch, schema_ids, min(sizes.entries, _AT_ONCE), statistics=statistics):
            found.parts.setdefault(group, []).append((number, kept.keep(packed(part))))
        states.append(with_schemas(branch.state, schema_ids))
    found.states = tuple(states)
    return found


_Part = tuple[list[ManifestEntry], list[IndexEntry]]


def _parts(branch: BranchFiles, schema_ids: set[int], at_once: int, *, statistics: bool) -> Iterator[tuple[int, _Part]]:
    """Yield what about ``at_once`` entries give of each group, in order; adds the schemas of all."""
    for group, vectors in _vectors_of_groups(branch).items():
        yield group, ([], vectors)
    groups: dict[int, list[ManifestEntry]] = {}
    number = 0
    for _, entries in each_entries(branch.state.table, branch.manifests):
        for entry in entries:
            file = entry.file
            own = branch.group_of(entry.partition, entry.bucket, file.file_name)
            if own is not None:
                groups.setdefault(own, []).append(entry if statistics else without_statistics(entry))
                schema_ids.add(file.schema_id)
                number += 1
        if number > at_once:
            yield from ((group, (some, [])) for group, some in groups.items())
            groups, number = {}, 0
    yield from ((group, (some, [])) for group, some in groups.items())


def _vectors_of_groups(branch: BranchFiles) -> dict[int, list[IndexEntry]]:
    """Divide the deletion vectors of a snapshot by the groups of their files."""
    entries = read_index_entries(branch.state.table, branch.state.snapshot)
    check_index(entries, table=branch.state.table.label)
    found: dict[int, list[IndexEntry]] = {}
    for entry in entries:
        ranges: dict[int, list[DeletionVectorRange]] = {}
        for one in entry.deletion_vector_ranges or ():
            if one is not None:
                group = branch.group_of(entry.partition, entry.bucket, one.data_file)
                if group is not None:
                    ranges.setdefault(group, []).append(one)
        for group, some in ranges.items():
            found.setdefault(group, []).append(entry._replace(deletion_vector_ranges=tuple(some)))
    return found


def packed(value: object) -> bytes:
    """Return a value in few bytes, for ``unpacked``."""
    return zstd.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)


def unpacked(data: bytes | memoryview) -> Any:
    """Return what was ``packed``."""
    return pickle.loads(zstd.decompress(data))
