"""Operations that read or write rows, as Spark jobs run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.base import Request
from airflow_paimon.core.requests.chain_requests import CompactChainTable
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import CorrectBranch, DiffBranches
from airflow_paimon.core.requests.result import OperationResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_spark_operation(spark: SparkSession, request: Request) -> OperationResult:
    """Run an operation of which ``needs_spark`` is true.

    Raises:
        PaimonError: see each operation. What tasks raise comes as the error that it is.
    """
    if request.engine == "connector":
        return _by_connector(spark, request)
    from airflow_paimon.spark.jobs.compact_chain_table import compact_chain_table
    from airflow_paimon.spark.jobs.correct_branch import correct_branch
    from airflow_paimon.spark.jobs.diff_branches import diff_branches

    context = open_context(request)
    if isinstance(request, CorrectBranch):
        return correct_branch(spark, context, request)
    if isinstance(request, DiffBranches):
        return diff_branches(spark, context, request)
    if isinstance(request, CompactChainTable):
        return compact_chain_table(spark, context, request)
    raise InvalidInputError(f"{request.operation} is no operation on rows: run it without Spark")


def _by_connector(spark: SparkSession, request: Request) -> OperationResult:
    from airflow_paimon.spark.connector.correct_branch import correct_branch
    from airflow_paimon.spark.connector.diff_branches import diff_branches

    if isinstance(request, CorrectBranch):
        return correct_branch(spark, open_context(request), request)
    if isinstance(request, DiffBranches):
        return diff_branches(spark, open_context(request), request)
    raise UnsupportedFeatureError(
        f"{request.table}: {request.operation} does not run with engine={request.engine!r}; use engine='embedded'",
        table=request.table,
    )
