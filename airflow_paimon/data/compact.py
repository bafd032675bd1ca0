"""compact: small files of append tables become large ones, and deleted rows go; row ids and versions stay.

Several commits, each of some groups of files: a retry with the same operation id counts those that landed, by their
snapshot properties, and plans the rest anew. A commit whose files another commit has changed is planned again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.commit.committer import CommitIdentity, require_committable
from airflow_paimon.core.commit.copy_on_write import commit_rewrite
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt, attempt_of, commit_identity, digest_of
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.manifest import FileSource
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.plan import Plan, Precondition
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.partitions import choose_partitions, partition_text
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import BucketKey, BucketSplit, ScanPlan
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import discard_files
from airflow_paimon.data.compaction_plan import Bin, plan_bins
from airflow_paimon.data.copy_on_write import CopyOnWrite, plan_copy_on_write, read_columns, touched, write_kept
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import ReadSplit, TableRead, find_deletions, plan_read

log = logging.getLogger(__name__)

MAX_ROUNDS = 5
"""How often files are planned again because other commits changed them."""

DETAILS = "airflow-paimon.details"
_COUNTS = ("partitions", "files_before", "files_after", "bytes_before", "bytes_after", "rows", "deleted_rows")
_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BinWork:
    """What a task writes together. Picklable."""

    plan: CopyOnWrite
    read: TableRead
    split: ReadSplit
    deleted_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BinOutput:
    messages: tuple[CommitMessage, ...]
    rows: int


RunTasks = Callable[[Sequence[BinWork]], Iterable[BinOutput]]
"""Runs tasks, in parallel or not; returns the outputs in any order."""


def compact(
    context: Context,
    request: Compact,
    run: RunTasks | None = None,
    *,
    tasks_at_once: int = 1,
    bytes_at_once: int = 0,
) -> OperationResult:
    """Compact the chosen partitions. ``run`` gets about ``tasks_at_once`` groups of files per call, or more up to
    ``bytes_at_once``; each call is one commit.

    Raises:
        UnsupportedFeatureError: a primary-key table, or a feature that this engine does not write.
        ConflictError: other commits kept changing the files; ``details["done"]`` lists the snapshots that landed.
    """
    table = context.table.branch(request.branch).require()
    run_ = _Run(context, request, table, run or run_here, (tasks_at_once, bytes_at_once))
    if request.dry_run:
        return run_.dry_run()
    require_committable(table)
    with attempt_of(context, request.branch) as tried:
        try:
            return run_.finish(tried)
        except PaimonError as error:
            if run_.done:
                error.details.setdefault("done", run_.done)
            raise


def check_compact(context: Context, request: Compact) -> None:
    """Check everything that can be checked without reading rows, before a session is started; raises as ``compact``."""
    table = context.table.branch(request.branch).require()
    _plan(table, request)
    if not request.dry_run:
        require_committable(table)


def compact_bin(work: BinWork) -> BinOutput:
    """Write the rows of some files together, in bounded memory.

    Raises:
        FormatError: they have not the number of rows that the manifest says.
    """
    counted = [0]

    def rows() -> Iterator[Any]:
        for batch in read_split(work.read, work.split):
            counted[0] += batch.num_rows
            yield batch

    messages = write_kept(work.plan, rows(), FileSource.COMPACT)
    expected = sum(f.row_count for f in work.split.files) - work.deleted_rows
    if counted[0] != expected:
        discard_files(work.plan.write, messages)
        raise FormatError(
            f"{work.read.label}: files to compact, {work.split.files[0].file_name} among them, hold {counted[0]} rows "
            f"where their manifest says {expected}; nothing was committed. Run check_table"
        )
    return BinOutput(messages=(*messages, touched(work.split.bucket, *work.split.files)), rows=counted[0])


def run_here(works: Sequence[BinWork]) -> Iterator[BinOutput]:
    """Run tasks one after the other, in this process."""
    return map(compact_bin, works)


def _plan(table: Table, request: Compact) -> tuple[CopyOnWrite, list[Bin]]:
    schema = table.schema()
    if schema.primary_keys:
        raise UnsupportedFeatureError(
            f"{table.label} has a primary key; compact is for append tables. Use compact_chain_table for chain tables, "
            f"else Paimon's own connector (CALL sys.compact)",
            table=table.name,
        )
    choice = choose_partitions(schema, request.partitions, table.label)
    plan = plan_copy_on_write(table, choice.selection(schema) if request.partitions else None)
    marked = {where.data_file for _, where in find_deletions(plan.scan.index_entries)}
    target = TableOptions(schema.options).target_file_size
    return plan, plan_bins(plan.scan.splits, marked, target, request.min_files)


def _works(plan: CopyOnWrite, bins: Sequence[Bin]) -> list[BinWork]:
    scan = plan.scan
    chosen = ScanPlan(scan.table, scan.snapshot, scan.schema, tuple(b.bucket for b in bins), scan.index_entries)
    read, splits = plan_read(chosen, columns=read_columns(plan), time_travel=True)
    slim = plan.for_tasks()
    return [
        BinWork(
            plan=_in_place(slim, s.bucket),
            read=read,
            split=s,
            deleted_rows=sum(d.cardinality or 0 for _, d in s.deletions),
        )
        for s in splits
    ]


def _in_place(plan: CopyOnWrite, group: BucketSplit) -> CopyOnWrite:
    """Let the rows of a fixed bucket keep the place of the group's files in the order of the bucket."""
    if group.total_buckets <= 0:
        return plan
    form = StoredPartitions(plan.write.schema).canonical
    first = min(f.min_sequence_number for f in group.files)
    return replace(
        plan, write=replace(plan.write, next_sequence={BucketKey(form(group.partition), group.bucket): first})
    )


class _Run:
    """One try of the operation, and what it has done so far."""

    def __init__(
        self, context: Context, request: Compact, table: Table, run: RunTasks, at_once: tuple[int, int]
    ) -> None:
        self._context = context
        self._request = request
        self._table = table
        self._run = run
        self._tasks_at_once, self._bytes_at_once = at_once
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._partitions: set[str] = set()
        self._before: int | None = None
        self.done: list[int] = []

    def dry_run(self) -> OperationResult:
        plan, bins = _plan(self._table, self._request)
        head = plan.write.planned_on
        names = sorted({self._name(plan, b) for b in bins})
        details = {
            "partitions": len(names),
            "partition_names": names[:_LISTED],
            "files_before": sum(len(b.files) for b in bins),
            "bytes_before": sum(b.size for b in bins),
            "groups": len(bins),
        }
        fences = () if head is None else (
            Precondition(branch=self._request.branch, snapshot_id=head.id, identity=head.identity,
                         schema_id=plan.write.schema.id),)  # fmt: skip
        shown = Plan(operation="compact", table=self._table.name, preconditions=fences, summary=details)
        number = head.id if head else None
        return self._context.result(
            shown, branch=self._request.branch, changed=bool(bins), before=number, after=number, details=details
        )

    def finish(self, tried: Attempt) -> OperationResult:
        self._before = self._table.latest_snapshot_id()
        self._count_landed(tried)
        for _ in range(MAX_ROUNDS):
            plan, bins = _plan(self._table, self._request)
            if not sum([self._commit(tried, plan, chunk) for chunk in self._chunks(bins)]):
                return self._result()
        raise ConflictError(
            f"{self._table.label}: other commits changed the files in each of {MAX_ROUNDS} tries to compact them; run "
            f"it again when there are fewer writers",
            table=self._table.name,
        )

    def _count_landed(self, tried: Attempt) -> None:
        """Count an earlier try's commits. Expired ones don't matter: what they wrote is not small any more."""
        if not tried.retried:
            return
        for number in range(tried.head + 1, (self._table.latest_snapshot_id() or 0) + 1):
            try:
                snapshot = self._table.snapshot(number)
            except NotFoundError:
                continue
            if snapshot.commit_user == tried.operation_id and DETAILS in snapshot.properties:
                self._before = min(self._before or number, number - 1) or None
                self._add(snapshot, json.loads(snapshot.properties[DETAILS]))

    def _chunks(self, bins: Sequence[Bin]) -> Iterator[list[Bin]]:
        """Divide into commits: many small groups of files, or few large ones."""
        chunk: list[Bin] = []
        for one in bins:
            if len(chunk) >= self._tasks_at_once and sum(b.size for b in chunk) >= self._bytes_at_once:
                yield chunk
                chunk = []
            chunk.append(one)
        if chunk:
            yield chunk

    def _commit(self, tried: Attempt, plan: CopyOnWrite, chunk: Sequence[Bin]) -> bool:
        """Write and commit some groups of files. True = another commit has changed one of them: plan again."""
        works = _works(plan, chunk)
        outputs = list(self._run(works))
        messages = [m for o in outputs for m in o.messages]
        added = [f for m in messages for f in m.new_files]
        details = {
            "partition_names": sorted({self._name(plan, b) for b in chunk}),
            "files_before": sum(len(b.files) for b in chunk),
            "files_after": len(added),
            "bytes_before": sum(b.size for b in chunk),
            "bytes_after": sum(f.file_size for f in added),
            "rows": sum(o.rows for o in outputs),
            "deleted_rows": sum(w.deleted_rows for w in works),
        }
        try:
            receipt = commit_rewrite(
                self._table,
                messages,
                read=plan.scan,
                kind=CommitKind.COMPACT,
                operation="COMPACT",
                identity=self._identity(tried, chunk),
                properties={"airflow-paimon.operation": "compact", DETAILS: json.dumps(details)},
            )
        except REFUSALS as error:
            discard_files(plan.write, messages)
            if not isinstance(error, ConflictError):
                raise
            log.warning("%s; these files are planned again", error.message)
            return True
        if receipt.replayed:  # another try of the operation was faster and wrote its own files
            discard_files(plan.write, messages)
        if receipt.snapshot is not None:
            self._add(receipt.snapshot, details)
        return False

    def _identity(self, tried: Attempt, chunk: Sequence[Bin]) -> CommitIdentity:
        names = digest_of(sorted(f.file_name for b in chunk for f in b.files))
        known = tried.identity("compact")
        return replace(known, identifier=commit_identity(tried.operation_id, self._request.branch, names).identifier)

    def _add(self, snapshot: Snapshot, details: dict[str, Any]) -> None:
        self.done.append(snapshot.id)
        self._partitions |= set(details["partition_names"])
        for name in _COUNTS:
            self._counts[name] += details.get(name, 0)

    def _name(self, plan: CopyOnWrite, one: Bin) -> str:
        return partition_text(plan.write.schema, one.bucket.values)

    def _result(self) -> OperationResult:
        details = {
            **self._counts,
            "partitions": len(self._partitions),
            "partition_names": sorted(self._partitions)[:_LISTED],
            "snapshots": sorted(self.done),
        }
        after = max(self.done, default=self._before)
        return self._context.result(
            None,
            branch=self._request.branch,
            changed=bool(self.done),
            before=self._before,
            after=after,
            details=details,
        )
