"""Plans the expiry of chain tables by whole segments, group by group. Values only, no storage.

See docs/howto/chain-maintenance.md, Expiry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_paimon.core.chain.layout import ChainLayout, Partitions, TimeLines, Values

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A snapshot partition and the deltas from its time up to the next one's: they expire together."""

    snapshot: Values
    deltas: tuple[Values, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExpiry:
    """The expiry of one group. ``anchor``: the oldest snapshot partition that stays, None if the group has none.

    ``orphans``: deltas older than the group's first snapshot partition. ``without_time``: partitions whose values
    are not a time; they stay. ``waits_for``: stale partitions that stay, for which old segments stay, too.
    """

    group: Values
    reason: str
    anchor: Values | None = None
    segments: tuple[Segment, ...] = ()
    orphans: tuple[Values, ...] = ()
    without_time: tuple[Values, ...] = ()
    waits_for: tuple[Values, ...] = ()

    @property
    def snapshots(self) -> tuple[Values, ...]:
        return tuple(s.snapshot for s in self.segments)


def plan_chain_expiry(
    layout: ChainLayout,
    partitions: Partitions,
    cutoff: datetime,
    *,
    max_segments: int = 100,
    min_full_partitions: int = 1,
) -> list[GroupExpiry]:
    """Plan the expiry of the segments of each group that lie entirely before ``cutoff`` (a local time, exclusive).

    The newest old snapshot partition stays as the anchor of the younger ones. ``max_segments`` applies per group, from
    the oldest on. ``min_full_partitions``: the minimum number of snapshot partitions of a group. Main is never
    touched. Both numbers are at least 1.
    """
    lines = TimeLines(layout, partitions.snapshot), TimeLines(layout, partitions.delta)
    groups = sorted(lines[0].groups | lines[1].groups, key=repr)
    return [_plan_group_expiry(group, *lines, cutoff, max_segments, min_full_partitions) for group in groups]


def _plan_group_expiry(
    group: Values,
    snapshots: TimeLines,
    deltas: TimeLines,
    cutoff: datetime,
    max_segments: int,
    min_full_partitions: int,
) -> GroupExpiry:
    snapshot, delta = snapshots.of(group), deltas.of(group)
    without_time = tuple(sorted((*snapshots.without_time(group), *deltas.without_time(group)), key=repr))
    if not snapshot.values:
        return GroupExpiry(group=group, reason="only deltas: never touched", without_time=without_time)
    old = bisect_left(snapshot.times, cutoff)
    count = min(old - 1, max_segments, len(snapshot.values) - min_full_partitions)
    if count < 1:
        why = f"{max(old, 0)} snapshot partitions before {cutoff}, {len(snapshot.values)} in all: nothing to expire"
        return GroupExpiry(group=group, reason=why, anchor=snapshot.values[0], without_time=without_time)
    segments = tuple(
        Segment(
            snapshot=snapshot.values[i],
            deltas=delta.between(snapshot.times[i], snapshot.times[i + 1]),
        )
        for i in range(count)
    )
    return GroupExpiry(
        group=group,
        reason=f"{old} snapshot partitions before {cutoff}, {len(snapshot.values)} in all: {count} segments expire",
        anchor=snapshot.values[count],
        segments=segments,
        orphans=delta.between(None, snapshot.times[0]),
        without_time=without_time,
    )


def keep_inputs(layout: ChainLayout, plan: GroupExpiry, needs: Mapping[Values, datetime]) -> GroupExpiry:
    """Keep the segments from which a stale partition that stays is rebuilt, and all after them.

    ``needs``: the time from which a rebuild of each stale partition of the group starts. A segment kept for one may
    itself be stale and need more.
    """
    if not plan.segments or plan.anchor is None:
        return plan
    starts = [layout.time_of(v) for v in (*plan.snapshots, plan.anchor)]
    count = len(plan.segments)
    waits: dict[Values, None] = {}
    while count:
        going = frozenset(plan.snapshots[:count])
        blocking = {v: t for v, t in needs.items() if v not in going and bisect_right(starts, t) - 1 < count}
        if not blocking:
            break
        waits |= dict.fromkeys(sorted(blocking, key=layout.text_of))
        count = max(0, bisect_right(starts, min(blocking.values())) - 1)
    if not waits:
        return plan
    texts = ", ".join(map(layout.text_of, list(waits)[:_SHOWN]))
    kept = len(plan.segments) - count
    return replace(
        plan,
        reason=f"{plan.reason}; {kept} of them stay, because {texts} is stale and is rebuilt from them",
        anchor=(*plan.snapshots, plan.anchor)[count],
        segments=plan.segments[:count],
        orphans=plan.orphans if count else (),
        waits_for=tuple(waits),
    )
