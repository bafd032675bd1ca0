"""The layout of a chain table: groups of partitions, each a chronological line, in three branches.

A partition is (group columns..., chain columns...); the chain columns form a time. The snapshot branch holds full
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
