"""correct_branch with a SELECT that plain Python reads: its rows, computed by Arrow in this process."""

from __future__ import annotations

import pyarrow as pa

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.correction.plain_query import PlainQuery
from airflow_paimon.core.correction.plain_reader import used_columns
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.memory_plan import fits
from airflow_paimon.spark.jobs.column_sources import known_sources
from airflow_paimon.spark.jobs.correct_rows import LiveBase, correction_on, finish, with_live
from airflow_paimon.spark.jobs.correction import keep_timing, made_of, read_base, with_column_sources
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW
from airflow_paimon.spark.jobs.correction_tasks import correct_buckets
from airflow_paimon.spark.jobs.live_buckets import touched_files
from airflow_paimon.spark.jobs.plain_views import PlainViews
from airflow_paimon.spark.statements.plain import NotPlainError, computed


def select_plainly(
    query: PlainQuery,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    sql: str,
    views: PlainViews,
    identity: CommitIdentity,
) -> OperationResult:
    """Write the rows of a query into a branch, as ``correct_branch`` does with Spark.

    Raises:
        NotPlainError: it takes more memory than there is, or Spark has to say what is wrong with a row.
        PaimonError: as ``correct_branch`` does.
    """
    made = made_of(request, branch, sql)
    base = with_live(context, read_base(context, request, branch), cores=1)
    if query.values.keys() != {*base.schema.field_names}:
        raise NotPlainError(f"{branch.label}: its columns have changed")
    rows = _rows(query, base, views)
    if request.mode == "upsert":
        _require_fitting(base, rows, views.memory_bytes)
    correction = correction_on(request, base)
    done = finish(context, request, base, list(correct_buckets(correction, rows)), identity, made)
    if done.changed and not done.dry_run and not done.details.get("replayed"):
        keep_timing(context, request, sql, base.live, base.choice, cores=1)
    used = {name: used_columns(value) for name, value in query.values.items()}
    return with_column_sources(done, known_sources(used, views.given_name(query.view)))


def _rows(query: PlainQuery, base: LiveBase, views: PlainViews) -> list[pa.RecordBatch]:
    """Compute the rows of a query."""
    is_branch = query.view == BRANCH_VIEW
    schema = base.schema if is_branch else views.schema(query.view)
    used = sorted({column for value in query.values.values() for column in used_columns(value)})
    used = used or list(schema.field_names[:1])
    if is_branch:
        found = views.rows_of_branch(base, used, query.condition)
    else:
        found = views.rows(query.view, used, query.condition)
    fields, out = base.schema.fields, []
    for batch in found.to_batches(BATCH_ROWS):
        columns = [computed(query.values[f.name], batch, f, schema) for f in fields]
        out.append(pa.RecordBatch.from_arrays(columns, [f.name for f in fields]))
    return out


def _require_fitting(base: LiveBase, rows: list[pa.RecordBatch], memory_bytes: int) -> None:
    left = memory_bytes - 2 * sum(batch.nbytes for batch in rows)
    if not fits(touched_files(base.live, base.write, rows), base.schema, left):
        raise NotPlainError(
            f"{base.table.label}: what the rows are merged with is more than {memory_bytes >> 20:,} MiB"
        )
