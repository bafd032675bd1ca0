"""What becomes of the rows that correct the partitions, or the keys, of a branch: the state before, and the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.chain.guard import chain_part, is_chain_rows
from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.data.dynamic_buckets import with_hash_indexes
from airflow_paimon.data.moving_keys import check_corrected
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read
from airflow_paimon.data.rewrite import new_bucket_number
from airflow_paimon.data.write import TableWrite, discard_files, plan_write
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.correction import CorrectionBase, properties, result_of
from airflow_paimon.spark.jobs.correction_sources import source_name
from airflow_paimon.spark.jobs.correction_tasks import BucketCorrection, BucketResult, live_buckets, run_buckets
from airflow_paimon.spark.jobs.query_views import is_large
from airflow_paimon.spark.jobs.small_input import few_rows
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.rows_in import BATCH_CONF, check_frame, temporary_conf
from airflow_paimon.spark.statements.target_files import partitions_of
from airflow_paimon.spark.tasks import cores_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionBaseWithFiles(CorrectionBase):
    """With what the built-in engine needs: live buckets, and their highest sequence numbers at the branch point."""

    live: ScanPlan
    write: TableWrite
    limits: dict[BucketKey, int]


def write_rows(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    found: CorrectionBase,
    rows: DataFrame,
    identity: CommitIdentity,
    made: Mapping[str, str] | None = None,
) -> OperationResult:
    """Write the rows of a DataFrame into a branch, as one commit. ``made``: snapshot properties of what gave them.

    Raises:
        InvalidInputError: the rows don't fit, lie outside the partitions, or hold a key twice. ConflictError: the
            branch changed in a bucket while that was rewritten; nothing was published.
    """
    label = found.table.label
    check_frame(rows, found.schema, label)
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)):
        few = few_rows(rows)
    base = with_files(context, found, cores_of(spark), only=_written_by(request, found, few))
    correction = correction_on(request, base)
    what = f"correct_branch {label}: {len(base.live.splits)} buckets live in what is to be corrected"
    with temporary_conf(spark, BATCH_CONF), query_errors(source_name(request)), progress(spark, what):
        results = run_buckets(rows, few, base.live, correction)
    return finish(context, request, base, results, identity, made)


def _written_by(request: CorrectBranch, base: CorrectionBase, few: pa.Table | None) -> frozenset[bytes] | None:
    """Return the partitions that an upsert of few rows writes, in canonical form; None: the chosen ones, or all.

    Where the row of a key may be in any partition, all have to be known.
    """
    schema = base.schema
    if few is None or request.mode != "upsert" or base.choice.specs or schema.crosses_partitions:
        return None
    return partitions_of(few, base.table, schema) if is_large(base) else None


def with_files(
    context: Context, found: CorrectionBase, cores: int, only: frozenset[bytes] | None = None
) -> CorrectionBaseWithFiles:
    """Read the live buckets in the chosen partitions, and their numbers at the branch point.

    ``cores``: how many tasks write at once. ``only``: the partitions that get rows, if known.
    """
    branch, schema, head = found.table, found.schema, found.head
    key_of = StoredPartitions(schema).bucket
    chosen = found.choice.selection(schema) if only is None else StoredPartitions(schema).those(only)
    base = head if chain_part(branch) is not None else branch_point(context.table, branch)
    at_base = plan_snapshot(branch, base, schema, chosen)
    live = at_base if base is not None and base.id == head.id else plan_snapshot(branch, head, schema, chosen)
    return CorrectionBaseWithFiles(
        table=branch,
        schema=schema,
        head=head,
        main_head=found.main_head,
        choice=found.choice,
        live=live,
        write=plan_write(
            branch,
            tasks=cores,
            by_buckets=True,
            chained=is_chain_rows(branch),
            scan=live,
            partitions=lambda _: only,
        ),
        limits={key_of(s): highest_sequence(s.files) for s in at_base.splits},
    )


def _refuse_lost_deletes(base: CorrectionBaseWithFiles) -> None:
    """Refuse to overwrite partitions of a chain table that hold deletes, which a SELECT doesn't return.

    Raises:
        UnsafeOperationError: names them: without the deletes rows of earlier partitions would be read again.
    """
    if not is_chain_rows(base.table):
        return
    held = {
        shown_partition(base.schema, s.values)
        for s in base.live.splits
        if any(f.delete_row_count != 0 for f in s.files)  # None: not known
    }
    if held:
        names = sorted(held)
        raise UnsafeOperationError(
            f"{base.table.label}: {', '.join(names[:5])} contains deletes of rows in earlier partitions, which a "
            "SELECT would lose: use UPDATE, DELETE or MERGE, or mode=upsert (--mode); write_table with mode "
            "overwrite replaces deletes, too",
            details={"partitions": names[:100]},
        )


def correction_on(request: CorrectBranch, base: CorrectionBaseWithFiles) -> BucketCorrection:
    """Return what all that write buckets have in common.

    Raises:
        UnsafeOperationError: rows that hide others would be lost.
    """
    if request.mode == "overwrite":
        _refuse_lost_deletes(base)
    read: TableRead | None = None
    splits: Sequence[ReadSplit] = ()
    if request.mode == "upsert":
        read, splits = plan_read(base.live, whole_buckets=base.write.is_keyed)
    return BucketCorrection(
        write=base.write,
        choice=base.choice,
        live=live_buckets(base.live, base.write, splits, base.limits),
        read=read,
        dry_run=request.dry_run,
        merges=request.mode == "upsert",
        new_bucket=new_bucket_number(base.table),
    )


def finish(
    context: Context,
    request: CorrectBranch,
    base: CorrectionBaseWithFiles,
    results: Sequence[BucketResult],
    identity: CommitIdentity,
    made: Mapping[str, str] | None = None,
) -> OperationResult:
    """Commit what was written, once. ``made``: snapshot properties of what gave the rows.

    Raises:
        ConflictError: the branch changed in a bucket while that was rewritten; nothing was published.
    """
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
            CommitOptions(identity=identity, properties=about, written_with=base.write.schema),
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


def _messages(
    request: CorrectBranch, base: CorrectionBaseWithFiles, results: Sequence[BucketResult]
) -> list[CommitMessage]:
    """Say for each bucket which files it loses and which it gets; several tasks may have written one of them."""
    key_of = StoredPartitions(base.schema).bucket
    live = {key_of(s): s for s in base.live.splits}
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
    request: CorrectBranch,
    base: CorrectionBaseWithFiles,
    results: Sequence[BucketResult],
    messages: Sequence[CommitMessage],
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
