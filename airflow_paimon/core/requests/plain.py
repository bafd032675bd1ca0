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

COLUMN_SOURCES_SETTING = "spark.airflow_paimon.columnSources"
"""The session's setting that leaves the sources of a query's columns out of the result."""
DEFAULT_MEMORY_MB = 1024
MIB = 1 << 20
_MEANINGLESS_TO_ROWS = ("spark.sql.adaptive.", "spark.sql.shuffle.", "spark.sql.ui.", "spark.sql.warehouse.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this process may do itself. ``memory_bytes``: the most that work on rows may take (``data/memory_plan.py``);
    0 = none. ``statements``: also SQL, which it reads itself: not where a session's settings may say what it means.
    ``only``: no Spark session goes on with what it can't do.
    """

    memory_bytes: int = DEFAULT_MEMORY_MB * MIB
    statements: bool = True
    only: bool = False


class NeedsSparkError(Exception):
    """Work that was to be done without Spark needs it. What it has written so far a later try finds by its id."""


def plain_memory_mb(value: Any, name: str) -> int:
    """Return how many MiB work on rows may take without Spark. ``name``: of the setting, for the message.

    Raises:
        InvalidInputError: no whole number from 0 on.
    """
    text = "" if value is None else str(value).strip()
    if not text:
        return DEFAULT_MEMORY_MB
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise InvalidInputError(
            f"{name} must be a whole number of MiB: work on rows that takes less runs in plain Python instead of "
            f"Spark; 0 = always in Spark. It is {value!r}"
        )
    return int(text)


def may_run_plain(request: Request, texts: Mapping[str, str], spark_conf: Mapping[str, Any]) -> bool:
    """Whether it is worth a try to run an operation on rows without Spark; the try decides by the files.

    ``texts``: the SQL that the request names as a file. ``spark_conf``: settings of the session; those of Spark SQL
    may change what SQL means.
    """
    if request.engine != "embedded":
        return False
    if isinstance(request, CorrectBranch):
        plain_sql = not any(_changes_sql(name) for name in spark_conf)
        return plain_sql and not request.function and may_be_plain(texts.get("sql", ""))
    if isinstance(request, CompactChainTable | EraseRows):
        return request.dry_run
    return isinstance(request, DiffBranches | CheckBranchData | Compact | Rescale)


def _changes_sql(setting: str) -> bool:
    if setting == COLUMN_SOURCES_SETTING:
        return True
    return setting.startswith("spark.sql.") and not setting.startswith(_MEANINGLESS_TO_ROWS)
