"""What every correction has, whichever engine writes it: its operation record, its checks, its plan and its result."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.guard import report_write
from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import HeadIs, Plan
from airflow_paimon.core.publish.approval import refuse_unapproved
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.sql_text.checks import check_mode
from airflow_paimon.core.sql_text.recorded import statement_properties
from airflow_paimon.core.table.made_by import function_properties
from airflow_paimon.core.table.partition_scope import PartitionScope, choose_partitions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    DETAILS_PROPERTY,
    MODE_PROPERTY,
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.jobs.correction_sources import function_version, text_digest
from airflow_paimon.spark.statements.outcome import changed_files

log = logging.getLogger(__name__)

COLUMN_SOURCES = "column_sources"
_NAMED_PARTITIONS = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionBase:
    """The state of the branch that a correction starts from; its commit fails where that state has changed."""

    table: Table
    schema: TableSchema
    head: Snapshot
    main_head: Snapshot | None
    choice: PartitionScope

    @property
    def heads(self) -> dict[str, Any]:
        """The snapshots that were looked at, for the result."""
        main = self.main_head.id if self.main_head is not None else None
        return {"branch_snapshot": self.head.id, "main_snapshot": main}

    def details(self, request: CorrectBranch, rows: Mapping[str, int], **figures: int) -> dict[str, Any]:
        """Say what the correction writes. ``rows``: how many rows of the user came to each partition."""
        names = sorted(rows)
        return {
            "mode": request.mode,
            "rows": sum(rows.values()),
            "partitions": {name: rows[name] for name in names[:_NAMED_PARTITIONS]},
            "partition_count": len(names),
            **figures,
            **self.heads,
        }

    def figures(self, removed: Sequence[ManifestEntry], added: Sequence[ManifestEntry]) -> dict[str, Any]:
        """Say which files a commit of statements took away and added."""
        values = StoredPartitions(self.schema).values
        names = sorted({shown_partition(self.schema, values(e.partition)) for e in (*removed, *added)})
        return {
            **changed_files([e.file for e in added], [e.file for e in removed]),
            "changed_partitions": names[:_NAMED_PARTITIONS],
            "partition_count": len(names),
            **self.heads,
        }

    def result(
        self,
        context: Context,
        request: CorrectBranch,
        details: dict[str, Any],
        *,
        changed: bool,
        before: Snapshot | None = None,
        after: Snapshot | None = None,
    ) -> OperationResult:
        """Return the result with its plan. ``before`` and ``after`` are the head that was looked at when not given."""
        report = report_write(self.table, after)
        fence = HeadIs.of(request.branch, self.head, self.schema.id)
        plan = Plan(operation=request.operation, table=self.table.name, preconditions=(fence,), summary=details)
        return context.result(
            plan,
            branch=request.branch,
            changed=changed,
            before=(before or self.head).id,
            after=(after or self.head).id,
            details={**details, **report},
        )


def branch_to_correct(context: Context, request: CorrectBranch) -> Table:
    """Open the branch that is to be written.

    Raises:
        InvalidInputError: it is main. NotFoundError: there is no such branch. UnsafeOperationError: readers of main
            see the branch, and four eyes are asked for.
    """
    branch = context.table.branch(request.branch)
    if request.branch == MAIN:
        raise InvalidInputError(
            f"{branch.name}: correct_branch writes a branch, which is published when it is right; create one first"
        )
    branch.require()
    if not request.dry_run:
        refuse_unapproved(branch)
    require_committable(branch)
    return branch


def read_base(context: Context, request: CorrectBranch, branch: Table) -> CorrectionBase:
    """Read the heads of the branch and of main, and check the request against the schema."""
    found = read_heads(context, request, branch)
    check_mode(found.schema, request.mode, request.partitions, branch.label)
    return found


def read_heads(context: Context, request: CorrectBranch, branch: Table) -> CorrectionBase:
    """Like ``read_base``, but without partitions to replace: a statement says itself which rows it changes."""
    schema, head = branch.schema(), branch.latest_snapshot()
    if head is None:
        raise UnsafeOperationError(
            f"{branch.label} is empty, so there is nothing to correct: create it from a tag or a snapshot of main"
        )
    return CorrectionBase(
        table=branch,
        schema=schema,
        head=head,
        main_head=context.table.latest_snapshot(),
        choice=choose_partitions(schema, request.partitions, branch.label),
    )


def correct_idempotently(
    context: Context,
    request: CorrectBranch,
    sql: str | None,
    correct: Callable[[CommitIdentity], OperationResult],
) -> OperationResult:
    """Run ``correct``, or give the result of an earlier try of the same operation if it was committed.

    An operation that committed nothing, refused or with nothing to do, leaves no operation record, so that it may be
    asked again in another way. After an unknown outcome the record stays.
    """
    identified = request if sql is None else dataclasses.replace(request, sql=text_digest(sql))
    with attempt_of(context, request.branch, identified) as tried:
        committed = tried.committed(request.operation)
        if committed is not None:
            return result_of(context, request, committed)
        result = correct(tried.identity(request.operation))
    if not result.changed:
        tried.forget()
    return result


def result_of(context: Context, request: CorrectBranch, committed: Snapshot) -> OperationResult:
    """Return the result of another try's commit."""
    details = committed.values(DETAILS_PROPERTY, dict) | {"replayed": True}
    details |= report_write(context.table.branch(request.branch), committed)
    return context.result(
        None, branch=request.branch, changed=True, before=committed.id - 1 or None, after=committed.id, details=details
    )


def made_of(request: CorrectBranch, branch: Table, sql: str | None) -> dict[str, str]:
    """Return the snapshot properties of what gives the rows.

    Raises:
        InvalidInputError: the table's option ``airflow-paimon.record-sql`` has an unknown value.
    """
    if sql is not None:
        return statement_properties(branch, sql, request.view)
    if request.function:
        return function_properties(request.function, function_version(request.function), request.view)
    return {}


def properties(request: CorrectBranch, made: Mapping[str, str], details: dict[str, object]) -> dict[str, str]:
    """Return the snapshot properties of a correction. ``made``: of what gave its rows."""
    out = {
        OPERATION_PROPERTY: request.operation,
        MODE_PROPERTY: request.mode,
        DETAILS_PROPERTY: json.dumps(details),
        **made,
    }
    return out | ({OPERATION_ID_PROPERTY: request.operation_id} if request.operation_id else {})
