"""Statements other than changes of rows, by the kind of their plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.spark.statements.parse import is_command_plan, parse_plan
from airflow_paimon.spark.statements.select import is_query, select

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``sql`` was called with."""

    spark: SparkSession
    warehouse: str
    statement: str
    views: Mapping[str, Any]
    operation_id: str | None
    all_rows: bool
    storage_options: Mapping[str, Any] | None


def run_other(asked: Asked) -> Any:
    """Run a statement that Spark can parse and that is no change of rows.

    Raises:
        InvalidInputError: it is none that ``sql`` runs.
    """
    plan = parse_plan(asked.spark, asked.statement)
    if not is_command_plan(asked.spark, plan) and is_query(plan):
        return select(asked.spark, asked.warehouse, plan, asked.statement, asked.views, asked.storage_options)
    raise InvalidInputError(
        "sql takes one SELECT, UPDATE, DELETE FROM, MERGE INTO, INSERT INTO or INSERT OVERWRITE; spark.sql() runs "
        "other statements"
    )
