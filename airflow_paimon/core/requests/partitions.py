"""Partitions in requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partitions import (
    PartitionSelection,
    Selection,
    StoredPartitions,
    comparable,
    format_partition,
    parse_partition_spec,
)
from airflow_paimon.core.table.scan import partition_types


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The partitions of an operation: those that match any of ``specs``; without specs, all. Picklable."""

    keys: tuple[str, ...]
    specs: tuple[tuple[tuple[int, Any], ...], ...] = ()

    def matches(self, values: Sequence[Any]) -> bool:
        return not self.specs or any(
            all(comparable(values[at]) == comparable(value) for at, value in spec) for spec in self.specs
        )

    def selection(self, schema: TableSchema) -> Selection:
        """Return the choice as a selection of stored partitions, which can skip whole manifests."""
        stored = StoredPartitions(schema)
        return PartitionSelection(stored, [dict(s) for s in self.specs]) if self.specs else stored.where(lambda _: True)


def choose_partitions(schema: TableSchema, texts: Sequence[str], label: str) -> PartitionChoice:
    """Parse ``dt=2025-01-01`` and the like; a spec may leave keys out. ``label`` names the table in messages.

    Raises:
        InvalidInputError: malformed, not a partition column, or not a value of the column's type.
    """
    types = partition_types(schema)
    at = {key: i for i, key in enumerate(schema.partition_keys)}
    try:
        parsed = [parse_partition_spec(t, schema.partition_keys, types) for t in texts]
    except InvalidInputError as error:
        raise InvalidInputError(f"{label}: {error.message}") from None
    specs = tuple(tuple((at[k], v) for k, v in spec.items()) for spec in parsed)
    return PartitionChoice(schema.partition_keys, specs)


def partition_text(schema: TableSchema, values: Sequence[Any]) -> str:
    """Format a partition for people: ``dt=2025-01-01``; empty for a table without partitions."""
    return format_partition(values, schema.partition_keys, partition_types(schema))
