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

from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.timeline import TimeLine, TimeLines

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

    One may go if no delta builds on it, or if the nearest one that stays and the deltas after that, up to its own,
    give its rows again. Its own delta builds on it, too: without it a read of that partition merges. What it was built
    from is taken from the record, else each step of the grid is asked for.
    """
    needed = []
    earlier, stays, own = (TimeLines(layout, held) for held in (before, after, deltas))
    for values in sorted(before - after, key=layout.text_of):
        moment, group = layout.parsed_time(values), layout.group_of(values)
        if moment is None:
            continue
        start, _ = stays.of(group).before(moment)
        followers = own.of(group).between(moment, stays.of(group).time_from(moment))
        if not followers:
            continue
        alone, recorded = followers == (values,), built_from(values)
        missing: list[Values | None] = [None]
        if alone and recorded is None and start is not None:
            missing = []  # as in Paimon: the earlier one and its own delta are what is left of it
        elif start is not None:
            parts = _parts(layout, values, start, earlier.of(group), built_from)
            missing = [d for d in parts if d not in deltas]
        elif alone and recorded is not None and recorded[0] is None:
            missing = [d for d in recorded[1] if d not in deltas]
        if missing:
            needed.append(RequiredAnchor(values=values, followers=followers, missing=tuple(missing)))
    return needed


def _parts(
    layout: ChainLayout, values: Values, start: datetime, snapshots: TimeLine, built_from: BuiltFrom
) -> list[Values]:
    """Return the deltas after ``start`` that a snapshot partition's rows came from."""
    parts: list[Values] = []
    current: Values | None = values
    for _ in range(len(snapshots.values) + 1):
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


def affected(changed: Iterable[Values], snapshots: TimeLines, deltas: TimeLines) -> Affected:
    """Find the snapshot partitions at or after changed deltas. ``deltas``: as they were before the change.

    A snapshot partition without a delta of its own was not built from a chain: it was loaded as it is.
    """
    layout, changed = snapshots.layout, frozenset(changed)
    firsts: dict[Values, datetime] = {}
    for values in changed:
        moment, group = layout.parsed_time(values), layout.group_of(values)
        if moment is not None:
            firsts[group] = min(moment, firsts.get(group, moment))
    rebuilt: dict[Values, tuple[Values | None, tuple[Values, ...]]] = {}
    for group, first in sorted(firsts.items(), key=lambda item: repr(item[0])):
        line = snapshots.of(group)
        for at in range(bisect_left(line.times, first), len(line.times)):
            target = line.values[at]
            if target in deltas.held or target in changed:
                start, anchor = (line.times[at - 1], line.values[at - 1]) if at else (None, None)
                rebuilt[target] = anchor, deltas.of(group).up_to(start, line.times[at])
    hidden = sorted(changed & snapshots.held, key=layout.text_of)
    return Affected(hidden=tuple(hidden), rebuilt=rebuilt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Partitions that may be merged with each other, so that they need one number of buckets: the anchor that a chain
    starts from, and the deltas up to the next one. ``after`` and ``end``: the times of the two, exclusive.
    """

    group: Values
    anchor: Values | None
    after: datetime | None
    end: datetime | None


def stretch_of(values: Values, snapshots: TimeLines) -> Stretch | None:
    """Return the stretch of time that a partition belongs to; None: it has no time, and is merged with nothing."""
    layout = snapshots.layout
    moment, group = layout.parsed_time(values), layout.group_of(values)
    if moment is None:
        return None
    line = snapshots.of(group)
    after, anchor = line.before(moment)
    return Stretch(group=group, anchor=anchor, after=after, end=line.time_after(moment))
