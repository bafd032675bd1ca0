"""The query of a DataFrame as text that is the same in every run of the same program."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from airflow_paimon.spark.jvm import analyzed, has_jvm
from airflow_paimon.spark.rows_in import temporary_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ALIAS = "read_table "
_MADE_UP = re.compile(r"#\d+L?|(?<=[\w$])@[0-9a-f]{5,8}\b|\b0x[0-9a-f]+|\bplan_id=\d+|\bsplits=\w+(?:\(\d+\))?")
_SEEDS = re.compile(r"\b(rand|randn|uuid|shuffle|randstr|uniform)\((?:[^()]|\([^()]*\))*\)")
_ALL_FIELDS = {"spark.sql.debug.maxToStringFields": str(1 << 20)}


def aliased(frame: DataFrame, *identity: Any) -> DataFrame:
    """Mark a read by its arguments: its plan depends on the table's files, which change between two tries."""
    return frame.alias(_ALIAS + hashlib.sha256(repr(identity).encode()).hexdigest()[:12])


def plan_text(frame: DataFrame) -> str | None:
    """Return the analyzed plan without run-specific ids; None over Spark Connect, which shows no plan.

    It contains literals, names, operators and the arguments of ``read_table``, but not local rows of the program or the
    current files of a source.
    """
    if not has_jvm(frame.sparkSession):
        return None
    with temporary_conf(frame.sparkSession, _ALL_FIELDS):
        lines = str(analyzed(frame).toString()).splitlines()
    return _SEEDS.sub(r"\1()", _MADE_UP.sub("", "\n".join(_above_reads(lines))))


def _above_reads(lines: list[str]) -> list[str]:
    """Leave out the nodes below the alias of a read; a node's depth is the column at which its name starts."""
    kept: list[str] = []
    below: int | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip(" :+-"))
        if below is not None and depth > below:
            continue
        kept.append(line)
        below = depth if f"SubqueryAlias {_ALIAS}" in line or f"SubqueryAlias `{_ALIAS}" in line else None
    return kept
