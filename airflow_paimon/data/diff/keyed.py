"""Compares two versions of a bucket of a primary-key table, both streamed in key order, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.visibility import is_clustered
from airflow_paimon.data.files.arrow_types import holds_floats
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import ReadSplit, TableRead

_LONGEST_TEXT = 200


def json_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON objects: times in ISO form, decimals as text, bytes in hex, long texts truncated."""
    columns = {name: _printable(rows.column(name)).to_pylist() for name in rows.schema.names}
    names = list(columns)
    return [
        {name: json_value(value) for name, value in zip(names, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def _printable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Use Arrow's text, as Python's dates have no nanoseconds and no year 0."""
    if pa.types.is_temporal(column.type):
        return column.cast(pa.string())
    if pa.types.is_nested(column.type):
        return column.cast(_texts(column.type))
    return column


def _texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([f.with_type(_texts(f.type)) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_texts(kind.key_type)), _texts(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_texts(kind.value_type)))
    return kind


def json_value(value: Any) -> Any:
    """Convert a value to a JSON type."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[: _LONGEST_TEXT - 1] + "…"
    if isinstance(value, bytes):
        return json_value("0x" + value.hex())
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RowDifferences:
    """Counts of rows by kind, and the first few as JSON values; a changed row is ``{before, after}``."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def sample(self, kind: str, limit: int, rows: Callable[[int], list[dict[str, Any]]]) -> None:
        """Add sample rows of a kind; ``rows(n)`` returns the first n of them."""
        kept = self.samples.setdefault(kind, [])
        if len(kept) < limit:
            kept += rows(limit - len(kept))

    def sample_changed(self, limit: int, before: pa.RecordBatch | pa.Table, after: pa.RecordBatch | pa.Table) -> None:
        """Add samples of changed rows, which stand in the same places of both."""

        def pairs(count: int) -> list[dict[str, Any]]:
            both = zip(json_rows(before.slice(0, count)), json_rows(after.slice(0, count)), strict=True)
            return [{"before": old, "after": new} for old, new in both]

        if before.num_rows:
            self.sample("changed", limit, pairs)

    def add(self, other: RowDifferences, limit: int) -> None:
        """Add the findings of other buckets of the same partition."""
        self.added += other.added
        self.changed += other.changed
        self.deleted += other.deleted
        self.unchanged += other.unchanged
        for kind, found in other.samples.items():
            self.sample(kind, limit, lambda n, found=found: found[:n])  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedComparison:
    """The common parameters of all units. ``before`` and ``after`` read the same columns in the same order."""

    keys: tuple[str, ...]
    before: TableRead
    after: TableRead
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonUnit:
    """The unit of comparison: a bucket, or a partition whose number of buckets differs between the two sides."""

    values: tuple[Any, ...]
    before: tuple[ReadSplit, ...]
    after: tuple[ReadSplit, ...]


class MatchedRows(NamedTuple):
    """A stretch of keys: rows that only one side has, and those that both have, in the same order."""

    deleted: pa.RecordBatch | None = None
    added: pa.RecordBatch | None = None
    before: pa.RecordBatch | None = None
    after: pa.RecordBatch | None = None


def compare_unit(comparison: KeyedComparison, unit: ComparisonUnit) -> RowDifferences:
    """Compare both sides' rows by key."""
    found = RowDifferences()
    for rows in _matched_rows(comparison, unit):
        if rows.deleted is not None:
            _take_all(found, "deleted", rows.deleted, comparison)
        if rows.added is not None:
            _take_all(found, "added", rows.added, comparison)
        if rows.before is not None and rows.after is not None:
            _compare_pairs(found, rows.before, rows.after, comparison)
    return found


class DifferingRows(NamedTuple):
    """Rows that are ``added``, ``changed`` or ``deleted``: as they are now, or were if deleted.

    ``before``: as they were, None of added ones.
    """

    change: str
    rows: pa.RecordBatch
    before: pa.RecordBatch | None


def differing_rows(comparison: KeyedComparison, unit: ComparisonUnit) -> Iterator[DifferingRows]:
    """Return the rows that ``compare_unit`` counts as added, changed or deleted, in bounded memory."""
    for rows in _matched_rows(comparison, unit):
        if rows.deleted is not None:
            yield DifferingRows("deleted", rows.deleted, rows.deleted)
        if rows.added is not None:
            yield DifferingRows("added", rows.added, None)
        if rows.before is not None and rows.after is not None:
            at = np.flatnonzero(changed_rows(rows.before, rows.after, comparison.keys))
            if len(at):
                changed = pa.array(at)
                yield DifferingRows("changed", rows.after.take(changed), rows.before.take(changed))


def _matched_rows(comparison: KeyedComparison, unit: ComparisonUnit) -> Iterator[MatchedRows]:
    """Match both sides' rows by key, in bounded memory."""
    old, new = (
        _SortedRows(comparison.before, unit.before, comparison),
        _SortedRows(comparison.after, unit.after, comparison),
    )
    while True:
        old.fill()
        new.fill()
        if old.batch is None and new.batch is None:
            return
        if new.batch is None:
            yield MatchedRows(deleted=old.cut(old.rows))
        elif old.batch is None:
            yield MatchedRows(added=new.cut(new.rows))
        else:
            yield _match_step(old, new)


class _SortedRows:
    """One side: the rest of its current batch, and the source of the next."""

    def __init__(self, read: TableRead, splits: Sequence[ReadSplit], comparison: KeyedComparison) -> None:
        self._source = _sorted_rows(read, splits, comparison.keys)
        self._keys = comparison.keys
        self.batch: pa.RecordBatch | None = None

    @property
    def rows(self) -> int:
        return 0 if self.batch is None else int(self.batch.num_rows)

    @property
    def key_columns(self) -> list[pa.Array]:
        assert self.batch is not None
        return [self.batch.column(name) for name in self._keys]

    def fill(self) -> None:
        while not self.rows:
            self.batch = next(self._source, None)
            if self.batch is None:
                return

    def cut(self, count: int) -> pa.RecordBatch:
        """Remove the first rows."""
        assert self.batch is not None
        head, self.batch = self.batch.slice(0, count), self.batch.slice(count)
        return head


def _sorted_rows(read: TableRead, splits: Sequence[ReadSplit], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of one bucket are sorted, section after section. Several buckets must be sorted in memory, and clustered
    files, which are sorted by other columns.
    """
    if len(splits) == 1 and not is_clustered(read.schema):
        yield from read_split(read, splits[0])
        return
    batches = [b for s in splits for b in read_split(read, s) if b.num_rows]
    if batches:
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        order = np.argsort(sort_keys([[whole.column(k) for k in keys]])[0], kind="stable")
        yield whole.take(pa.array(order))


def _take_all(found: RowDifferences, kind: str, rows: pa.RecordBatch, comparison: KeyedComparison) -> None:
    setattr(found, kind, getattr(found, kind) + rows.num_rows)
    found.sample(kind, comparison.sample, lambda n: json_rows(rows.slice(0, n)))


def _match_step(old: _SortedRows, new: _SortedRows) -> MatchedRows:
    """Match up to the lower of the two last keys, up to which both sides are complete."""
    old_keys, new_keys = sort_keys([old.key_columns, new.key_columns])
    end = min(old_keys[-1], new_keys[-1])
    old_count = int(np.searchsorted(old_keys, end, side="right"))
    new_count = int(np.searchsorted(new_keys, end, side="right"))
    before, after = old.cut(old_count), new.cut(new_count)
    old_keys, new_keys = old_keys[:old_count], new_keys[:new_count]
    at = np.searchsorted(new_keys, old_keys)
    hit = np.zeros(old_count, bool)
    inside = at < new_count
    hit[inside] = new_keys[at[inside]] == old_keys[inside]
    fresh = np.ones(new_count, bool)
    fresh[at[hit]] = False
    gone = np.flatnonzero(~hit)
    return MatchedRows(
        deleted=before.take(pa.array(gone)) if len(gone) else None,
        added=after.take(pa.array(np.flatnonzero(fresh))) if fresh.any() else None,
        before=_rows(before, np.flatnonzero(hit)),
        after=_rows(after, at[hit]),
    )


def _rows(batch: pa.RecordBatch, at: Indices) -> pa.RecordBatch:
    return batch if len(at) == batch.num_rows else batch.take(pa.array(at))


def _compare_pairs(
    found: RowDifferences, before: pa.RecordBatch, after: pa.RecordBatch, comparison: KeyedComparison
) -> None:
    at = np.flatnonzero(changed_rows(before, after, comparison.keys))
    found.changed += len(at)
    found.unchanged += before.num_rows - len(at)
    some = pa.array(at[: comparison.sample])
    found.sample_changed(comparison.sample, before.take(some), after.take(some))


def changed_rows(before: pa.RecordBatch, after: pa.RecordBatch, keys: Sequence[str]) -> Mask:
    """Return row by row whether two rows with equal keys differ in another column, see ``differs``."""
    changed = np.zeros(before.num_rows, bool)
    for name in (n for n in before.schema.names if n not in keys):
        changed |= differs(before.column(name), after.column(name))
    return changed


def differs(one: pa.Array, other: pa.Array) -> Mask:
    """Return row by row whether two columns differ. Null equals null, NaN equals NaN, -0.0 differs from 0.0."""
    if not holds_floats(one.type) and one.equals(other):  # equals() treats -0.0 as 0.0
        return np.zeros(len(one), bool)
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([in_order(a, one.type) != in_order(b, one.type) for a, b in pairs], bool)
    null = _mask(one.is_null()), _mask(other.is_null())
    if pa.types.is_floating(one.type):
        bits = pa.int32() if pa.types.is_float32(one.type) else pa.int64()
        unequal = _mask(pc.not_equal(one.view(bits), other.view(bits)))
        unequal &= ~(_mask(pc.is_nan(one)) & _mask(pc.is_nan(other)))
    else:
        unequal = _mask(pc.not_equal(one, other))
    out: Mask = (null[0] != null[1]) | (unequal & ~null[0] & ~null[1])
    return out


def _mask(values: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)


def in_order(value: Any, kind: pa.DataType) -> str:
    """Write a nested value so that equal ones have equal texts: pairs of a map have no order."""
    if value is None or not pa.types.is_nested(kind):
        return repr(value)
    if pa.types.is_map(kind):
        pairs = [(in_order(k, kind.key_type), in_order(v, kind.item_type)) for k, v in value]
        return repr(sorted(pairs))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return repr([in_order(value[f.name], f.type) for f in fields])
    return repr([in_order(v, kind.value_type) for v in value])
