"""``bool_and`` and ``bool_or``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records


@dataclass(frozen=True, slots=True)
class _Boolean(Aggregate):
    decisive: ClassVar[bool]
    """The value that one record is enough for."""

    def _fold(self, records: Records) -> pa.Array:
        truth = np.asarray(pc.fill_null(records.values, False).to_numpy(zero_copy_only=False))
        decided = records.any_of(records.valid & (truth == self.decisive))
        return pa.array(np.where(decided, self.decisive, not self.decisive), mask=~records.any_of(records.valid))


@dataclass(frozen=True, slots=True)
class BoolAnd(_Boolean):
    """Whether all values are true, nulls left out."""

    decisive: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BoolOr(_Boolean):
    """Whether any value is true."""

    decisive: ClassVar[bool] = True
