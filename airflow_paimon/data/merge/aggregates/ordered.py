"""``max`` and ``min``: numbers by value, floats as Java compares them, text and bytes by unsigned bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records, nothing, pick, scatter


@dataclass(frozen=True, slots=True)
class _Extreme(Aggregate):
    lowest: ClassVar[bool]

    def _fold(self, records: Records) -> pa.Array:
        valid, groups = records.kept(records.valid)
        if not valid.groups:
            return nothing(records.values, records.groups)
        ranks = comparable(valid.values)
        best = (np.minimum if self.lowest else np.maximum).reduceat(ranks, valid.starts)
        chosen = valid.first_of(ranks == best[valid.group])
        return scatter(pick(valid.values, chosen), groups, records.groups)


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value, nulls left out."""

    lowest: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value, nulls left out."""

    lowest: ClassVar[bool] = True


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
