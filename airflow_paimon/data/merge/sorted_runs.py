"""Sorts rows to be written into runs: each key once, in key order (docs/format.md, Data files)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.merge.engine import merge_slices, pick_winners
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.sort_keys import order_values, sort_keys
from airflow_paimon.data.merge.versions import DELETE, UPDATE_BEFORE, Indices

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
    if options.merge_engine != "deduplicate" and not options.chain_table:
        return [_merged_run(parts, schema, first_number)]
    keeps_all = options.merge_engine == "partial-update"
    runs = sorted_versions(parts, schema) if keeps_all else [sorted_run(parts, schema)]
    return [rows.append_column(SEQUENCE_NUMBER, pa.array(first_number + order)) for rows, order in runs]


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
            f"rows of kind {ROW_KINDS[int(kinds[refused[0]])]} have no meaning in a table with merge-engine={engine} "
            f"and its options; leave them out, or set an option that defines them, such as "
            f"{engine}.remove-record-on-delete, or ignore-retract for a column's aggregate function"
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


def sorted_run(parts: Sequence[Part], schema: TableSchema) -> tuple[pa.Table, Indices]:
    """Return the winning version of each key, sorted by key, and which row of the parts each one was.

    Later rows are newer. Each row is gathered once, in its final place.
    """
    order = run_order(deciding_rows(parts, schema), schema)
    return gathered(parts, order), order


def sorted_versions(parts: Sequence[Part], schema: TableSchema) -> list[tuple[pa.Table, Indices]]:
    """Like ``sorted_run``, but return all versions of a key, each in a run of its own: partial updates accumulate."""
    deciding = deciding_rows(parts, schema)
    kept = not_ignored(deciding, schema)
    if not len(kept):
        return []
    keys = sort_keys([[deciding.column(name) for name in merge_rules(schema).keys]])[0][kept]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.append(True, keys[order][1:] != keys[order][:-1]))
    version = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    chosen = [kept[order[version == at]] for at in range(int(version.max()) + 1)]
    return [(gathered(parts, rows), rows) for rows in chosen]


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


def run_order(rows: pa.RecordBatch, schema: TableSchema) -> Indices:
    """Return the rows of a sorted run, in its order: the winning version of each key.

    Later rows are newer. Deletes stay: they hide older versions elsewhere.
    """
    rules = merge_rules(schema)
    kept = not_ignored(rows, schema)
    if not len(kept):
        return kept
    if len(kept) < rows.num_rows:
        rows = rows.take(pa.array(kept))
    keys = sort_keys([[rows.column(name) for name in rules.keys]])[0]
    return kept[pick_winners([rows], keys, rules, presorted=False)]


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
