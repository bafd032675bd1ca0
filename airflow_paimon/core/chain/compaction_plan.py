"""Plans the compaction of chain tables: which partitions become full, from which anchor and deltas, and why. Pure.

As in Paimon, main is ignored, and a partition is rebuilt from the *previous* anchor and the deltas after it, not from
its own rows. In addition: a plan per group, ranges, several partitions at once (a later one starts from the earlier
one's result), gaps, and stale partitions.

See docs/howto/chain-maintenance.md, Compaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from airflow_paimon.core.chain.layout import ChainLayout, GapPolicy, Partitions, TimeLine, TimeLines, Values
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.core.table.partition_values import format_partition, parse_partition_spec

_SAMPLE = datetime(2000, 1, 1)
"""Stands in for chain columns missing in a spec when one column's form is checked: a leap year, a long month."""

LONGEST_CHAIN = 31
"""The deltas after the newest full partition that a chain may have by default: a month of days."""

Spec = tuple[tuple[int, Any], ...]
"""Positions of partition columns and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTargets:
    """The partitions to make full. ``specs`` name partitions or, with a range or ``max_chain_length``, filter them.

    ``first`` and ``last``: the range, both inclusive. ``max_chain_length``: if given, select longer chains.
    ``finished`` partitions are skipped; those of ``rebuild`` are rebuilt.
    """

    specs: tuple[Spec, ...] = ()
    first: datetime | None = None
    last: datetime | None = None
    max_chain_length: int | None = None
    overwrite: bool = False
    gap_policy: GapPolicy = "empty"
    finished: frozenset[Values] = frozenset()
    rebuild: frozenset[Values] = frozenset()

    @property
    def is_range(self) -> bool:
        return self.first is not None or self.last is not None

    def matches(self, values: Values) -> bool:
        """Return whether the specs, if there are any, allow a partition or (a prefix of values) a group."""
        return not self.specs or any(_fits(spec, values) for spec in self.specs)

    def names(self, layout: ChainLayout, moment: datetime) -> bool:
        """Return whether a spec names the partitions of exactly this time."""
        return any(moment_of(layout, spec) == moment for spec in self.specs) and not self.is_range

    def in_range(self, moment: datetime) -> bool:
        return (self.first is None or self.first <= moment) and (self.last is None or moment <= self.last)


def _fits(spec: Spec, values: Values) -> bool:
    return all(at >= len(values) or values[at] == value for at, value in spec)


def parse_targets(layout: ChainLayout, request: CompactChainTable) -> ChainTargets:
    """Check a request against the layout; quotes in partitions change nothing.

    Raises:
        InvalidInputError: no or contradictory selections, a key is not a partition column, a value is not of its type
        or not in the form of the table's ``partition.timestamp-formatter``.
    """
    is_range = request.from_ is not None or request.to is not None
    max_chain_length = request.max_chain_length
    if request.pending and is_range:
        raise _refused(layout, "give a range, from_ (--from) and to (--to), or pending (--pending), not both")
    if not request.partition and not is_range and not request.pending:
        raise _refused(
            layout,
            "name what to compact: partition (--partition), from_ (--from) and to (--to), or pending (--pending)",
        )
    if max_chain_length is not None and not request.pending:
        raise _refused(layout, "max_chain_length (--max-chain-length) needs pending (--pending)")
    if request.pending and max_chain_length is None:
        max_chain_length = LONGEST_CHAIN
    if max_chain_length is not None and max_chain_length < 0:
        raise _refused(layout, f"max_chain_length (--max-chain-length) must be 0 or more, not {max_chain_length}")
    first, last = (None if text is None else _moment(layout, text) for text in (request.from_, request.to))
    if first is not None and last is not None and first > last:
        raise _refused(layout, f"from_ (--from) {request.from_} is later than to (--to) {request.to}")
    return ChainTargets(
        specs=tuple(_spec(layout, text) for text in request.partition),
        first=first,
        last=last,
        max_chain_length=max_chain_length,
        overwrite=request.overwrite,
        gap_policy=cast(GapPolicy, request.gap_policy),
    )


def moment_of(layout: ChainLayout, spec: Spec) -> datetime | None:
    """Return the time that a spec names; None if it lacks a chain column."""
    chain = dict(spec)
    width = len(layout.partition_keys)
    if any(at not in chain for at in range(layout.group_width, width)):
        return None
    fill: list[Any] = [None] * layout.group_width
    return layout.time_of((*fill, *(chain[at] for at in range(layout.group_width, width))))


def _spec(layout: ChainLayout, text: str) -> Spec:
    keys = layout.partition_keys
    try:
        parsed = parse_partition_spec(text, keys, layout.partition_types)
    except InvalidInputError as error:
        raise _refused(layout, error.message) from None
    spec = tuple((keys.index(k), v) for k, v in parsed.items())
    _check_form(layout, text, dict(spec))
    return spec


def _check_form(layout: ChainLayout, text: str, given: dict[int, Any]) -> None:
    """Refuse a value that no partition of this table can have, for which Paimon silently finds nothing."""
    width = layout.group_width
    if not any(at >= width for at in given):
        return
    group: Values = (None,) * width
    sample = layout.values_at(group, _SAMPLE)
    values = tuple(given.get(at, sample[at]) for at in range(width, len(sample)))
    moment = layout.parsed_time((*group, *values))
    if moment is None or layout.values_at(group, moment)[width:] != values:
        clock = layout.clock
        sample = layout.values_at(group, moment or _SAMPLE)[width:]
        columns = zip(sample, layout.partition_keys[width:], layout.partition_types[width:], strict=True)
        like = ",".join(format_partition([v], [k], [t]) for v, k, t in columns)
        raise _refused(
            layout,
            f"partition {text} is not written as the table's partitions are (partition.timestamp-pattern "
            f"{clock.pattern!r}, partition.timestamp-formatter {clock.formatter.text!r}); write it like "
            f"{like}",
        )


def _moment(layout: ChainLayout, text: str) -> datetime:
    spec = _spec(layout, text)
    keys = layout.partition_keys[layout.group_width :]
    moment = moment_of(layout, spec) if all(at >= layout.group_width for at, _ in spec) else None
    if moment is None:
        raise _refused(layout, f"an end of a range names the columns {', '.join(keys)}, and no others; got {text!r}")
    return moment


def _refused(layout: ChainLayout, why: str) -> InvalidInputError:
    return InvalidInputError(f"{layout.label}: {why}")


class CompactionAction(StrEnum):
    """The planned action for a partition; the first two write it."""

    COMPACT = "compact"
    STALE_REBUILD = "stale-rebuild"
    EXISTS = "exists"
    NOTHING_TO_DO = "nothing-to-do"
    GAP = "gap"

    @property
    def writes(self) -> bool:
        return self in (CompactionAction.COMPACT, CompactionAction.STALE_REBUILD)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCompaction:
    """The plan for one partition. ``deltas``: in chronological order. ``replaces``: the snapshot branch has it already.

    ``anchor_in_run``: the anchor is itself written earlier in this run.
    """

    target: Values
    action: CompactionAction
    reason: str
    anchor: Values | None = None
    deltas: tuple[Values, ...] = ()
    replaces: bool = False
    anchor_in_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """What is known about the inputs of snapshot partitions. ``stale``: those to rebuild, and why.

    ``lost``: those that can't be rebuilt, because an input is gone (expired), and which. ``unproven``: those rebuilt
    only on request with overwrite, and why. ``incomplete``: those with missing deltas: rebuilt without these only when
    named individually, with overwrite. ``anchors``: the snapshot partition that each was built from, if known.
    """

    stale: Mapping[Values, str] = field(default_factory=dict)
    lost: Mapping[Values, str] = field(default_factory=dict)
    unproven: Mapping[Values, str] = field(default_factory=dict)
    incomplete: Mapping[Values, str] = field(default_factory=dict)
    anchors: Mapping[Values, Values] = field(default_factory=dict)


def plan_compaction(
    layout: ChainLayout, partitions: Partitions, targets: ChainTargets, known: Staleness | None = None
) -> list[PartitionCompaction]:
    """Plan all requested partitions, group by group, in chronological order.

    Raises:
        InvalidInputError: a requested group has a partition without a partition time.
    """
    known = known or Staleness()
    plans: list[PartitionCompaction] = []
    snapshots, deltas = (TimeLines(layout, held, strict=True) for held in (partitions.snapshot, partitions.delta))
    for group in _groups(layout, snapshots.groups | deltas.groups, targets):
        plans += _GroupPlanner(layout, group, snapshots.of(group), deltas.of(group), targets, known).plan()
    return plans


def _groups(layout: ChainLayout, held: Set[Values], targets: ChainTargets) -> list[Values]:
    """Return the groups of the targets, including empty groups that a spec names in full."""
    found = set(held)
    width = layout.group_width
    for spec in targets.specs:
        group = tuple(v for at, v in spec if at < width)
        if len(group) == width and moment_of(layout, spec) is not None:
            found.add(group)
    found = {g for g in found if targets.matches(g)} | {layout.group_of(v) for v in targets.rebuild}
    return sorted(found, key=repr)


class _GroupPlanner:
    """Plans one group in chronological order; a partition to be written becomes an anchor for the following ones."""

    def __init__(
        self,
        layout: ChainLayout,
        group: Values,
        snapshot: TimeLine,
        delta: TimeLine,
        targets: ChainTargets,
        known: Staleness,
    ) -> None:
        self._layout = layout
        self._group = group
        self._snapshot = dict(zip(snapshot.times, snapshot.values, strict=True))
        self._delta = delta
        self._deltas = frozenset(delta.times)
        self._targets = targets
        self._known = known
        self._anchors = list(snapshot.times)
        self._written: set[datetime] = set()

    def plan(self) -> list[PartitionCompaction]:
        if self._targets.max_chain_length is not None:
            return self._pending(self._targets.max_chain_length)
        requested = self._requested() | {
            self._layout.time_of(v) for v in self._targets.rebuild if self._layout.group_of(v) == self._group
        }
        moments = sorted(requested | set(self._snapshot))
        return [p for t in moments if (p := self._one(t, requested=t in requested)) is not None]

    def _pending(self, longest: int) -> list[PartitionCompaction]:
        """Select partitions that would need more than this many deltas, and stale ones."""
        plans: list[PartitionCompaction] = []
        length = 0
        for moment in sorted(self._deltas | set(self._snapshot)):
            length += 1
            wanted = moment not in self._snapshot and length > longest
            if wanted and not self._targets.matches(self._values(moment)):
                continue
            plan = self._one(moment, requested=wanted or self._values(moment) in self._targets.rebuild)
            plans += [plan] if plan is not None else []
            if moment in self._snapshot or wanted:
                length = 0
        return plans

    def _one(self, moment: datetime, *, requested: bool) -> PartitionCompaction | None:
        values = self._values(moment)
        why = self._why_stale(moment, values, requested=requested)
        if (not requested and why is None) or values in self._targets.finished:
            return None
        at = bisect_left(self._anchors, moment)
        start = self._anchors[at - 1] if at else None
        anchor = None if start is None else self._values(start)
        deltas = self._delta.up_to(start, moment)
        is_stored = moment in self._snapshot
        if is_stored:
            unproven = None if requested and self._targets.overwrite else self._known.unproven.get(values)
            action, reason = self._judge_stored(moment, values, why, anchor, deltas, unproven)
        else:
            action, reason = self._judge_missing(moment, anchor, deltas)
        if not action.writes:
            return PartitionCompaction(target=values, action=action, reason=reason, replaces=is_stored)
        if not is_stored:
            insort(self._anchors, moment)
        plan = PartitionCompaction(
            target=values,
            action=action,
            reason=reason,
            anchor=anchor,
            deltas=deltas,
            replaces=is_stored,
            anchor_in_run=start in self._written,
        )
        self._written.add(moment)
        return plan

    def _judge_stored(
        self,
        moment: datetime,
        values: Values,
        why: str | None,
        anchor: Values | None,
        deltas: tuple[Values, ...],
        unproven: str | None,
    ) -> tuple[CompactionAction, str]:
        targets, lost = self._targets, self._known.lost.get(values)
        again = targets.overwrite or values in targets.rebuild
        if not again and (why is None or (self._is_asked_by_name and not self._hangs(values))):
            note = "" if why is None else f"; it is stale ({why}): overwrite (--overwrite) rebuilds it"
            return CompactionAction.EXISTS, f"the snapshot branch has it{note}"
        if why is None and moment not in self._deltas and values not in targets.rebuild:
            return CompactionAction.NOTHING_TO_DO, "the snapshot branch has it, and it has no delta to build it from"
        if lost is not None or (anchor is None and not deltas):
            return CompactionAction.EXISTS, f"it can't be rebuilt: {lost or 'none of its inputs is left'}"
        gone = self._known.incomplete.get(values)
        if gone is not None and not (targets.overwrite and targets.names(self._layout, moment)):
            return CompactionAction.EXISTS, (
                f"it is stale: {gone}; if those rows should be deleted, name the partition with overwrite "
                "(--overwrite), which rebuilds it without them"
            )
        if unproven is not None:
            return CompactionAction.EXISTS, f"it is stale ({why}), but {unproven}: overwrite (--overwrite) rebuilds it"
        if why is not None:
            return CompactionAction.STALE_REBUILD, why
        return CompactionAction.COMPACT, f"rebuilt: {self._parts(anchor, deltas)}"

    def _judge_missing(
        self, moment: datetime, anchor: Values | None, deltas: tuple[Values, ...]
    ) -> tuple[CompactionAction, str]:
        if anchor is None and not deltas:
            return CompactionAction.NOTHING_TO_DO, "the group has no partition up to then"
        if moment in self._deltas:
            return CompactionAction.COMPACT, self._parts(anchor, deltas)
        if self._targets.gap_policy == "carry_forward":
            return CompactionAction.COMPACT, f"a gap, carried forward: {self._parts(anchor, deltas)}"
        return (
            CompactionAction.GAP,
            "it has no delta; gap_policy=carry_forward (--gap-policy) makes it full from the partitions before",
        )

    def _parts(self, anchor: Values | None, deltas: tuple[Values, ...]) -> str:
        start = "no anchor" if anchor is None else f"anchor {self._layout.text_of(anchor)}"
        return f"{start}, {len(deltas)} delta{'' if len(deltas) == 1 else 's'}"

    @property
    def _is_asked_by_name(self) -> bool:
        return self._targets.max_chain_length is None

    def _why_stale(self, moment: datetime, values: Values, *, requested: bool) -> str | None:
        if moment not in self._snapshot:
            return None
        if self._hangs(values):
            return f"it was built from {self._layout.text_of(self._known.anchors[values])}, which is rebuilt"
        looks = not self._is_asked_by_name and self._targets.matches(values)
        return self._known.stale.get(values) if requested or looks else None

    def _hangs(self, values: Values) -> bool:
        anchor = self._known.anchors.get(values)
        return anchor is not None and self._layout.time_of(anchor) in self._written

    def _requested(self) -> set[datetime]:
        """Return the times that the request names, with the gaps among them."""
        targets = self._targets
        stored = self._deltas | set(self._snapshot)
        if targets.is_range:
            found = {t for t in stored | self._grid() if targets.in_range(t)}
            return {t for t in found if targets.matches(self._values(t))}
        requested: set[datetime] = set()
        for spec in targets.specs:
            if any(at < len(self._group) and self._group[at] != value for at, value in spec):
                continue
            moment = moment_of(self._layout, spec)
            if moment is not None:
                requested.add(moment)
            else:
                grid = self._grid() if targets.gap_policy == "carry_forward" else set()
                requested |= {t for t in stored | grid if _fits(spec, self._values(t))}
        return requested

    def _grid(self) -> set[datetime]:
        """Return every step from the group's first partition to its last one, or to the end of the range."""
        stored = self._deltas | set(self._snapshot)
        if not stored:
            return set()
        first, last = min(stored), max(max(stored), self._targets.last or max(stored))
        return {first, *self._layout.clock.times_between(first, last)}

    def _values(self, moment: datetime) -> Values:
        return self._snapshot.get(moment) or self._layout.values_at(self._group, moment)
