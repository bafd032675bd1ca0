"""``merge_map`` and ``merge_map_with_keytime``: the entries of the maps of a key, by their keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.element_codes import element_codes
from airflow_paimon.data.merge.aggregates.records import (
    Elements,
    Flags,
    Indices,
    Records,
    Slots,
    explode,
    implode,
    slots_of,
    validity,
)

Entries = dict[int, int]
"""A map while it is folded row by row: the code of a key to the entry that holds its value."""


@dataclass(frozen=True, slots=True)
class _Maps(Aggregate):
    order_bound: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        entries = explode(records.values)
        slots = slots_of(records.group[entries.record], _key_codes(records.values, entries))
        chosen = np.sort(self._winners(records, entries, slots))
        present = records.any_of(records.valid & ~records.retract)
        return implode(records.values, entries.at[chosen], records.group[entries.record[chosen]], present)

    @abstractmethod
    def _winners(self, records: Records, entries: Elements, slots: Slots) -> Indices:
        """Return the entries of the folded maps."""

    def _fold_rows(self, records: Records) -> pa.Array:
        entries = explode(records.values)
        codes = _key_codes(records.values, entries).tolist()
        times = self._times(records.values, entries)
        bounds = np.searchsorted(entries.record, np.arange(len(records.values) + 1))
        maps: list[Entries | None] = []
        for start, end in zip(records.starts, records.ends, strict=True):
            held: Entries | None = None
            for at in range(start, end + 1):
                span = range(bounds[at], bounds[at + 1])
                own = {codes[entry]: entry for entry in span} if records.valid[at] else None
                if records.initial[at]:
                    held = own
                elif records.retract[at]:
                    held = held and {code: entry for code, entry in held.items() if code not in (own or {})}
                elif held is None or own is None:
                    held = own if held is None else held
                else:
                    held = _merged(own, held, times) if records.late[at] else _merged(held, own, times)
            maps.append(held)
        return _map_array(records, entries, maps)

    def _times(self, values: pa.Array, entries: Elements) -> Indices | None:
        """Return the rank of each entry's time, 0 for a value without time and -1 for no value; None: no times here."""
        return None


@dataclass(frozen=True, slots=True)
class MergeMap(_Maps):
    """The last value of each key; a retract removes its keys, whatever their values."""

    retracts: ClassVar[bool] = True

    def _winners(self, records: Records, entries: Elements, slots: Slots) -> Indices:
        last = slots.last_of(np.ones(len(entries.at), bool))
        return last[~records.retract[entries.record[last]]]


@dataclass(frozen=True, slots=True)
class MergeMapWithKeyTime(_Maps):
    """The value of each key with the greatest time, as text. A null value removes the key, one without time is ignored.

    The first map of a key is taken as it is.
    """

    def _times(self, values: pa.Array, entries: Elements) -> Indices:
        items = pc.take(values.items, pa.array(entries.at))
        times = pc.struct_field(items, self.options.time_field)
        return np.where(validity(items), _text_ranks(times), -1)

    def _winners(self, records: Records, entries: Elements, slots: Slots) -> Indices:
        rank = self._times(records.values, entries)
        initial = entries.record == records.first_of(records.valid)[records.group][entries.record]
        at = np.arange(len(rank))
        removed = slots.last_of((rank < 0) & ~initial)
        held = np.flatnonzero((initial | (rank > 0)) & (at > removed[slots.slot]))
        order = held[np.lexsort([-held, np.maximum(rank[held], 0), slots.slot[held]])]
        slot = slots.slot[order]
        return order[np.append(slot[1:] != slot[:-1], True)] if len(order) else order


def _key_codes(values: pa.Array, entries: Elements) -> Indices:
    return element_codes(pc.take(values.keys, pa.array(entries.at)))


def _text_ranks(times: pa.Array) -> Indices:
    """Return ranks from 1 in the order of Java's strings, which is by UTF-16 code units; null is 0."""
    encoded = pc.dictionary_encode(times)
    texts = encoded.dictionary.to_pylist()
    order = sorted(range(len(texts)), key=lambda at: texts[at].encode("utf-16-be"))
    ranks = np.zeros(len(texts) + 1, np.int64)
    ranks[order] = np.arange(1, len(texts) + 1)
    of_each: Indices = ranks[np.asarray(pc.fill_null(encoded.indices, len(texts)).to_numpy())]
    return of_each


def _merged(held: Entries, own: Entries, times: Indices | None) -> Entries:
    """Merge one map onto another. By time, a value of -1 removes its key and one of 0 is ignored."""
    if times is None:
        return {**held, **own}
    merged = dict(held)
    for code, entry in own.items():
        if times[entry] < 0:
            merged.pop(code, None)
        elif times[entry] > 0 and (code not in merged or times[entry] > max(times[merged[code]], 0)):
            merged[code] = entry
    return merged


def _map_array(records: Records, entries: Elements, maps: list[Entries | None]) -> pa.Array:
    present: Flags = np.array([one is not None for one in maps], bool)
    at = np.array(list(_chained(one or {} for one in maps)), np.int64)
    group = np.repeat(np.arange(len(maps)), [len(one or {}) for one in maps])
    return implode(records.values, entries.at[at], group, present)


def _chained(maps: Iterable[Entries]) -> Iterable[int]:
    return (entry for one in maps for entry in one.values())
