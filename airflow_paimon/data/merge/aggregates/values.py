"""Functions that choose one of the values by its place: the first, the last, or the key's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records, pick


@dataclass(frozen=True, slots=True)
class PrimaryKey(Aggregate):
    """The value of the last record, a retract included."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        return pick(records.values, records.last_of(~records.late))


@dataclass(frozen=True, slots=True)
class LastValue(Aggregate):
    """The last value, null too; null after a retract."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        last = records.last_of(~records.late | records.retract)
        return pick(records.values, np.where(records.retract[last], -1, last))


@dataclass(frozen=True, slots=True)
class LastNonNullValue(Aggregate):
    """The last value that is not null; null after the retract of one. A late value only replaces null."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        last = records.last_of(records.valid & (~records.late | records.retract))
        emptied = (last < 0) | records.retract[last]
        if not records.late.any():
            return pick(records.values, np.where(emptied, -1, last))
        after = np.arange(len(records.values)) > last[records.group]
        late = records.first_of(records.valid & records.late & ~records.retract & after)
        return pick(records.values, np.where(emptied, late, last))


@dataclass(frozen=True, slots=True)
class FirstValue(Aggregate):
    """The first value, null too. Each late record replaces it."""

    order_bound: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        return pick(records.values, records.starts)

    def _fold_rows(self, records: Records) -> pa.Array:
        return pick(records.values, _first_by_rows(records, skip_nulls=False))


@dataclass(frozen=True, slots=True)
class FirstNonNullValue(Aggregate):
    """The first value that is not null."""

    order_bound: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        return pick(records.values, records.first_of(records.valid))

    def _fold_rows(self, records: Records) -> pa.Array:
        return pick(records.values, _first_by_rows(records, skip_nulls=True))


def _first_by_rows(records: Records, *, skip_nulls: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the chosen position of each group; -1: null.

    Paimon's function remembers only whether it has taken a value. For a late record it is called with the two values
    exchanged, and "keeps" that record's; an initial value is not taken note of.
    """
    chosen = np.full(records.groups, -1, np.int64)
    for group, (start, end) in enumerate(zip(records.starts, records.ends, strict=True)):
        taken, kept = False, -1
        for at in range(start, end + 1):
            own = at if records.valid[at] else -1
            if records.initial[at]:
                kept = own
                continue
            kept_first, offered = (own, kept) if records.late[at] else (kept, own)
            if not taken and (not skip_nulls or offered >= 0):
                taken, kept = True, offered
            else:
                kept = kept_first
        chosen[group] = kept
    return chosen
