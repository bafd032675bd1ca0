"""What of the work on rows may run in plain Python, in a process of its own, instead of in Spark (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.correction.sql_words import may_be_plain
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import (
    CheckBranchData,
    Compact,
    CompactChainTable,
    CorrectBranch,
    DiffBranches,
    EraseRows,
    Request,
    Rescale,
)
from airflow_paimon.core.table.paths import is_pattern

COLUMN_SOURCES_SETTING = "spark.airflow_paimon.columnSources"
"""The session's setting that leaves the sources of a query's columns out of the result."""
MEMORY_BYTES = 1024 << 20
"""The most that work on rows takes in plain Python (``data/memory_plan.py``); more is Spark's."""
NONE, READS, ALL = "none", "reads", "all"
LOCAL_EXECUTION = (NONE, READS, ALL)
"""What of the work on rows may run in plain Python, where it takes no more memory than that: nothing, what only reads
(diffs, checks, plans), or what writes (corrections, compactions, rescales) as well.
"""
_MEANINGLESS_TO_ROWS = ("spark.sql.adaptive.", "spark.sql.shuffle.", "spark.sql.ui.", "spark.sql.warehouse.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this process may do itself: work on rows of so much memory (0 = none), and whether also what ``writes``.

    ``only``: no Spark session goes on with what it can't do.
    """

    memory_bytes: int = MEMORY_BYTES
    writes: bool = True
    only: bool = False


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
            f"{name} is one of {', '.join(LOCAL_EXECUTION)}: what may run in plain Python beside its task, where it is "
            f"small, instead of in Spark; none = always Spark, reads = diffs and checks, all = what writes rows, too. "
            f"It is {value!r}"
        )
    return text or default


def may_run_plain(request: Request, texts: Mapping[str, str], spark_conf: Mapping[str, Any], local: str) -> bool:
    """Whether it is worth a try to run an operation on rows without Spark; the try decides by the files.

    ``texts``: the SQL that the request names as a file. ``spark_conf``: settings of the session; those of Spark SQL
    may change what SQL means. ``local``: one of ``LOCAL_EXECUTION``.
    """
    if local == NONE or request.engine != "embedded":
        return False
    if request.takes_patterns and is_pattern(request.table):
        return request.dry_run  # several tables share one application
    if isinstance(request, DiffBranches | CheckBranchData):
        return True
    if isinstance(request, CompactChainTable | EraseRows):
        return request.dry_run
    if isinstance(request, Compact | Rescale):
        return request.dry_run or local == ALL
    if not isinstance(request, CorrectBranch) or local != ALL:
        return False
    plain_sql = not any(_changes_sql(name) for name in spark_conf)
    return plain_sql and not request.function and may_be_plain(texts.get("sql", ""))


def _changes_sql(setting: str) -> bool:
    if setting == COLUMN_SOURCES_SETTING:
        return True
    return setting.startswith("spark.sql.") and not setting.startswith(_MEANINGLESS_TO_ROWS)
