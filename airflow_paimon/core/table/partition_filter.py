"""Selects the partitions that can hold rows of a condition, and skips manifests without any by their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.manifest_blocks import Bounded
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.predicate import (
    AllOf,
    Bounds,
    Condition,
    Predicate,
    exactly,
    literal,
    may_match,
    restrict,
)

_LONGEST = 256
"""More characters than the value of a partition has, as it is the name of a folder."""

MayHold = Callable[[Mapping[str, Bounds]], bool]
"""Whether rows within these bounds of the partition columns can match."""


def partitions_where(predicate: Predicate | None, schema: TableSchema) -> Selection | None:
    """Return the partitions that can hold rows of a predicate; None: it says nothing of partition columns."""
    known = restrict(predicate, frozenset(schema.partition_keys))
    if known is None:
        return None
    stored, types = StoredPartitions(schema), {f.name: f.type for f in schema.partition_fields}
    parts, listed, tested = [known], list[Selection](), list[Predicate]()
    while parts:
        part = parts.pop()
        if isinstance(part, AllOf):
            parts += part.parts
            continue
        values = _values(part, types)
        if values is None:
            tested.append(part)
        else:
            assert isinstance(part, Condition)
            listed.append(stored.selection([{part.column: value} for value in values]))
    rest = AllOf(tuple(tested))
    if tested:
        listed.append(partitions_that(partial(may_match, rest, types=types), schema))
    return _Combined(listed, all)


def either_of(first: Selection, second: Selection) -> Selection:
    """Return the partitions of two selections."""
    return _Combined((first, second), any)


def both_of(first: Selection, second: Selection) -> Selection:
    """Return the partitions that two selections have in common."""
    return _Combined((first, second), all)


def partitions_that(may_hold: MayHold, schema: TableSchema) -> Selection:
    """Return the partitions whose values pass a test."""
    return _Tested(schema, may_hold)


def _values(part: Predicate, types: Mapping[str, DataType]) -> list[Any] | None:
    """Return the values that a column is compared with for equality; None for another condition."""
    if not isinstance(part, Condition) or part.op not in ("=", "in"):
        return None
    data_type = types[part.column]
    if not isinstance(data_type, AtomicType) or data_type.root in ("FLOAT", "DOUBLE"):
        return None  # 0.0 = -0.0, which are two partitions
    try:
        found = [literal(v, data_type) for v in (part.value if part.op == "in" else (part.value,))]
    except (PaimonError, TypeError):
        return None  # of another type: only the engine knows how it compares
    return [v for v in found if v is not None]


class _Combined(Selection):
    """``how``: ``all`` or ``any``."""

    def __init__(self, parts: Sequence[Selection], how: Callable[[Iterable[bool]], bool]) -> None:
        self._parts, self._how = parts, how

    def __call__(self, stored: bytes) -> bool:
        return self._how(part(stored) for part in self._parts)

    def may_be_in(self, part: Bounded) -> bool:
        return self._how(selection.may_be_in(part) for selection in self._parts)


class _Tested(Selection):
    def __init__(self, schema: TableSchema, may_hold: MayHold) -> None:
        self._stored = StoredPartitions(schema)
        self._may_hold = may_hold
        self._known: dict[bytes, bool] = {}

    def __call__(self, stored: bytes) -> bool:
        if stored not in self._known:
            values = self._stored.values(stored)
            self._known[stored] = self._may_hold(dict(zip(self._stored.keys, map(exactly, values), strict=True)))
        return self._known[stored]

    def may_be_in(self, part: Bounded) -> bool:
        bounds = self._stored.bounds(part)
        if bounds is None:
            return True
        # an upper bound holds as well if it was cut off without being rounded up
        safe = (replace(b, high=b.high + "\U0010ffff" * _LONGEST) if isinstance(b.high, str) else b for b in bounds)
        return self._may_hold(dict(zip(self._stored.keys, safe, strict=True)))
