"""The partitions of a chain table in chronological order, group by group. Values only.

``TimeLines`` is created once per branch state. A group's line is sorted on first use, and cached.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.chain.layout import ChainLayout, Values


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Partitions of one group and branch in chronological order."""

    times: tuple[datetime, ...] = ()
    values: tuple[Values, ...] = ()

    def between(self, first: datetime | None, end: datetime | None) -> tuple[Values, ...]:
        """Return those from ``first`` (inclusive) to ``end`` (exclusive); None: no such bound."""
        low = 0 if first is None else bisect_left(self.times, first)
        high = len(self.times) if end is None else bisect_left(self.times, end)
        return self.values[low:high]

    def up_to(self, after: datetime | None, last: datetime) -> tuple[Values, ...]:
        """Return those later than ``after``, up to and including ``last``."""
        low = 0 if after is None else bisect_right(self.times, after)
        return self.values[low : bisect_right(self.times, last)]

    def inside(self, after: datetime | None, end: datetime | None) -> tuple[Values, ...]:
        """Return those later than ``after`` and before ``end``; None: no such bound."""
        low = 0 if after is None else bisect_right(self.times, after)
        high = len(self.times) if end is None else bisect_left(self.times, end)
        return self.values[low:high]

    def before(self, moment: datetime) -> tuple[datetime | None, Values | None]:
        """Return the last one that is earlier than ``moment``, with its time; (None, None): there is none."""
        at = bisect_left(self.times, moment)
        return (self.times[at - 1], self.values[at - 1]) if at else (None, None)

    def time_from(self, moment: datetime) -> datetime | None:
        """Return the time of the first one at ``moment`` or later."""
        at = bisect_left(self.times, moment)
        return self.times[at] if at < len(self.times) else None

    def time_after(self, moment: datetime) -> datetime | None:
        """Return the time of the first one later than ``moment``."""
        at = bisect_right(self.times, moment)
        return self.times[at] if at < len(self.times) else None


class TimeLines:
    """The time line of each group. ``held``: all partitions, with a time or without.

    Args:
        strict: Raise ``InvalidInputError`` for a group with a partition that can't be part of a chain
        (``ChainLayout.time_of``). Otherwise it is left out; see ``without_time``.
    """

    def __init__(self, layout: ChainLayout, held: Iterable[Values], *, strict: bool = False) -> None:
        self.layout = layout
        self.held = frozenset(held)
        self._strict = strict
        self._groups: dict[Values, list[Values]] = {}
        self._lines: dict[Values, TimeLine] = {}
        for values in self.held:
            self._groups.setdefault(layout.group_of(values), []).append(values)

    @property
    def groups(self) -> KeysView[Values]:
        """The groups that hold a partition, with or without a time."""
        return self._groups.keys()

    def of(self, group: Values) -> TimeLine:
        """Return a group's line; an empty one for a group without partitions.

        Raises:
            InvalidInputError: ``strict``, and a partition of the group can't be part of a chain.
        """
        if group not in self._lines:
            time_of = self.layout.time_of if self._strict else self.layout.parsed_time
            timed = [(t, v) for v in self._groups.get(group, ()) if (t := time_of(v)) is not None]
            timed.sort(key=lambda pair: pair[0])
            self._lines[group] = TimeLine(tuple(t for t, _ in timed), tuple(v for _, v in timed))
        return self._lines[group]

    def without_time(self, group: Values) -> tuple[Values, ...]:
        """Return the partitions of a group whose values are not a time."""
        timed = frozenset(self.of(group).values)
        return tuple(v for v in self._groups.get(group, ()) if v not in timed)
