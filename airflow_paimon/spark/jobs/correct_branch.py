"""correct_branch: rows of a query or a function become the rows of a branch, copy-on-write by whole bucket.

A running writer of main has to win over the correction after the publish, so no rewritten bucket gets sequence numbers
above its highest one at the branch point. The commit fails if the files that were read have changed.

See docs/contributing/publishing.md, A running writer keeps winning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.scan import fits_in_process
from airflow_paimon.data.write import discard_files
from airflow_paimon.spark.arrow_frames import frame_of_arrow
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.column_sources import column_sources
from airflow_paimon.spark.jobs.correct_by_connector import correct_by_connector
from airflow_paimon.spark.jobs.correct_rows import (
    CorrectionBaseWithFiles,
    correction_on,
    finish,
    with_files,
)
from airflow_paimon.spark.jobs.correct_statement import Rows, StatementViews, correct_by_statement, statement_of
from airflow_paimon.spark.jobs.correct_statements import correct_by_statements, statements_of
from airflow_paimon.spark.jobs.correction import (
    CorrectionBase,
    branch_to_correct,
    correct_idempotently,
    made_of,
    read_base,
    read_heads,
    rows_to_read,
    with_column_sources,
)
from airflow_paimon.spark.jobs.correction_sources import (
    BRANCH_VIEW,
    MAIN_VIEW,
    check_sql,
    divided,
    further_views,
    may_mention,
    read_sql,
    rows_of,
    source_name,
    spark_query,
    without_row_columns,
)
from airflow_paimon.spark.jobs.correction_tasks import BucketResult, correct_buckets
from airflow_paimon.spark.jobs.live_buckets import touched_files
from airflow_paimon.spark.jobs.query_views import QueryView, branch_view, is_large, needed_frames, other_view
from airflow_paimon.spark.jobs.small_input import few_rows, view_frame
from airflow_paimon.spark.jvm import has_jvm, nullable_schema
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.rows_in import BATCH_CONF, check_frame, distributed, temporary_conf
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.tables import NamedTables, names_of, warehouse_tables
from airflow_paimon.spark.statements.target_files import partitions_of
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import cores_of, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


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
    views = further_views(request)
    texts = divided(request, sql)
    for text in texts:
        check_sql(spark, request, text, views)
    branch = branch_to_correct(context, request)
    if len(texts) > 1:
        return _by_statements(spark, context, request, branch, sql, texts, views)
    statement = statement_of(spark, request, sql)
    if statement is not None:
        change = partial(_by_statement, spark, context, request, branch, statement, views)
        return correct_idempotently(context, request, sql, change)

    def correct(identity: CommitIdentity) -> OperationResult:
        made = made_of(request, branch, sql)
        heads = read_base(context, request, branch)
        frames, query = _inputs(spark, request, heads, views, sql)
        with rows_of(spark, request, sql, frames, query) as found:
            rows = without_row_columns(found, heads.schema)
            check_frame(rows, heads.schema, branch.label)
            sources = column_sources(rows, {name: frame.columns for name, frame in frames.items()})
            few = _few_rows(spark, request, rows)
            base = with_files(context, heads, cores_of(spark), only=_written_by(request, heads, few))
            results = _run_tasks(spark, request, base, rows, few)
        done = finish(context, request, base, results, identity, made)
        return with_column_sources(done, sources)

    return correct_idempotently(context, request, sql, correct)


def _tables(spark: SparkSession, request: CorrectBranch, branch: Table, sql: str | None) -> NamedTables | None:
    if sql is None or not has_jvm(spark):
        return None
    options, restricted = request.storage_options, request.restricted_sql
    return warehouse_tables(spark, request.warehouse, options, sql, branch, restricted=restricted)


def _inputs(
    spark: SparkSession, request: CorrectBranch, base: CorrectionBase, further: Mapping[str, str], sql: str | None
) -> tuple[dict[str, DataFrame], Callable[[str], DataFrame]]:
    """Return the views that the query can mean, each of one pinned snapshot, and what runs the query."""
    tables, found = _tables(spark, request, base.table, sql), _views(request, base, further, sql)
    if sql is None or tables is None:
        return _frames(spark, found, sql), partial(spark_query, spark)
    views = {name: view() for name, view in found.items() if may_mention(sql, name)}
    with query_errors(source_name(request)):  # Spark computes constants when it plans
        frames, own = needed_frames(spark, views, base, sql, tables, partial(rows_of, spark, request, sql))
    return frames, lambda text: tables.query(text, own)


def _few_rows(spark: SparkSession, request: CorrectBranch, rows: DataFrame) -> pa.Table | None:
    """Run a query that reads little and gives few rows; None: another one."""
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)):
        return few_rows(rows)


def _written_by(request: CorrectBranch, base: CorrectionBase, few: pa.Table | None) -> frozenset[bytes] | None:
    """Return the partitions that an upsert of few rows writes, in canonical form; None: the chosen ones, or all.

    Where the row of a key may be in any partition, all have to be known.
    """
    schema = base.schema
    if few is None or request.mode != "upsert" or base.choice.specs or schema.crosses_partitions:
        return None
    return partitions_of(few, base.table, schema) if is_large(base) else None


def correct_by_rows(spark: SparkSession, context: Context, request: CorrectBranch, rows: DataFrame) -> OperationResult:
    """Write the rows of a DataFrame as those of ``--function``.

    Raises:
        PaimonError: as ``correct_branch`` does.
    """
    branch = branch_to_correct(context, request)

    def correct(identity: CommitIdentity) -> OperationResult:
        base = with_files(context, read_base(context, request, branch), cores_of(spark))
        check_frame(rows, base.schema, branch.label)
        results = _run_tasks(spark, request, base, rows, _few_rows(spark, request, rows))
        return finish(context, request, base, results, identity)

    return correct_idempotently(context, request, None, correct)


def _by_statements(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    sql: str | None,
    texts: Sequence[str],
    views: dict[str, str],
) -> OperationResult:
    statements = statements_of(spark, request, texts)

    def change(inside: Context, working: Table, statement: Statement) -> OperationResult:
        return _by_statement(spark, inside, request, working, statement, views, CommitIdentity())

    def correct(identity: CommitIdentity) -> OperationResult:
        return correct_by_statements(context, request, branch, statements, change, identity)

    return correct_idempotently(context, request, sql, correct)


def _by_statement(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    statement: Statement,
    views: dict[str, str],
    identity: CommitIdentity,
) -> OperationResult:
    def overwrite(request: CorrectBranch, identity: CommitIdentity, rows: Rows) -> OperationResult:
        base = with_files(context, read_heads(context, request, branch), cores_of(spark))
        with rows(base) as frame:
            check_frame(frame, base.schema, branch.label)
            made = made_of(request, branch, statement.text)
            results = _run_tasks(spark, request, base, frame, _few_rows(spark, request, frame))
            return finish(context, request, base, results, identity, made)

    def frames(base: CorrectionBase) -> dict[str, DataFrame]:
        found = _views(request, base, views, statement.text)
        return _frames(spark, {name: plan for name, plan in found.items() if name not in given}, statement.text)

    own = {BRANCH_VIEW, *names_of(branch, views)}  # of the snapshot that each try of the statement is computed on
    by_connector = request.engine == "connector"
    given = {*own, MAIN_VIEW} if by_connector else own  # by what runs the statement
    usable = StatementViews(own, frames)
    if by_connector:
        return correct_by_connector(spark, context, request, branch, statement, usable, identity)
    return correct_by_statement(spark, context, request, branch, statement, usable, overwrite, identity)


def _frames(spark: SparkSession, views: Mapping[str, Callable[[], QueryView]], sql: str | None) -> dict[str, DataFrame]:
    """Return all rows of each view that the query can mean."""
    return {name: view_frame(spark, view().plan(None)) for name, view in views.items() if may_mention(sql, name)}


def _views(
    request: CorrectBranch, base: CorrectionBase, further: Mapping[str, str], sql: str | None
) -> dict[str, Callable[[], QueryView]]:
    def other(table: str) -> QueryView:
        return other_view(request.warehouse, table, request.storage_options, sql)

    return {
        BRANCH_VIEW: lambda: branch_view(base, sql),
        MAIN_VIEW: lambda: other(request.table),
        **{name: partial(other, table) for name, table in further.items()},
    }


def _run_tasks(
    spark: SparkSession, request: CorrectBranch, base: CorrectionBaseWithFiles, rows: DataFrame, few: pa.Table | None
) -> list[BucketResult]:
    """``few``: what ``_few_rows`` gave of the rows."""
    correction = correction_on(request, base)
    placed = replace(correction, write=base.write.after_look_up())

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: correct_buckets(placed, batches))

    what = f"correct_branch {base.table.label}: {len(base.live.splits)} buckets live in what is to be corrected"
    expected = partial(_rows_to_read, request, base)
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)), progress(spark, what, rows=expected):
        if few is not None and _touches_little(request, base, few):
            return list(correct_buckets(correction, few.to_batches(BATCH_ROWS)))
        if few is not None and base.write.only is not None:
            rows = _frame_of(few, rows)  # they were planned for; another run may give other ones
        frame = map_in_arrow(distributed(rows, base.write), work, SCHEMA)
        return collect(frame, refused=partial(_discard, base))


def _frame_of(few: pa.Table, rows: DataFrame) -> DataFrame:
    """Return the rows that a query gave as a DataFrame. All is nullable in it: Arrow takes no null of a struct whose
    fields can't be null."""
    return frame_of_arrow(rows.sparkSession, few, nullable_schema(rows))


def _rows_to_read(request: CorrectBranch, base: CorrectionBaseWithFiles) -> int | None:
    sql = read_sql(request) if request.sql is not None else None
    return rows_to_read(base.live, base.choice, sql, request.mode)


def _discard(base: CorrectionBaseWithFiles, results: Sequence[BucketResult]) -> None:
    """Delete what the other tasks wrote when one of them refuses."""
    discard_files(base.write, [r.message for r in results if r.message is not None])


def _touches_little(request: CorrectBranch, base: CorrectionBaseWithFiles, rows: pa.Table) -> bool:
    """Whether the live rows that an upsert of these rows has to merge with are few as well."""
    if request.mode == "overwrite":
        return True
    return fits_in_process(touched_files(base.live, base.write, rows.to_batches()))
