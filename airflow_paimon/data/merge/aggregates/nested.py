"""Functions on columns of arrays and maps: ``collect``, ``merge_map``, ``nested_update`` and their variants."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import (
    Elements,
    Records,
    Slots,
    element_codes,
    explode,
    implode,
    slots_of,
    validity,
)
from airflow_paimon.data.merge.sort_keys import order_values
from airflow_paimon.data.merge.versions import Indices, Mask


@dataclass(frozen=True, slots=True)
class Collect(Aggregate):
    """All elements; a retract removes as many of each as it holds. ``distinct``: in no particular order."""

    retracts: ClassVar[bool] = True
    order_bound: ClassVar[bool] = True

    def _by_rows(self, records: Records) -> Mask:
        """An initial array may hold an element twice in spite of distinct.

        Late records come last here as well, but not with ``ignore-retract``: Paimon puts those before the others.
        """
        late = records.late & self.options.ignore_retract
        return records.any_of(records.initial | late)

    def _fold(self, records: Records) -> pa.Array:
        elements = explode(records.values)
        group = records.group[elements.record]
        keep = np.ones(len(elements.at), bool)
        retract = records.retract[elements.record]
        if self.options.distinct or retract.any():
            slots = slots_of(group, _codes(records.values, elements))
            keep = _first_added(slots, retract) if self.options.distinct else _not_taken(slots, retract)
        present = records.any_of(records.valid & ~records.retract)
        return implode(records.values, elements.at[keep], group[keep], present)

    def _fold_rows(self, records: Records) -> pa.Array:
        elements = explode(records.values)
        codes = _codes(records.values, elements)
        bounds = np.searchsorted(elements.record, np.arange(len(records.values) + 1))
        whole_set = self.options.distinct and not pa.types.is_nested(records.values.type.value_type)
        lists: list[list[int] | None] = []
        for start, end in zip(records.starts, records.ends, strict=True):
            held: list[int] | None = None
            for at in range(start, end + 1):
                own = list(range(bounds[at], bounds[at + 1])) if records.valid[at] else None
                if records.initial[at]:
                    held = own
                elif records.retract[at]:
                    held = _without(held, own or [], codes)
                elif held is not None or own is not None:
                    is_first = records.late[at] and self.options.ignore_retract
                    first, second = (own, held) if is_first else (held, own)
                    joined, settled = (first or []) + (second or []), 0 if whole_set else len(first or [])
                    held = _set(joined, settled, codes) if self.options.distinct else joined
            lists.append(held)
        counts = [len(one or []) for one in lists]
        at_all = np.array([at for one in lists for at in one or []], np.int64)
        present = np.array([one is not None for one in lists], bool)
        return implode(records.values, elements.at[at_all], np.repeat(np.arange(len(lists)), counts), present)


def _codes(values: pa.Array, elements: Elements) -> Indices:
    """Return a code per element. Paimon compares binary elements by object identity: none equals another."""
    inner = values.values
    if pa.types.is_binary(inner.type):
        return np.where(validity(pc.take(inner, pa.array(elements.at))), np.arange(len(elements.at)), -1)
    return element_codes(pc.take(inner, pa.array(elements.at)))


def _first_added(slots: Slots, retract: Mask) -> Mask:
    """Return the first element of each slot that was added after the last one that was taken back."""
    added = ~retract & (np.arange(len(retract)) > slots.last_of(retract)[slots.slot])
    first = slots.first_of(added)
    keep = np.zeros(len(retract), bool)
    keep[first[first < len(retract)]] = True
    return keep


def _not_taken(slots: Slots, retract: Mask) -> Mask:
    """Return the added elements that are left: a retract takes the oldest equal one, or nothing if there is none."""
    order = np.argsort(slots.slot, kind="stable")
    starts = np.searchsorted(slots.slot[order], np.arange(slots.count))
    change = np.where(retract[order], -1, 1)
    running = np.cumsum(change)
    running -= (running - change)[starts][slots.slot[order]]
    lowest = np.minimum(np.minimum.reduceat(running, starts), 0)
    ends = np.append(starts[1:], len(order)) - 1
    left = running[ends] - lowest
    added = np.cumsum(~retract[order])
    later = added[ends][slots.slot[order]] - added
    keep = np.zeros(len(retract), bool)
    keep[order] = ~retract[order] & (later < left[slots.slot[order]])
    return keep


def _without(held: list[int] | None, taken: list[int], codes: Indices) -> list[int] | None:
    if held is None:
        return None
    left = [codes[at] for at in taken]
    kept = []
    for at in held:
        if codes[at] in left:
            left.remove(codes[at])
        else:
            kept.append(at)
    return kept


def _set(joined: list[int], settled: int, codes: Indices) -> list[int]:
    """Return each element once, the first ``settled`` ones as they are."""
    kept = joined[:settled]
    known = {codes[at] for at in kept}
    for at in joined[settled:]:
        if codes[at] not in known:
            known.add(codes[at])
            kept.append(at)
    return kept


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
    present: Mask = np.array([one is not None for one in maps], bool)
    at = np.array([entry for one in maps if one for entry in one.values()], np.int64)
    group = np.repeat(np.arange(len(maps)), [len(one or {}) for one in maps])
    return implode(records.values, entries.at[at], group, present)


Row = tuple[int, ...]
"""A nested row while it is folded row by row: for each field the element that holds its value."""


@dataclass(frozen=True)
class _NestedRows:
    """The nested rows of all records: the code of their key (or of all fields), and their rank by sequence.

    ``usable``: those that are not null, and whose key is not null where such rows are ignored.
    """

    elements: Elements
    codes: Indices
    ranks: Indices
    retract: Mask
    group: Indices
    usable: Mask

    def only_usable(self) -> _NestedRows:
        at = np.flatnonzero(self.usable)
        retract, usable = self.retract[at], self.usable[at]
        elements = self.elements.kept(self.usable)
        return _NestedRows(elements, self.codes[at], self.ranks[at], retract, self.group[at], usable)

    @property
    def slots(self) -> Slots:
        return slots_of(self.group, self.codes)


@dataclass(frozen=True, slots=True)
class _Nested(Aggregate):
    order_bound: ClassVar[bool] = True

    def _rows(self, records: Records) -> _NestedRows:
        elements = explode(records.values)
        inner = pc.take(records.values.values, pa.array(elements.at))
        key = [pc.struct_field(inner, name) for name in self.options.nested_key]
        usable = validity(inner)
        complete = np.logical_and.reduce([np.ones(len(inner), bool), *(validity(k) for k in key)])
        if self.options.null_strategy == "error" and (usable & ~complete).any():
            option = self.options.option("nested-key-null-strategy")
            raise self._refused("got a row whose nested key is null", f"correct the row, or set {option}=ignore")
        if self.options.null_strategy == "ignore":
            usable = usable & complete
        codes = element_codes(pa.StructArray.from_arrays(key, self.options.nested_key) if key else inner)
        retract, group = records.retract[elements.record], records.group[elements.record]
        return _NestedRows(elements, codes, self._ranks(inner), retract, group, usable)

    def _ranks(self, inner: pa.Array) -> Indices:
        words = [w for n in self.options.nested_sequence for w in order_values(pc.struct_field(inner, n), False)]
        if not words or not len(inner):
            return np.zeros(len(inner), np.int64)
        return np.unique(np.stack(words, axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def _fold_rows(self, records: Records) -> pa.Array:
        rows = self._rows(records)
        bounds = np.searchsorted(rows.elements.record, np.arange(len(records.values) + 1))
        fields = self._field_elements(records, rows)
        tables: list[list[Row] | None] = []
        for start, end in zip(records.starts, records.ends, strict=True):
            held: list[Row] | None = None
            for at in range(start, end + 1):
                own = fields[bounds[at] : bounds[at + 1]] if records.valid[at] else None
                if records.initial[at]:
                    held = own
                elif records.retract[at]:
                    held = held if held is None or own is None else self._without(held, own, rows)
                else:
                    held = self._added(own, held, rows) if records.late[at] else self._added(held, own, rows)
            tables.append(held)
        return _table_array(records, rows, tables)

    def _field_elements(self, records: Records, rows: _NestedRows) -> list[Row]:
        """Return each nested row as the elements of its fields, itself first; -1: the field is null."""
        inner = pc.take(records.values.values, pa.array(rows.elements.at))
        at = np.arange(len(inner))
        columns = [at, *(np.where(validity(child), at, -1) for child in inner.flatten())]
        return [tuple(row) for row in np.stack(columns, axis=1).tolist()]

    def _without(self, held: list[Row], own: list[Row], rows: _NestedRows) -> list[Row]:
        gone = {rows.codes[row[0]] for row in own if rows.usable[row[0]]}
        return [row for row in self._by_key(held, rows) if rows.codes[row[0]] not in gone]

    def _by_key(self, held: list[Row], rows: _NestedRows) -> list[Row]:
        return [row for row in held if rows.usable[row[0]]]

    @abstractmethod
    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _NestedRows) -> list[Row] | None:
        """Add one table to another, as Paimon's function does."""


@dataclass(frozen=True, slots=True)
class NestedUpdate(_Nested):
    """All rows, up to the limit; with a nested key the last row of each, or that of the highest sequence."""

    retracts: ClassVar[bool] = True

    def _by_rows(self, records: Records) -> Mask:
        """With a limit, what a retract removes makes room for later rows, so the order of all rows decides."""
        rare = records.late | records.initial
        limited = self.options.count_limit < len(records.values.values)
        return records.any_of(rare | records.retract if limited else rare)

    def _fold(self, records: Records) -> pa.Array:
        rows = self._rows(records).only_usable()
        slots = rows.slots
        at = np.arange(len(rows.codes))
        left = ~rows.retract & (at > slots.last_of(rows.retract)[slots.slot])
        chosen = self._winners(rows, slots, left) if self.options.nested_key else self._limited(rows, left)
        present = records.any_of(records.valid & ~records.retract)
        return implode(records.values, rows.elements.at[chosen], rows.group[chosen], present)

    def _limited(self, rows: _NestedRows, left: Mask) -> Indices:
        chosen = np.flatnonzero(left)
        return chosen[_place_in_group(rows.group[chosen]) < self.options.count_limit]

    def _winners(self, rows: _NestedRows, slots: Slots, left: Mask) -> Indices:
        first = slots.first_of(~rows.retract)
        in_order = np.lexsort([first, slots.group])
        admitted = np.zeros(slots.count, bool)
        admitted[in_order] = _place_in_group(slots.group[in_order]) < self.options.count_limit
        held = np.flatnonzero(left & admitted[slots.slot])
        order = held[np.lexsort([held, rows.ranks[held], slots.slot[held]])]
        slot = slots.slot[order]
        return np.sort(order[np.append(slot[1:] != slot[:-1], True)]) if len(order) else order

    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _NestedRows) -> list[Row] | None:
        if own is None:
            return held
        limit = self.options.count_limit
        new = [row for row in own if rows.usable[row[0]]]
        if not self.options.nested_key and held is not None and len(held) >= limit:
            return held
        if not self.options.nested_key:
            return [r for r in held or [] if rows.usable[r[0]]] + new[: limit - len(held or [])]
        table: dict[int, Row] = {}
        self._put(table, [row for row in held or [] if rows.usable[row[0]]], rows, 2**31)
        self._put(table, new, rows, limit)
        return list(table.values())

    def _by_key(self, held: list[Row], rows: _NestedRows) -> list[Row]:
        usable = [row for row in held if rows.usable[row[0]]]
        return list({rows.codes[row[0]]: row for row in usable}.values()) if self.options.nested_key else usable

    @staticmethod
    def _put(table: dict[int, Row], new: list[Row], rows: _NestedRows, limit: int) -> None:
        for row in new:
            code = rows.codes[row[0]]
            known = table.get(code)
            if len(table) < limit if known is None else rows.ranks[row[0]] >= rows.ranks[known[0]]:
                table[code] = row


@dataclass(frozen=True, slots=True)
class NestedPartialUpdate(_Nested):
    """By key, the last value of each field that is not null."""

    def _fold(self, records: Records) -> pa.Array:
        rows = self._rows(records).only_usable()
        slots = rows.slots
        inner = pc.take(records.values.values, pa.array(rows.elements.at))
        fields = [slots.last_of(validity(child)) for child in inner.flatten()]
        present = records.any_of(records.valid)
        return _assembled(records, inner, fields, slots.group, present)

    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _NestedRows) -> list[Row] | None:
        if own is None:
            return held
        table: dict[int, Row] = {}
        for row in (r for r in (held or []) + own if rows.usable[r[0]]):
            code = rows.codes[row[0]]
            known = table.get(code, row)
            table[code] = tuple(k if new < 0 else new for k, new in zip(known, row, strict=True))
        return list(table.values())


def _place_in_group(group: Indices) -> Indices:
    """Return how many elements of the same group come before each; ``group`` ascends."""
    return np.arange(len(group)) - np.searchsorted(group, group)


def _table_array(records: Records, rows: _NestedRows, tables: list[list[Row] | None]) -> pa.Array:
    inner = pc.take(records.values.values, pa.array(rows.elements.at))
    present = np.array([one is not None for one in tables], bool)
    held = validity(inner)
    group = np.repeat(np.arange(len(tables)), [len(one or []) for one in tables])
    flat = [row[1:] for one in tables for row in one or []]
    fields = list(np.array(flat, np.int64).reshape(len(flat), inner.type.num_fields).T)
    absent = np.array([not held[row[0]] for one in tables for row in one or []], bool)
    return _assembled(records, inner, fields, group, present, absent)


def _assembled(
    records: Records,
    inner: pa.Array,
    fields: list[Indices],
    group: Indices,
    present: Mask,
    absent: Mask | None = None,
) -> pa.Array:
    """Return lists of rows, each field taken from the row at its position; ``group`` ascends. ``absent``: null rows."""
    kind = records.values.type
    children = [c.take(pa.array(at, mask=at < 0)) for c, at in zip(inner.flatten(), fields, strict=True)]
    mask = None if absent is None else pa.array(absent)
    rows = pa.StructArray.from_arrays(children, fields=list(kind.value_type), mask=mask)
    offsets = pa.array(np.append(0, np.cumsum(np.bincount(group, minlength=len(present)))), pa.int32())
    return pa.ListArray.from_arrays(offsets, rows, type=kind, mask=pa.array(~present))
