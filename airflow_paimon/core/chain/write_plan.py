"""What commits on a chain table's branches mean for the others: needed anchors, partitions that go stale. Pure.

Stricter than Paimon: partitions dropped together don't stand in for each other, whatever kind of
commit drops them, and an anchor may only go if what it was built from is still there.

See docs/chain-tables.md, Writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.chain.read_plan import ChainLayout, TimeLine, Values, time_lines

BuiltFrom = Callable[[Values], tuple[Values | None, tuple[Values, ...]] | None]
"""Anchor and deltas that a snapshot partition is recorded to be built from; None: nobody recorded it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredAnchor:
    """A snapshot partition that can't go. ``followers``: deltas that build on it; ``missing``: what would have to be
    there in its place: deltas, or an earlier snapshot partition (None among them).
    """

    values: Values
    followers: tuple[Values, ...]
    missing: tuple[Values | None, ...]


def required_anchors(
    layout: ChainLayout,
    before: frozenset[Values],
    after: frozenset[Values],
    deltas: frozenset[Values],
    built_from: BuiltFrom,
) -> list[RequiredAnchor]:
    """Find what keeps snapshot partitions (``before`` to ``after`` the commit) from being dropped.

    One may go if no delta builds on it, or if the nearest one that stays and the deltas behind that, up to its own,
    give its rows again. Its own delta builds on it, too: without it a read of that partition merges. What it was built
    from is taken from the record, else each step of the grid is asked for.
    """
    needed = []
    lines = {name: time_lines(layout, held) for name, held in (("before", before), ("after", after), ("delta", deltas))}
    for values in sorted(before - after, key=layout.text_of):
        moment, group = layout.parsed_time(values), layout.group_of(values)
        if moment is None:
            continue
        stays = lines["after"].get(group, TimeLine((), ()))
        at = bisect_left(stays.times, moment)
        end = stays.times[at] if at < len(stays.times) else None
        own = lines["delta"].get(group, TimeLine((), ()))
        followers = own.between(moment, end)
        if not followers:
            continue
        alone, recorded = followers == (values,), built_from(values)
        missing: list[Values | None] = [None]
        if alone and recorded is None and at:
            missing = []  # as in Paimon: the earlier one and its own delta are what is left of it
        elif at:
            parts = _parts(layout, values, stays.times[at - 1], lines["before"].get(group), built_from)
            missing = [d for d in parts if d not in deltas]
        elif alone and recorded is not None and recorded[0] is None:
            missing = [d for d in recorded[1] if d not in deltas]
        if missing:
            needed.append(RequiredAnchor(values=values, followers=followers, missing=tuple(missing)))
    return needed


def _parts(
    layout: ChainLayout, values: Values, start: datetime, snapshots: TimeLine | None, built_from: BuiltFrom
) -> list[Values]:
    """Give the deltas behind ``start`` that a snapshot partition's rows came from."""
    parts: list[Values] = []
    current: Values | None = values
    for _ in range(len(snapshots.values) + 1 if snapshots is not None else 1):
        moment = None if current is None else layout.parsed_time(current)
        if current is None or moment is None or moment <= start:
            break
        recorded = built_from(current)
        if recorded is None:
            steps = layout.clock.times_between(start, moment)
            parts += [layout.values_at(layout.group_of(values), t) for t in steps if t > start]
            break
        anchor, deltas = recorded
        parts += [d for d in deltas if (t := layout.parsed_time(d)) is not None and t > start]
        current = anchor
    return sorted(set(parts), key=layout.text_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """What a change of delta partitions does. ``hidden``: those that a snapshot partition of the same values hides.

    ``rebuilt``: for each snapshot partition that may have been built from a changed delta, in the order of time, the
    anchor and the deltas that it would be built from.
    """

    hidden: tuple[Values, ...]
    rebuilt: Mapping[Values, tuple[Values | None, tuple[Values, ...]]]


def affected(
    layout: ChainLayout, changed: Iterable[Values], snapshots: frozenset[Values], deltas: frozenset[Values]
) -> Affected:
    """Find the snapshot partitions at or behind changed deltas. ``deltas``: as they were before the change.

    A snapshot partition without a delta of its own was not built from a chain: it was loaded as it is.
    """
    changed = frozenset(changed)
    firsts: dict[Values, datetime] = {}
    for values in changed:
        moment, group = layout.parsed_time(values), layout.group_of(values)
        if moment is not None:
            firsts[group] = min(moment, firsts.get(group, moment))
    anchors, own = time_lines(layout, snapshots), time_lines(layout, deltas)
    rebuilt: dict[Values, tuple[Values | None, tuple[Values, ...]]] = {}
    for group, first in sorted(firsts.items(), key=lambda item: repr(item[0])):
        line = anchors.get(group, TimeLine((), ()))
        for at in range(bisect_left(line.times, first), len(line.times)):
            target = line.values[at]
            if target in deltas or target in changed:
                start = line.times[at - 1] if at else None
                anchor = line.values[at - 1] if at else None
                rebuilt[target] = anchor, own.get(group, TimeLine((), ())).up_to(start, line.times[at])
    hidden = sorted({v for v in changed if v in snapshots}, key=layout.text_of)
    return Affected(hidden=tuple(hidden), rebuilt=rebuilt)


def chain_neighbours(
    layout: ChainLayout, values: Values, snapshots: frozenset[Values], deltas: frozenset[Values]
) -> tuple[set[Values], set[Values]]:
    """Give the snapshot and delta partitions that may be merged with a partition: they need one number of buckets."""
    moment, group = layout.parsed_time(values), layout.group_of(values)
    if moment is None:
        return set(), set()
    anchors = time_lines(layout, snapshots).get(group, TimeLine((), ()))
    own = time_lines(layout, deltas).get(group, TimeLine((), ()))
    at = bisect_left(anchors.times, moment)
    start = anchors.times[at - 1] if at else None
    behind = [t for t in anchors.times[at:] if t > moment]
    near = {anchors.values[at - 1]} if at else set()
    near |= {v for v in anchors.values[at : at + 1] if v == values}
    chained = zip(own.times, own.values, strict=True)
    return near, {v for t, v in chained if (start is None or t > start) and (not behind or t < behind[0])}
