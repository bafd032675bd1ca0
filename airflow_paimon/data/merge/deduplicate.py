"""Merges the sorted runs of a section as the deduplicate engine does, in bounded memory (docs/format.md, Merging).

Of the rows of one key the last by (user-defined sequence fields, sequence number) wins; if it is a delete, the key is
gone. With partial updates every column keeps its last value that is not null. All runs are advanced together: rows up
to the lowest end of the current batches are complete in all runs, so they are removed from all of them, merged with
numpy, and returned in key order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.merge.sort_keys import Keys, are_stable, order_values, sort_keys

Indices = npt.NDArray[np.int64]

CHAIN_POSITION = "_CHAIN_POSITION"
"""A column added only by chain reads: the position of a row's partition in the chain, the anchor first. It decides ties
of the sequence fields, because sequence numbers of different partitions are not comparable."""
UPDATE_BEFORE = 1
DELETE = 3
"""``_VALUE_KIND``: 0 +I, 1 -U, 2 +U, 3 -D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """The rules for merging versions of a key.

    Batches carry ``keys``, ``sequence``, ``_SEQUENCE_NUMBER``, ``_VALUE_KIND`` and values. Without sequence numbers the
    later run is the newer one; without kinds there are no deletes. ``keep_deletes``: the result will be merged again,
    so deletes must still hide rows that are older by their sequence fields. ``partial_update``: the merge engine;
    ``remove_on_delete``: -D removes the row there, instead of being refused.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    descending: bool = False
    ignore_delete: bool = False
    keep_deletes: bool = False
    partial_update: bool = False
    remove_on_delete: bool = False


def merge_rules(schema: TableSchema) -> MergeRules:
    """Return the merge rules of a table."""
    options = TableOptions(schema.options)
    return MergeRules(
        keys=schema.trimmed_primary_keys,
        sequence=options.sequence_fields,
        descending=options.sequence_descending,
        ignore_delete=options.ignore_delete,
        partial_update=options.merge_engine == "partial-update",
        remove_on_delete=options.flag("partial-update.remove-record-on-delete"),
    )


def is_retract(kinds: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which rows are -U or -D."""
    values = np.asarray(kinds.to_numpy(zero_copy_only=False))
    retract: npt.NDArray[np.bool_] = (values == UPDATE_BEFORE) | (values == DELETE)
    return retract


def drop_retracts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are not -U or -D."""
    if VALUE_KIND not in batch.schema.names:
        return batch
    retract = is_retract(batch.column(VALUE_KIND))
    return batch.filter(pa.array(~retract)) if retract.any() else batch


def merge_runs(runs: Sequence[Iterator[pa.RecordBatch]], rules: MergeRules) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs, oldest first, into batches of live rows in key order. One batch of each run is in memory.

    Raises:
        FormatError: a run is not sorted by the key.
    """
    for slices, keys in align_runs(runs, rules):
        merged = merge_slices(slices, keys, rules)
        if merged.num_rows:
            yield merged


def align_runs(
    runs: Sequence[Iterator[pa.RecordBatch]], rules: MergeRules
) -> Iterator[tuple[list[pa.RecordBatch], list[Keys]]]:
    """Divide sorted runs into slices, with their keys, each with all versions of its keys, in key order.

    Raises:
        FormatError: a run is not sorted by the key.
    """
    inputs = [_Input(run, rules) for run in runs]
    while True:
        for one in inputs:
            one.fill()
        inputs = [one for one in inputs if one.rows]
        if not inputs:
            return
        for one, own in zip(inputs, _keys_of(inputs, rules), strict=True):
            one.take_keys(own)
        open_ends = [one.keys[-1] for one in inputs if not one.exhausted]
        slices: list[pa.RecordBatch] = []
        keys: list[Keys] = []
        for one in inputs:
            count = one.rows if not open_ends else int(np.searchsorted(one.keys, min(open_ends), side="right"))
            if count:
                batch, part = one.cut(count)
                slices.append(batch)
                keys.append(part)
        yield slices, keys


def _keys_of(inputs: Sequence[_Input], rules: MergeRules) -> list[Keys]:
    columns = [[one.batch.column(name) for name in rules.keys] for one in inputs]
    if not are_stable(columns[0]):
        return sort_keys(columns)
    return [sort_keys([own])[0] if one.is_new else one.keys for one, own in zip(inputs, columns, strict=True)]


class _Input:
    """One run: the rest of its current batch, and the source of the next."""

    def __init__(self, run: Iterator[pa.RecordBatch], rules: MergeRules) -> None:
        self._source = run
        self._rules = rules
        self._end: list[pa.Array] = []
        self.batch: pa.RecordBatch = None
        self.keys: Keys = np.empty(0)
        self.exhausted = False
        self.is_new = False

    @property
    def rows(self) -> int:
        return 0 if self.batch is None else int(self.batch.num_rows)

    def fill(self) -> None:
        """Get the next non-empty batch when the current one is used up."""
        while not self.rows and not self.exhausted:
            self.batch = next(self._source, None)
            self.exhausted = self.batch is None
            self.is_new = True
            if self.batch is not None and self._rules.ignore_delete:
                self.batch = drop_retracts(self.batch)
            if self.rows:
                self._check_follows()

    def _check_follows(self) -> None:
        """Refuse a key that is not above those already merged: it would be merged without its other versions."""
        columns = [self.batch.column(name) for name in self._rules.keys]
        if self._end:
            before, after = sort_keys([self._end, [c.slice(0, 1) for c in columns]])
            if not before[0] < after[0]:
                raise _unsorted()
        self._end = [c.slice(self.rows - 1) for c in columns]

    def take_keys(self, keys: Keys) -> None:
        """Store the keys of the rest of the batch."""
        self.keys = keys
        if self.is_new and (keys[1:] < keys[:-1]).any():
            raise _unsorted()
        self.is_new = False

    def cut(self, count: int) -> tuple[pa.RecordBatch, Keys]:
        """Remove the first rows."""
        head, part = self.batch.slice(0, count), self.keys[:count]
        self.batch, self.keys = self.batch.slice(count), self.keys[count:]
        return head, part


def _unsorted() -> FormatError:
    return FormatError(
        "A data file is not sorted by the primary key, so it can't be merged (another engine's clustering, or a "
        "corrupt file); run check_table"
    )


def merge_slices(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], rules: MergeRules) -> pa.RecordBatch:
    """Merge sorted pieces that hold all versions of all their keys."""
    if len(slices) == 1 and not _has_twins(keys[0]):
        return slices[0] if rules.keep_deletes else drop_retracts(slices[0])
    if rules.partial_update:
        return fold_versions(slices, np.concatenate(keys), rules)
    winners = pick_winners(slices, np.concatenate(keys), rules)
    if VALUE_KIND in slices[0].schema.names and not rules.keep_deletes:
        retract = is_retract(gather([s.column(VALUE_KIND) for s in slices], winners))
        winners = winners[~retract] if retract.any() else winners
    columns = [gather([s.column(i) for s in slices], winners) for i in range(slices[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=slices[0].schema)


def _has_twins(keys: Keys) -> bool:
    return bool((keys[1:] == keys[:-1]).any())


def pick_winners(slices: Sequence[pa.RecordBatch], keys: Keys, rules: MergeRules, *, presorted: bool = True) -> Indices:
    """Return, in key order, the position (in the slices concatenated) of the winning row of every key.

    If all else is equal, an insert wins over a retract, then the later position wins. ``presorted``: each slice is
    sorted by key (only faster).
    """
    order = np.argsort(keys, kind="stable" if presorted else None)
    ordered = keys[order]
    twins = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(twins):
        return order
    is_start = np.ones(len(order), bool)
    is_start[twins + 1] = False
    starts = np.flatnonzero(is_start)
    winners: Indices = order[starts]
    is_contested = ~is_start
    is_contested[twins] = True
    contested = np.flatnonzero(is_contested)
    rows, group = order[contested], np.searchsorted(starts, contested, side="right") - 1
    ranked = np.lexsort([*_precedence(slices, rows, rules)[::-1], group])
    last = np.flatnonzero(np.append(group[ranked][1:] != group[ranked][:-1], True))
    winners[group[ranked][last]] = rows[ranked][last]
    return winners


def fold_versions(slices: Sequence[pa.RecordBatch], keys: Keys, rules: MergeRules) -> pa.RecordBatch:
    """Return one row per key, in key order: in every column the last value that is not null.

    -U changes nothing; -D removes what came before it.

    Raises:
        UnsupportedFeatureError: there are deletes, and no option of the table defines their meaning.
    """
    if rules.keep_deletes:
        raise UnsupportedFeatureError("Rows of merge-engine=partial-update can't be rewritten by the embedded engine")
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_start = np.append(True, ordered[1:] != ordered[:-1])
    group, starts = np.cumsum(is_start) - 1, np.flatnonzero(is_start)
    ranked = order[np.lexsort([*_precedence(slices, order, rules)[::-1], group])]
    position = np.arange(len(ranked))
    usable = np.ones(len(ranked), bool)
    if VALUE_KIND in slices[0].schema.names:
        kinds = gather([s.column(VALUE_KIND) for s in slices], ranked)
        retract = is_retract(kinds)
        if retract.any() and not rules.remove_on_delete:
            raise UnsupportedFeatureError(
                "Partial updates hold deletes: set the table option partial-update.remove-record-on-delete or "
                "ignore-delete, which define their meaning"
            )
        removed = np.where(np.asarray(kinds.to_numpy(zero_copy_only=False)) == DELETE, position, -1)
        usable = ~retract & (position > np.maximum.reduceat(removed, starts)[group])
    live = np.logical_or.reduceat(usable, starts)
    columns = []
    for i in range(slices[0].num_columns):
        column = gather([s.column(i) for s in slices], ranked)
        valid = usable & np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
        last = np.maximum.reduceat(np.where(valid, position, -1), starts)[live]
        columns.append(pc.take(column, pa.array(last, mask=last < 0)))
    return pa.RecordBatch.from_arrays(columns, schema=slices[0].schema)


def _precedence(slices: Sequence[pa.RecordBatch], rows: Indices, rules: MergeRules) -> list[Any]:
    """Return arrays, most significant first, by which the greatest row of a key wins."""
    out: list[Any] = []
    for name in rules.sequence:
        out += order_values(gather([s.column(name) for s in slices], rows), rules.descending)
    names = slices[0].schema.names
    if CHAIN_POSITION in names:
        out.append(gather([s.column(CHAIN_POSITION) for s in slices], rows).to_numpy(zero_copy_only=False))
    if SEQUENCE_NUMBER in names:
        out.append(gather([s.column(SEQUENCE_NUMBER) for s in slices], rows).to_numpy(zero_copy_only=False))
        if VALUE_KIND in names:
            out.append(~is_retract(gather([s.column(VALUE_KIND) for s in slices], rows)))
    out.append(rows)
    return out


def gather(pieces: Sequence[pa.Array], rows: Indices) -> pa.Array:
    """Return the rows at these positions of the pieces concatenated."""
    whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return pc.take(whole, pa.array(rows), boundscheck=False)
