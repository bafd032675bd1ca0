"""Operations that read or write rows, as Spark jobs run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from airflow_paimon.core.commit.idempotency import once
from airflow_paimon.core.requests.context import OperationResult, open_context, running_in_spark
from airflow_paimon.core.requests.operations import names_several
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.execution import imported, run_each
from airflow_paimon.spark import require_spark
from airflow_paimon.spark.jobs.correction_sources import as_asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@same_versions()
@cached_reads()
@running_in_spark()
def run_spark_operation(spark: SparkSession, request: Request) -> OperationResult:
    """Run an operation that reads or writes rows, or return the result of its first try if that has ended.

    Raises:
        PaimonError: see each operation. What tasks raise comes as the error that it is.
    """
    require_spark()
    if names_several(request):
        return run_each(request, partial(run_spark_operation, spark))
    context = open_context(request)
    return once(context, partial(function_of(request.operation), spark, context, request), as_asked)


_ON_ROWS: Mapping[str, str] = {
    "check_branch_data": "spark.jobs.check_branch_data:check_branch_data",
    "correct_branch": "spark.jobs.correct_branch:correct_branch",
    "diff_branches": "spark.jobs.diff_branches:diff_branches",
    "replay_branch": "spark.jobs.replay_branch:replay_branch",
    **dict.fromkeys(("compact", "compact_chain_table", "erase_rows", "rescale"), "spark.compaction:rewrite_files"),
}
"""What executes the operations on rows in Spark: the module of this package and its function."""


def function_of(operation: str) -> Callable[..., OperationResult]:
    """Return the function of an operation on rows, which takes session, context and request."""
    return imported(_ON_ROWS[operation])
