"""What every aggregate function is: a value that folds the records of each key into one value of a column.

The records come grouped by key and in merge order. The common part handles the flags of the records; a function
implements ``_fold``, where every record takes part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.merge_options import AggregateOptions
from airflow_paimon.data.merge.aggregates.records import Records, nothing, scatter
from airflow_paimon.data.merge.versions import Indices, Mask


@dataclass(frozen=True, slots=True)
class Aggregate(ABC):
    """One column's function."""

    options: AggregateOptions

    retracts: ClassVar[bool] = False
    """Whether the function can take a record back."""
    skips_nulls: ClassVar[bool] = False
    """Whether nulls take no part."""
    order_bound: ClassVar[bool] = False
    """Whether late records and initial values need the row-by-row fold: these groups are rare."""

    @property
    def takes_back(self) -> bool:
        """Whether a -U or -D can be folded."""
        return self.retracts or self.options.ignore_retract

    def fold(
        self,
        values: pa.Array,
        starts: Indices,
        *,
        retract: Mask | None = None,
        used: Mask | None = None,
        late: Mask | None = None,
        initial: Mask | None = None,
    ) -> pa.Array:
        """Return one value per group, null for a group without a used record.

        Keys with one stored record are the caller's: Paimon does not call the function for them. ``retract``: -U and
        -D. ``used``: the records that take part. ``late``: those below the sequence that their sequence group has
        reached. ``initial``: those whose value replaces the accumulator without the function, as a delete does that
        removes the record; ``retract`` has no effect there.

        Raises:
            UnsupportedFeatureError: the function can't take records back, or its result does not fit the type.
        """
        if not len(starts):
            return values.slice(0, 0)
        none = np.zeros(len(values), bool)
        begins, back, low = (none if flags is None else flags for flags in (initial, retract, late))
        records = Records(values, starts, back & ~begins, low & ~back & ~begins, begins)
        keep = self._partaking(records, ~none if used is None else used)
        if self.skips_nulls:
            keep = keep & records.valid
        if keep.all():
            return self._fold_any(records)
        chosen, groups = records.kept(keep)
        if not chosen.groups:
            return nothing(values, records.groups)
        return scatter(self._fold_any(chosen), groups, records.groups)

    def _partaking(self, records: Records, used: Mask) -> Mask:
        """Return the records that decide the result."""
        if (records.retract & used).any() and not self.takes_back:
            option = self.options.option("ignore-retract")
            raise self._refused("does not support retractions (-U, -D)", f"set the table option {option}=true")
        if self.options.ignore_retract:
            used = used & ~records.retract
        if self.order_bound or not records.initial.any():
            return used
        begin = records.last_of(records.initial & used)[records.group]
        return used & (np.arange(len(used)) >= begin)

    def _fold_any(self, records: Records) -> pa.Array:
        rare = self._by_rows(records)
        if not rare.any():
            return self._fold(records)
        slow = self._fold_rows(records.of_groups(rare))
        if rare.all():
            return slow
        fast = self._fold(records.of_groups(~rare))
        at = np.where(rare, np.cumsum(rare) - 1 + len(fast), np.cumsum(~rare) - 1)
        return pa.concat_arrays([fast, slow]).take(pa.array(at))

    def _by_rows(self, records: Records) -> Mask:
        """Return which groups the vectorised fold can't do."""
        if not self.order_bound:
            return np.zeros(records.groups, bool)
        return records.any_of(records.late | records.initial)

    @abstractmethod
    def _fold(self, records: Records) -> pa.Array:
        """Fold groups whose records all take part."""

    def _fold_rows(self, records: Records) -> pa.Array:
        """Fold groups record by record, exactly as Paimon does: only those of ``_by_rows``."""
        raise AssertionError(f"{type(self).__name__} folds {records.groups} groups in any order")

    def _refused(self, what: str, way_out: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"Column {self.options.column!r}: the aggregate function {self.options.function} {what}; {way_out}",
            details={"column": self.options.column, "function": self.options.function},
        )
