"""Reads of chain tables with many files: their entries are sorted into bins of segments, in about 40 bytes each, and
the bins are planned one after the other, so that the files of no more than some have objects.

A segment is what is planned together: a full partition with the chains that it anchors, or a partition of main. So one
with very many files is planned at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow.compute as pc

from airflow_paimon.core.chain.layout import GapPolicy, Values
from airflow_paimon.core.chain.read_plan import ChainReadMode, PartitionRead, Source
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.format.manifest import FileKind, IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.features import check_index
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import (
    ScanPlan,
    all_manifests,
    each_entries,
    live_of_entries,
    plan_state,
    read_index,
    splits_of,
    without_collecting,
    without_statistics,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.whole_table.sorted_runs import Kept, SortedRuns
from airflow_paimon.data import grouped_read
from airflow_paimon.data.chain.scan import (
    ChainRead,
    ChosenChain,
    PinnedChain,
    choose_chain,
    partition_reads,
    partitions_of,
    plan_chain_columns,
    plan_chosen_chain,
    plan_partitions,
    plan_pinned_chain,
    stored_in,
    with_files,
)
from airflow_paimon.data.scan import TableRead
from airflow_paimon.data.whole_read import entries_of, packed, schemas_of, unpacked

_FILES = 2000
"""Files of the bins that are planned together, about."""
_MOST_BINS = 2000
_AT_ONCE = 50_000
"""Entries that are sorted at a time."""
_MEMORY_BYTES = 64 << 20
"""What is kept in memory of the entries; the rest lies in a temporary file."""


class PlannedChain(NamedTuple):
    """What to read. ``main``: defines the output, without the files' schemas. ``reads`` can be taken once."""

    main: TableRead
    reads: Iterable[ChainRead]


def plan_chain_by_groups(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    mode: ChainReadMode = "full",
    gap_policy: GapPolicy = "empty",
) -> PlannedChain:
    """Plan a read as ``plan_chain`` does. The files are chosen now; what is wrong with one of very many is raised when
    its bin is planned.
    """
    asked = _Asked(columns, where, predicate, mode, gap_policy)
    with reading_once():
        chosen = choose_chain(table, version, timestamp)
        if _is_large(chosen):
            return _by_groups(chosen.partitions_only(), asked)
        read = plan_chosen_chain(chosen, **asked._asdict())
    return PlannedChain(read.inputs.main, [read])


def plan_pinned_chain_by_groups(
    pinned: PinnedChain, *, columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> PlannedChain:
    """Plan a read of a pinned state, as ``plan_chain_by_groups``."""
    asked = _Asked(columns, where)
    with reading_once():
        if not pinned.has_files:
            return _by_groups(pinned, asked)
        read = plan_pinned_chain(pinned, **asked._asdict())
    return PlannedChain(read.inputs.main, [read])


def pin_chain(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> PinnedChain:
    """Choose the state of a chain table from which any number of reads can be planned, with its files unless they are
    many.

    Raises:
        PaimonError: as ``plan_chain``.
    """
    with reading_once():
        chosen = choose_chain(table, version, timestamp)
        return chosen.partitions_only() if _is_large(chosen) else chosen.planned(plan_state)


class _Asked(NamedTuple):
    """The arguments of ``plan_pinned_chain``."""

    columns: Sequence[str] | None
    where: pc.Expression | None
    predicate: Predicate | None = None
    mode: ChainReadMode = "full"
    gap_policy: GapPolicy = "empty"

    @property
    def of_files(self) -> dict[str, Any]:
        """The arguments of ``plan_read``."""
        return {"columns": self.columns, "where": self.where, "predicate": self.predicate}

    @property
    def has_filter(self) -> bool:
        return self.where is not None or self.predicate is not None


def _manifests(plan: ScanPlan) -> list[ManifestFile]:
    return [] if plan.snapshot is None else all_manifests(plan.table, plan.snapshot)


def _is_large(chosen: ChosenChain) -> bool:
    entries = sum(entries_of(m) for plan in chosen.state.plans for m in _manifests(plan))
    return entries > grouped_read.MANY_ENTRIES


def _by_groups(pinned: PinnedChain, asked: _Asked) -> PlannedChain:
    """Plan partitions without their files in groups, unless a filter leaves few files."""
    plans = pinned.state.plans
    reads = partition_reads(pinned, asked.where, asked.predicate, mode=asked.mode, gap_policy=asked.gap_policy)
    selections = [stored_in(plan, values) for plan, values in zip(plans, partitions_of(reads), strict=True)]
    listed = [
        [m for m in _manifests(plan) if selection.may_be_in(m)]
        for plan, selection in zip(plans, selections, strict=True)
    ]
    if sum(entries_of(m) for some in listed for m in some) <= grouped_read.MANY_ENTRIES:
        read = plan_partitions(with_files(pinned, reads), reads, **asked.of_files, time_travel=pinned.travels)
        return PlannedChain(read.inputs.main, [read])
    main = plan_chain_columns(pinned, **asked.of_files)
    sorting = _Sorting(pinned.state, _segments(reads), has_filter=asked.has_filter)
    for at, manifests in enumerate(listed):
        sorting.add(at, manifests)
    return PlannedChain(main, _planned(pinned, sorting, asked, sorting.schemas()))


def _segments(reads: Sequence[PartitionRead]) -> list[list[PartitionRead]]:
    """Divide reads so that no partition of a branch is read for two of the parts."""
    segments: dict[int, tuple[list[PartitionRead], set[_Place]]] = {}
    owner: dict[_Place, int] = {}
    for number, some in enumerate(_by_chain(reads)):
        places = {(branch, v) for branch, values in enumerate(partitions_of(some)) for v in values}
        others = sorted({owner[place] for place in places if place in owner})
        into = others[0] if others else number
        held = segments.setdefault(into, ([], set()))
        for own, new in ((some, places), *(segments.pop(other) for other in others[1:])):
            held[0].extend(own)
            held[1].update(new)
            owner.update(dict.fromkeys(new, into))
    return [some for some, _ in segments.values()]


_Place = tuple[int, Values]
"""The number of a branch, and a partition."""


def _by_chain(reads: Sequence[PartitionRead]) -> Iterable[list[PartitionRead]]:
    """Put the reads together whose chains begin with the same partition, in order."""
    found: dict[tuple[Any, ...], list[PartitionRead]] = {}
    for read in reads:
        start = read.anchor or (read.deltas[0] if read.deltas else read.target)
        found.setdefault((read.source == Source.MAIN, read.source == Source.DELTA, start), []).append(read)
    return found.values()


@dataclass(eq=False)
class _Bin:
    """Segments, and the entries of their partitions in parts, in order; a part has the number of its branch."""

    reads: list[PartitionRead] = field(default_factory=list)
    parts: list[tuple[int, Kept]] = field(default_factory=list)
    files: int = 0


_Schemas = Mapping[str, Mapping[int, TableSchema]]
"""By branch name and id."""
_Entry = TypeVar("_Entry", ManifestEntry, IndexEntry)


class _Sorting:
    """Sorts the entries of the three branches, which have the numbers 0 to 2, into bins."""

    def __init__(self, state: ChainState, segments: Sequence[Sequence[PartitionRead]], *, has_filter: bool) -> None:
        self._state = state
        self._slim = _as_it_is if has_filter else without_statistics
        self._kept = SortedRuns(_MEMORY_BYTES)
        number = max(1, min(_MOST_BINS, len(segments)))
        self.bins = [_Bin() for _ in range(number)]
        for at, segment in enumerate(segments):
            self.bins[at * number // len(segments)].reads += segment
        self._bins: tuple[dict[Values, int], ...] = ({}, {}, {})
        for at, one in enumerate(self.bins):
            for bins, values in zip(self._bins, partitions_of(one.reads), strict=True):
                bins.update(dict.fromkeys(values, at))
        self._values = [StoredPartitions(plan.schema).values for plan in state.plans]
        self._schema_ids: tuple[set[int], ...] = (set(), set(), set())

    def add(self, branch: int, manifests: Sequence[ManifestFile]) -> None:
        """Add the entries of a branch, and its deletion vectors.

        Raises:
            FormatError: a manifest is missing or corrupt. StorageError: the disk of temporary files is full.
        """
        plan = self._state.plans[branch]
        with without_collecting():
            index = read_index(plan.table, plan.snapshot)
            check_index(index, table=plan.table.label)
            for one, vectors in self._divided(branch, index):
                one.parts.append((branch, self._kept.keep(packed(([], vectors)))))
            some: list[ManifestEntry] = []
            for _, entries in each_entries(plan.table, manifests):
                some += map(self._slim, entries)
                if len(some) >= _AT_ONCE:
                    self._keep(branch, some)
                    some = []
            self._keep(branch, some)

    def schemas(self) -> _Schemas:
        """Read the schemas of what was added, see ``schemas_of``."""
        found = zip(self._state.plans, self._schema_ids, strict=True)
        return {plan.table.branch_name: schemas_of(plan, ids) for plan, ids in found}

    def _keep(self, branch: int, entries: Sequence[ManifestEntry]) -> None:
        for one, some in self._divided(branch, entries):
            self._schema_ids[branch].update(e.file.schema_id for e in some)
            one.parts.append((branch, self._kept.keep(packed((some, [])))))
            one.files += sum(1 if e.kind == FileKind.ADD else -1 for e in some)

    def _divided(self, branch: int, entries: Iterable[_Entry]) -> Iterator[tuple[_Bin, list[_Entry]]]:
        values, bins = self._values[branch], self._bins[branch]
        found: dict[int, list[_Entry]] = {}
        for entry in entries:
            number = bins.get(values(entry.partition))
            if number is not None:
                found.setdefault(number, []).append(entry)
        return ((self.bins[number], some) for number, some in found.items())


def _as_it_is(entry: ManifestEntry) -> ManifestEntry:
    return entry


def _planned(pinned: PinnedChain, sorting: _Sorting, asked: _Asked, known: _Schemas) -> Iterator[ChainRead]:
    """Plan some bins after the other. ``known``: as of ``plan_partitions``."""
    for bins in _groups(sorting.bins):
        yield plan_partitions(
            _state_of(pinned.state, [part for one in bins for part in one.parts]),
            [read for one in bins for read in one.reads],
            **asked.of_files,
            time_travel=pinned.travels,
            known=known,
        )


def _groups(bins: Iterable[_Bin]) -> Iterator[list[_Bin]]:
    """Put bins together, in order, that have about ``_FILES``; a larger one is alone."""
    some: list[_Bin] = []
    files = 0
    for one in bins:
        if some and files + one.files > _FILES:
            yield some
            some, files = [], 0
        some.append(one)
        files += one.files
    if some:
        yield some


def _state_of(state: ChainState, parts: Iterable[tuple[int, Kept]]) -> ChainState:
    """Return the state with the files of some bins."""
    entries: tuple[list[ManifestEntry], ...] = ([], [], [])
    index: tuple[list[IndexEntry], ...] = ([], [], [])
    with without_collecting():
        for branch, part in parts:
            some, vectors = unpacked(bytes(part.read()))
            entries[branch].extend(some)
            index[branch].extend(vectors)
        main, snapshot, delta = map(_plan_of, state.plans, entries, index)
    return ChainState(layout=state.layout, main=main, snapshot=snapshot, delta=delta)


def _plan_of(plan: ScanPlan, entries: Sequence[ManifestEntry], index: Sequence[IndexEntry]) -> ScanPlan:
    if plan.snapshot is None:
        return plan
    live = live_of_entries(plan.table, plan.snapshot, entries).values()
    return replace(plan, splits=splits_of(plan.schema, live), index_entries=tuple(index))
