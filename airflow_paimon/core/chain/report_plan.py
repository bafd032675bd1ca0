"""A report on a chain table, group by group, for check_chain_table and for people. Values only, no storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.chain.layout import ChainLayout, Partitions, Values
from airflow_paimon.core.errors import InvalidInputError

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
