"""Statements other than changes of rows, by the kind of their plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.spark.jvm import kind_of
from airflow_paimon.spark.statements import alter, create, databases, drop, show
from airflow_paimon.spark.statements.parse import is_command_plan, parse_plan
from airflow_paimon.spark.statements.select import is_query, select
from airflow_paimon.spark.statements.sql_request import SqlRequest

TAKEN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE or DROP TABLE or DATABASE, ALTER TABLE, DESCRIBE, SHOW, USE or CALL"
)
_RUN: Mapping[str, Callable[[SqlRequest, Any], Any]] = {
    **show.RUN,
    **create.RUN,
    **alter.RUN,
    **drop.RUN,
    **databases.RUN,
}


def run_command(request: SqlRequest) -> Any:
    """Run a statement that Spark can parse and that is no change of rows.

    Raises:
        InvalidInputError: it is none that ``sql`` runs.
    """
    plan = parse_plan(request.spark, request.statement)
    run = _RUN.get(kind_of(plan))
    if run is not None:
        return run(request, plan)
    if not is_command_plan(plan) and is_query(plan):
        return select(request, plan)
    raise InvalidInputError(
        f"sql doesn't run this statement: it takes one {TAKEN} on tables of the warehouse; spark.sql() runs others"
    )
