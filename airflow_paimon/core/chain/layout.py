"""How a chain table is laid out: groups of partitions, each a line in time, in three branches.

A partition is (group columns..., chain columns...); the chain columns make a time. The snapshot branch holds full
partitions, the delta branch changes.
"""

from __future__ import annotations

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
        """Return the time that a partition's values read as, None if they don't read as one."""
        try:
            return self.clock.time_of(self._texts(values))
        except ValueError:
            return None

    def time_of(self, values: Values) -> datetime:
        """Return the time of a partition that takes part in a chain.

        Raises:
            InvalidInputError: it has none, or is spelt in a way that Paimon skips in silence (``5`` where the formatter
                writes ``05``).
        """
        moment = self.parsed_time(values)
        if moment is None:
            why, way_out = "is without a partition time", "drop it, or write its rows to a partition of that form"
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
        """Return the partition of a group at a time."""
        keys, types = self.partition_keys[self.group_width :], self.partition_types[self.group_width :]
        by_key = parse_partition_spec(dict(zip(keys, self.clock.texts_at(moment), strict=True)), keys, types)
        return (*group, *(by_key[k] for k in keys))

    def _texts(self, values: Values) -> tuple[str, ...]:
        chain = zip(values[self.group_width :], self.partition_types[self.group_width :], strict=True)
        return tuple(readable_value(v, t) for v, t in chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """What each branch holds: partitions with at least one live file, even if all its rows are deletes."""

    main: frozenset[Values] = frozenset()
    snapshot: frozenset[Values] = frozenset()
    delta: frozenset[Values] = frozenset()

    @property
    def all(self) -> frozenset[Values]:
        return self.main | self.snapshot | self.delta
