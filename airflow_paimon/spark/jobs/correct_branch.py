"""correct_branch: rows of a query or a function become the rows of a branch, copy-on-write by whole bucket.

A running writer of main has to win over the correction after the publish, so no rewritten bucket gets sequence numbers
above its highest one at the branch point. The commit fails if the files that were read have changed.

See docs/design.md, A running writer keeps winning.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.chain.guard import chain_part, is_chain_rows
from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import CommitMessage, commit_buckets
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.errors import UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.partitions import StoredPartitions, encode_partition, shown_partition
from airflow_paimon.core.table.scan import BucketKey, BucketSplit, ScanPlan, partition_types, plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.dynamic_buckets import Assigners, with_hash_indexes
from airflow_paimon.data.files.arrow_types import finer_than_micros
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.moving_keys import check_corrected
from airflow_paimon.data.rewrite import NEW_BUCKET, new_bucket_number
from airflow_paimon.data.scan import ReadSplit, TableRead, fits_in_process, plan_read
from airflow_paimon.data.write import TableWrite, discard_files, distribute, plan_write
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.filters import has_jvm
from airflow_paimon.spark.jobs.column_sources import column_sources
from airflow_paimon.spark.jobs.correct_statement import Rows, correct_by_statement, statement_of
from airflow_paimon.spark.jobs.correct_statements import JOINED, correct_by_statements, statements_of
from airflow_paimon.spark.jobs.correction import (
    Base,
    branch_to_correct,
    correct_idempotently,
    keep_timing,
    made_of,
    properties,
    read_base,
    read_heads,
    result_of,
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
from airflow_paimon.spark.jobs.correction_tasks import BucketResult, Correction, LiveBucket, correct_buckets
from airflow_paimon.spark.jobs.query_views import View, branch_view, is_large, needed_frames, other_view
from airflow_paimon.spark.jobs.small_input import few_rows, view_frame
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.read import slim_split
from airflow_paimon.spark.rows_in import BATCH_CONF, check_frame, conform, distributed, temporary_conf
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.tables import NamedTables, names_of, warehouse_tables
from airflow_paimon.spark.statements.target_files import partitions_of
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import cores_of, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base(Base):
    """With what the embedded engine needs: live buckets, and their highest sequence numbers at the branch point."""

    live: ScanPlan
    write: TableWrite
    limits: dict[BucketKey, int]


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
        return _by_statements(spark, context, request, branch, texts, views)
    statement = statement_of(spark, request, sql)
    if statement is not None:
        change = partial(_by_statement, spark, context, request, branch, statement, views)
        return correct_idempotently(context, request, sql, change)

    def correct(identity: CommitIdentity) -> OperationResult:
        made = made_of(request, branch, sql)
        heads = read_base(context, request, branch)
        refuse_blurred(heads)
        frames, query = _inputs(spark, request, heads, views, sql)
        with rows_of(spark, request, sql, frames, query) as found:
            rows = without_row_columns(found, heads.schema)
            check_frame(rows, heads.schema, branch.label)
            sources = column_sources(rows, {name: frame.columns for name, frame in frames.items()})
            few = _few_rows(spark, request, rows)
            base = _with_live(spark, context, heads, _written_by(request, heads, few))
            results = _run_tasks(spark, request, base, rows, few)
        done = _finish(context, request, base, results, identity, made)
        _keep_timing(spark, context, request, sql, base, done)
        return with_column_sources(done, sources)

    return correct_idempotently(context, request, sql, correct)


def _tables(spark: SparkSession, request: CorrectBranch, branch: Table, sql: str | None) -> NamedTables | None:
    if sql is None or not has_jvm(spark):
        return None
    return warehouse_tables(spark, request.warehouse, request.storage_options, sql, branch)


def _inputs(
    spark: SparkSession, request: CorrectBranch, base: Base, further: Mapping[str, str], sql: str | None
) -> tuple[dict[str, DataFrame], Callable[[str], DataFrame]]:
    """Return the views that the query can mean, each of one pinned snapshot, and what runs the query."""
    tables, found = _tables(spark, request, base.table, sql), _views(request, base, further, sql)
    if sql is None or tables is None:
        return _frames(spark, found, sql), partial(spark_query, spark)
    views = {name: view() for name, view in found.items() if may_mention(sql, name)}
    frames, own = needed_frames(spark, views, base, sql, tables, partial(rows_of, spark, request, sql))
    return frames, lambda text: tables.query(text, own)


def _few_rows(spark: SparkSession, request: CorrectBranch, rows: DataFrame) -> pa.Table | None:
    """Run a query that reads little and gives few rows; None: another one."""
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)):
        return few_rows(rows)


def _written_by(request: CorrectBranch, base: Base, few: pa.Table | None) -> frozenset[bytes] | None:
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
        base = _with_live(spark, context, read_base(context, request, branch))
        check_frame(rows, base.schema, branch.label)
        results = _run_tasks(spark, request, base, rows, _few_rows(spark, request, rows))
        return _finish(context, request, base, results, identity)

    return correct_idempotently(context, request, None, correct)


def _by_statements(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    texts: Sequence[str],
    views: dict[str, str],
) -> OperationResult:
    statements = statements_of(spark, request, texts)

    def change(inside: Context, working: Table, statement: Statement) -> OperationResult:
        return _by_statement(spark, inside, request, working, statement, views, CommitIdentity())

    def correct(identity: CommitIdentity) -> OperationResult:
        return correct_by_statements(context, request, branch, statements, change, identity)

    return correct_idempotently(context, request, JOINED.join(texts), correct)


def _by_statement(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    statement: Statement,
    views: dict[str, str],
    identity: CommitIdentity,
) -> OperationResult:
    def overwrite(asked: CorrectBranch, identity: CommitIdentity, rows: Rows) -> OperationResult:
        base = _with_live(spark, context, read_heads(context, asked, branch))
        with rows(base) as frame:
            check_frame(frame, base.schema, branch.label)
            made = made_of(asked, branch, statement.text)
            results = _run_tasks(spark, asked, base, frame, _few_rows(spark, asked, frame))
            done = _finish(context, asked, base, results, identity, made)
        _keep_timing(spark, context, asked, statement.text, base, done)
        return done

    def frames(base: Base) -> dict[str, DataFrame]:
        refuse_blurred(base)
        found = _views(request, base, views, statement.text)
        return _frames(spark, {name: plan for name, plan in found.items() if name not in own}, statement.text)

    own = {BRANCH_VIEW, *names_of(branch, views)}  # of the snapshot that each try of the statement is computed on
    return correct_by_statement(spark, context, request, branch, statement, frames, own, overwrite, identity)


def _keep_timing(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    sql: str | None,
    base: _Base,
    done: OperationResult,
) -> None:
    if done.changed and not done.dry_run and not done.details.get("replayed"):
        keep_timing(context, request, sql, base.live, base.choice, cores_of(spark))


def refuse_blurred(base: Base) -> None:
    """Refuse a table with columns that Spark would cut off.

    Raises:
        UnsupportedFeatureError: names the column.
    """
    blurred, branch = finer_than_micros(base.schema.fields), base.table
    if blurred:
        raise UnsupportedFeatureError(
            f"{branch.label}: column {blurred[0]!r} is finer than microseconds, which Spark would cut off in every row "
            f"that is rewritten; write the rows with airflow_paimon.data.write_arrow"
        )


def _with_live(spark: SparkSession, context: Context, found: Base, only: frozenset[bytes] | None = None) -> _Base:
    """Read the live buckets in the chosen partitions, and their numbers at the branch point. ``only``: the partitions
    that get rows, if known.
    """
    branch, schema, head = found.table, found.schema, found.head
    chosen = found.choice.selection(schema) if only is None else StoredPartitions(schema).those(only)
    refuse_blurred(found)
    base = head if chain_part(branch) is not None else branch_point(context.table, branch)
    at_base = plan_snapshot(branch, base, schema, chosen)
    live = at_base if base is not None and base.id == head.id else plan_snapshot(branch, head, schema, chosen)
    return _Base(
        table=branch,
        schema=schema,
        head=head,
        main_head=found.main_head,
        choice=found.choice,
        live=live,
        write=plan_write(
            branch,
            tasks=cores_of(spark),
            by_buckets=True,
            chained=is_chain_rows(branch),
            scan=live,
            partitions=lambda _: only,
        ),
        limits={_key(schema, s): highest_sequence(s.files) for s in at_base.splits},
    )


def refuse_lost_deletes(base: _Base) -> None:
    """Refuse to overwrite partitions of a chain table that hold deletes, which a SELECT doesn't return.

    Raises:
        UnsafeOperationError: names them: without the deletes rows of earlier partitions would be read again.
    """
    if not is_chain_rows(base.table):
        return
    held = {shown_partition(base.schema, s.values) for s in base.live.splits if any(map(_may_hold_deletes, s.files))}
    if held:
        names = sorted(held)
        raise UnsafeOperationError(
            f"{base.table.label}: {', '.join(names[:5])} holds deletes, which hide rows of earlier partitions and "
            f"would be lost, as no SELECT returns them: change rows by UPDATE, DELETE or MERGE, or with --mode upsert; "
            f"write_table with mode overwrite replaces deletes, too",
            details={"partitions": names[:100]},
        )


def _may_hold_deletes(file: DataFile) -> bool:
    return file.delete_row_count is None or file.delete_row_count > 0


def _key(schema: TableSchema, split: BucketSplit) -> BucketKey:
    """Return the key of a bucket by the form in which we write partitions (Paimon had others before 1.1)."""
    return BucketKey(encode_partition(split.values, partition_types(schema)), split.bucket)


def _frames(spark: SparkSession, views: Mapping[str, Callable[[], View]], sql: str | None) -> dict[str, DataFrame]:
    """Return all rows of each view that the query can mean."""
    return {name: view_frame(spark, view().plan(None)) for name, view in views.items() if may_mention(sql, name)}


def _views(
    request: CorrectBranch, base: Base, further: Mapping[str, str], sql: str | None
) -> dict[str, Callable[[], View]]:
    def other(table: str) -> View:
        return other_view(request.warehouse, table, request.storage_options, sql)

    return {
        BRANCH_VIEW: lambda: branch_view(base, sql),
        MAIN_VIEW: lambda: other(request.table),
        **{name: partial(other, table) for name, table in further.items()},
    }


def _run_tasks(
    spark: SparkSession, request: CorrectBranch, base: _Base, rows: DataFrame, few: pa.Table | None
) -> list[BucketResult]:
    """``few``: what ``_few_rows`` gave of the rows."""
    if request.mode == "overwrite":
        refuse_lost_deletes(base)
    correction = _correction(request, base)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: correct_buckets(correction, batches))

    what = f"correct_branch {base.table.label}: {len(base.live.splits)} buckets live in what is to be corrected"
    expected = partial(_rows_to_read, request, base)
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)), progress(spark, what, rows=expected):
        if few is not None and _touches_little(request, base, few):
            return list(correct_buckets(correction, few.to_batches(BATCH_ROWS)))
        frame = map_in_arrow(distributed(rows, base.write), work, SCHEMA)
        return collect(frame, refused=partial(_discard, base))


def _rows_to_read(request: CorrectBranch, base: _Base) -> int | None:
    sql = read_sql(request) if request.sql is not None else None
    return rows_to_read(base.live, base.choice, sql, request.mode)


def _discard(base: _Base, results: Sequence[BucketResult]) -> None:
    """Delete what the other tasks wrote when one of them refuses."""
    discard_files(base.write, [r.message for r in results if r.message is not None])


def _touches_little(request: CorrectBranch, base: _Base, rows: pa.Table) -> bool:
    """Whether the live rows that an upsert of these rows has to merge with are few as well."""
    if request.mode == "overwrite":
        return True
    assigners = Assigners(base.write.dynamic)
    spread = (distribute(base.write, conform(b, base.schema, base.table.label), assigners) for b in rows.to_batches())
    touched = {BucketKey(p.partition, p.bucket) for parts in spread for p in parts}
    return fits_in_process(f for s in base.live.splits if _key(base.schema, s) in touched for f in s.files)


def _correction(request: CorrectBranch, base: _Base) -> Correction:
    read: TableRead | None = None
    splits: dict[BucketKey, ReadSplit] = {}
    if request.mode == "upsert":
        read, planned = plan_read(base.live, time_travel=True, whole_buckets=base.write.is_keyed)
        splits = {_key(base.schema, s.bucket): slim_split(s) for s in planned}
    live = {}
    for split in base.live.splits:
        key = _key(base.schema, split)
        slim = BucketSplit(split.partition, split.values, split.bucket, split.total_buckets, ())
        known = LiveBucket(bucket=slim, split=splits.get(key), max_sequence=base.limits.get(key, NEW_BUCKET))
        live[key] = pickle.dumps(known, pickle.HIGHEST_PROTOCOL)
    for key, limit in base.limits.items():
        if key not in live:  # emptied on the branch since
            gone = BucketSplit(key.partition, (), key.bucket, base.write.buckets_of(key.partition), ())
            live[key] = pickle.dumps(LiveBucket(bucket=gone, split=None, max_sequence=limit), pickle.HIGHEST_PROTOCOL)
    return Correction(
        write=base.write,
        choice=base.choice,
        live=live,
        read=read,
        dry_run=request.dry_run,
        merges=request.mode == "upsert",
        new_bucket=new_bucket_number(base.table),
    )


def _finish(
    context: Context,
    request: CorrectBranch,
    base: _Base,
    results: Sequence[BucketResult],
    identity: CommitIdentity,
    made: Mapping[str, str] | None = None,
) -> OperationResult:
    messages = _messages(request, base, results)
    details = _details(request, base, results, messages)
    if request.dry_run:
        would = bool(results) or (request.mode == "overwrite" and bool(base.live.splits))
        return base.result(context, request, details, changed=would)
    try:
        stay = check_corrected(base.table, base.write, messages)
        messages = with_hash_indexes(base.write.dynamic, messages)
        about = properties(request, made or {}, details) | (KEYS_STAY if stay else {})
        receipt = commit_buckets(
            base.table,
            messages,
            CommitOptions(identity=identity, properties=about),
            assigned=None if stay else (base.write.planned_on,),
            vectors=base.live.index_entries,
        )
    except REFUSALS:
        discard_files(base.write, messages)
        raise
    if receipt.snapshot is None:
        return base.result(context, request, details, changed=False)
    if receipt.replayed:  # another try of the operation was faster, with files of its own
        discard_files(base.write, messages)
        return result_of(context, request, receipt.snapshot)
    return base.result(context, request, details, changed=True, before=receipt.before, after=receipt.snapshot)


def _messages(request: CorrectBranch, base: _Base, results: Sequence[BucketResult]) -> list[CommitMessage]:
    """Say for each bucket which files it loses and which it gets; several tasks may have written one of them."""
    live = {_key(base.schema, s): s for s in base.live.splits}
    written: dict[BucketKey, list[CommitMessage]] = {}
    for result in results:
        if result.message is not None:
            written.setdefault(result.key, []).append(result.message)
    if request.mode == "overwrite":
        for key in live:
            written.setdefault(key, [])
    out = []
    for key, parts in written.items():
        split = live.get(key)
        out.append(
            CommitMessage(
                partition=split.partition if split is not None else parts[0].partition,
                bucket=key.bucket,
                total_buckets=split.total_buckets if split is not None else parts[0].total_buckets,
                new_files=tuple(f for p in parts for f in p.new_files),
                replaced=split.files if split is not None else (),
                hashes=b"".join(p.hashes for p in parts),
            )
        )
    return out


def _details(
    request: CorrectBranch, base: _Base, results: Sequence[BucketResult], messages: Sequence[CommitMessage]
) -> dict[str, Any]:
    rows: dict[str, int] = {}
    for result in results:
        name = shown_partition(base.schema, result.values)
        rows[name] = rows.get(name, 0) + result.rows
    new = [f for m in messages for f in m.new_files]
    return base.details(
        request,
        rows,
        buckets=len(messages) or len({r.key for r in results}),
        files_added=len(new),
        files_deleted=sum(len(m.replaced) for m in messages),
        bytes=sum(f.file_size for f in new),
    )
