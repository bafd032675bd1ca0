"""Reads chain tables: anchor and deltas of a bucket in one pass, merged once for each resulting partition.

The general merge sorts all rows. Here the many rows of the base are not sorted: winners are found among the changes,
then looked up in the base. A row's place in the chain decides ties of the sequence fields, before the internal sequence
numbers, which start again in every partition. Rows show the requested partition.

See docs/howto/chain-reads.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.types import DataField
from airflow_paimon.data.chain.splits import ChainSection, ChainSplit, ChainTarget, Inputs
from airflow_paimon.data.files.arrow_types import (
    SEQUENCE_FIELD,
    VALUE_KIND,
    VALUE_KIND_FIELD,
    repeated,
    replaced,
    with_partition,
)
from airflow_paimon.data.files.char_values import as_read
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.read import FileBatch
from airflow_paimon.data.merge.engine import MergeRules, merge_slices, pick_winners
from airflow_paimon.data.merge.overlay import overlaid
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import align_runs, merge_runs, runs_at_once
from airflow_paimon.data.merge.sections import Run
from airflow_paimon.data.merge.sort_keys import Keys, sort_keys
from airflow_paimon.data.merge.versions import CHAIN_POSITION, DELETE, Indices, gather, is_retract
from airflow_paimon.data.read import evolved_rows, filtered, load_deletions

Mask = npt.NDArray[np.bool_]


def merge_changes(
    base: Iterator[pa.RecordBatch] | None,
    changes: Sequence[Iterator[pa.RecordBatch]],
    parts: Sequence[int],
    rules: MergeRules,
    columns: Sequence[str],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of the target, live rows of it): for each target in key order, slice by slice of the key range.

    ``base`` is sorted, has unique keys and no deletes, and is at the chain's first position. The runs of ``changes``
    have ``CHAIN_POSITION`` and the other deciding columns; target ``t`` takes the rows with a position below
    ``parts[t]``. A change wins over a base row with equal sequence fields. Partial updates have no base. One batch of
    each input is in memory.

    Raises:
        FormatError: an input is not sorted by the key.
    """
    inputs = [*([base] if base is not None else []), *changes]
    with runs_at_once(inputs, rules) as few:
        for slices, keys in align_runs(few, rules):
            for target, width in enumerate(parts):
                rows = _rows_of(slices, keys, width, rules, columns)
                if rows.num_rows:
                    yield target, rows


def _rows_of(
    slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], width: int, rules: MergeRules, columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the rows of the target that takes the first ``width`` positions of the chain."""
    has_base = CHAIN_POSITION not in slices[0].schema.names
    rest, rest_keys = (slices[1:], keys[1:]) if has_base else (slices, keys)
    own, own_keys = _up_to(rest, rest_keys, width)
    if not own:
        return slices[0].select(columns).slice(0, None if has_base else 0)
    if has_base:
        return _overlay(slices[0], keys[0], own, own_keys, rules, columns)
    return merge_slices(own, own_keys, rules).select(columns)


def _up_to(
    slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], width: int
) -> tuple[list[pa.RecordBatch], list[Keys]]:
    """Return the rows at the first ``width`` positions of the chain."""
    own_slices, own_keys = [], []
    for one, own in zip(slices, keys, strict=True):
        mask = np.asarray(one.column(CHAIN_POSITION).to_numpy()) < width
        if mask.any():
            own_slices.append(one if mask.all() else one.filter(pa.array(mask)))
            own_keys.append(own if mask.all() else own[mask])
    return own_slices, own_keys


def _overlay(
    base: pa.RecordBatch,
    base_keys: Keys,
    slices: Sequence[pa.RecordBatch],
    keys: Sequence[Keys],
    rules: MergeRules,
    columns: Sequence[str],
) -> pa.RecordBatch:
    all_keys = np.concatenate(keys)
    winners = pick_winners(slices, all_keys, rules)
    at = np.searchsorted(base_keys, all_keys[winners])
    hit = base_keys[np.minimum(at, len(base_keys) - 1)] == all_keys[winners]
    retract = _retracts(slices, winners)
    wins = np.ones(len(winners), bool)
    hits = np.flatnonzero(hit)
    if len(hits):
        wins[hits] = _not_older(slices, winners[hits], base, at[hits], rules)
    put = wins & ~retract
    columns_of = [s.select(columns) for s in slices]
    picked, gone = _picked(columns_of, winners[put]), at[wins & retract & hit]
    return overlaid(base.select(columns), picked, at[put], replaces=hit[put], gone=gone)


def _retracts(slices: Sequence[pa.RecordBatch], rows: Indices) -> Mask:
    if VALUE_KIND not in slices[0].schema.names:
        return np.zeros(len(rows), bool)
    return is_retract(gather([s.column(VALUE_KIND) for s in slices], rows))


def _not_older(
    slices: Sequence[pa.RecordBatch], rows: Indices, base: pa.RecordBatch, base_rows: Indices, rules: MergeRules
) -> Mask:
    """Return for pairs of a change and a base row whether the change's sequence fields are at least as high."""
    wins: Mask = np.zeros(len(rows), bool)
    tied: Mask = np.ones(len(rows), bool)
    for name in rules.sequence:
        ours = gather([s.column(name) for s in slices], rows)
        theirs = pc.take(base.column(name), pa.array(base_rows), boundscheck=False)
        higher, lower = _compared(ours, theirs, rules.descending)
        wins |= tied & higher
        tied &= ~higher & ~lower
        if not tied.any():
            break
    return wins | tied


def _compared(ours: pa.Array, theirs: pa.Array, descending: bool) -> tuple[Mask, Mask]:
    """Return where ours is higher and where it is lower; null is lowest in both sort directions."""
    has_ours = np.asarray(ours.is_valid().to_numpy(zero_copy_only=False))
    has_theirs = np.asarray(theirs.is_valid().to_numpy(zero_copy_only=False))
    both = has_ours & has_theirs
    if not both.all():
        chosen = pa.array(both)
        ours, theirs = ours.filter(chosen), theirs.filter(chosen)
    higher, lower = has_ours & ~has_theirs, has_theirs & ~has_ours
    if len(ours):
        our_keys, their_keys = sort_keys([[ours], [theirs]])
        above, below = our_keys > their_keys, our_keys < their_keys
        higher[both], lower[both] = (below, above) if descending else (above, below)
    return higher, lower


def _picked(pieces: Sequence[pa.RecordBatch], rows: Indices) -> pa.RecordBatch:
    columns = [gather([p.column(i) for p in pieces], rows) for i in range(pieces[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pieces[0].schema)


def read_chain_split(inputs: Inputs, split: ChainSplit) -> Iterator[pa.RecordBatch]:
    """Read one bucket of a chain, or a part of it: for each slice of keys the rows of every target."""
    for target, rows in merged_rows(inputs, split):
        yield from _finished(inputs, target, rows)


def merged_rows(inputs: Inputs, split: ChainSplit) -> Iterator[tuple[ChainTarget, pa.RecordBatch]]:
    """Merge a bucket: the live rows of each target, in key order, without partition columns, in bounded memory.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    rules = merge_rules(inputs.main.schema)
    reader = _ChainReader(inputs, split)
    parts = [t.parts for t in split.targets]
    for section in split.sections:
        base, changes = reader.runs(section)
        for target, rows in merge_changes(base, changes, parts, rules, [f.name for f in inputs.deltas.fields]):
            yield split.targets[target], rows


_FULL_RUNS, _LEAST_ROWS = 8, 4096


class _ChainReader:
    """Opens the files of a split."""

    def __init__(self, inputs: Inputs, split: ChainSplit) -> None:
        self._inputs = inputs
        self._split = split
        self._deleted = load_deletions(inputs.deltas.store, split.deletions)

    def runs(self, section: ChainSection) -> tuple[Iterator[pa.RecordBatch] | None, list[Iterator[pa.RecordBatch]]]:
        """Return the base and the changes of a section, with only the columns that decide between rows."""
        count = len(section.base) + len(section.changes)
        whole = self._inputs.deltas.batch_rows
        rows = max(whole * _FULL_RUNS // max(count, _FULL_RUNS), min(whole, _LEAST_ROWS))
        changes = [self._run(run, section, rows) for run in section.changes]
        if not section.base:
            return None, changes
        if len(section.base) == 1:
            return self._files(section.base[0], (), rows), changes
        bases = [self._files(run, (SEQUENCE_FIELD,), rows) for run in section.base]
        return merge_runs(bases, merge_rules(self._inputs.main.schema)), changes

    def _run(self, files: Run, section: ChainSection, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read changes, each row with its position in the chain."""
        system = (SEQUENCE_FIELD,) if section.numbered else ()
        deletes = any(f.delete_row_count != 0 for r in section.changes for f in r)
        if deletes or any(f.file_name in self._deleted for r in section.changes for f in r):
            system = (*system, VALUE_KIND_FIELD)
        for file in files:
            at = self._split.part_of[file.file_name]
            for batch in self._files((file,), system, batch_rows):
                place = pa.array(np.full(batch.num_rows, at, np.int32))
                yield batch.append_column(CHAIN_POSITION, place)

    def _files(self, files: Run, system: Sequence[DataField], batch_rows: int) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in self._file(file, system, batch_rows):
                cut = self._within(batch)
                if cut.num_rows:
                    yield cut

    def _file(self, file: DataFile, system: Sequence[DataField], batch_rows: int) -> Iterator[pa.RecordBatch]:
        part = self._split.parts[self._split.part_of[file.file_name]]
        own = self._inputs.anchors if part.is_anchor else self._inputs.deltas
        written = own.schemas[file.schema_id]
        evolution = plan_mapping((*written.fields, SEQUENCE_FIELD, VALUE_KIND_FIELD), (*own.fields, *system))
        deleted = self._deleted.get(file.file_name)
        for found in evolved_rows(own, (part.values, self._split.bucket, file), evolution, batch_rows):
            yield found.rows if deleted is None else _marked(found, deleted)

    def _within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out keys of other splits."""
        split = self._split
        for bound, keeps_above in ((split.low, True), (split.high, False)):
            if bound is None or not batch.num_rows:
                continue
            fields = self._inputs.main.schema.key_fields
            ends = [repeated(v, f.type, 1) for v, f in zip(bound, fields, strict=True)]
            keys, end = sort_keys([[batch.column(f.name) for f in fields], ends])
            at = int(np.searchsorted(keys, end[0], side="left"))
            batch = batch.slice(at) if keeps_above else batch.slice(0, at)
        return batch


def _marked(found: FileBatch, deleted: Positions) -> pa.RecordBatch:
    """Turn rows that a deletion vector marks into deletes, so that they still hide rows of other files.

    See docs/howto/chain-reads.md.
    """
    first, last = np.searchsorted(deleted, np.array([found.start, found.start + found.rows.num_rows], np.uint64))
    if first == last:
        return found.rows
    kinds = found.rows.column(VALUE_KIND).to_numpy().copy()
    kinds[(deleted[first:last] - np.uint64(found.start)).astype(np.int64)] = DELETE
    return replaced(found.rows, VALUE_KIND, kinds)


def _finished(inputs: Inputs, target: ChainTarget, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Add the target's partition columns, apply the filter, and return the requested columns."""
    main = inputs.main
    held = {*main.schema.partition_keys, *rows.schema.names}
    names = [name for name in main.schema.field_names if name in held]
    columns = with_partition(rows, main.schema, target.values, names)
    if main.fills_chars or main.rows.where is not None:
        columns = [as_read(c, main.schema.field(n).type) for c, n in zip(columns, names, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    if main.rows.where is not None:
        batch = filtered(batch, main.rows.where)
    whole = batch.select(list(main.columns)).cast(main.output_schema)
    for offset in range(0, whole.num_rows, main.batch_rows):
        yield whole.slice(offset, main.batch_rows)
