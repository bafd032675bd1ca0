"""Checks of the branch ``fix``, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.jobs import run_spark_operation
from tests.core.tables import alter_table
from tests.spark.jobs.operations import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(spark: SparkSession, warehouse: Path, *rules: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Evaluate rules; all of them, also where one of severity error is broken."""
    file = warehouse / "rules.json"
    file.write_text(json.dumps(rules))
    request = build_request("check_branch_data", values(warehouse, **{"branch": "fix", "rules": str(file), **more}))
    try:
        found: list[dict[str, Any]] = list(run_spark_operation(spark, request).details["rules"])
    except UnsafeOperationError as error:
        found = list(error.details["rules"])
    return found


def outcome(spark: SparkSession, warehouse: Path, rule: dict[str, Any], **more: Any) -> tuple[str, int]:
    [one] = check(spark, warehouse, rule, **more)
    return one["outcome"], one["broken"]


def outcomes(spark: SparkSession, warehouse: Path, *rules: dict[str, Any]) -> list[tuple[str, int]]:
    """Evaluate rules in one run."""
    named = ({"name": f"rule {n}", **rule} for n, rule in enumerate(rules))
    return [(found["outcome"], found["broken"]) for found in check(spark, warehouse, *named)]


def run_check(spark: SparkSession, warehouse: Path, rules: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    file = warehouse / "rules.json"
    file.write_text(json.dumps(rules))
    request = build_request("check_branch_data", values(warehouse, **{"branch": "fix", "rules": str(file), **more}))
    return dict(run_spark_operation(spark, request).details)


def require(main: Table, *rules: dict[str, Any]) -> None:
    """Let nothing be published onto a table without these rules."""
    alter_table(main, [SetOption(key="airflow-paimon.required-checks", value=json.dumps(rules))])
