"""Partitions as manifests store them: decoded, compared, spelled, and selected by manifest statistics. Pure.

One partition can be stored in several forms (nulls before Paimon 1.1, NaN), so only ``canonical`` and ``identity``
may be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.partitions import comparable, encode_partition, format_partition

T = TypeVar("T")

# Types whose bounds compare in Python as in every engine. Floats don't (NaN, -0.0), and bytes have no bounds.
_PRUNABLE = frozenset((
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "CHAR", "VARCHAR", "STRING", "DECIMAL", "DATE", "TIME",
    "TIMESTAMP", "TIMESTAMP_LTZ",
))  # fmt: skip


class Selection(Protocol):
    """Some partitions of a table."""

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected."""

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether a manifest can hold entries of a selected partition. True if unknown."""


def partition_types(schema: TableSchema) -> tuple[DataType, ...]:
    """Return the types of the partition columns, in partition-key order."""
    return tuple(f.type for f in schema.partition_fields)


class StoredPartitions:
    """The one decoder of a table's stored partitions. Decodes each once."""

    def __init__(self, schema: TableSchema) -> None:
        self.keys = schema.partition_keys
        self.types = partition_types(schema)
        self.values: Callable[[bytes], tuple[Any, ...]] = _once(lambda stored: decode_row(stored, self.types))
        """Return the values, in partition-key order."""
        self.identity: Callable[[bytes], tuple[Any, ...]] = _once(lambda p: tuple(map(comparable, self.values(p))))
        """Return a key that is equal for all stored forms of one partition, and only for those."""
        self.canonical: Callable[[bytes], bytes] = _once(self._canonical)
        """Return the canonical stored form, the one that this package writes."""

    def text(self, stored: bytes) -> str:
        """Format a partition for people: ``dt=2025-01-01/h=3``; empty for a table without partitions."""
        return format_partition(self.values(stored), self.keys, self.types)

    def selection(self, specs: Iterable[Mapping[str, Any]]) -> PartitionSelection:
        """Select partitions by typed values of some or all of their columns. No spec selects nothing."""
        at = {key: i for i, key in enumerate(self.keys)}
        return PartitionSelection(self, [{at[key]: value for key, value in spec.items()} for spec in specs])

    def those(self, stored: Iterable[bytes]) -> PartitionSelection:
        """Select exactly these."""
        found = {self.identity(p): self.values(p) for p in stored}  # 0.0 and -0.0 are equal values
        return PartitionSelection(self, [dict(enumerate(values)) for values in found.values()])

    def where(self, test: Callable[[tuple[Any, ...]], bool]) -> Selection:
        """Select by any test of the values. It skips no manifest: use it where ``selection`` can't express the test."""
        return _Tested(_once(lambda stored: test(self.values(stored))))

    def _canonical(self, stored: bytes) -> bytes:
        return encode_partition(self.values(stored), self.types) if self.types else stored


def _once(function: Callable[[bytes], T]) -> Callable[[bytes], T]:
    known: dict[bytes, T] = {}

    def look_up(stored: bytes) -> T:
        if stored not in known:
            known[stored] = function(stored)
        return known[stored]

    return look_up


class _Tested:
    def __init__(self, test: Callable[[bytes], bool]) -> None:
        self._test = test

    def __call__(self, stored: bytes) -> bool:
        return self._test(stored)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        return True


class PartitionSelection:
    """Partitions by values of their columns; whole manifests are excluded by their statistics.

    ``specs``: position of a partition column -> its value; a partition is selected if it agrees with all of one spec.
    """

    def __init__(self, partitions: StoredPartitions, specs: Sequence[Mapping[int, Any]]) -> None:
        self._partitions = partitions
        self._specs = specs
        self._by_columns: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}
        for spec in specs:
            columns = tuple(sorted(spec))
            self._by_columns.setdefault(columns, set()).add(tuple(comparable(spec[i]) for i in columns))

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected."""
        identity = self._partitions.identity(stored)
        return any(tuple(identity[i] for i in columns) in found for columns, found in self._by_columns.items())

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """See ``Selection``."""
        if not self._specs:
            return False
        types = self._partitions.types
        try:
            low = decode_row(manifest.partition_stats.min_values, types)
            high = decode_row(manifest.partition_stats.max_values, types)
        except PaimonError:
            return True  # other columns, or values that we don't know
        nulls = manifest.partition_stats.null_counts or ()
        counts = nulls if len(nulls) == len(types) else (None,) * len(types)
        return all(wanted.may_hold(low[i], high[i], counts[i]) for i, wanted in self._wanted.items())

    @cached_property
    def _wanted(self) -> dict[int, _Wanted]:
        """By column: the values of the selected partitions; without the columns that some spec leaves out."""
        types = self._partitions.types
        fixed = set(range(len(types))).intersection(*(spec.keys() for spec in self._specs))
        roots = {i: t.root for i in fixed if isinstance(t := types[i], AtomicType)}
        return {i: _Wanted([s[i] for s in self._specs]) for i, root in roots.items() if root in _PRUNABLE}


class _Wanted:
    """The values of one partition column to look for."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._null = any(v is None for v in values)
        self._sorted = sorted({v for v in values if v is not None})

    def may_hold(self, low: Any, high: Any, nulls: int | None) -> bool:
        """Whether rows within these bounds can have one of the values. ``nulls``: how many are null, None = unknown."""
        if low is None or high is None or (self._null and nulls != 0):
            return True
        at = bisect_left(self._sorted, low)
        if at == len(self._sorted):
            return False
        value = self._sorted[at]
        # An upper bound that was truncated without rounding up is a prefix of the real bound.
        at_high = bisect_left(self._sorted, high)
        cut = self._sorted[at_high] if at_high < len(self._sorted) and isinstance(high, str) else None
        return bool(value <= high) or (cut is not None and cut.startswith(high))
