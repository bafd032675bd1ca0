"""What of the work on rows may run in plain Python, in a process of its own, instead of in Spark (pure)."""

from __future__ import annotations

from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import (
    CheckBranchData,
    Compact,
    CompactChainTable,
    DiffBranches,
    EraseRows,
    Request,
    Rescale,
)
from airflow_paimon.core.table.paths import is_pattern

MEMORY_BYTES = 1024 << 20
"""The most that work on rows takes in plain Python (``data/memory_plan.py``); more is Spark's."""
NONE, READS, ALL = "none", "reads", "all"
LOCAL_EXECUTION = (NONE, READS, ALL)
"""What of the work on rows may run in plain Python, where it takes no more memory than that: nothing, what only reads
(diffs, limits of checks, plans), or compactions and rescales as well. What SQL says is computed by Spark in any case.
"""


class NeedsSparkError(Exception):
    """Work that was to be done without Spark needs it. What it has written so far a later try finds by its id."""


def local_execution(value: Any, name: str, default: str = READS) -> str:
    """Return what a setting allows to run in plain Python. ``name``: of the setting, for the message.

    Raises:
        InvalidInputError: none of ``LOCAL_EXECUTION``.
    """
    text = "" if value is None else str(value).strip().lower()
    if text and text not in LOCAL_EXECUTION:
        raise InvalidInputError(
            f"{name} must be one of {', '.join(LOCAL_EXECUTION)}, got {value!r}: what may run in plain Python when it "
            "is small (none: always Spark, reads: diffs and checks, all: also compactions and rescales)"
        )
    return text or default


def may_run_locally(request: Request, local: str) -> bool:
    """Whether it is worth a try to run an operation on rows without Spark; the try decides by the files.

    ``local``: one of ``LOCAL_EXECUTION``.
    """
    if local == NONE:
        return False
    if request.takes_patterns and is_pattern(request.table):
        return request.dry_run  # several tables share one application
    if isinstance(request, DiffBranches | CheckBranchData):
        return True
    if isinstance(request, CompactChainTable | EraseRows):
        return request.dry_run
    return isinstance(request, Compact | Rescale) and (request.dry_run or local == ALL)
