"""Statements other than changes of rows, by the kind of their plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.spark.jvm import kind_of
from airflow_paimon.spark.statements import alter, create, databases, drop, show
from airflow_paimon.spark.statements.asked import Asked
from airflow_paimon.spark.statements.parse import is_command_plan, parse_plan
from airflow_paimon.spark.statements.select import is_query, select

TAKEN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE or DROP TABLE or DATABASE, ALTER TABLE, DESCRIBE, SHOW, USE or CALL"
)
_RUN: Mapping[str, Callable[[Asked, Any], Any]] = {**show.RUN, **create.RUN, **alter.RUN, **drop.RUN, **databases.RUN}


def run_command(asked: Asked) -> Any:
    """Run a statement that Spark can parse and that is no change of rows.

    Raises:
        InvalidInputError: it is none that ``sql`` runs.
    """
    plan = parse_plan(asked.spark, asked.statement)
    run = _RUN.get(kind_of(plan))
    if run is not None:
        return run(asked, plan)
    if not is_command_plan(plan) and is_query(plan):
        return select(asked, plan)
    raise InvalidInputError(
        f"sql doesn't run this statement: it takes one {TAKEN} on tables of the warehouse; spark.sql() runs others"
    )
