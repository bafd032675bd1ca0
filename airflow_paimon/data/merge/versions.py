"""The versions of keys as numpy positions: grouped by key, in the order in which a merge engine sees them.

Rows of several sorted pieces are numbered as if the pieces were concatenated. See docs/contributing/format.md, Merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.merge.sort_keys import Keys, order_values

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CHAIN_POSITION = internal_column("chain_position")
"""A column added only by chain reads: the position of a row's partition in the chain, the anchor first. It decides ties
of the sequence fields, because sequence numbers of different partitions are not comparable."""
LEVEL = "_LEVEL"
"""A column added only where the look-up rule applies: the level of a row's file."""
SYSTEM_COLUMNS = (SEQUENCE_NUMBER, VALUE_KIND, CHAIN_POSITION, LEVEL)
INSERT = 0
UPDATE_BEFORE = 1
DELETE = 3
"""``_VALUE_KIND``: 0 +I, 1 -U, 2 +U, 3 -D."""


@dataclass(frozen=True, slots=True)
class Versions:
    """All rows of some pieces, by key. ``firsts``: one row of each key, in key order.

    Only of the ``contested`` keys (numbers of keys) there are several rows: those are in ``rows``, by key and in merge
    order, and the first of each key is at ``starts``.
    """

    pieces: Sequence[pa.RecordBatch]
    firsts: Indices
    contested: Indices
    rows: Indices
    starts: Indices

    @property
    def names(self) -> list[str]:
        return list(self.pieces[0].schema.names)

    @property
    def ends(self) -> Indices:
        """The position in ``rows`` after the last version of each contested key."""
        return np.append(self.starts[1:], len(self.rows))

    @property
    def owners(self) -> Indices:
        """For each of ``rows`` the number of its key among the contested ones."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)

    def column(self, name: str) -> pa.Array:
        """Return a column of ``rows``."""
        return gather([p.column(name) for p in self.pieces], self.rows)

    def values(self, name: str, at: Indices) -> pa.Array:
        """Return a column of some of ``rows``, by their place there; null where it is negative."""
        pieces = [p.column(name) for p in self.pieces]
        if (at < 0).any():
            return take_or_null(pa.concat_arrays(pieces), np.where(at < 0, -1, self.rows[at]))
        return gather(pieces, self.rows[at])

    def valid(self, name: str) -> Mask:
        """Return which values of a column of ``rows`` are not null."""
        pieces = [p.column(name) for p in self.pieces]
        if not any(p.null_count for p in pieces):
            return np.ones(len(self.rows), bool)
        return np.concatenate([p.is_valid().to_numpy(zero_copy_only=False) for p in pieces])[self.rows]

    def kinds(self) -> npt.NDArray[np.int8]:
        """Return ``_VALUE_KIND`` of ``rows``; without the column nothing is a retract."""
        if VALUE_KIND not in self.names:
            return np.zeros(len(self.rows), np.int8)
        return np.asarray(self.column(VALUE_KIND).to_numpy(zero_copy_only=False))


Merged = Indices | pa.RecordBatch
"""The row of each contested key: the position of a stored one, or new rows with the columns of the stored ones. A key
without a row has the kind -D."""


def find_versions(
    pieces: Sequence[pa.RecordBatch], keys: Keys, sequence: Sequence[str] = (), *, descending: bool = False
) -> Versions:
    """Group the rows by key, and order the versions of each by the columns ``sequence``, null lowest, then by
    ``_SEQUENCE_NUMBER``.

    If all else is equal, a retract comes before an insert, then the earlier position.
    """
    order: Indices = np.argsort(keys, kind="stable")  # of presorted pieces: a merge of these
    ordered = keys[order]
    differs = ordered[1:] != ordered[:-1]
    if differs.all():
        none = np.empty(0, np.int64)
        return Versions(pieces, order, none, none, none)
    is_start = np.append(True, differs)
    is_contested = ~(is_start & np.append(differs, True))
    at = np.flatnonzero(is_contested)
    rows, owner = order[at], np.cumsum(is_start)[at] - 1
    precedence = _precedence(pieces, rows, sequence, descending)
    if not _is_ordered(precedence, owner):
        ranked = np.lexsort([*precedence[::-1], owner])
        rows = rows[ranked]  # the owners are sorted
    begin = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    found = Versions(pieces, order[is_start], owner[begin], rows, begin)
    return _looked_up(found) if LEVEL in found.names else found


def _is_ordered(precedence: Sequence[Any], owner: Indices) -> bool:
    """Return whether the versions of each owner are in order: most are, as later pieces are newer."""
    tied = owner[1:] == owner[:-1]
    for values in precedence:
        before, after = values[:-1][tied], values[1:][tied]
        if (before > after).any():
            return False
        if values is not precedence[-1]:
            tied[tied] = before == after
    return True


def _precedence(
    pieces: Sequence[pa.RecordBatch], rows: Indices, sequence: Sequence[str], descending: bool
) -> list[Any]:
    """Return arrays, most significant first, by which the versions of a key are ordered."""
    out: list[Any] = []
    for name in sequence:
        out += order_values(gather([p.column(name) for p in pieces], rows), descending)
    names = pieces[0].schema.names
    if CHAIN_POSITION in names:
        out.append(gather([p.column(CHAIN_POSITION) for p in pieces], rows).to_numpy(zero_copy_only=False))
    if SEQUENCE_NUMBER in names:
        out.append(gather([p.column(SEQUENCE_NUMBER) for p in pieces], rows).to_numpy(zero_copy_only=False))
        if VALUE_KIND in names:
            out.append(~is_retract(gather([p.column(VALUE_KIND) for p in pieces], rows)))
    out.append(rows)
    return out


def _looked_up(found: Versions) -> Versions:
    """Keep all versions of level 0, and of the others only the one on the lowest level: it contains those below."""
    level = np.asarray(found.column(LEVEL).to_numpy()).astype(np.int64)
    above = np.where(level > 0, level, np.iinfo(np.int64).max)
    kept = (level == 0) | (above == np.minimum.reduceat(above, found.starts)[found.owners])
    owners = found.owners[kept]
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return Versions(found.pieces, found.firsts, found.contested, found.rows[kept], starts)


def is_retract(kinds: pa.Array) -> Mask:
    """Return which rows are -U or -D."""
    values = np.asarray(kinds.to_numpy(zero_copy_only=False))
    retract: Mask = (values == UPDATE_BEFORE) | (values == DELETE)
    return retract


def drop_retracts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are not -U or -D."""
    if VALUE_KIND not in batch.schema.names:
        return batch
    retract = is_retract(batch.column(VALUE_KIND))
    return batch.filter(pa.array(~retract)) if retract.any() else batch


def gather(pieces: Sequence[pa.Array], rows: Indices) -> pa.Array:
    """Return the rows at these positions of the pieces concatenated."""
    whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return pc.take(whole, pa.array(rows), boundscheck=False)


def last_flagged(flags: Mask, starts: Indices) -> Indices:
    """Return the last position of each group that has the flag, -1 if none has; ``starts``: of the groups."""
    if flags.all():
        return np.append(starts[1:], len(flags)) - 1
    if not flags.any():
        return np.full(len(starts), -1, np.int64)
    last: Indices = np.maximum.reduceat(np.where(flags, np.arange(len(flags)), -1), starts)
    return last


def take_or_null(column: pa.Array, at: Indices) -> pa.Array:
    """Return the values at these positions, null where it is negative."""
    return pc.take(column, pa.array(at, mask=at < 0))
