"""Reads of chain tables with so many files that no process plans all of them: as ``data/whole_read.py`` does for other
tables, some tasks sort the entries of the three branches into groups (``groups.py``), others plan a group each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow.compute as pc

from airflow_paimon.core.chain.layout import GapPolicy
from airflow_paimon.core.chain.read_plan import ChainReadMode, PartitionRead, Source
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import (
    ScanPlan,
    all_manifests,
    live_of_entries,
    splits_of,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import whole_read
from airflow_paimon.data.chain.groups import ChainGroups, count_files, divide_chain
from airflow_paimon.data.chain.scan import (
    ChainRead,
    ChosenChain,
    Counts,
    PinnedChain,
    choose_chain,
    partition_reads,
    partitions_of,
    plan_chosen_chain,
    plan_partitions,
    plan_pinned_chain,
    stored_in,
    with_files,
)
from airflow_paimon.data.chain.splits import check_chains
from airflow_paimon.data.whole_read import GroupOf, Listed, Sorted, divided, entries_of, first_files, unpacked


class Asked(NamedTuple):
    """The arguments of ``plan_pinned_chain``."""

    columns: Sequence[str] | None = None
    where: pc.Expression | None = None
    predicate: Predicate | None = None
    mode: ChainReadMode = "full"
    gap_policy: GapPolicy = "empty"

    @property
    def has_filter(self) -> bool:
        """Whether files may be left out by their statistics."""
        return self.where is not None or self.predicate is not None

    @property
    def of_files(self) -> dict[str, Any]:
        """The arguments of ``plan_read``."""
        return {"columns": self.columns, "where": self.where, "predicate": self.predicate}


class ListedInChain(NamedTuple):
    """A manifest and its branch: 0 is main, 1 the snapshot branch, 2 the delta branch. Places are those among the
    manifests of all of them.
    """

    branch: int
    listed: Listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainGroupRead:
    """What a group of files is planned with. Picklable. ``state``: the snapshots and columns, without files."""

    state: ChainState
    travels: bool
    asked: Asked

    def plan(self, state: ChainState, reads: Sequence[PartitionRead]) -> ChainRead:
        """Plan files of a state; raises as ``plan_partitions``."""
        return plan_partitions(state, reads, **self.asked.of_files, time_travel=self.travels)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeChain:
    """A read that tasks plan, or one process group by group: they ``sort_out`` what is listed, then ``plan_group`` each
    group. ``base``: what all groups have in common, without files and their schemas. ``files``: how many are live.
    """

    of: ChainGroupRead
    base: ChainRead
    listed: tuple[ListedInChain, ...]
    reads: tuple[PartitionRead, ...]
    counts: tuple[Counts, Counts, Counts]
    files: int

    def divided(self, files: int) -> ChainGroups:
        """Divide the read into groups, see ``divide_chain``."""
        return divide_chain(self.reads, self.counts, files)


def plan_chain_or_whole(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    more_than: int | None = None,
    **asked: Any,
) -> ChainRead | WholeChain:
    """Plan a read as ``plan_chain`` does, which also says what ``asked`` may be and what is raised, or leave that to
    tasks where more than so many files are read, and the manifests have so many entries (None: ``MANY_ENTRIES``).
    """
    with reading_once():
        chosen = choose_chain(table, version, timestamp)
        if has_more_entries(chosen, more_than):
            return _plan(chosen.partitions_only(), Asked(**asked), more_than)
        return plan_chosen_chain(chosen, **asked)


def plan_pinned_chain_or_whole(
    pinned: PinnedChain, *, more_than: int | None = None, **asked: Any
) -> ChainRead | WholeChain:
    """Plan a read of a pinned state, as ``plan_chain_or_whole``."""
    with reading_once():
        if pinned.has_files:
            return plan_pinned_chain(pinned, **asked)
        return _plan(pinned, Asked(**asked), more_than)


def has_more_entries(chosen: ChosenChain, than: int | None) -> bool:
    """Whether the manifests of the three branches have so many entries together."""
    return sum(entries_of(m) for plan in chosen.state.plans for m in _manifests(plan)) > _limit(than)


def _limit(more_than: int | None) -> int:
    return whole_read.MANY_ENTRIES if more_than is None else more_than


def _manifests(plan: ScanPlan) -> list[ManifestFile]:
    return [] if plan.snapshot is None else all_manifests(plan.table, plan.snapshot)


def _plan(pinned: PinnedChain, asked: Asked, more_than: int | None) -> ChainRead | WholeChain:
    """Plan partitions whose files aren't planned."""
    assert pinned.counts is not None
    reads = partition_reads(pinned, asked.where, asked.predicate, mode=asked.mode, gap_policy=asked.gap_policy)
    listed = list(_listed(pinned.state, reads))
    entries = sum(entries_of(m) for _, (_, m) in listed if m is not None)
    files = count_files(reads, pinned.counts)
    state = pinned.state
    if min(entries, files) <= _limit(more_than):
        of = ChainGroupRead(state=state, travels=pinned.travels, asked=asked)
        return of.plan(with_files(pinned, reads, statistics=asked.has_filter), reads)
    chains = [r for r in reads if r.source in (Source.CHAIN, Source.CARRIED)]
    check_chains(state.layout, chains, state.snapshot, state.delta)
    main, snapshot, delta = (replace(plan, splits=(), index_entries=()) for plan in state.plans)
    of = ChainGroupRead(
        state=replace(state, main=main, snapshot=snapshot, delta=delta), travels=pinned.travels, asked=asked
    )
    return WholeChain(
        of=of,
        base=of.plan(of.state, ()),
        listed=tuple(listed),
        reads=tuple(reads),
        counts=pinned.counts,
        files=files,
    )


def _listed(state: ChainState, reads: Sequence[PartitionRead]) -> Iterator[ListedInChain]:
    """Name the manifests that may have entries of partitions that are read, and the index manifests."""
    place = 0
    for branch, (plan, values) in enumerate(zip(state.plans, partitions_of(reads), strict=True)):
        selection = stored_in(plan, values)
        for manifest in (None, *(m for m in _manifests(plan) if selection.may_be_in(m))):
            yield ListedInChain(branch, Listed(place, manifest))
            place += 1


def sort_out(of: ChainGroupRead, groups: ChainGroups, listed: Sequence[ListedInChain]) -> Iterator[Sorted]:
    """Read some of the manifests and divide their entries by group. ``data`` begins with the number of their branch.

    Raises:
        FormatError: a manifest is missing or corrupt. UnsupportedFeatureError: an index file that this engine does not
            read.
    """
    for branch, plan in enumerate(of.state.plans):
        own = [one for number, one in listed if number == branch]
        for part in divided(plan, own, _group_of(groups, branch, plan.schema), statistics=of.asked.has_filter):
            yield part._replace(data=bytes((branch,)) + part.data)


def _group_of(groups: ChainGroups, branch: int, schema: TableSchema) -> GroupOf:
    values = StoredPartitions(schema).values
    known: dict[tuple[bytes, int], int | None] = {}

    def find(partition: bytes, bucket: int, name: str, first_row_id: int | None) -> int | None:
        key = (partition, bucket)
        if key not in known:
            known[key] = groups.find(branch, values(partition), bucket)
        return known[key]

    return find


def bytes_of(whole: WholeChain, groups: ChainGroups) -> int:
    """Estimate how many bytes the tasks read, by the sizes of the first files in the largest manifest; what makes
    several results counts as often.

    Raises:
        FormatError: that manifest is missing or corrupt.
    """
    manifests = [(entries_of(m), branch, m) for branch, (_, m) in whole.listed if m is not None]
    _, branch, largest = max(manifests, key=lambda one: one[0])
    size, _, files = first_files(whole.of.state.plans[branch].table, [largest])
    return size * groups.weight // max(files, 1)


def plan_group(of: ChainGroupRead, reads: Sequence[PartitionRead], parts: Iterable[bytes]) -> ChainRead:
    """Plan the read of a group, by the data of all its parts in the order of their places.

    Raises:
        FormatError: a file is added twice or deleted without having been added. UnsupportedFeatureError: a file that
            this engine does not read.
    """
    entries: tuple[list[ManifestEntry], ...] = ([], [], [])
    index: tuple[list[IndexEntry], ...] = ([], [], [])
    for part in parts:
        some, vectors = unpacked(part[1:])
        entries[part[0]].extend(some)
        index[part[0]].extend(vectors)
    main, snapshot, delta = map(_plan_of, of.state.plans, entries, index)
    return of.plan(replace(of.state, main=main, snapshot=snapshot, delta=delta), reads)


def _plan_of(plan: ScanPlan, entries: Sequence[ManifestEntry], index: Sequence[IndexEntry]) -> ScanPlan:
    if plan.snapshot is None:
        return plan
    live = live_of_entries(plan.table, plan.snapshot, entries).values()
    return replace(plan, splits=splits_of(plan.schema, live), index_entries=tuple(index))
