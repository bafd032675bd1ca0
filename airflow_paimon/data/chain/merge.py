"""Merges changes into a sorted run with unique keys: an anchor and the deltas after it.

The general merge sorts all rows. Here the many rows of the base are not sorted: winners are found among the changes,
then looked up in the base. Used by reads and compaction of chain tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.merge.engine import MergeRules, merge_slices, pick_winners
from airflow_paimon.data.merge.runs import align_runs, runs_at_once
from airflow_paimon.data.merge.sort_keys import Keys, sort_keys
from airflow_paimon.data.merge.versions import CHAIN_POSITION, Indices, gather, is_retract

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
    order = _order(base.num_rows, at, winners, is_put=wins & ~retract, is_gone=wins & retract, hit=hit)
    return _picked([base.select(columns), *(s.select(columns) for s in slices)], order)


def _order(rows: int, at: Indices, winners: Indices, *, is_put: Mask, is_gone: Mask, hit: Mask) -> Indices:
    """Return the positions, in base and changes concatenated, of the result rows."""
    order: Indices = np.arange(rows)
    replaced = is_put & hit
    order[at[replaced]] = rows + winners[replaced]
    gone = at[is_gone & hit]
    order[gone] = -1
    new = np.flatnonzero(is_put & ~hit)
    if len(new):
        order = np.insert(order, at[new], rows + winners[new])
    return order[order >= 0] if len(gone) else order


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
