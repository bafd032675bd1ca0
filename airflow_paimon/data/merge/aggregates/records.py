"""The records that an aggregate function folds, and what the functions share: groups, lists, codes of values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.versions import Indices, Mask, last_flagged, take_or_null


@dataclass(frozen=True)
class Records:
    """Records of one column, grouped by key, in merge order; ``starts``: the first record of each group.

    ``retract``: -U and -D. ``late``: below the sequence that their sequence group has reached, so Paimon folds them
    the other way round. ``initial``: the value replaces the accumulator as it is. No group is empty.
    """

    values: pa.Array
    starts: Indices
    retract: Mask
    late: Mask
    initial: Mask

    @cached_property
    def sizes(self) -> Indices:
        return np.diff(np.append(self.starts, len(self.values)))

    @cached_property
    def ends(self) -> Indices:
        """The last record of each group."""
        return np.append(self.starts[1:], len(self.values)) - 1

    @cached_property
    def group(self) -> Indices:
        """The group of each record."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @cached_property
    def valid(self) -> Mask:
        """Which records have a value."""
        return validity(self.values)

    @property
    def groups(self) -> int:
        return len(self.starts)

    def kept(self, keep: Mask) -> tuple[Records, Indices]:
        """Return the records chosen by a mask, and the groups that still have records."""
        if keep.all():
            return self, np.arange(self.groups)
        at = np.flatnonzero(keep)
        group = self.group[at]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(at) else at
        values = self.values if len(at) == len(self.values) else pc.take(self.values, pa.array(at))
        chosen = replace(
            self,
            values=values,
            starts=starts,
            retract=self.retract[at],
            late=self.late[at],
            initial=self.initial[at],
        )
        return chosen, group[starts]

    def of_groups(self, groups: Mask) -> Records:
        """Return the records of these groups."""
        return self.kept(groups[self.group])[0]

    def any_of(self, flags: Mask) -> Mask:
        """Return which groups have a record with this flag."""
        return any_of(flags, self.starts)

    def last_of(self, flags: Mask) -> Indices:
        """Return the position of the last record of each group with this flag; -1: there is none."""
        return last_flagged(flags, self.starts)

    def first_of(self, flags: Mask) -> Indices:
        """Return the position of the first record of each group with this flag; -1: there is none."""
        if flags.all():
            return self.starts
        count = len(flags)
        first = np.minimum.reduceat(np.where(flags, np.arange(count), count), self.starts)
        return np.where(first == count, -1, first)


def validity(values: pa.Array) -> Mask:
    """Return which values are not null."""
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def any_of(flags: Mask, starts: Indices) -> Mask:
    """Return which groups have a flag; ``starts`` must not be empty."""
    if not flags.any():
        return np.zeros(len(starts), bool)
    found: Mask = np.logical_or.reduceat(flags, starts)
    return found


def scatter(values: pa.Array, groups: Indices, count: int) -> pa.Array:
    """Return an array of ``count`` values with these ones at the positions ``groups`` and nulls elsewhere."""
    if len(groups) == count:
        return values
    at = np.full(count, -1, np.int64)
    at[groups] = np.arange(len(groups))
    return take_or_null(values, at)


def nothing(values: pa.Array, count: int) -> pa.Array:
    """Return ``count`` nulls of the same type."""
    return pa.nulls(count, values.type)


@dataclass(frozen=True)
class Elements:
    """The elements of lists, or the entries of maps, of records: positions in the child arrays, and their record."""

    at: Indices
    record: Indices

    def kept(self, keep: Mask) -> Elements:
        return Elements(self.at[keep], self.record[keep])


def explode(values: pa.Array) -> Elements:
    """Return the elements of all lists (or maps) that are not null."""
    offsets = values.offsets.to_numpy().astype(np.int64)
    lengths = np.where(validity(values), np.diff(offsets), 0)
    record = np.repeat(np.arange(len(values)), lengths)
    within = np.arange(len(record)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Elements(np.repeat(offsets[:-1], lengths) + within, record)


def implode(values: pa.Array, at: Indices, group: Indices, valid: Mask) -> pa.Array:
    """Return one list (or map) per group of elements of ``values``; ``group`` ascends."""
    counts = np.bincount(group, minlength=len(valid))
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    mask, taken = pa.array(~valid), pa.array(at)
    if pa.types.is_map(values.type):
        keys, items = pc.take(values.keys, taken), pc.take(values.items, taken)
        return pa.MapArray.from_arrays(offsets, keys, items, type=values.type, mask=mask)
    return pa.ListArray.from_arrays(offsets, pc.take(values.values, taken), type=values.type, mask=mask)


@dataclass(frozen=True)
class Slots:
    """Elements that are the same one of a group share a slot; ``slot``: of each element; ``group``: of each slot."""

    slot: Indices
    group: Indices

    @property
    def count(self) -> int:
        return len(self.group)

    def last_of(self, flags: Mask) -> Indices:
        """Return the last element of each slot with this flag; -1: there is none."""
        last = np.full(self.count, -1, np.int64)
        at = np.flatnonzero(flags)
        np.maximum.at(last, self.slot[at], at)
        return last

    def first_of(self, flags: Mask) -> Indices:
        """Return the first element of each slot with this flag; the number of elements: there is none."""
        first = np.full(self.count, len(self.slot), np.int64)
        at = np.flatnonzero(flags)
        np.minimum.at(first, self.slot[at], at)
        return first


def slots_of(group: Indices, codes: Indices) -> Slots:
    """Return the slots of elements, given their group and a code that is equal for equal elements."""
    span = int(codes.max()) + 2 if len(codes) else 1
    pairs, slot = np.unique(group * span + codes + 1, return_inverse=True)
    return Slots(slot.reshape(-1), pairs // span)


def element_codes(values: pa.Array) -> Indices:
    """Return a code per value; null is -1 and equals itself.

    Floats compare as Java's ``Double.equals``: NaN is one value, and -0.0 is not 0.0. Maps compare without order.
    """
    if pa.types.is_struct(values.type):
        return _joined([element_codes(child) for child in values.flatten()], values)
    if pa.types.is_map(values.type):
        return _map_codes(values)
    if pa.types.is_list(values.type):
        elements = explode(values)
        inner = pc.take(values.values, pa.array(elements.at))
        return _sequence_codes(values, elements.record, element_codes(inner))
    if pa.types.is_floating(values.type):
        values = _float_bits(values)
    codes = pc.dictionary_encode(values).indices
    return np.asarray(pc.fill_null(codes, -1).to_numpy()).astype(np.int64)


def _map_codes(values: pa.Array) -> Indices:
    elements = explode(values)
    at = pa.array(elements.at)
    keys, items = element_codes(pc.take(values.keys, at)), element_codes(pc.take(values.items, at))
    pairs = slots_of(keys + 1, items).slot
    order = np.lexsort([pairs, elements.record])
    return _sequence_codes(values, elements.record, pairs[order])


def _float_bits(values: pa.Array) -> pa.Array:
    numbers = np.asarray(pc.fill_null(values, 0.0).to_numpy())
    bits = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers).view(f"i{numbers.dtype.itemsize}")
    return pa.array(bits, mask=~validity(values))


def _sequence_codes(values: pa.Array, record: Indices, codes: Indices) -> Indices:
    """Return the codes of sequences of codes: each sequence is compared as its bytes."""
    ends = np.append(0, np.cumsum(np.bincount(record, minlength=len(values)))) * codes.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(np.ascontiguousarray(codes))]
    texts = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    return np.where(validity(values), _encoded(texts), -1)


def _joined(children: list[Indices], values: pa.Array) -> Indices:
    rows = np.ascontiguousarray(np.stack(children, axis=1)) if children else np.zeros((len(values), 1), np.int64)
    width = pa.binary(rows.shape[1] * rows.itemsize)
    texts = pa.Array.from_buffers(width, len(values), [None, pa.py_buffer(rows)])
    return np.where(validity(values), _encoded(texts), -1)


def _encoded(texts: pa.Array) -> Indices:
    return np.asarray(pc.dictionary_encode(texts).indices.to_numpy()).astype(np.int64)
