"""The merge engine aggregation: each column has a function that folds its values (docs/format.md, Merging)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.merge.aggregates import Aggregate
from airflow_paimon.data.merge.versions import DELETE, INSERT, UPDATE_BEFORE, Mask, Merged, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """``functions``: of all columns but the keys. ``remove_on_delete``: a -D removes the row; a later version goes on
    from the values of the -D.
    """

    functions: Mapping[str, Aggregate]
    remove_on_delete: bool = False

    @property
    def skips_retracts(self) -> bool:
        return False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        if all(f.takes_back for f in self.functions.values()):
            return ()
        return (UPDATE_BEFORE,) if self.remove_on_delete else (UPDATE_BEFORE, DELETE)

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        return ()

    def merge(self, versions: Versions) -> Merged:
        kinds = versions.kinds()
        retract: Mask = (kinds == UPDATE_BEFORE) | (kinds == DELETE)
        initial: Mask = (kinds == DELETE) & self.remove_on_delete
        last = versions.ends - 1
        columns = []
        for name in versions.names:
            values = versions.column(name)
            if name in self.functions:
                function = self.functions[name]
                columns.append(function.fold(values, versions.starts, retract=retract, initial=initial))
            elif name == VALUE_KIND:
                columns.append(pa.array(np.where(initial[last], DELETE, INSERT), pa.int8()))
            else:  # keys and system columns
                columns.append(values.take(pa.array(last)))
        return pa.RecordBatch.from_arrays(columns, schema=versions.pieces[0].schema)
