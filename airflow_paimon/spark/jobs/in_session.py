"""An operation on rows as its job does it, in a session that is given, or in this process's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.jobs.before_spark import run_before_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_in_session(request: Request, spark: SparkSession | None = None) -> OperationResult:
    """Check a request, do what needs no session, and else run it in ``spark``; None: a session is found or started.

    Raises:
        PaimonError: as the operation does.
    """
    done = run_before_spark(request)
    if done is not None:
        return done
    from pyspark.sql import SparkSession

    return run_spark_operation(spark or SparkSession.builder.getOrCreate(), request)
