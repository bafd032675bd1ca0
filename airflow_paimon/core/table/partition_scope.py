"""The partitions that an operation is about, as a value to compare with others and to keep in a snapshot's properties.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError, naming_table
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.table.partition_values import (
    PartitionSpec,
    comparable,
    format_partition,
    named_value,
    parse_partition_spec,
)
from airflow_paimon.core.table.partitions import Selection, StoredPartitions

Spec = dict[int, Any]
"""Some or all of a partition's values, by position."""


@dataclass(frozen=True)
class PartitionScope:
    """The partitions that agree with any of ``texts``, such as ``dt=2025-01-01``; without texts the whole table.

    A text may leave partition columns out. Texts are in the form that messages have, sorted. Picklable.
    """

    texts: tuple[str, ...] = ()
    specs: tuple[Spec, ...] = field(default=(), compare=False, repr=False)
    types: tuple[DataType, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_whole(self) -> bool:
        return not self.texts

    def matches(self, values: Sequence[Any]) -> bool:
        """Whether a partition with these values is one of these."""
        if self.is_whole:
            return True
        own = tuple(map(named_value, values, self.types))
        return any(all(own[at] == value for at, value in spec.items()) for spec in self._named)

    def holds(self, stored: bytes) -> bool:
        """Whether a stored partition is one of these."""
        if self.is_whole:
            return True
        if stored not in self._known:
            self._known[stored] = self.matches(decode_row(stored, self.types))
        return self._known[stored]

    @cached_property
    def _named(self) -> tuple[Spec, ...]:
        return tuple({at: named_value(value, self.types[at]) for at, value in spec.items()} for spec in self.specs)

    @cached_property
    def _known(self) -> dict[bytes, bool]:
        return {}

    def selection(self, schema: TableSchema) -> Selection | None:
        """Return them as a selection of stored partitions, which can skip whole manifests; None: all."""
        if self.is_whole:
            return None
        keys = schema.partition_keys
        return StoredPartitions(schema).selection({keys[at]: v for at, v in spec.items()} for spec in self.specs)

    def meets(self, other: PartitionScope) -> bool:
        """Whether there may be a partition that both hold."""
        if self.is_whole or other.is_whole:
            return True
        return any(_agree(one, two) for one in self.specs for two in other.specs)

    def covers(self, other: PartitionScope) -> bool:
        """Whether this one holds each partition that the other one holds."""
        if self.is_whole or other.is_whole:
            return self.is_whole
        return all(any(one.keys() <= spec.keys() and _agree(one, spec) for one in self.specs) for spec in other.specs)

    @property
    def json(self) -> str:
        """The texts, for a snapshot's property."""
        return json.dumps(list(self.texts), ensure_ascii=False)


WHOLE = PartitionScope()


def _agree(one: Spec, other: Spec) -> bool:
    return all(comparable(one[at]) == comparable(other[at]) for at in one.keys() & other.keys())


def choose_partitions(schema: TableSchema, specs: Sequence[PartitionSpec], label: str) -> PartitionScope:
    """Parse ``dt=2025-01-01`` and the like; none given is the whole table. ``label`` names the table in messages.

    Raises:
        InvalidInputError: malformed, not a partition column, or not a value of the column's type.
    """
    keys, types = schema.partition_keys, schema.partition_types
    named: dict[str, Spec] = {}
    for given in specs:
        with naming_table(label):
            spec = {keys.index(k): v for k, v in parse_partition_spec(given, keys, types).items()}
        named[format_partition(list(spec.values()), [keys[i] for i in spec], [types[i] for i in spec])] = spec
    texts = tuple(sorted(named))
    return PartitionScope(texts, tuple(named[text] for text in texts), types)


def recorded_scope(schema: TableSchema, text: str | None, label: str) -> PartitionScope:
    """Return the scope that a snapshot's property says (``PartitionScope.json``); None: the whole table.

    Raises:
        FormatError: the property is damaged.
    """
    if text is None:
        return WHOLE
    try:
        found = json.loads(text)
        if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
            raise ValueError
        return choose_partitions(schema, found, label)
    except (ValueError, InvalidInputError) as error:
        raise FormatError(f"{label}: {text!r} is not a list of partitions that were published") from error
