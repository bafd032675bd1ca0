"""Sorts rows to be written into runs, each key once, in key order: in memory, or with runs on the local disk.

See docs/contributing/format.md, Data files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError, naming_table
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.masking import masked_value
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.merge.engine import MergeRules, merge_slices
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import Run, align_runs, merge_runs, stored_run
from airflow_paimon.data.merge.sort_keys import Keys, order_values, sort_keys
from airflow_paimon.data.merge.versions import DELETE, UPDATE_BEFORE, Indices, gather

Part = tuple[pa.RecordBatch, Indices | None]
"""Rows of a batch: those at the indices, None = all."""


def runs_to_write(parts: Sequence[Part], schema: TableSchema, first_number: int) -> list[pa.Table]:
    """Return the runs that a writer makes of these rows, with the numbers of the rows from ``first_number`` on.

    Rows of one key are merged by the table's engine, as Paimon's writers merge their buffers. Partial updates of a
    chain table are not: a row may belong to a state that another partition holds.

    Raises:
        InvalidInputError: deletes, which the table's merge engine gives no meaning.
    """
    options = TableOptions(schema.options)
    keeps_all = options.chain_table and options.merge_engine == "partial-update"
    return _all_versions(parts, schema, first_number) if keeps_all else [_merged_run(parts, schema, first_number)]


def merges_in_parts(schema: TableSchema) -> bool:
    """Whether rows may be sorted in parts: the runs of several calls of ``runs_to_write``, merged, are what one call
    with all rows returns. Where values are computed it is not so: a sum over deletes, or of sums, can be another one.
    """
    return TableOptions(schema.options).merge_engine in ("deduplicate", "first-row")


def _merged_run(parts: Sequence[Part], schema: TableSchema, first_number: int) -> pa.Table:
    rules = replace(merge_rules(schema), keep_deletes=True)
    deciding = deciding_rows(parts, schema)
    kept = not_ignored(deciding, schema)
    check_kinds(deciding.column(VALUE_KIND).to_numpy()[kept], schema)
    order = np.argsort(sort_keys([[deciding.column(n) for n in rules.keys]])[0][kept], kind="stable")
    rows = gathered(parts, kept[order]).append_column(SEQUENCE_NUMBER, pa.array(first_number + kept[order]))
    slices = rows.to_batches()
    if not len(kept):
        return rows
    keys = sort_keys([[s.column(n) for n in rules.keys] for s in slices])
    return pa.Table.from_batches([merge_slices(slices, keys, rules)])


def check_kinds(kinds: npt.NDArray[np.int8], schema: TableSchema) -> None:
    """Refuse deletes to which the table's merge engine gives no meaning.

    Raises:
        InvalidInputError: names the kind.
    """
    refused = np.flatnonzero(np.isin(kinds, merge_rules(schema).engine.refused_kinds))
    if len(refused):
        engine = TableOptions(schema.options).merge_engine
        raise InvalidInputError(
            f"rows of kind {ROW_KINDS[int(kinds[refused[0]])]} have no meaning for merge-engine={engine} and the "
            "table's options; leave them out, or set an option that defines them, such as "
            f"{engine}.remove-record-on-delete, or ignore-retract for a column's aggregate"
        )


def changes_to_write(parts: Sequence[Part], schema: TableSchema, first_number: int) -> pa.Table:
    """Return what a writer tells streaming readers with ``changelog-producer=input``: all rows that the table's options
    don't ignore, not merged, by key and in the order in which they would be merged."""
    rules, deciding = merge_rules(schema), deciding_rows(parts, schema)
    kept = not_ignored(deciding, schema)
    if not len(kept):
        return gathered(parts, kept).append_column(SEQUENCE_NUMBER, pa.array(kept))
    found = deciding.take(pa.array(kept))
    ranks = np.unique(sort_keys([[found.column(n) for n in rules.keys]])[0], return_inverse=True)[1]
    values = [v for n in rules.sequence for v in order_values(found.column(n), rules.descending)]
    order = kept[np.lexsort([kept, *values[::-1], ranks])]
    return gathered(parts, order).append_column(SEQUENCE_NUMBER, pa.array(first_number + order))


def _all_versions(parts: Sequence[Part], schema: TableSchema, first_number: int) -> list[pa.Table]:
    """Return all versions of a key, each in a run of its own: partial updates accumulate."""
    deciding = deciding_rows(parts, schema)
    kept = not_ignored(deciding, schema)
    if not len(kept):
        return []
    keys = sort_keys([[deciding.column(name) for name in merge_rules(schema).keys]])[0][kept]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.append(True, keys[order][1:] != keys[order][:-1]))
    version = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    runs = [kept[order[version == at]] for at in range(int(version.max()) + 1)]
    return [gathered(parts, rows).append_column(SEQUENCE_NUMBER, pa.array(first_number + rows)) for rows in runs]


def deciding_rows(parts: Sequence[Part], schema: TableSchema) -> pa.RecordBatch:
    names = _deciding_columns(schema)
    small = pa.Table.from_batches([_picked(b.select(names), i) for b, i in parts]).combine_chunks()
    (deciding,) = small.to_batches() or [pa.RecordBatch.from_pylist([], schema=small.schema)]
    return deciding


def gathered(parts: Sequence[Part], order: Indices) -> pa.Table:
    starts = np.cumsum([0, *(b.num_rows for b, _ in parts)]).tolist()
    places = [start + (np.arange(b.num_rows) if i is None else i) for start, (b, i) in zip(starts, parts, strict=False)]
    return pa.Table.from_batches([b for b, _ in parts]).take(pa.array(np.concatenate(places)[order]))


def _picked(batch: pa.RecordBatch, indices: Indices | None) -> pa.RecordBatch:
    return batch if indices is None else batch.take(pa.array(indices))


def _deciding_columns(schema: TableSchema) -> list[str]:
    """Return the columns that decide which version of a key wins."""
    rules = merge_rules(schema)
    return [*dict.fromkeys((*rules.keys, *rules.sequence)), VALUE_KIND]


def not_ignored(rows: pa.RecordBatch, schema: TableSchema) -> Indices:
    """Return the rows that the table's options do not ignore; ignored rows are not written and create no partition."""
    options = TableOptions(schema.options)
    kinds = np.asarray(rows.column(VALUE_KIND).to_numpy())
    dropped = np.zeros(len(kinds), bool)
    if options.ignore_delete:
        dropped = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
    elif options.flag("ignore-update-before"):
        dropped = kinds == UPDATE_BEFORE
    return np.flatnonzero(~dropped)


SORT_BYTES = 128 << 20
"""Bytes held in memory before they are written to disk as sorted runs. Sorting briefly takes as much again."""


class RowSorter:
    """Takes rows of any buckets, as ``conform_rows`` returns them, and returns those of one bucket in key order.

    Each key may occur once per bucket; with ``combines`` the table's merge engine makes one row of those with one key,
    as Paimon's writers do. A context manager, which deletes the temporary files at its end.
    """

    def __init__(
        self, schema: TableSchema, label: str, limit_bytes: int = SORT_BYTES, *, combines: bool = False
    ) -> None:
        self._combines = combines
        self._numbers: dict[BucketKey, int] = {}
        self._schema = schema
        self._label = label
        self._limit = limit_bytes
        self._held: dict[BucketKey, list[Part]] = {}
        self._held_bytes = 0
        self._runs: dict[BucketKey, list[Run]] = {}
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, key: BucketKey, batch: pa.RecordBatch, indices: Indices | None) -> None:
        """Add the rows of a batch at ``indices``, None = all.

        Raises:
            InvalidInputError: a key occurs twice, or a delete to which the merge engine gives no meaning is combined.
        """
        self._held.setdefault(key, []).append((batch, indices))
        rows = batch.num_rows if indices is None else len(indices)
        self._held_bytes += batch.nbytes * rows // max(batch.num_rows, 1)
        if self._held_bytes >= self._limit:
            self._spill()

    def rows(self, key: BucketKey) -> Iterator[pa.RecordBatch]:
        """Return the rows of a bucket, without those that the table's options ignore.

        Raises:
            InvalidInputError: as ``add``.
        """
        runs = self._runs.pop(key, [])
        if parts := self._held.pop(key, None):
            runs.append(iter(self._sorted(key, parts)))
        if self._combines:
            for batch in merge_runs(runs, replace(merge_rules(self._schema), keep_deletes=True)):
                yield batch.drop_columns([SEQUENCE_NUMBER])
            return
        for slices, keys in align_runs(runs, MergeRules(keys=self._schema.trimmed_primary_keys)):
            merged = slices[0]
            if len(slices) > 1:
                together = np.concatenate(keys)
                order = np.argsort(together, kind="stable")
                columns = [gather([s.column(i) for s in slices], order) for i in range(merged.num_columns)]
                merged = pa.RecordBatch.from_arrays(columns, schema=merged.schema)
                self._check_unique(merged, together[order])
            kept = not_ignored(merged, self._schema)  # only now: a key that comes twice may lie in two runs
            yield merged if len(kept) == merged.num_rows else merged.take(pa.array(kept))

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="airflow-paimon-sort-")
        for key, parts in self._held.items():
            run = stored_run(Path(self._folder.name, f"{self._files}.arrow"), self._sorted(key, parts))
            self._files += 1
            self._runs.setdefault(key, []).append(run)
        self._held, self._held_bytes = {}, 0

    def _sorted(self, key: BucketKey, parts: list[Part]) -> list[pa.RecordBatch]:
        if self._combines:
            return self._combined(key, parts)
        deciding = deciding_rows(parts, self._schema)
        keys = sort_keys([[deciding.column(name) for name in self._schema.trimmed_primary_keys]])[0]
        order = np.argsort(keys, kind="stable")
        self._check_unique(deciding, keys[order], order)
        batches: list[pa.RecordBatch] = gathered(parts, order).to_batches(max_chunksize=RUN_ROWS)
        return batches

    def _combined(self, key: BucketKey, parts: list[Part]) -> list[pa.RecordBatch]:
        first = self._numbers.get(key, 0)
        self._numbers[key] = first + sum(b.num_rows if i is None else len(i) for b, i in parts)
        with naming_table(self._label):
            (run,) = runs_to_write(parts, self._schema, first)
        batches: list[pa.RecordBatch] = run.to_batches(max_chunksize=RUN_ROWS)
        return [b for b in batches if b.num_rows]

    def _check_unique(self, rows: pa.RecordBatch, keys: Keys, order: Indices | None = None) -> None:
        """Refuse two rows with the same key. ``keys`` are sorted."""
        twins = np.flatnonzero(keys[1:] == keys[:-1])
        if not len(twins):
            return
        row = int(twins[0] if order is None else order[twins[0]])
        names = self._schema.trimmed_primary_keys
        named = ", ".join(f"{n} = {masked_value(self._schema, n, rows.column(n)[row].as_py())}" for n in names)
        raise InvalidInputError(
            f"{self._label}: the rows hold a primary key more than once, such as {named}: each key must occur once, as "
            f"otherwise it is undefined which row wins"
        )


RUN_ROWS = 32_768
"""Rows of a batch of a run."""

_BATCH_BYTES = 4 << 20
"""Of a batch of wide rows: one of each run is in memory."""


class RunBuffer:
    """Takes runs as ``runs_to_write`` returns them and makes one of them, in bounded memory.

    ``limit_bytes``: of the runs in memory; when they exceed it, all of them are put on the local disk. ``close``
    deletes them there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._held or self._runs)

    def add(self, run: pa.Table) -> None:
        """Add a run that is newer than those before."""
        if not run.num_rows:
            return
        self._held.append(run)
        self._held_bytes += run.nbytes
        if self._held_bytes >= self._limit:
            self._spill()

    def merged(self, rules: MergeRules) -> Iterator[pa.RecordBatch]:
        """Return the rows of all runs in key order, each key once; deletes stay."""
        if not self._runs and len(self._held) == 1:
            yield from self._held[0].to_batches()
            return
        runs = [*self._runs, *(iter(_in_batches(run)) for run in self._held)]
        yield from merge_runs(runs, replace(rules, keep_deletes=True))

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._runs, self._held, self._held_bytes = None, [], [], 0

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="airflow-paimon-spill-")
        for run in self._held:
            self._runs.append(stored_run(Path(self._folder.name, f"{len(self._runs)}.arrow"), _in_batches(run)))
        self._held, self._held_bytes = [], 0


def _in_batches(run: pa.Table) -> list[pa.RecordBatch]:
    """Divide a run into batches small enough that one of each of many runs can be in memory."""
    wide = run.nbytes // run.num_rows + 1
    batches: list[pa.RecordBatch] = run.to_batches(max_chunksize=max(1, min(RUN_ROWS, _BATCH_BYTES // wide)))
    return batches
