"""Plans reads of chain tables from the partitions that the branches hold. Values only, no storage.

A partition is (group columns..., chain columns...); the chain columns make a time. The snapshot branch holds full
partitions, the delta branch changes. A delta-only partition is the nearest earlier snapshot partition of its group, the
*anchor*, merged with the deltas behind it, up to its own.

See docs/chain-tables.md, Reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.table.partition_time import PartitionClock
from airflow_paimon.core.table.partitions import format_partition, parse_partition_spec, readable_value

Values = tuple[Any, ...]
"""The values of a partition, in the order of the partition columns."""
GapPolicy = Literal["empty", "carry_forward"]
ChainReadMode = Literal["full", "incremental", "hybrid"]
"""The partitions in full, the changes as the delta branch stores them, or both one after the other."""


class Branch(StrEnum):
    """What a branch is for a chain table; its name is an option."""

    MAIN = "main"
    SNAPSHOT = "snapshot"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLayout:
    """How a chain table is laid out. ``group_width`` partition columns are the group, the others make the time."""

    label: str
    snapshot_branch: str
    delta_branch: str
    partition_keys: tuple[str, ...]
    partition_types: tuple[DataType, ...]
    group_width: int
    clock: PartitionClock

    def group_of(self, values: Values) -> Values:
        return values[: self.group_width]

    def text_of(self, values: Values) -> str:
        """Name a partition in a message."""
        return format_partition(values, self.partition_keys, self.partition_types)

    def parsed_time(self, values: Values) -> datetime | None:
        """Give the time that a partition's values read as, None if they don't read as one."""
        try:
            return self.clock.time_of(self._texts(values))
        except ValueError:
            return None

    def time_of(self, values: Values) -> datetime:
        """Give the time of a partition that takes part in a chain.

        Raises:
            InvalidInputError: it has none, or is spelt in a way that Paimon skips in silence (``5`` where the formatter
                writes ``05``).
        """
        moment = self.parsed_time(values)
        if moment is None:
            why, way_out = "has no place in time", "drop it, or write its rows to a partition of that form"
        elif self.clock.texts_at(moment) != self._texts(values):
            right = self.text_of(self.values_at(self.group_of(values), moment))
            why, way_out = "is not spelt as the formatter writes it", f"write its rows to {right}"
        else:
            return moment
        raise InvalidInputError(
            f"{self.label}: partition {self.text_of(values)} {why} (partition.timestamp-pattern "
            f"{self.clock.pattern!r}, partition.timestamp-formatter {self.clock.formatter.text!r}); {way_out}",
            table=self.label,
        )

    def values_at(self, group: Values, moment: datetime) -> Values:
        """Give the partition of a group at a time."""
        keys, types = self.partition_keys[self.group_width :], self.partition_types[self.group_width :]
        by_key = parse_partition_spec(dict(zip(keys, self.clock.texts_at(moment), strict=True)), keys, types)
        return (*group, *(by_key[k] for k in keys))

    def _texts(self, values: Values) -> tuple[str, ...]:
        chain = zip(values[self.group_width :], self.partition_types[self.group_width :], strict=True)
        return tuple(readable_value(v, t) for v, t in chain)


class Source(StrEnum):
    """Where the rows of a partition come from, by priority."""

    MAIN = "main"
    SNAPSHOT = "snapshot"
    CHAIN = "chain"
    CARRIED = "carried"
    """A gap under ``carry_forward``: a chain without a delta of its own."""
    DELTA = "delta"
    """The changes themselves: an incremental read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRead:
    """How one partition is read. ``anchor`` and ``deltas`` (in the order of time) are the parts of a chain.

    ``hidden``: the branches whose own partition of these values is not looked at.
    """

    target: Values
    source: Source
    anchor: Values | None = None
    deltas: tuple[Values, ...] = ()
    hidden: tuple[Branch, ...] = ()

    @property
    def reason(self) -> str:
        if self.source in (Source.MAIN, Source.SNAPSHOT, Source.DELTA):
            over = f"; hides {' and '.join(self.hidden)}" if self.hidden else ""
            return f"stored in the {self.source} branch{over}"
        start = "the nearest earlier snapshot partition" if self.anchor is not None else "no earlier snapshot partition"
        gap = "a gap: no delta of its own; " if self.source == Source.CARRIED else ""
        return f"{gap}{start}, {len(self.deltas)} delta{'' if len(self.deltas) == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """What each branch holds: partitions with at least one live file, even if all its rows are deletes."""

    main: frozenset[Values] = frozenset()
    snapshot: frozenset[Values] = frozenset()
    delta: frozenset[Values] = frozenset()

    @property
    def all(self) -> frozenset[Values]:
        return self.main | self.snapshot | self.delta


Choose = Callable[[Sequence[Values]], Sequence[Values]]
"""Gives those of some partitions that are wanted, in their order: all at once, as each look by itself is dear."""


def every_partition(values: Sequence[Values]) -> Sequence[Values]:
    """Ask for all partitions."""
    return values


def plan_chain_read(
    layout: ChainLayout,
    partitions: Partitions,
    wanted: Choose = every_partition,
    *,
    gap_policy: GapPolicy = "empty",
    until: datetime | None = None,
) -> list[PartitionRead]:
    """Plan a full read: main's partition, else the snapshot branch's, else the chain; each target on its own.

    ``wanted`` chooses targets and never what their chains are made of. With ``carry_forward`` the gaps of each group's
    grid are targets too; ``until`` extends the grids.

    Raises:
        InvalidInputError: a partition that may belong to a chain that is read has no place in time.
    """
    groups = _Groups(layout, partitions)
    targets = wanted(sorted(partitions.all, key=layout.text_of))
    reads = [_plan_partition(layout, partitions, target, groups) for target in targets]
    if gap_policy == "carry_forward":
        for gap in wanted(find_gaps(layout, partitions, until=until)):
            chain = _chain(layout, partitions, gap, groups)
            if chain.anchor is not None or chain.deltas:
                reads.append(chain)
    return reads


def plan_incremental_read(partitions: Partitions, wanted: Choose = every_partition) -> list[PartitionRead]:
    """Plan a read of the changes as they are stored (``t$branch_delta``)."""
    return [PartitionRead(target=v, source=Source.DELTA) for v in wanted(sorted(partitions.delta, key=repr))]


def plan_hybrid_read(
    layout: ChainLayout,
    partitions: Partitions,
    wanted: Choose = every_partition,
    *,
    gap_policy: GapPolicy = "empty",
    until: datetime | None = None,
) -> list[PartitionRead]:
    """Plan a full read and, besides it, the changes as they are stored: a union, a row can come twice."""
    full = plan_chain_read(layout, partitions, wanted, gap_policy=gap_policy, until=until)
    return full + plan_incremental_read(partitions, wanted)


def plan_reads(
    layout: ChainLayout,
    partitions: Partitions,
    wanted: Choose = every_partition,
    *,
    mode: ChainReadMode = "full",
    gap_policy: GapPolicy = "empty",
) -> list[PartitionRead]:
    """Plan a read of this mode. An incremental read shows no gaps: ``gap_policy`` doesn't matter to it."""
    if mode == "incremental":
        return plan_incremental_read(partitions, wanted)
    plan = plan_hybrid_read if mode == "hybrid" else plan_chain_read
    return plan(layout, partitions, wanted, gap_policy=gap_policy)


def find_gaps(layout: ChainLayout, partitions: Partitions, *, until: datetime | None = None) -> list[Values]:
    """Give what no branch holds of each group's grid: the steps from its first partition to its last.

    ``until``: extend grids that end earlier.

    Raises:
        InvalidInputError: a partition has no place in time.
    """
    times: dict[Values, set[datetime]] = {}
    for values in partitions.all:
        times.setdefault(layout.group_of(values), set()).add(layout.time_of(values))
    gaps = []
    for group, present in times.items():
        last = max(present) if until is None else max(max(present), until)
        for moment in layout.clock.times_between(min(present), last):
            if moment not in present:
                gaps.append(layout.values_at(group, moment))
    return sorted(gaps, key=layout.text_of)


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Partitions of one group and branch in the order of time."""

    times: tuple[datetime, ...]
    values: tuple[Values, ...]

    def between(self, first: datetime | None, end: datetime | None) -> tuple[Values, ...]:
        """Give those from ``first`` on and before ``end``."""
        low = 0 if first is None else bisect_left(self.times, first)
        high = len(self.times) if end is None else bisect_left(self.times, end)
        return self.values[low:high]

    def up_to(self, after: datetime | None, last: datetime) -> tuple[Values, ...]:
        """Give those behind ``after``, up to and with ``last``."""
        low = 0 if after is None else bisect_right(self.times, after)
        return self.values[low : bisect_right(self.times, last)]

    def nearest_before(self, moment: datetime) -> int | None:
        """Give the position of the last one before a time."""
        at = bisect_left(self.times, moment)
        return at - 1 if at else None


def time_line(timed: Iterable[tuple[datetime, Values]]) -> TimeLine:
    """Order partitions by their times."""
    ordered = sorted(timed, key=lambda pair: pair[0])
    return TimeLine(tuple(t for t, _ in ordered), tuple(v for _, v in ordered))


def time_lines(layout: ChainLayout, held: Iterable[Values]) -> dict[Values, TimeLine]:
    """Order each group's partitions; those without a place in time take no part in chains."""
    groups: dict[Values, list[tuple[datetime, Values]]] = {}
    for values in held:
        moment = layout.parsed_time(values)
        if moment is not None:
            groups.setdefault(layout.group_of(values), []).append((moment, values))
    return {group: time_line(timed) for group, timed in groups.items()}


@dataclass(frozen=True, slots=True)
class _Group:
    snapshot: TimeLine
    delta: TimeLine


class _Groups:
    """The time lines of each group, made when first asked for: a group that no read needs may hold anything."""

    def __init__(self, layout: ChainLayout, partitions: Partitions) -> None:
        self._layout = layout
        self._held = [_by_group(layout, held) for held in (partitions.snapshot, partitions.delta)]
        self._made: dict[Values, _Group] = {}
        self._times: dict[Values, datetime] = {}

    def of(self, target: Values) -> _Group:
        group = self._layout.group_of(target)
        if group not in self._made:
            lines = (time_line((self.time_of(v), v) for v in held.get(group, ())) for held in self._held)
            self._made[group] = _Group(*lines)
        return self._made[group]

    def time_of(self, values: Values) -> datetime:
        moment = self._times.get(values)
        if moment is None:
            moment = self._times[values] = self._layout.time_of(values)
        return moment


def _by_group(layout: ChainLayout, held: Iterable[Values]) -> dict[Values, list[Values]]:
    out: dict[Values, list[Values]] = {}
    for values in held:
        out.setdefault(layout.group_of(values), []).append(values)
    return out


def _plan_partition(layout: ChainLayout, partitions: Partitions, target: Values, groups: _Groups) -> PartitionRead:
    held = {
        Branch.MAIN: partitions.main,
        Branch.SNAPSHOT: partitions.snapshot,
        Branch.DELTA: partitions.delta,
    }
    having = tuple(branch for branch, values in held.items() if target in values)
    if having[0] == Branch.DELTA:
        return _chain(layout, partitions, target, groups)
    return PartitionRead(target=target, source=Source(having[0].value), hidden=having[1:])


def _chain(layout: ChainLayout, partitions: Partitions, target: Values, groups: _Groups) -> PartitionRead:
    group = groups.of(target)
    moment = groups.time_of(target)
    at = group.snapshot.nearest_before(moment)
    start = None if at is None else group.snapshot.times[at]
    return PartitionRead(
        target=target,
        source=Source.CHAIN if target in partitions.delta else Source.CARRIED,
        anchor=None if at is None else group.snapshot.values[at],
        deltas=group.delta.up_to(start, moment),
    )
