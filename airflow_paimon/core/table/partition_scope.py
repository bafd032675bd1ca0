"""The partitions that an operation is about, as a value to compare with others and to keep in a snapshot's properties.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partitions import (
    Selection,
    StoredPartitions,
    choose_partitions,
    comparable,
    format_partition,
    partition_types,
)

Spec = dict[int, Any]
"""Some or all of a partition's values, by position."""


@dataclass(frozen=True, slots=True)
class PartitionScope:
    """The partitions that agree with any of ``texts``, such as ``dt=2025-01-01``; without texts the whole table.

    A text may leave partition columns out. Texts are in the form that messages have, sorted.
    """

    texts: tuple[str, ...] = ()
    specs: tuple[Spec, ...] = field(default=(), compare=False, repr=False)
    selection: Selection | None = field(default=None, compare=False, repr=False)

    @property
    def is_whole(self) -> bool:
        return not self.texts

    def holds(self, stored: bytes) -> bool:
        """Whether a stored partition is one of these."""
        return self.selection is None or self.selection(stored)

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


def partition_scope(schema: TableSchema, texts: Sequence[str], label: str) -> PartitionScope:
    """Parse partitions; none given is the whole table. ``label`` names the table in messages.

    Raises:
        InvalidInputError: malformed, not a partition column, or not a value of the column's type.
    """
    if not texts:
        return WHOLE
    keys, types = schema.partition_keys, partition_types(schema)
    specs = [dict(spec) for spec in choose_partitions(schema, texts, label).specs]
    named = {format_partition(list(s.values()), [keys[i] for i in s], [types[i] for i in s]): s for s in specs}
    at = {name: i for i, name in enumerate(keys)}
    selection = StoredPartitions(schema).selection({k: s[at[k]] for k in keys if at[k] in s} for s in specs)
    return PartitionScope(tuple(sorted(named)), tuple(named[text] for text in sorted(named)), selection)


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
        return partition_scope(schema, found, label)
    except (ValueError, InvalidInputError) as error:
        raise FormatError(f"{label}: {text!r} is not a list of partitions that were published") from error
