"""The layout of a chain table: groups of partitions, each a chronological line, in three branches.

A partition is (group columns..., chain columns...); the chain columns form a time. The snapshot branch holds full
partitions, the delta branch changes. ``TimeLines`` is created once per branch state; a group's line is sorted on first
use.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, KeysView
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


class Branch(StrEnum):
    """The role of a branch in a chain table; its name is set by an option."""

    MAIN = "main"
    SNAPSHOT = "snapshot"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLayout:
    """The layout of a chain table. The first ``group_width`` partition columns are the group, the others the time."""

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
        """Format a partition for messages."""
        return format_partition(values, self.partition_keys, self.partition_types)

    def parsed_time(self, values: Values) -> datetime | None:
        """Return the time of a partition's values, None if they are not a time."""
        try:
            return self.clock.time_of(self._texts(values))
        except ValueError:
            return None

    def time_of(self, values: Values) -> datetime:
        """Return the time of a partition that takes part in a chain.

        Raises:
            InvalidInputError: it has none, or is written in a form that Paimon silently skips (``5`` where the
            formatter writes ``05``).
        """
        moment = self.parsed_time(values)
        if moment is None:
            why, way_out = "is without a partition time", "drop it, or write its rows to a partition of that form"
        elif self.clock.texts_at(moment) != self._texts(values):
            right = self.text_of(self.values_at(self.group_of(values), moment))
            why, way_out = "is not written as the formatter writes it", f"write its rows to {right}"
        else:
            return moment
        raise InvalidInputError(
            f"{self.label}: partition {self.text_of(values)} {why} (partition.timestamp-pattern "
            f"{self.clock.pattern!r}, partition.timestamp-formatter {self.clock.formatter.text!r}); {way_out}"
        )

    def values_at(self, group: Values, moment: datetime) -> Values:
        """Return the partition of a group at a time."""
        keys, types = self.partition_keys[self.group_width :], self.partition_types[self.group_width :]
        by_key = parse_partition_spec(dict(zip(keys, self.clock.texts_at(moment), strict=True)), keys, types)
        return (*group, *(by_key[k] for k in keys))

    def _texts(self, values: Values) -> tuple[str, ...]:
        chain = zip(values[self.group_width :], self.partition_types[self.group_width :], strict=True)
        return tuple(readable_value(v, t) for v, t in chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions of each branch with at least one live file, even if all its rows are deletes."""

    main: frozenset[Values] = frozenset()
    snapshot: frozenset[Values] = frozenset()
    delta: frozenset[Values] = frozenset()

    @property
    def all(self) -> frozenset[Values]:
        return self.main | self.snapshot | self.delta


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
