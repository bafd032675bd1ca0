"""What a merge engine is, how versions of keys become rows by one, and the engines deduplicate, first-row, aggregation.

Keys with one version never meet the engine: their row is returned as it is stored (docs/contributing/format.md,
Merging).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.overlay import overlaid
from airflow_paimon.data.merge.sort_keys import Keys
from airflow_paimon.data.merge.versions import (
    DELETE,
    INSERT,
    LEVEL,
    SYSTEM_COLUMNS,
    UPDATE_BEFORE,
    Indices,
    Mask,
    Merged,
    Versions,
    drop_retracts,
    find_versions,
    gather,
    is_retract,
)


class MergeEngine(ABC):
    """Makes one row of the versions of a key. A value: two of one table are equal, and it can be pickled."""

    picks: ClassVar[bool] = False
    """Whether the row of a key is always one of its versions, chosen without a look at its values."""
    skips_retracts: bool = False
    """Whether -U and -D have no effect at all, so that they can be left out before the merge."""

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        """Kinds of rows (``_VALUE_KIND``) that could not be merged with another row of their key."""
        return ()

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        """Return the columns, besides keys and sequence fields, without which these columns can't be merged."""
        return ()

    @abstractmethod
    def merge(self, versions: Versions) -> Merged:
        """Merge the contested keys.

        Raises:
            UnsupportedFeatureError: the table's options do not define the result, or it can't be stated here.
        """


@dataclass(frozen=True, slots=True)
class Deduplicate(MergeEngine):
    """The last version wins; if it is a delete, the key is gone."""

    skips_retracts: bool = False
    picks: ClassVar[bool] = True

    def merge(self, versions: Versions) -> Merged:
        return versions.rows[versions.ends - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """The rules for merging versions of a key.

    Batches carry ``keys``, ``sequence``, ``_SEQUENCE_NUMBER``, ``_VALUE_KIND`` and values. Without sequence numbers the
    later run is the newer one; without kinds there are no deletes. ``keep_deletes``: the result will be merged again,
    so deletes must still hide rows that are older by their sequence fields.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    descending: bool = False
    keep_deletes: bool = False
    engine: MergeEngine = Deduplicate()

    def columns(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read of the table, to get the wanted ones merged."""
        return tuple(dict.fromkeys((*self.keys, *self.sequence, *self.engine.needed(wanted), *wanted)))


def merge_slices(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], rules: MergeRules) -> pa.RecordBatch:
    """Merge sorted pieces that hold all versions of all their keys.

    Where one piece is by far the largest, only those of its rows are merged that have other versions; the others stay
    in place.
    """
    if len(slices) == 1 and _are_unique(keys[0]):
        rows = slices[0] if rules.keep_deletes else drop_retracts(slices[0])
        return _without_level(rows)
    base = max(range(len(slices)), key=lambda at: slices[at].num_rows)
    if _stays_in_place(slices, keys, base, rules):
        return _merge_into(slices, keys, base, rules)
    return merge_all(slices, keys, rules)


_LARGER = 3
"""How many times as large as the others together a piece is whose rows stay in place."""


def _stays_in_place(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], base: int, rules: MergeRules) -> bool:
    rows = slices[base].num_rows
    if rows < _LARGER * (sum(s.num_rows for s in slices) - rows) or not _are_unique(keys[base]):
        return False
    if rules.keep_deletes or VALUE_KIND not in slices[base].schema.names:
        return True
    return not is_retract(slices[base].column(VALUE_KIND)).any()


def _are_unique(ordered: Keys) -> bool:
    return not (ordered[1:] == ordered[:-1]).any()


def _merge_into(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], base: int, rules: MergeRules) -> pa.RecordBatch:
    """Merge the keys of the other pieces, and put them into the rows of ``base``, whose keys are unique."""
    rows, ordered = slices[base], keys[base]
    others = np.sort(np.concatenate([k for n, k in enumerate(keys) if n != base]), kind="stable")
    others = others[np.append(True, others[1:] != others[:-1])]
    at = np.searchsorted(ordered, others)
    hit = ordered[np.minimum(at, len(ordered) - 1)] == others
    touched = at[hit]
    contested = [_deciding(s, rules) for s in slices] if rules.engine.picks else list(slices)
    contested[base] = contested[base].take(pa.array(touched))
    pieces, winners = _winners(contested, [ordered[touched] if n == base else k for n, k in enumerate(keys)], rules)
    live = _live(pieces, winners, rules)
    put = live
    if rules.engine.picks:
        first = sum(s.num_rows for s in slices[:base])
        put = live & ((winners < first) | (winners >= first + len(touched)))
        winners = np.where(winners < first, winners, winners - len(touched))
        pieces = [s for n, s in enumerate(slices) if n != base]
    picked, gone = _picked(pieces, winners[put]), at[hit & ~live]
    return overlaid(_without_level(rows), picked, at[put], replaces=hit[put], gone=gone)


def _deciding(rows: pa.RecordBatch, rules: MergeRules) -> pa.RecordBatch:
    """Return the columns that decide which version wins, at least one."""
    names = [n for n in (*rules.sequence, *SYSTEM_COLUMNS) if n in rows.schema.names]
    return rows.select(names or [rules.keys[0]])


def merge_all(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], rules: MergeRules) -> pa.RecordBatch:
    """Merge pieces row by row; see ``merge_slices``."""
    pieces, winners = _winners(slices, keys, rules)
    live = _live(pieces, winners, rules)
    return _picked(pieces, winners if live.all() else winners[live])


def _winners(
    slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], rules: MergeRules
) -> tuple[Sequence[pa.RecordBatch], Indices]:
    """Return pieces, and the position in them (concatenated) of the row of each key, in key order."""
    versions = find_versions(slices, np.concatenate(keys), rules.sequence, descending=rules.descending)
    winners = versions.firsts
    if not len(versions.contested):
        return slices, winners
    merged = rules.engine.merge(versions)
    if not isinstance(merged, pa.RecordBatch):
        winners[versions.contested] = merged
        return slices, winners
    if merged.num_rows == len(winners):
        return [merged], np.arange(len(winners))
    winners[versions.contested] = sum(s.num_rows for s in slices) + np.arange(merged.num_rows)
    return [*slices, merged], winners


def _live(pieces: Sequence[pa.RecordBatch], rows: Indices, rules: MergeRules) -> Mask:
    """Return which of the rows the merge returns."""
    if rules.keep_deletes or VALUE_KIND not in pieces[0].schema.names:
        return np.ones(len(rows), bool)
    return ~is_retract(gather([p.column(VALUE_KIND) for p in pieces], rows))


def _picked(pieces: Sequence[pa.RecordBatch], rows: Indices) -> pa.RecordBatch:
    fields = [f for f in pieces[0].schema if f.name != LEVEL]
    columns = [gather([p.column(f.name) for p in pieces], rows) for f in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _without_level(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.drop_columns([LEVEL]) if LEVEL in rows.schema.names else rows


def pick_winners(slices: Sequence[pa.RecordBatch], keys: Keys, rules: MergeRules) -> Indices:
    """Return, in key order, the position (in the slices concatenated) of the last version of every key."""
    versions = find_versions(slices, keys, rules.sequence, descending=rules.descending)
    winners = versions.firsts
    if len(versions.contested):
        winners[versions.contested] = versions.rows[versions.ends - 1]
    return winners


@dataclass(frozen=True, slots=True)
class FirstRow(MergeEngine):
    """``skips_retracts``: option ``ignore-delete``, without which a delete has no meaning here."""

    skips_retracts: bool = False
    picks: ClassVar[bool] = True

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        return () if self.skips_retracts else (UPDATE_BEFORE, DELETE)

    def merge(self, versions: Versions) -> Merged:
        if np.isin(versions.kinds(), (UPDATE_BEFORE, DELETE)).any():
            raise UnsupportedFeatureError(
                "A table with merge-engine=first-row has deletes of keys with other versions: set the table option "
                "ignore-delete, which defines their meaning"
            )
        return versions.rows[versions.starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation(MergeEngine):
    """``functions``: of all columns but the keys. ``remove_on_delete``: a -D removes the row; a later version goes on
    from the values of the -D.
    """

    functions: Mapping[str, Aggregate]
    remove_on_delete: bool = False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        if all(f.takes_back for f in self.functions.values()):
            return ()
        return (UPDATE_BEFORE,) if self.remove_on_delete else (UPDATE_BEFORE, DELETE)

    def merge(self, versions: Versions) -> Merged:
        kinds = versions.kinds()
        retract: Mask = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
        initial: Mask = (kinds == DELETE) & self.remove_on_delete
        last = versions.ends - 1
        columns = []
        for name in versions.names:
            if name in self.functions:
                function, values = self.functions[name], versions.column(name)
                columns.append(function.fold(values, versions.starts, retract=retract, initial=initial))
            elif name == VALUE_KIND:
                columns.append(pa.array(np.where(initial[last], DELETE, INSERT), pa.int8()))
            else:  # keys and system columns
                columns.append(versions.values(name, last))
        return pa.RecordBatch.from_arrays(columns, schema=versions.pieces[0].schema)
