"""The merge engine partial-update: a version sets the columns that it holds (docs/contributing/format.md, Merging).

Without sequence groups each column keeps its last value that is not null. A retract that comes first gives the row its
values, also where deletes are ignored: Paimon's readers return them as well.

A sequence group of columns has sequence fields of its own. A version whose sequence fields are at least as high as the
row's sets the group's columns; a lower one is late and only changes aggregated columns. The state of a key is followed
from version to version, of all keys at once: a key has at most as many versions as there are sorted runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.engine import MergeEngine
from airflow_paimon.data.merge.sort_keys import order_values
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
    last_flagged,
)

Modes = npt.NDArray[np.int8]

_MAX_RANK = 1 << 62
"""Values further apart are numbered one by one, so that ranks fit 64 bits."""


class Mode(IntEnum):
    """What a version does to an aggregated column."""

    NOTHING = 0
    NEXT = 1
    LATE = 2
    RETRACT = 3


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Option ``fields.<fields>.sequence-group``. ``removes``: a -D that isn't late removes the whole row."""

    fields: tuple[str, ...]
    columns: tuple[str, ...]
    removes: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """Per key the version that gives the sequence fields and the one that gives the columns; negative: null.

    ``modes``: per version what it does to aggregated columns.
    """

    sequence: Indices
    values: Indices
    modes: Modes


def _ranks(versions: Versions, fields: Sequence[str]) -> Indices:
    """Return numbers that order the versions by these fields, null lowest; -1: all of them are null."""
    first, *others = own = [_rank(versions.column(name)) for name in fields]
    rank = first
    for other in others:
        major, minor = (np.unique(values, return_inverse=True)[1] for values in (rank, other))
        rank = major * (int(minor.max()) + 1) + minor
    return np.where(np.logical_or.reduce(own), rank, -1)


def _rank(column: pa.Array) -> Indices:
    """Return numbers that order the values, null is 0."""
    values = order_values(column, descending=False)[-1]
    low = int(values.min())
    if int(values.max()) - low > _MAX_RANK:
        values, low = np.unique(values, return_inverse=True)[1], 0
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), values - low + 1, 0)


class Fold:
    """The state of all keys, followed from version to version. ``starts_at``: per version whether the row began with
    its values; ``deleted``: per key, by its last version.
    """

    def __init__(self, versions: Versions, groups: Sequence[SequenceGroup]) -> None:
        keys, rows = len(versions.starts), len(versions.rows)
        self._kinds = versions.kinds()
        self._ranks = [_ranks(versions, g.fields) for g in groups]
        self._removes = [g.removes for g in groups]
        self._highest = [np.full(keys, -1, np.int64) for _ in groups]
        self.states = [
            GroupState(np.full(keys, -1, np.int64), np.full(keys, -1, np.int64), np.zeros(rows, np.int8))
            for _ in groups
        ]
        self.starts_at = np.zeros(rows, bool)
        self.deleted = np.zeros(keys, bool)

    def run(self, versions: Versions, *, ignore_delete: bool) -> None:
        """Follow all versions."""
        counts = versions.ends - versions.starts
        for number in range(int(counts.max())):
            keys = np.flatnonzero(counts > number)
            self._step(keys, versions.starts[keys] + number, is_first=number == 0, ignore_delete=ignore_delete)

    def _step(self, keys: Indices, rows: Indices, *, is_first: bool, ignore_delete: bool) -> None:
        """Apply one version of each of these keys."""
        kinds = self._kinds[rows]
        retract = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
        self.deleted[keys] = False
        if is_first:
            self._start(keys[retract], rows[retract])
        if ignore_delete:
            keys, rows, kinds, retract = keys[~retract], rows[~retract], kinds[~retract], retract[~retract]
        counts = [ranks[rows] >= 0 for ranks in self._ranks]
        leads = [c & (r[rows] >= h[keys]) for c, r, h in zip(counts, self._ranks, self._highest, strict=True)]
        removed = np.zeros(len(keys), bool)
        for lead, removes in zip(leads, self._removes, strict=True):
            if removes:
                removed |= lead & (kinds == DELETE)
        for at, (count, lead) in enumerate(zip(counts, leads, strict=True)):
            self._apply(at, keys, rows, retract, count & ~removed, lead & ~removed)
        self._start(keys[removed], rows[removed])
        self.deleted[keys[removed]] = True

    def _apply(self, at: int, keys: Indices, rows: Indices, retract: Mask, counts: Mask, leads: Mask) -> None:
        set_keys, set_rows = keys[leads], rows[leads]
        state = self.states[at]
        self._highest[at][set_keys] = self._ranks[at][set_rows]
        state.sequence[set_keys] = set_rows
        state.values[set_keys] = np.where(retract[leads], -1, set_rows)
        mode = np.where(retract, Mode.RETRACT, np.where(leads, Mode.NEXT, Mode.LATE))
        state.modes[rows] = np.where(counts, mode, Mode.NOTHING)

    def _start(self, keys: Indices, rows: Indices) -> None:
        """Begin the rows again, with the values of these versions."""
        self.starts_at[rows] = True
        for ranks, highest, state in zip(self._ranks, self._highest, self.states, strict=True):
            highest[keys] = ranks[rows]
            state.sequence[keys] = rows
            state.values[keys] = rows


def _aggregated(versions: Versions, fold: Fold, state: GroupState) -> Callable[[Aggregate, pa.Array], pa.Array]:
    """Return what folds an aggregated column of a group, one value of each version, into one of each key.

    A version that begins the row may be taken back as well: then it comes twice.
    """
    begun = np.flatnonzero(fold.starts_at)
    rows = np.concatenate([begun, np.arange(len(versions.rows))])
    order = np.argsort(rows, kind="stable")
    initial = order < len(begun)
    rows = rows[order]
    modes = np.where(initial, Mode.NOTHING, state.modes[rows])
    owners = versions.owners[rows]
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))

    def folded(function: Aggregate, values: pa.Array) -> pa.Array:
        return function.fold(
            values.take(pa.array(rows)),
            starts,
            retract=modes == Mode.RETRACT,
            used=initial | (modes != Mode.NOTHING),
            late=modes == Mode.LATE,
            initial=initial,
        )

    return folded


_SYSTEM = (SEQUENCE_NUMBER, CHAIN_POSITION, LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialUpdate(MergeEngine):
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
        fold = Fold(versions, groups)
        if self.groups:
            fold.run(versions, ignore_delete=self.ignore_delete)
        else:
            self._fold_without_groups(fold, versions, retract)
        inserts = ~retract
        began = last_flagged(fold.starts_at, versions.starts)  # -1: the row began with nulls
        plain = _Plain(versions, inserts & (np.arange(len(inserts)) > began[versions.owners]), began)
        if self.forgets:
            began[:] = -1
        dead = fold.deleted | ~np.logical_or.reduceat(plain.usable if self.forgets else inserts, versions.starts)
        last = self._last(versions, inserts)
        known = {VALUE_KIND: pa.array(np.where(dead, DELETE, INSERT), pa.int8())}
        known |= {name: versions.values(name, last) for name in (*self.keys, *_SYSTEM) if name in versions.names}
        for group, state in zip(groups, fold.states, strict=True):
            known |= self._grouped(versions, group, fold, state)
        columns = [known[n] if n in known else plain.column(n) for n in versions.names]
        return pa.RecordBatch.from_arrays(columns, schema=versions.pieces[0].schema)

    def _last(self, versions: Versions, inserts: Mask) -> Indices:
        """Return the version of each key that gives the sequence number."""
        if not self.ignore_delete:
            return versions.ends - 1
        found: Indices = np.maximum(last_flagged(inserts, versions.starts), versions.starts)
        return found

    def _fold_without_groups(self, fold: Fold, versions: Versions, retract: Mask) -> None:
        if retract.any():
            fold.starts_at[versions.starts] = retract[versions.starts]
            if not self.ignore_delete:
                if not self.remove_on_delete:
                    raise UnsupportedFeatureError(
                        "Partial updates hold deletes: set the table option partial-update.remove-record-on-delete or "
                        "ignore-delete, which define their meaning"
                    )
                is_delete = versions.kinds() == DELETE
                fold.starts_at |= is_delete
                fold.deleted |= is_delete[versions.ends - 1]

    def _grouped(self, versions: Versions, group: SequenceGroup, fold: Fold, state: GroupState) -> dict[str, pa.Array]:
        out = {name: versions.values(name, state.sequence) for name in group.fields}
        aggregated = None if self.aggregates.keys().isdisjoint(group.columns) else _aggregated(versions, fold, state)
        for name in (n for n in group.columns if n in versions.names):
            function = self.aggregates.get(name)
            if function is not None and aggregated is not None:
                out[name] = aggregated(function, versions.column(name))
            else:
                out[name] = versions.values(name, state.values)
        return out


class _Plain(NamedTuple):
    """Columns of no group: the last value that is not null since the row began, else the one that it began with."""

    versions: Versions
    usable: Mask
    began: Indices

    def column(self, name: str) -> pa.Array:
        last = last_flagged(self.usable & self.versions.valid(name), self.versions.starts)
        return self.versions.values(name, np.where(last < 0, self.began, last))
