"""``collect``: the elements of the arrays of a key, each as often as it comes, or once."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Collect(Aggregate):
    """All elements; a retract removes as many of each as it holds. ``distinct``: in no particular order."""

    retracts: ClassVar[bool] = True
    order_bound: ClassVar[bool] = True

    def _by_rows(self, records: Records) -> Flags:
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


def _first_added(slots: Slots, retract: Flags) -> Flags:
    """Return the first element of each slot that was added after the last one that was taken back."""
    added = ~retract & (np.arange(len(retract)) > slots.last_of(retract)[slots.slot])
    first = slots.first_of(added)
    keep = np.zeros(len(retract), bool)
    keep[first[first < len(retract)]] = True
    return keep


def _not_taken(slots: Slots, retract: Flags) -> Flags:
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
