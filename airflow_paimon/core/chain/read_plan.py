"""Plans reads of chain tables from the partitions that the branches hold, and reports on these, group by group, for
check_chain_table and for people. Values only, no storage.

A delta-only partition is the nearest earlier snapshot partition of its group, the *anchor*, merged with the deltas
after it, up to its own.

See docs/howto/chain-reads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, GapPolicy, Partitions, TimeLines, Values
from airflow_paimon.core.errors import InvalidInputError

ChainReadMode = Literal["full", "incremental", "hybrid"]
"""Full partitions, the changes as the delta branch stores them, or both concatenated."""


class Source(StrEnum):
    """The sources of a partition's rows, by priority."""

    MAIN = "main"
    SNAPSHOT = "snapshot"
    CHAIN = "chain"
    CARRIED = "carried"
    """A gap under ``carry_forward``: a chain without a delta of its own."""
    DELTA = "delta"
    """The changes themselves: an incremental read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRead:
    """The read of one partition. ``anchor`` and ``deltas`` (in chronological order) are the parts of a chain.

    ``hidden``: the branches whose own partition of these values is not read.
    """

    target: Values
    source: Source
    anchor: Values | None = None
    deltas: tuple[Values, ...] = ()
    hidden: tuple[ChainBranch, ...] = ()

    @property
    def reason(self) -> str:
        if self.source in (Source.MAIN, Source.SNAPSHOT, Source.DELTA):
            over = f"; hides {' and '.join(self.hidden)}" if self.hidden else ""
            return f"stored in the {self.source} branch{over}"
        start = "the nearest earlier snapshot partition" if self.anchor is not None else "no earlier snapshot partition"
        gap = "a gap: it has no delta; " if self.source == Source.CARRIED else ""
        return f"{gap}{start}, {len(self.deltas)} delta{'' if len(self.deltas) == 1 else 's'}"


Choose = Callable[[Sequence[Values]], Sequence[Values]]
"""Filters partitions, keeping their order: all at once, as single calls are expensive."""


def every_partition(values: Sequence[Values]) -> Sequence[Values]:
    """Select all partitions."""
    return values


def plan_chain_read(
    layout: ChainLayout, partitions: Partitions, wanted: Choose = every_partition, *, gap_policy: GapPolicy = "empty"
) -> list[PartitionRead]:
    """Plan a full read: main's partition, else the snapshot branch's, else the chain; each target on its own.

    ``wanted`` chooses targets, not the parts of their chains. With ``carry_forward`` the gaps of each group's
    grid are targets too.

    Raises:
        InvalidInputError: a partition that may belong to a requested chain is without a partition time.
    """
    chains = _Chains(layout, partitions)
    targets = wanted(sorted(partitions.all, key=layout.text_of))
    reads = [_plan_partition(partitions, target, chains) for target in targets]
    if gap_policy == "carry_forward":
        chained = map(chains.of, wanted(find_gaps(layout, partitions)))
        reads += [chain for chain in chained if chain.anchor is not None or chain.deltas]
    return reads


def plan_reads(
    layout: ChainLayout,
    partitions: Partitions,
    wanted: Choose = every_partition,
    *,
    mode: ChainReadMode = "full",
    gap_policy: GapPolicy = "empty",
) -> list[PartitionRead]:
    """Plan a read of this mode: a full read, the changes as they are stored (``t$branch_delta``), or their union, in
    which a row can occur twice. An incremental read shows no gaps: ``gap_policy`` doesn't matter to it.
    """
    full = [] if mode == "incremental" else plan_chain_read(layout, partitions, wanted, gap_policy=gap_policy)
    changes = () if mode == "full" else wanted(sorted(partitions.delta, key=repr))
    return full + [PartitionRead(target=v, source=Source.DELTA) for v in changes]


def find_gaps(layout: ChainLayout, partitions: Partitions) -> list[Values]:
    """Return the gaps of each group's grid (the steps from its first partition to its last): steps in no branch.

    Raises:
        InvalidInputError: a partition is without a partition time.
    """
    lines = TimeLines(layout, partitions.all, strict=True)
    gaps = []
    for group in lines.groups:
        times = lines.of(group).times
        present = frozenset(times)
        steps = layout.clock.times_between(times[0], times[-1])
        gaps += [layout.values_at(group, moment) for moment in steps if moment not in present]
    return sorted(gaps, key=layout.text_of)


class _Chains:
    """Chains of targets. Only groups that a read needs are checked: the others may be invalid."""

    def __init__(self, layout: ChainLayout, partitions: Partitions) -> None:
        self._layout = layout
        self._partitions = partitions
        self._snapshots = TimeLines(layout, partitions.snapshot, strict=True)
        self._deltas = TimeLines(layout, partitions.delta, strict=True)

    def of(self, target: Values) -> PartitionRead:
        """Return the chain of a partition: the nearest earlier full partition, and the deltas after it."""
        group, moment = self._layout.group_of(target), self._layout.time_of(target)
        start, anchor = self._snapshots.of(group).before(moment)
        return PartitionRead(
            target=target,
            source=Source.CHAIN if target in self._partitions.delta else Source.CARRIED,
            anchor=anchor,
            deltas=self._deltas.of(group).up_to(start, moment),
        )


def _plan_partition(partitions: Partitions, target: Values, chains: _Chains) -> PartitionRead:
    held = {
        ChainBranch.MAIN: partitions.main,
        ChainBranch.SNAPSHOT: partitions.snapshot,
        ChainBranch.DELTA: partitions.delta,
    }
    having = tuple(branch for branch, values in held.items() if target in values)
    if having[0] == ChainBranch.DELTA:
        return chains.of(target)
    return PartitionRead(target=target, source=Source(having[0].value), hidden=having[1:])


MAX_GRID = 200_000
"""The most steps of one group's grid that are checked for gaps: about 137 days of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """The partitions of one group, in chronological order. ``gaps`` None: the grid is too long to check.

    ``misspelt``: partitions whose time is not written as the formatter writes it; ``without_time``: those whose values
    are not a time; ``off_grid``: those at a time off the steps from the group's first partition. Paimon skips or
    refuses all of these.
    """

    group: Values
    main: tuple[Values, ...]
    snapshot: tuple[Values, ...]
    delta: tuple[Values, ...]
    gaps: tuple[Values, ...] | None = ()
    misspelt: tuple[Values, ...] = ()
    without_time: tuple[Values, ...] = ()
    off_grid: tuple[Values, ...] = ()

    @property
    def pending(self) -> tuple[Values, ...]:
        """The deltas after the last full partition, which a read of the newest day merges."""
        return self.delta if not self.snapshot else tuple(d for d in self.delta if d > self.snapshot[-1])


def report_groups(layout: ChainLayout, partitions: Partitions) -> tuple[GroupReport, ...]:
    """Sort all partitions into groups; invalid ones are reported, not raised."""
    groups: dict[Values, set[Values]] = {}
    for values in partitions.all:
        groups.setdefault(layout.group_of(values), set()).add(values)
    reports = [_report(layout, partitions, group, held) for group, held in groups.items()]
    return tuple(sorted(reports, key=lambda r: tuple(str(v) for v in r.group)))


def _report(layout: ChainLayout, partitions: Partitions, group: Values, held: set[Values]) -> GroupReport:
    times: dict[Values, datetime] = {}
    misspelt, without_time = [], []
    for values in held:
        moment = layout.parsed_time(values)
        if moment is None:
            without_time.append(values)
        elif layout.values_at(group, moment) != values:
            misspelt.append(values)
        else:
            times[values] = moment
    gaps, off_grid = _walk(layout, group, times)

    def in_order(some: Iterable[Values]) -> tuple[Values, ...]:
        return tuple(sorted((v for v in some if v in times), key=times.__getitem__))

    return GroupReport(
        group=group,
        main=in_order(partitions.main & held),
        snapshot=in_order(partitions.snapshot & held),
        delta=in_order(partitions.delta & held),
        gaps=gaps,
        misspelt=tuple(sorted(misspelt, key=layout.text_of)),
        without_time=tuple(sorted(without_time, key=layout.text_of)),
        off_grid=in_order(off_grid),
    )


def _walk(
    layout: ChainLayout, group: Values, times: dict[Values, datetime]
) -> tuple[tuple[Values, ...] | None, set[Values]]:
    """Return the gaps of a group's grid, and the partitions off the grid."""
    if not times:
        return (), set()
    first, last = min(times.values()), max(times.values())
    present = set(times.values())
    grid = {first}
    gaps = []
    try:
        for moment in layout.clock.times_between(first, last):
            grid.add(moment)
            if moment not in present:
                gaps.append(layout.values_at(group, moment))
            if len(grid) > MAX_GRID:
                return None, set()
    except InvalidInputError:
        return None, set()
    return tuple(gaps), {v for v, moment in times.items() if moment not in grid}
