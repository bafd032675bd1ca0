"""What a statement writes: one commit under its operation id, and the operation's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.guard import report_write
from airflow_paimon.core.chain.write_plan import ChainOptions, OnStale
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.format.manifest import DataFile, FileKind
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.sql_text.recorded import statement_properties
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_entries import selected_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import WriteRequest, commit_with_retries, write_once, write_result
from airflow_paimon.data.write import TableWrite, WriteMode
from airflow_paimon.spark.compaction import in_tasks
from airflow_paimon.spark.statements.outcome import changed_files
from airflow_paimon.spark.statements.sql_request import OPERATION, SqlRequest
from airflow_paimon.spark.tasks import cores_of

Figures = Mapping[str, Any]


def write_statement(
    request: SqlRequest,
    table: Table,
    details: Mapping[str, Any],
    write: Callable[[CommitOptions], tuple[Receipt, Figures]],
    on_stale: OnStale | None = None,
) -> dict[str, Any]:
    """Write, or find the commit of an earlier try; return the result with ``details`` and what was written.

    ``write`` commits, and says what it wrote.
    """
    found: dict[str, Any] = {}

    def commit(identity: CommitIdentity) -> tuple[Receipt, Sequence[CommitMessage]]:
        options = CommitOptions(
            identity=identity,
            properties={OPERATION_PROPERTY: OPERATION, **statement_properties(table, request.statement)},
            guard_options=ChainOptions(on_stale=on_stale),
            writers_stopped=request.writers_stopped,
        )
        receipt, figures = write(options)
        found.update(figures)
        return receipt, ()

    def report(committed: Snapshot | None) -> Figures:
        if committed is not None and not found:
            found.update(committed.values(DETAILS_PROPERTY, dict) or _figures_of(table, None, committed))
        return report_write(table, committed)

    views = {name: view if isinstance(view, str) else "DataFrame" for name, view in request.views.items()}
    said = {"statement": request.statement, "views": views, "all_rows": request.all_rows, "on_stale": on_stale}
    written = write_once(
        table,
        WriteRequest(OPERATION, request.operation_id, digest_of(said)),
        commit,
        report,
        run=in_tasks(request.spark, table.name),
        writers_stopped=request.writers_stopped,
    )
    warnings = [*details.get("warnings", ()), *written.report.get("warnings", ())]
    all_details = {**details, **found, **written.report, **({"warnings": warnings} if warnings else {})}
    all_details |= {"replayed": True} if written.replayed else {}
    return write_result(table, OPERATION, written, all_details, request.started)


def write_query(
    request: SqlRequest,
    table: Table,
    mode: WriteMode,
    options: CommitOptions,
    files: Callable[[TableWrite], Sequence[CommitMessage]],
    read_own: Callable[[], bool] = lambda: False,
) -> tuple[Receipt, Figures]:
    """Commit the files of a query's rows as ``commit_with_retries`` does, for ``write_statement``."""
    tasks = cores_of(request.spark)
    receipt, _ = commit_with_retries(table, mode, options, files, read_head=read_own, tasks=tasks)
    return receipt, {} if receipt.replayed else _figures_of(table, receipt.before, receipt.snapshot)


def _figures_of(table: Table, before: Snapshot | None, after: Snapshot | None) -> Figures:
    """Say what an INSERT did, from the changes of its snapshot. ``after``: None = no commit."""
    changes = () if after is None else selected_entries(table, read_delta_lists(table, [after]), None)
    new, gone = list[DataFile](), list[DataFile]()
    for entry in changes:
        (new if entry.kind == FileKind.ADD else gone).append(entry.file)
    live = live_columns(table, after or before)
    return {
        "rows_updated": 0,
        "rows_deleted": sum(f.row_count for f in gone),
        "rows_inserted": sum(f.row_count for f in new),
        **changed_files(new, gone),
        "files_kept": len(live.file_names) - len(new),
        "bytes_kept": sum(live.file_sizes) - sum(f.file_size for f in new),
    }
