"""Stored partitions: how they are compared and named, and which of them, or of their buckets, are selected. Pure.

One partition can be stored in several forms (nulls before Paimon 1.1, NaN), so only what ``StoredPartitions`` gives for
it may be compared. Entries keep the stored form: Java finds the file that a DELETE is of, and the deletion vectors of a
file, by these bytes. See docs/contributing/format.md, Partition folders.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.manifest_blocks import Bounded, EntryFilter, ManifestBlock
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_values import encode_partition, format_partition, named_value
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

K = TypeVar("K")
T = TypeVar("T")

# Types whose bounds compare in Python as in every engine. Floats don't (NaN, -0.0), nor CHARs (blanks at the end), and
# bytes have no bounds.
_PRUNABLE = frozenset((
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "VARCHAR", "STRING", "DECIMAL", "DATE", "TIME", "TIMESTAMP",
    "TIMESTAMP_LTZ",
))  # fmt: skip


Selection = EntryFilter
"""Some partitions of a table, or some of their buckets."""


class InBucket(Protocol):
    """What lies in a bucket: a file, a split, an index entry, a message of a commit."""

    @property
    def partition(self) -> bytes: ...

    @property
    def bucket(self) -> int: ...


class Counted(InBucket, Protocol):
    """A file, or files, of a bucket."""

    @property
    def total_buckets(self) -> int: ...


ALL_BUCKETS = -1
B = TypeVar("B", bound=InBucket)
BucketOf = Callable[[InBucket], BucketKey]
"""``StoredPartitions.bucket`` of a table's schema."""


class StoredPartitions:
    """The one decoder of a table's stored partitions. Decodes each once."""

    def __init__(self, schema: TableSchema) -> None:
        self.keys = schema.partition_keys
        self.types = schema.partition_types
        self.values: Callable[[bytes], tuple[Any, ...]] = _once(lambda stored: decode_row(stored, self.types))
        """Return the values, in partition-key order."""
        self.named: Callable[[bytes], tuple[Any, ...]] = _once(
            lambda p: tuple(map(named_value, self.values(p), self.types))
        )
        """Return a key that is equal for all partitions that a user names by the same values."""
        self.canonical: Callable[[bytes], bytes] = _once(lambda p: encode_partition(self.values(p), self.types))
        """Return the canonical form, which is equal for all stored forms of one partition, and only for those."""

    def bucket(self, one: InBucket) -> BucketKey:
        """Return the bucket of a file, an index entry or the like, by the partition's canonical form."""
        return BucketKey(self.canonical(one.partition), one.bucket)

    def by_bucket(self, some: Iterable[B]) -> dict[BucketKey, list[B]]:
        """Group by bucket, keeping the order."""
        groups: dict[BucketKey, list[B]] = {}
        for one in some:
            groups.setdefault(self.bucket(one), []).append(one)
        return groups

    def recounted(self, files: Iterable[Counted]) -> set[bytes]:
        """Return the partitions whose files have different numbers of buckets, so that buckets can't be compared one by
        one.
        """
        totals: dict[bytes, set[int]] = {}
        for one in files:
            totals.setdefault(self.canonical(one.partition), set()).add(one.total_buckets)
        return {partition for partition, counts in totals.items() if len(counts) > 1}

    def compared_by(self, files: Iterable[Counted]) -> BucketOf:
        """Return what gives the bucket by which two states with these files are compared: ``ALL_BUCKETS`` of a
        partition that is ``recounted``.
        """
        whole = self.recounted(files)

        def bucket_of(one: InBucket) -> BucketKey:
            bucket = self.bucket(one)
            return bucket._replace(bucket=ALL_BUCKETS) if bucket.partition in whole else bucket

        return bucket_of

    def bounds(self, part: Bounded) -> list[Bounds] | None:
        """Return the bounds of the values in a manifest or a part of one; None: of other columns, or values that we
        don't know.
        """
        stats = part.partition_stats
        try:
            low, high = self.values(stats.min_values), self.values(stats.max_values)
        except PaimonError:
            return None
        nulls = stats.null_counts or ()
        return list(map(Bounds, low, high, nulls if len(nulls) == len(self.types) else (None,) * len(self.types)))

    def text(self, stored: bytes) -> str:
        """Format a partition for people: ``dt=2025-01-01/h=3``; empty for a table without partitions."""
        return format_partition(self.values(stored), self.keys, self.types)

    def bucket_text(self, one: InBucket) -> str:
        """Format a bucket for people: ``dt=2025-01-01/bucket-3``."""
        return f"{self.text(one.partition)}/bucket-{one.bucket}".removeprefix("/")

    def selection(self, specs: Iterable[Mapping[str, Any]]) -> PartitionSelection:
        """Select partitions by typed values of some or all of their columns. No spec selects nothing."""
        at = {key: i for i, key in enumerate(self.keys)}
        wanted = [{at[key]: value for key, value in spec.items()} for spec in specs]
        by_columns: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}
        for spec in wanted:
            columns = tuple(sorted(spec))
            found = by_columns.setdefault(columns, set())
            found.add(tuple(named_value(spec[i], self.types[i]) for i in columns))

        def is_selected(stored: bytes) -> bool:
            own = self.named(stored)
            return any(tuple(own[i] for i in columns) in found for columns, found in by_columns.items())

        key = frozenset((columns, frozenset(found)) for columns, found in by_columns.items())
        return PartitionSelection(self, wanted, is_selected, key)

    def those(self, stored: Iterable[bytes]) -> PartitionSelection:
        """Select exactly these."""
        wanted = frozenset(map(self.canonical, stored))
        specs = [dict(enumerate(self.values(p))) for p in wanted]
        return PartitionSelection(self, specs, lambda p: self.canonical(p) in wanted, wanted)

    def manifests_with(self, stored: Iterable[bytes], buckets: Iterable[int]) -> Callable[[ManifestFile], bool]:
        """Return what tells whether a manifest can have entries of these partitions and buckets."""
        selection, numbers = self.those(stored), sorted(set(buckets))

        def may_hold(manifest: ManifestFile) -> bool:
            low, high = manifest.min_bucket, manifest.max_bucket
            if low is not None and high is not None and not any(low <= bucket <= high for bucket in numbers):
                return False
            return selection.may_be_in(manifest)

        return may_hold

    def where(self, test: Callable[[tuple[Any, ...]], bool]) -> Selection:
        """Select by any test of the values. It skips no manifest: use it where ``selection`` can't express the test."""
        return _Tested(_once(lambda stored: test(self.values(stored))))


def _once(function: Callable[[K], T]) -> Callable[[K], T]:
    known: dict[K, T] = {}

    def look_up(stored: K) -> T:
        if stored not in known:
            known[stored] = function(stored)
        return known[stored]

    return look_up


class _Tested(Selection):
    def __init__(self, test: Callable[[bytes], bool]) -> None:
        self._test = test

    def __call__(self, stored: bytes) -> bool:
        return self._test(stored)

    def may_be_in(self, part: Bounded) -> bool:
        return True


class PartitionSelection(Selection):
    """Partitions by values of their columns; whole manifests are excluded by their statistics.

    ``specs``: position of a partition column -> its value; a partition is selected if it agrees with all of one spec.
    ``key``: equal for selections of the same partitions of one table.
    """

    def __init__(
        self,
        partitions: StoredPartitions,
        specs: Sequence[Mapping[int, Any]],
        is_selected: Callable[[bytes], bool],
        key: Hashable,
    ) -> None:
        self._partitions = partitions
        self._specs = specs
        self._verdict = _once(is_selected)
        self.key = key

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected."""
        return self._verdict(stored)

    def may_be_in(self, part: Bounded) -> bool:
        """See ``Selection``."""
        if not self._specs:
            return False
        bounds = self._partitions.bounds(part)
        return bounds is None or all(wanted.may_hold(bounds[i]) for i, wanted in self._wanted.items())

    @cached_property
    def _wanted(self) -> dict[int, _Wanted]:
        """By column: the values of the selected partitions; without the columns that some spec leaves out."""
        types = self._partitions.types
        fixed = set(range(len(types))).intersection(*(spec.keys() for spec in self._specs))
        roots = {i: t.root for i in fixed if isinstance(t := types[i], AtomicType)}
        return {i: _Wanted([s[i] for s in self._specs]) for i, root in roots.items() if root in _PRUNABLE}


class BucketSelection(Selection):
    """Some buckets of some partitions.

    ``partitions``: None = all. ``buckets``: gives those that are selected where there are so many, None = all; in a
    table that was rescaled files have different numbers of buckets.
    """

    def __init__(self, partitions: Selection | None, buckets: Callable[[int], Collection[int] | None]) -> None:
        self._partitions = partitions
        self._buckets = _once(buckets)

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected, some buckets of it at least."""
        return self._partitions is None or self._partitions(stored)

    def holds(self, bucket: int, total_buckets: int) -> bool:
        """Whether a bucket is selected, out of ``total_buckets``."""
        wanted = self._buckets(total_buckets)
        return wanted is None or bucket in wanted

    def may_be_in(self, part: Bounded) -> bool:
        """See ``Selection``. Only a block tells how many buckets its files belong to."""
        if self._partitions is not None and not self._partitions.may_be_in(part):
            return False
        if not isinstance(part, ManifestBlock) or part.min_total_buckets != part.max_total_buckets:
            return True
        wanted = self._buckets(part.min_total_buckets)
        return wanted is None or any(part.min_bucket <= bucket <= part.max_bucket for bucket in wanted)


def selection_key(selection: Selection | None) -> Hashable | None:
    """Return a key by which to remember what was read of some partitions (None: of all); None: there is none."""
    if selection is None:
        return "all"
    return selection.key if isinstance(selection, PartitionSelection) else None


class _Wanted:
    """The values of one partition column to look for."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._null = any(v is None for v in values)
        self._sorted = sorted({v for v in values if v is not None})

    def may_hold(self, bounds: Bounds) -> bool:
        """Whether rows within these bounds can have one of the values."""
        low, high, nulls = bounds.low, bounds.high, bounds.nulls
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
    return _BoundsTested(schema, may_hold)


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


class _BoundsTested(Selection):
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
