"""Effects of commits on the other branches of a chain table: required anchors, stale partitions, and what a commit
may ask of the guard. Pure.

Stricter than Paimon: partitions dropped together can't replace each other, in any kind of commit, and an anchor may
only be dropped while its inputs exist.

See docs/howto/chain-reads.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_paimon.core.chain.layout import ChainLayout, TimeLine, TimeLines, Values

BuiltFrom = Callable[[Values], tuple[Values | None, tuple[Values, ...]] | None]
"""Anchor and deltas that a snapshot partition was built from; None: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredAnchor:
    """A snapshot partition that must not be dropped. ``followers``: deltas based on it; ``missing``: the partitions
    that would have to exist in its place: deltas, or an earlier snapshot partition (None).
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
    """Find required anchors among the snapshot partitions that a commit drops (``before`` to ``after`` it).

    One can be dropped if no delta is based on it, or if its rows follow from the nearest remaining one and the deltas
    after that, up to its own. Its own delta is based on it, too: without the anchor a read of that partition merges.
    Its inputs are taken from the record, otherwise every step of the grid must exist.
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
            missing = []  # as in Paimon: the earlier one and its own delta remain
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
    """Return the deltas after ``start`` that contributed rows to a snapshot partition."""
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
    """The effects of a change of delta partitions. ``hidden``: those hidden by a snapshot partition of the same values.

    ``rebuilt``: for each snapshot partition that may have been built from a changed delta, in chronological order, the
    anchor and the deltas from which it would be rebuilt.
    """

    hidden: tuple[Values, ...]
    rebuilt: Mapping[Values, tuple[Values | None, tuple[Values, ...]]]


def affected(changed: Iterable[Values], snapshots: TimeLines, deltas: TimeLines) -> Affected:
    """Find the snapshot partitions at or after changed deltas. ``deltas``: as they were before the change.

    A snapshot partition without a delta of its own was not built from a chain but loaded directly.
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


def merged_with(
    values: Values, snapshots: TimeLines, deltas: TimeLines
) -> tuple[Values | None, tuple[Values, ...]] | None:
    """Return what a partition may be merged with, so that they need the same number of buckets: the anchor of its
    chain, and the deltas up to the next anchor, without that; None: it has no time, and is never merged.
    """
    moment, group = snapshots.layout.parsed_time(values), snapshots.layout.group_of(values)
    if moment is None:
        return None
    line = snapshots.of(group)
    after, anchor = line.before(moment)
    return anchor, deltas.of(group).inside(after, line.time_after(moment))


OnStale = Literal["refuse", "record"]
"""For a write to delta partitions that a full partition hides: refuse it, or record what becomes stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """Options of a commit on a branch of a chain table (``CommitOptions.guard_options``).

    ``checked_by_caller``: the caller compares the branches before and after the commit, so nothing has to be recorded;
    the guard only checks dropped anchors. ``on_stale`` None: appends are refused, overwrites and drops are recorded.
    """

    on_stale: OnStale | None = None
    checked_by_caller: bool = False


CHECKED_BY_CALLER = ChainOptions(checked_by_caller=True)
