"""What is asked of a read: one value for all that plan one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from airflow_paimon.core.chain.layout import GapPolicy
from airflow_paimon.core.chain.read_plan import ChainReadMode
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.data.files.read import BATCH_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """``version`` and ``timestamp`` choose the state that is read, unless it was pinned before. ``columns``: None = all
    of the table's. ``where`` filters the rows; ``predicate`` only prunes. ``mode`` and ``gap_policy``: how the branches
    of a chain table are read together; None: the view is read as it is stored. ``system``: the rows of one of
    ``system_tables.WITH_ROWS``. Picklable.
    """

    version: int | str | None = None
    timestamp: int | str | None = None
    columns: Sequence[str] | None = None
    where: pc.Expression | None = None
    predicate: Predicate | None = None
    mode: ChainReadMode | None = None
    gap_policy: GapPolicy = "empty"
    system: str | None = None
    batch_rows: int = BATCH_ROWS

    @property
    def has_filter(self) -> bool:
        """Whether files may be left out by their statistics."""
        return self.where is not None or self.predicate is not None

    @property
    def travels(self) -> bool:
        """Whether it reads another state than the newest."""
        return self.version is not None or self.timestamp is not None
