"""What a merge engine is, how versions of keys become rows by one, and the engines deduplicate, first-row, aggregation.

Keys with one version never meet the engine: their row is returned as it is stored (docs/format.md, Merging).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.sort_keys import Keys
from airflow_paimon.data.merge.versions import (
    DELETE,
    INSERT,
    LEVEL,
    UPDATE_BEFORE,
    Indices,
    Mask,
    Merged,
    SortOrder,
    Versions,
    drop_retracts,
    find_versions,
    gather,
    is_retract,
)


class MergeEngine(Protocol):
    """Makes one row of the versions of a key. A value: two of one table are equal, and it can be pickled."""

    @property
    def skips_retracts(self) -> bool:
        """Whether -U and -D have no effect at all, so that they can be left out before the merge."""
        ...

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        """Kinds of rows (``_VALUE_KIND``) that could not be merged with another row of their key."""
        ...

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        """Return the columns, besides keys and sequence fields, without which these columns can't be merged."""
        ...

    def merge(self, versions: Versions) -> Merged:
        """Merge the contested keys.

        Raises:
            UnsupportedFeatureError: the table's options do not define the result, or it can't be stated here.
        """
        ...


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """The last version wins; if it is a delete, the key is gone."""

    skips_retracts: bool = False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        return ()

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        return ()

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

    @property
    def order_by(self) -> SortOrder:
        return SortOrder(self.sequence, self.descending)

    def columns(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read of the table, to get the wanted ones merged."""
        return tuple(dict.fromkeys((*self.keys, *self.sequence, *self.engine.needed(wanted), *wanted)))


def merge_slices(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], rules: MergeRules) -> pa.RecordBatch:
    """Merge sorted pieces that hold all versions of all their keys."""
    if len(slices) == 1 and not (keys[0][1:] == keys[0][:-1]).any():
        rows = slices[0] if rules.keep_deletes else drop_retracts(slices[0])
        return _without_level(rows)
    versions = find_versions(slices, np.concatenate(keys), rules.order_by)
    winners, pieces = versions.firsts, slices
    if len(versions.contested):
        merged = rules.engine.merge(versions)
        if isinstance(merged, pa.RecordBatch):
            pieces = [*slices, merged]
            merged = sum(s.num_rows for s in slices) + np.arange(merged.num_rows)
        winners[versions.contested] = merged
    if VALUE_KIND in slices[0].schema.names and not rules.keep_deletes:
        retract = is_retract(gather([p.column(VALUE_KIND) for p in pieces], winners))
        winners = winners[~retract] if retract.any() else winners
    columns = {n: gather([p.column(n) for p in pieces], winners) for n in slices[0].schema.names if n != LEVEL}
    fields = [f for f in slices[0].schema if f.name != LEVEL]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _without_level(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.drop_columns([LEVEL]) if LEVEL in rows.schema.names else rows


def pick_winners(slices: Sequence[pa.RecordBatch], keys: Keys, rules: MergeRules, *, presorted: bool = True) -> Indices:
    """Return, in key order, the position (in the slices concatenated) of the last version of every key.

    ``presorted``: each slice is sorted by key (only faster).
    """
    versions = find_versions(slices, keys, rules.order_by, presorted=presorted)
    winners = versions.firsts
    if len(versions.contested):
        winners[versions.contested] = versions.rows[versions.ends - 1]
    return winners


@dataclass(frozen=True, slots=True)
class FirstRow:
    """``skips_retracts``: option ``ignore-delete``, without which a delete has no meaning here."""

    skips_retracts: bool = False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        return () if self.skips_retracts else (UPDATE_BEFORE, DELETE)

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        return ()

    def merge(self, versions: Versions) -> Merged:
        if np.isin(versions.kinds(), (UPDATE_BEFORE, DELETE)).any():
            raise UnsupportedFeatureError(
                "A table with merge-engine=first-row holds deletes of keys with other versions: set the table option "
                "ignore-delete, which defines their meaning"
            )
        return versions.rows[versions.starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """``functions``: of all columns but the keys. ``remove_on_delete``: a -D removes the row; a later version goes on
    from the values of the -D.
    """

    functions: Mapping[str, Aggregate]
    remove_on_delete: bool = False

    @property
    def skips_retracts(self) -> bool:
        return False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        if all(f.takes_back for f in self.functions.values()):
            return ()
        return (UPDATE_BEFORE,) if self.remove_on_delete else (UPDATE_BEFORE, DELETE)

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        return ()

    def merge(self, versions: Versions) -> Merged:
        kinds = versions.kinds()
        retract: Mask = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
        initial: Mask = (kinds == DELETE) & self.remove_on_delete
        last = versions.ends - 1
        columns = []
        for name in versions.names:
            values = versions.column(name)
            if name in self.functions:
                function = self.functions[name]
                columns.append(function.fold(values, versions.starts, retract=retract, initial=initial))
            elif name == VALUE_KIND:
                columns.append(pa.array(np.where(initial[last], DELETE, INSERT), pa.int8()))
            else:  # keys and system columns
                columns.append(values.take(pa.array(last)))
        return pa.RecordBatch.from_arrays(columns, schema=versions.pieces[0].schema)
