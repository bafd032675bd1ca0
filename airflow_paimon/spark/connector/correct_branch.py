"""correct_branch by the engine ``connector``: Paimon's connector writes the rows into a staging branch, and one commit
of ours takes its files over. So a retry finds the first try's commit, and an interrupted try changes no branch.

An overwrite is staged on an empty branch: its sequence numbers start anew, below those of a running writer of main. An
upsert is staged on the branch's head and counts on from there, so publishing it asks for ``--writers-stopped``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.commit.staging import Staging, discard_staging, open_staging, take_over
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.partitions import StoredPartitions, shown_partition
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import group_by_bucket, live_entries
from airflow_paimon.core.table.table import Table, open_table, resolve_version, viewed_table
from airflow_paimon.spark.connector.frames import Reader
from airflow_paimon.spark.connector.rows import (
    Counts,
    check_rows,
    check_target,
    count_rows,
    fitted,
    require_compacted,
    require_visible,
)
from airflow_paimon.spark.connector.session import paimon_catalog
from airflow_paimon.spark.connector.statements import run_statement
from airflow_paimon.spark.cut_off import refuse_finer
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.column_sources import column_sources
from airflow_paimon.spark.jobs.correct_statement import statement_of
from airflow_paimon.spark.jobs.correction import (
    Base,
    branch_to_correct,
    correct_idempotently,
    made_of,
    properties,
    read_base,
    read_heads,
    result_of,
    with_column_sources,
)
from airflow_paimon.spark.jobs.correction_sources import (
    BRANCH_VIEW,
    MAIN_VIEW,
    check_sql,
    divided,
    further_views,
    read_sql,
    rows_of,
    source_name,
)
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.statements.tables import NamedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def correct_branch(spark: SparkSession, context: Context, request: CorrectBranch) -> OperationResult:
    """Write the rows of ``--sql`` or ``--function`` into a branch, with the embedded engine's result, or run its
    statement.

    Raises:
        InvalidInputError: the query is refused, the rows don't fit, lie outside the partitions, or hold a key twice.
        ConflictError: the branch was written meanwhile; nothing was published.
        UnsupportedFeatureError: the session has no connector, or this kind of table is not supported.
        UnsafeOperationError: a partition to correct has rows that wait for a compaction, so the query can't see them.
    """
    sql, views = read_sql(request), further_views(request)
    divided(request, sql)
    check_sql(spark, request, sql, views)
    branch = branch_to_correct(context, request)
    statement = statement_of(spark, request, sql)
    reader = Reader(spark, paimon_catalog(spark, request))

    def correct(identity: CommitIdentity) -> OperationResult:
        refuse_finer(branch.schema().fields, branch.label)  # the connector's rows tell nothing of what it cut off
        if statement is not None:
            base = read_heads(context, request, branch)
            frames = _views(reader, request, base, views)
            tables = _tables(reader, request, base)
            return run_statement(reader, context, request, base, statement, frames, tables, identity)
        base = read_base(context, request, branch)
        check_target(branch, base.schema, request.mode)
        if request.mode == "overwrite":
            require_visible(base, base.choice.matches)
        frames = _views(reader, request, base, views)
        with rows_of(spark, request, sql, frames, partial(_query, reader, request, base)) as rows:
            sources = column_sources(rows, {name: frame.columns for name, frame in frames.items()})
            made = made_of(request, branch, sql)
            return with_column_sources(_correct(reader, context, request, base, rows, identity, made), sources)

    return correct_idempotently(context, request, sql, correct)


def _query(reader: Reader, request: CorrectBranch, base: Base, sql: str) -> DataFrame:
    return _tables(reader, request, base).query(sql, lambda: reader.read(base.table, base.head, base.schema))


def _tables(reader: Reader, request: CorrectBranch, base: Base) -> NamedTables:
    def find(name: str) -> Table:
        return open_table(request.warehouse, name, storage_options=request.storage_options)

    return NamedTables(reader.spark, find, partial(_read, reader), base.table, restricted=request.restricted_sql)


def _views(reader: Reader, request: CorrectBranch, base: Base, further: dict[str, str]) -> dict[str, DataFrame]:
    """Each view shows one snapshot."""
    main = base.table.branch(MAIN)
    frames = {
        BRANCH_VIEW: reader.read(base.table, base.head, base.schema),
        MAIN_VIEW: reader.read(main, base.main_head, main.schema()),
    }
    for name, table in further.items():
        other, version = viewed_table(request.warehouse, table, request.storage_options)
        frames[name] = _read(reader, other, version)
    return frames


def _read(reader: Reader, table: Table, version: int | str | None, time: int | None = None) -> DataFrame:
    view, snapshot = resolve_version(table, version, time)
    travels = (version is not None or time is not None) and snapshot is not None
    return reader.read(view, snapshot, view.schema(snapshot.schema_id if travels and snapshot else None))


def _correct(
    reader: Reader,
    context: Context,
    request: CorrectBranch,
    base: Base,
    rows: DataFrame,
    identity: CommitIdentity,
    made: Mapping[str, str],
) -> OperationResult:
    # evaluated once: otherwise a non-deterministic query would be checked on other rows than are written
    given = rows.persist()
    try:
        frame = fitted(given, base.schema, base.table)
        what = f"correct_branch {base.table.label}: engine connector"
        with query_errors(source_name(request)), progress(reader.spark, what):
            counts = count_rows(given, frame, base.schema, base.table)
            check_rows(frame, counts, base.choice, base.schema, base.table, request)
            if request.mode == "upsert":
                require_visible(base, counts.__contains__)
            if request.dry_run:
                return _planned(context, request, base, counts)
            return _write(reader, context, request, base, frame, counts, identity, made)
    finally:
        given.unpersist()


def _planned(context: Context, request: CorrectBranch, base: Base, counts: Counts) -> OperationResult:
    chosen = base.choice.selection(base.schema)
    live = request.mode == "overwrite" and bool(live_entries(base.table, base.head, chosen))
    details = _details(request, base, counts, (), ())
    return base.result(context, request, details, changed=bool(counts) or live)


def _write(
    reader: Reader,
    context: Context,
    request: CorrectBranch,
    base: Base,
    rows: DataFrame,
    counts: Counts,
    identity: CommitIdentity,
    made: Mapping[str, str],
) -> OperationResult:
    upsert = request.mode == "upsert"
    staging = open_staging(base.table, base.head, base.schema, request.operation_id, context.now_iso, shares=upsert)
    try:
        if counts:
            _append(reader, staging, rows)
            require_compacted(staging, base)
        taken = take_over(
            staging,
            None if upsert else base.choice.selection(base.schema),
            expected_rows=sum(counts.values()),
            identity=identity,
            properties=lambda removed, added: properties(
                request, made, _details(request, base, counts, removed, added)
            ),
        )
    finally:
        discard_staging(staging.view)
    landed = taken.receipt.snapshot
    if landed is not None and taken.receipt.replayed:
        return result_of(context, request, landed)
    details = _details(request, base, counts, taken.removed, taken.added)
    return base.result(context, request, details, changed=landed is not None, after=landed)


def _append(reader: Reader, staging: Staging, rows: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        rows.writeTo(reader.name(staging.view)).append()
    except AnalysisException as error:
        raise InvalidInputError(
            f"{staging.onto.label}: Paimon's connector refuses the rows: {str(error).splitlines()[0]}"
        ) from error


def _details(
    request: CorrectBranch,
    base: Base,
    counts: Counts,
    removed: Sequence[ManifestEntry],
    added: Sequence[ManifestEntry],
) -> dict[str, Any]:
    return base.details(
        request,
        {shown_partition(base.schema, values): n for values, n in counts.items()},
        buckets=len(group_by_bucket([*removed, *added], StoredPartitions(base.schema).canonical)),
        files_added=len(added),
        files_deleted=len(removed),
        bytes=sum(e.file.file_size for e in added),
    )
