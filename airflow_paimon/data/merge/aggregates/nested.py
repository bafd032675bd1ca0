"""``nested_update`` and ``nested_partial_update``: a table in a column, ARRAY<ROW>, whose rows have a key or not."""

from __future__ import annotations

from abc import abstractmethod
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
from airflow_paimon.data.merge.sort_keys import order_values

Row = tuple[int, ...]
"""A nested row while it is folded row by row: for each field the element that holds its value."""


@dataclass(frozen=True)
class _Rows:
    """The nested rows of all records: the code of their key (or of all fields), and their rank by sequence.

    ``usable``: those that are not null, and whose key is not null where such rows are ignored.
    """

    elements: Elements
    codes: Indices
    ranks: Indices
    retract: Flags
    group: Indices
    usable: Flags

    def only_usable(self) -> _Rows:
        at = np.flatnonzero(self.usable)
        retract, usable = self.retract[at], self.usable[at]
        elements = self.elements.kept(self.usable)
        return _Rows(elements, self.codes[at], self.ranks[at], retract, self.group[at], usable)

    @property
    def slots(self) -> Slots:
        return slots_of(self.group, self.codes)


@dataclass(frozen=True, slots=True)
class _Nested(Aggregate):
    order_bound: ClassVar[bool] = True

    def _rows(self, records: Records) -> _Rows:
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
        return _Rows(elements, codes, self._ranks(inner), retract, group, usable)

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

    def _field_elements(self, records: Records, rows: _Rows) -> list[Row]:
        """Return each nested row as the elements of its fields, itself first; -1: the field is null."""
        inner = pc.take(records.values.values, pa.array(rows.elements.at))
        at = np.arange(len(inner))
        columns = [at, *(np.where(validity(child), at, -1) for child in inner.flatten())]
        return [tuple(row) for row in np.stack(columns, axis=1).tolist()]

    def _without(self, held: list[Row], own: list[Row], rows: _Rows) -> list[Row]:
        gone = {rows.codes[row[0]] for row in own if rows.usable[row[0]]}
        return [row for row in self._by_key(held, rows) if rows.codes[row[0]] not in gone]

    def _by_key(self, held: list[Row], rows: _Rows) -> list[Row]:
        return [row for row in held if rows.usable[row[0]]]

    @abstractmethod
    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _Rows) -> list[Row] | None:
        """Add one table to another, as Paimon's function does."""


@dataclass(frozen=True, slots=True)
class NestedUpdate(_Nested):
    """All rows, up to the limit; with a nested key the last row of each, or that of the highest sequence."""

    retracts: ClassVar[bool] = True

    def _by_rows(self, records: Records) -> Flags:
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

    def _limited(self, rows: _Rows, left: Flags) -> Indices:
        chosen = np.flatnonzero(left)
        return chosen[_place_in_group(rows.group[chosen]) < self.options.count_limit]

    def _winners(self, rows: _Rows, slots: Slots, left: Flags) -> Indices:
        first = slots.first_of(~rows.retract)
        in_order = np.lexsort([first, slots.group])
        admitted = np.zeros(slots.count, bool)
        admitted[in_order] = _place_in_group(slots.group[in_order]) < self.options.count_limit
        held = np.flatnonzero(left & admitted[slots.slot])
        order = held[np.lexsort([held, rows.ranks[held], slots.slot[held]])]
        slot = slots.slot[order]
        return np.sort(order[np.append(slot[1:] != slot[:-1], True)]) if len(order) else order

    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _Rows) -> list[Row] | None:
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

    def _by_key(self, held: list[Row], rows: _Rows) -> list[Row]:
        usable = [row for row in held if rows.usable[row[0]]]
        return list({rows.codes[row[0]]: row for row in usable}.values()) if self.options.nested_key else usable

    @staticmethod
    def _put(table: dict[int, Row], new: list[Row], rows: _Rows, limit: int) -> None:
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

    def _added(self, held: list[Row] | None, own: list[Row] | None, rows: _Rows) -> list[Row] | None:
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


def _table_array(records: Records, rows: _Rows, tables: list[list[Row] | None]) -> pa.Array:
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
    present: Flags,
    absent: Flags | None = None,
) -> pa.Array:
    """Return lists of rows, each field taken from the row at its position; ``group`` ascends. ``absent``: null rows."""
    kind = records.values.type
    children = [c.take(pa.array(at, mask=at < 0)) for c, at in zip(inner.flatten(), fields, strict=True)]
    mask = None if absent is None else pa.array(absent)
    rows = pa.StructArray.from_arrays(children, fields=list(kind.value_type), mask=mask)
    offsets = pa.array(np.append(0, np.cumsum(np.bincount(group, minlength=len(present)))), pa.int32())
    return pa.ListArray.from_arrays(offsets, rows, type=kind, mask=pa.array(~present))
