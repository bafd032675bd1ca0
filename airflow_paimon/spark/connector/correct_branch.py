"""correct_branch by the engine ``connector``: Paimon's connector writes the rows into a staging branch, and one commit
of ours takes its files over. So a retry finds the first try's commit, and one that is cut off leaves the branch alone.

An overwrite is staged on an empty branch: its sequence numbers start anew, below those of a running writer of main. An
upsert is staged on the branch's head and counts on from there, so publishing it asks for ``--writers-stopped``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit import CommitIdentity, require_committable, verify_landed
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
    UnsupportedError,
)
from airflow_paimon.core.manifest import ManifestEntry
from airflow_paimon.core.operations.context import Context
from airflow_paimon.core.operations.request import CorrectBranch
from airflow_paimon.core.operations.result import OperationResult
from airflow_paimon.core.paths import MAIN
from airflow_paimon.core.plan import Plan, Precondition
from airflow_paimon.core.scan import group_by_bucket, live_entries, one_form
from airflow_paimon.core.schema import TableSchema
from airflow_paimon.core.snapshot import Snapshot
from airflow_paimon.core.staging import Staging, discard_staging, open_staging, partition_decoder, take_over
from airflow_paimon.core.table import Table, open_table
from airflow_paimon.spark.connector.frames import Reader
from airflow_paimon.spark.connector.rows import Counts, check_rows, check_target, count_rows, fitted
from airflow_paimon.spark.connector.session import paimon_catalog
from airflow_paimon.spark.operations.correction import check_request, enter, properties, replayed, result_of, strike
from airflow_paimon.spark.operations.partitions import PartitionChoice, choose_partitions, partition_text
from airflow_paimon.spark.operations.sources import BRANCH_VIEW, MAIN_VIEW, further_views, read_sql, rows_of
from airflow_paimon.spark.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMED_PARTITIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """One look at the branch: what the correction starts from, and what its commit is fenced on."""

    table: Table
    schema: TableSchema
    head: Snapshot
    main_head: Snapshot | None
    choice: PartitionChoice


def correct_branch(spark: SparkSession, context: Context, request: CorrectBranch) -> OperationResult:
    """Write the rows of ``--sql`` or ``--function`` into a branch, with the embedded engine's result.

    Raises:
        InvalidInputError: the query is refused, the rows don't fit, lie outside the partitions, or hold a key twice.
        ConflictError: the branch was written meanwhile; nothing was published.
        UnsupportedFeatureError: the session has no connector, or the table is of a kind that this doesn't write.
    """
    sql, views = read_sql(request), further_views(request)
    branch = context.table.branch(request.branch)
    if request.branch == MAIN:
        raise InvalidInputError(
            f"{branch.name}: correct_branch writes a branch, which is published when it is right; create one first"
        )
    branch.require()
    require_committable(branch)
    reader = Reader(spark, paimon_catalog(spark, request))
    identity, ledger = enter(context, request, sql)
    earlier = replayed(context, request, identity, ledger)
    if earlier is not None:
        return earlier
    try:
        base = _look(context, request, branch)
        with rows_of(spark, request, sql, _views(reader, request, base, views)) as rows:
            result = _correct(reader, context, request, base, rows, identity)
    except (ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError, UnsupportedError):
        strike(context, ledger)  # refused before it committed
        raise
    if not result.changed:
        strike(context, ledger)
    return result


def _look(context: Context, request: CorrectBranch, branch: Table) -> _Base:
    schema, head = branch.schema(), branch.latest_snapshot()
    if head is None:
        raise UnsafeOperationError(
            f"{branch.label} is empty, so there is nothing to correct: create it from a tag or a snapshot of main",
            table=branch.name,
        )
    check_request(branch, schema, request)
    check_target(branch, schema, request.mode)
    return _Base(
        table=branch,
        schema=schema,
        head=head,
        main_head=context.table.latest_snapshot(),
        choice=choose_partitions(schema, request.partitions),
    )


def _views(reader: Reader, request: CorrectBranch, base: _Base, further: dict[str, str]) -> dict[str, DataFrame]:
    """Every view is of one pinned snapshot."""
    main = base.table.branch(MAIN)
    frames = {
        BRANCH_VIEW: reader.read(base.table, base.head, base.schema),
        MAIN_VIEW: reader.read(main, base.main_head, main.schema()),
    }
    for name, table in further.items():
        other = open_table(request.warehouse, table, storage_options=request.storage_options).require()
        frames[name] = reader.read(other, other.latest_snapshot(), other.schema())
    return frames


def _correct(
    reader: Reader, context: Context, request: CorrectBranch, base: _Base, rows: DataFrame, identity: CommitIdentity
) -> OperationResult:
    # once only: a query that gives other rows each time would be checked by rows that are not written
    given = rows.persist()
    try:
        frame = fitted(given, base.schema, base.table)
        what = f"correct_branch {base.table.label}: engine connector"
        with progress(reader.spark, what):
            counts = count_rows(given, frame, base.schema, base.table)
            check_rows(frame, counts, base.choice, base.schema, base.table, request)
            if request.dry_run:
                return _planned(context, request, base, counts)
            return _write(reader, context, request, base, frame, counts, identity)
    finally:
        given.unpersist()


def _planned(context: Context, request: CorrectBranch, base: _Base, counts: Counts) -> OperationResult:
    hit, values = base.choice.matches, partition_decoder(base.schema)
    live = request.mode == "overwrite" and any(
        hit(values(e.partition)) for e in live_entries(base.table, base.head).values()
    )
    details = _details(request, base, counts, (), ())
    head = base.head.id
    return context.result(
        _plan(request, base, details),
        branch=request.branch,
        changed=bool(counts) or live,
        before=head,
        after=head,
        details=details,
    )


def _plan(request: CorrectBranch, base: _Base, details: dict[str, Any]) -> Plan:
    fence = Precondition(
        branch=request.branch, snapshot_id=base.head.id, identity=base.head.identity, schema_id=base.schema.id
    )
    return Plan(operation=request.operation, table=base.table.name, preconditions=(fence,), summary=details)


def _write(
    reader: Reader,
    context: Context,
    request: CorrectBranch,
    base: _Base,
    rows: DataFrame,
    counts: Counts,
    identity: CommitIdentity,
) -> OperationResult:
    upsert = request.mode == "upsert"
    staging = open_staging(base.table, base.head, base.schema, request.operation_id, context.now_iso, shares=upsert)
    try:
        if counts:
            _append(reader, staging, rows)
        taken = take_over(
            staging,
            None if upsert else base.choice.matches,
            expected_rows=sum(counts.values()),
            identity=identity,
            properties=lambda removed, added: properties(request, _details(request, base, counts, removed, added)),
        )
    finally:
        discard_staging(staging.view)
    landed, head = taken.receipt.snapshot, base.head.id
    if landed is not None:
        verify_landed(base.table, landed)
    if landed is not None and taken.receipt.replayed:
        return result_of(context, request, landed)
    details = _details(request, base, counts, taken.removed, taken.added)
    return context.result(
        _plan(request, base, details),
        branch=request.branch,
        changed=landed is not None,
        before=head,
        after=head if landed is None else landed.id,
        details=details,
    )


def _append(reader: Reader, staging: Staging, rows: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        rows.writeTo(reader.name(staging.view)).append()
    except AnalysisException as error:
        raise InvalidInputError(
            f"{staging.onto.label}: Paimon's connector refuses the rows: {str(error).splitlines()[0]}",
            table=staging.onto.name,
        ) from error


def _details(
    request: CorrectBranch,
    base: _Base,
    counts: Counts,
    removed: Sequence[ManifestEntry],
    added: Sequence[ManifestEntry],
) -> dict[str, Any]:
    rows = {partition_text(base.schema, values): n for values, n in counts.items()}
    names = sorted(rows)
    return {
        "mode": request.mode,
        "rows": sum(rows.values()),
        "partitions": {name: rows[name] for name in names[:_NAMED_PARTITIONS]},
        "partition_count": len(names),
        "buckets": len(group_by_bucket([*removed, *added], one_form(base.schema))),
        "files_added": len(added),
        "files_deleted": len(removed),
        "bytes": sum(e.file.file_size for e in added),
        "branch_snapshot": base.head.id,
        "main_snapshot": base.main_head.id if base.main_head is not None else None,
    }
