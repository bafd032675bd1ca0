"""The merge engine first-row: the first version of a key stays, later ones have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.merge.versions import DELETE, UPDATE_BEFORE, Merged, Versions


@dataclass(frozen=True, slots=True)
class FirstRow:
    """``skips_retracts``: option ``ignore-delete``, without which a delete has no meaning here."""

    skips_retracts: bool = False

    @property
    def refused_kinds(self) -> tuple[int, ...]:
        return () if self.skips_retracts else (UPDATE_BEFORE, DELETE)

    def needed(self, columns: Collection[str]) -> Iterable[str]:
        return ()

    def merge(self, versions: Versions) -> Merged:
        if np.isin(versions.kinds(), (UPDATE_BEFORE, DELETE)).any():
            raise UnsupportedFeatureError(
                "A table with merge-engine=first-row holds deletes of keys with other versions: set the table option "
                "ignore-delete, which defines their meaning"
            )
        return versions.rows[versions.starts]
