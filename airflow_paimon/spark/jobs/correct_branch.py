"""correct_branch: rows of a query or a function become the rows of a branch, copy-on-write by whole bucket.

A running writer of main has to win over the correction after the publish, so no rewritten bucket gets sequence numbers
above its highest one at the branch point. The commit fails if the files that were read have changed.

See docs/contributing/publishing.md, A running writer keeps winning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.sql_text.checks import further_views
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.column_sources import column_sources
from airflow_paimon.spark.jobs.correct_by_connector import correct_by_connector
from airflow_paimon.spark.jobs.correct_rows import write_rows
from airflow_paimon.spark.jobs.correct_statement import correct_by_statement, statement_of
from airflow_paimon.spark.jobs.correct_statements import correct_by_statements, statements_of
from airflow_paimon.spark.jobs.correction import (
    COLUMN_SOURCES,
    CorrectionBase,
    branch_to_correct,
    correct_idempotently,
    made_of,
    read_base,
)
from airflow_paimon.spark.jobs.correction_sources import (
    BRANCH_VIEW,
    MAIN_VIEW,
    divided,
    function_rows,
    read_sql,
    source_name,
    spark_query,
    without_row_columns,
)
from airflow_paimon.spark.jobs.query_views import CorrectionTables
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.statements.restricted_sql import check_restricted_sql
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.views import registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def correct_branch(spark: SparkSession, context: Context, request: CorrectBranch) -> OperationResult:
    """Write the rows of ``--sql`` or ``--function`` into a branch, or run the statements of ``--sql`` on it.

    ``overwrite``: the chosen partitions become exactly these rows, also none. ``upsert``: rows by primary key, with a
    column ``_row_kind`` deletes as well; other rows stay. One snapshot, or none.

    Raises:
        InvalidInputError: the query is refused, the rows don't fit, lie outside the partitions, or hold a key twice
            where one of the two would be lost.
        ConflictError: the branch changed in a bucket while that was rewritten; nothing was published.
    """
    sql = read_sql(request)
    views = further_views(request.view)
    texts = divided(request, sql)
    for text in texts if request.restricted_sql else ():
        check_restricted_sql(spark, request, text, {BRANCH_VIEW, MAIN_VIEW, *views})
    branch = branch_to_correct(context, request)
    change = correct_by_connector if request.engine == "connector" else correct_by_statement
    if len(texts) > 1:

        def one(inside: Context, working: Table, statement: Statement) -> OperationResult:
            return change(spark, inside, request, working, statement, views, CommitIdentity())

        statements = statements_of(spark, request, texts)
        together = partial(correct_by_statements, context, request, branch, statements, one)
        return correct_idempotently(context, request, sql, together)
    statement = statement_of(spark, request, sql)
    if statement is not None:
        alone = partial(change, spark, context, request, branch, statement, views)
        return correct_idempotently(context, request, sql, alone)

    def correct(identity: CommitIdentity) -> OperationResult:
        made = made_of(request, branch, sql)
        base = read_base(context, request, branch)
        with _rows(spark, request, base, views, sql) as (names, found):
            rows = without_row_columns(found, base.schema)
            done = write_rows(spark, context, request, base, rows, identity, made)
            sources = column_sources(rows, names)
            # it is part neither of the plan nor of the commit
            return replace(done, details={**done.details, COLUMN_SOURCES: sources}) if sources else done

    return correct_idempotently(context, request, sql, correct)


@contextmanager
def _rows(
    spark: SparkSession, request: CorrectBranch, base: CorrectionBase, further: Mapping[str, str], sql: str | None
) -> Iterator[tuple[Collection[str], DataFrame]]:
    """Return the names of the views that the query can mean, and its rows, to be run inside the context."""
    tables = CorrectionTables(spark, request, base, sql)
    query = tables.rows if has_jvm(spark) else partial(spark_query, spark)
    while True:
        views = tables.all_views(further)
        with registered(spark, views, marked=request.restricted_sql):
            with query_errors(source_name(request)):  # Spark computes constants when it plans
                rows = query(sql) if sql is not None else function_rows(spark, str(request.function), views)
                is_final = not tables.learn(rows)
            if is_final:
                yield views, rows
                return


def correct_by_rows(spark: SparkSession, context: Context, request: CorrectBranch, rows: DataFrame) -> OperationResult:
    """Write the rows of a DataFrame as those of ``--function``.

    Raises:
        PaimonError: as ``correct_branch`` does.
    """
    branch = branch_to_correct(context, request)

    def correct(identity: CommitIdentity) -> OperationResult:
        return write_rows(spark, context, request, read_base(context, request, branch), rows, identity)

    return correct_idempotently(context, request, None, correct)
