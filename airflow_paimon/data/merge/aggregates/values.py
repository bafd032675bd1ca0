"""Functions that give one of the values of a key, or a truth about them: by place, by order, the only one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records
from airflow_paimon.data.merge.versions import take_or_null


@dataclass(frozen=True, slots=True)
class PrimaryKey(Aggregate):
    """The value of the last record, a retract included."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        return take_or_null(records.values, records.last_of(~records.late))


@dataclass(frozen=True, slots=True)
class LastValue(Aggregate):
    """The last value, null too; null after a retract."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        last = records.last_of(~records.late | records.retract)
        return take_or_null(records.values, np.where(records.retract[last], -1, last))


@dataclass(frozen=True, slots=True)
class LastNonNullValue(Aggregate):
    """The last value that is not null; null after the retract of one. A late value only replaces null."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        last = records.last_of(records.valid & (~records.late | records.retract))
        emptied = (last < 0) | records.retract[last]
        if not records.late.any():
            return take_or_null(records.values, np.where(emptied, -1, last))
        after = np.arange(len(records.values)) > last[records.group]
        late = records.first_of(records.valid & records.late & ~records.retract & after)
        return take_or_null(records.values, np.where(emptied, late, last))


@dataclass(frozen=True, slots=True)
class FirstValue(Aggregate):
    """The first value, null too, or the first that is not null. Each late record replaces it."""

    order_bound: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        return take_or_null(records.values, records.first_of(records.valid) if self._is_not_null else records.starts)

    def _fold_rows(self, records: Records) -> pa.Array:
        return take_or_null(records.values, _first_by_rows(records, skip_nulls=self._is_not_null))

    @property
    def _is_not_null(self) -> bool:
        return self.options.function != "first_value"


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


@dataclass(frozen=True, slots=True)
class Extreme(Aggregate):
    """The least or the greatest value, nulls left out."""

    skips_nulls: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        ranks = comparable(records.values)
        best = (np.minimum if self.options.function == "min" else np.maximum).reduceat(ranks, records.starts)
        return take_or_null(records.values, records.first_of(ranks == best[records.group]))


def comparable(values: pa.Array) -> npt.NDArray[Any]:
    """Return integers in the order of values without nulls. NaN is the highest float, and -0.0 is below 0.0."""
    kind = values.type
    if pa.types.is_integer(kind):
        return np.asarray(values.to_numpy())
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return np.asarray(values.view(pa.int32()).to_numpy())
    if pa.types.is_timestamp(kind):
        return np.asarray(values.view(pa.int64()).to_numpy())
    if pa.types.is_floating(kind):
        return _float_order(np.asarray(values.to_numpy()))
    if pa.types.is_string(kind):
        values = values.view(pa.binary())
    return np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy())


def _float_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    width = f"i{values.dtype.itemsize}"
    bits = np.where(np.isnan(values), np.array(np.nan, values.dtype), values).view(width)
    return np.where(bits < 0, bits ^ np.iinfo(width).max, bits)


@dataclass(frozen=True, slots=True)
class Boolean(Aggregate):
    """Whether all values are true, or any is, nulls left out."""

    skips_nulls: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        truth = np.asarray(records.values.to_numpy(zero_copy_only=False), bool)
        if self.options.function == "bool_or":
            return pa.array(records.any_of(truth))
        return pa.array(~records.any_of(~truth))


@dataclass(frozen=True, slots=True)
class Sketch(Aggregate):
    """The only value of a key that is not null, unchanged; several are refused."""

    def _fold(self, records: Records) -> pa.Array:
        if (np.add.reduceat(records.valid.astype(np.int64), records.starts) > 1).any():
            raise self._refused(
                "is not merged by the built-in engine, and a key has several values",
                "compact the table with Paimon, or read it with Paimon's own Spark connector",
            )
        return take_or_null(records.values, records.last_of(records.valid))
