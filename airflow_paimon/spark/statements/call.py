"""``CALL sys.procedure(...)``: an operation by the name and the arguments of Paimon's procedure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.call import read_call
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.local_execution import NONE
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from airflow_paimon.spark.jvm import has_jvm, time_zone
from airflow_paimon.spark.statements.sql_request import current_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_call(
    spark: SparkSession,
    warehouse: str,
    statement: str,
    operation_id: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Run the operation that a CALL means and return its result; rows are read and written in this session.

    ``others``: arguments of ``sql`` that say something about rows of a statement, which a CALL has none of.

    Raises:
        PaimonError: as the operation does. InvalidInputError: the CALL is malformed, or ``others`` are given.
    """
    started = time.monotonic()
    for name, value in others.items():
        if value:
            raise InvalidInputError(f"CALL takes no {name}: give its arguments in the parentheses")
    database = current_database(spark) if has_jvm(spark) else None
    given: dict[str, Any] = {"operation_id": operation_id, "storage_options": storage_options, "database": database}
    call = read_call(statement, warehouse, zone=_zone(spark), **given)
    done = _run(spark, call.request)
    details = {**done.details, **call.details}
    return dataclasses.replace(done, details=details, duration_s=time.monotonic() - started).to_json()


@verified_commits()
def _run(spark: SparkSession, request: Request) -> OperationResult:
    if not operation_of(request.operation).needs_spark:
        return run_operation(request)
    return run_before_spark(request, NONE) or run_spark_operation(spark, request)


def _zone(spark: SparkSession) -> ZoneInfo | None:
    """Return the JVM's time zone, in which Paimon's procedures read times without an offset; None: this machine's."""
    if not has_jvm(spark):
        return None
    try:
        return ZoneInfo(time_zone())
    except (ZoneInfoNotFoundError, ValueError):
        return None
