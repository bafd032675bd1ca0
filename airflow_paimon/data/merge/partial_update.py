"""The merge engine partial-update: a version sets the columns that it holds (docs/format.md, Merging).

Without sequence groups each column keeps its last value that is not null. A retract that comes first gives the row its
values, also where deletes are ignored: Paimon's readers return them as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.merge.aggregates import Aggregate
from airflow_paimon.data.merge.sequence_groups import (
    Folded,
    GroupState,
    SequenceGroup,
    fold_groups,
    last_start,
    steps_of,
)
from airflow_paimon.data.merge.versions import (
    CHAIN_POSITION,
    DELETE,
    INSERT,
    LEVEL,
    UPDATE_BEFORE,
    Indices,
    Mask,
    Merged,
    Versions,
    take_or_null,
)

_SYSTEM = (SEQUENCE_NUMBER, CHAIN_POSITION, LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialUpdate:
    """``aggregates``: aggregated columns of the groups. ``forgets``: rows of chain tables, which compaction must not
    change: the values of a delete have no effect. Without any option that defines them, deletes are refused.
    """

    keys: tuple[str, ...]
    groups: tuple[SequenceGroup, ...] = ()
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    ignore_delete: bool = False
    remove_on_delete: bool = False
    forgets: bool = False

    @property
    def skips_retracts(self) -> bool:
        return False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        if self.ignore_delete or self.forgets:
            return ()
        defined = self.remove_on_delete or bool(self.groups)
        takes_back = all(a.takes_back for a in self.aggregates.values())
        return () if defined and takes_back else (UPDATE_BEFORE, DELETE)

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        for group in self.groups:
            if group.removes or not {*group.fields, *group.columns}.isdisjoint(columns):
                yield from group.fields

    def merge(self, versions: Versions) -> Merged:
        kinds = versions.kinds()
        retract: Mask = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
        groups = [g for g in self.groups if set(g.fields) <= set(versions.names)]
        if self.groups:
            folded = fold_groups(versions, groups, self.ignore_delete)
        else:
            folded = self._without_groups(versions, retract)
        inserts = ~retract
        began = last_start(versions, folded.starts_at)
        plain = _Plain(versions, inserts & (np.arange(len(inserts)) > began[versions.owners]), began)
        if self.forgets:
            began[:] = -1
        dead = folded.deleted | ~np.logical_or.reduceat(plain.usable if self.forgets else inserts, versions.starts)
        last = pa.array(self._last(versions, inserts))
        known = {VALUE_KIND: pa.array(np.where(dead, DELETE, INSERT), pa.int8())}
        known |= {name: versions.column(name).take(last) for name in (*self.keys, *_SYSTEM) if name in versions.names}
        for group, state in zip(groups, folded.states, strict=True):
            known |= self._grouped(versions, group, folded, state)
        columns = [known[n] if n in known else plain.column(n) for n in versions.names]
        return pa.RecordBatch.from_arrays(columns, schema=versions.pieces[0].schema)

    def _last(self, versions: Versions, inserts: Mask) -> Indices:
        """Return the version of each key that gives the sequence number."""
        if not self.ignore_delete:
            return versions.ends - 1
        at = np.where(inserts, np.arange(len(inserts)), -1)
        found: Indices = np.maximum(np.maximum.reduceat(at, versions.starts), versions.starts)
        return found

    def _without_groups(self, versions: Versions, retract: Mask) -> Folded:
        starts_at, deleted = np.zeros(len(retract), bool), np.zeros(len(versions.starts), bool)
        if retract.any():
            starts_at[versions.starts] = retract[versions.starts]
            if not self.ignore_delete:
                if not self.remove_on_delete:
                    raise UnsupportedFeatureError(
                        "Partial updates hold deletes: set the table option partial-update.remove-record-on-delete or "
                        "ignore-delete, which define their meaning"
                    )
                is_delete = versions.kinds() == DELETE
                starts_at |= is_delete
                deleted = is_delete[versions.ends - 1]
        return Folded((), starts_at, deleted)

    def _grouped(
        self, versions: Versions, group: SequenceGroup, folded: Folded, state: GroupState
    ) -> dict[str, pa.Array]:
        out = {name: take_or_null(versions.column(name), state.sequence) for name in group.fields}
        steps = steps_of(versions, folded, state) if not self.aggregates.keys().isdisjoint(group.columns) else None
        for name in (n for n in group.columns if n in versions.names):
            values, function = versions.column(name), self.aggregates.get(name)
            if function is not None and steps is not None:
                out[name] = steps.fold(function, values)
            else:
                out[name] = take_or_null(values, state.values)
        return out


class _Plain(NamedTuple):
    """Columns of no group: the last value that is not null since the row began, else the one that it began with."""

    versions: Versions
    usable: Mask
    began: Indices

    def column(self, name: str) -> pa.Array:
        values = self.versions.column(name)
        valid = self.usable & np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        at = np.where(valid, np.arange(len(valid)), -1)
        last: Indices = np.maximum.reduceat(at, self.versions.starts)
        return take_or_null(values, np.where(last < 0, self.began, last))
