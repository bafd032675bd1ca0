"""Functions on serialised sketches and bitmaps, whose formats are not written here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records, pick


@dataclass(frozen=True, slots=True)
class Sketch(Aggregate):
    """The only value of a key that is not null, unchanged; several are refused."""

    def _fold(self, records: Records) -> pa.Array:
        if (np.add.reduceat(records.valid.astype(np.int64), records.starts) > 1).any():
            raise self._refused(
                "is not merged by the embedded engine, and a key has several values",
                "compact the table with Paimon, or read it with Paimon's own Spark connector",
            )
        return pick(records.values, records.last_of(records.valid))
