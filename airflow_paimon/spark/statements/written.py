"""What a statement writes: one commit under its operation id, and the operation's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.guard import report_write
from airflow_paimon.core.chain.write_plan import ChainOptions, OnStale
from airflow_paimon.core.commit.committer import CommitIdentity, Receipt
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import WriteRequest, commit_with_retries, write_once, write_result
from airflow_paimon.data.write import TableWrite, WriteMode
from airflow_paimon.spark.compaction import in_tasks_if_large
from airflow_paimon.spark.statements.figures import OPERATION, committed_figures, figures_of, made_of
from airflow_paimon.spark.statements.run import ATTEMPTS
from airflow_paimon.spark.statements.sql_request import SqlRequest
from airflow_paimon.spark.tasks import cores_of

Figures = Mapping[str, Any]


def write_statement(
    request: SqlRequest,
    table: Table,
    details: Mapping[str, Any],
    write: Callable[[CommitIdentity], tuple[Receipt, Figures]],
    started: float,
    **said: Any,
) -> dict[str, Any]:
    """Write, or find the commit of an earlier try; return the result with ``details`` and what was written.

    ``write`` commits, and says what it wrote. ``said``: what is asked for besides the statement and its views.
    ``started``: a reading of the monotonic clock.
    """
    found: dict[str, Any] = {}

    def commit(identity: CommitIdentity) -> tuple[Receipt, Sequence[CommitMessage]]:
        receipt, figures = write(identity)
        found.update(figures)
        return receipt, ()

    def report(committed: Snapshot | None) -> Figures:
        if committed is not None and not found:
            found.update(committed.values(DETAILS_PROPERTY, dict) or committed_figures(table, committed))
        return report_write(table, committed)

    views = {name: view if isinstance(view, str) else "DataFrame" for name, view in request.views.items()}
    digest = digest_of({"statement": request.statement, "views": views, **said})
    written = write_once(
        table,
        WriteRequest(OPERATION, request.operation_id, digest),
        commit,
        report,
        run=in_tasks_if_large(request.spark, table.name),
        writers_stopped=request.writers_stopped,
    )
    warnings = [*details.get("warnings", ()), *written.report.get("warnings", ())]
    all_details = {**details, **found, **written.report, **({"warnings": warnings} if warnings else {})}
    all_details |= {"replayed": True} if written.replayed else {}
    return write_result(table, OPERATION, written, all_details, started)


def write_query(
    request: SqlRequest,
    table: Table,
    mode: WriteMode,
    identity: CommitIdentity,
    files: Callable[[TableWrite], Sequence[CommitMessage]],
    on_stale: OnStale | None = None,
    read_own: Callable[[], bool] = lambda: False,
) -> tuple[Receipt, Figures]:
    """Commit the files of a query's rows as ``commit_with_retries`` does, for ``write_statement``."""
    options = CommitOptions(
        identity=identity,
        properties=made_of(table, request.statement),
        guard_options=ChainOptions(on_stale=on_stale),
        writers_stopped=request.writers_stopped,
    )
    tasks = cores_of(request.spark)
    receipt, _ = commit_with_retries(table, mode, options, files, attempts=ATTEMPTS, read_head=read_own, tasks=tasks)
    return receipt, {} if receipt.replayed else figures_of(table, receipt.before, receipt.snapshot)
