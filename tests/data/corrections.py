"""Corrections and statements of primary-key tables on rows that are there already: all of a job but its Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions, Receipt
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import ROW_KIND, arrow_schema
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.write import plan_write
from airflow_paimon.spark.jobs import correct_statement
from airflow_paimon.spark.jobs.correct_rows import correction_on, finish, with_files
from airflow_paimon.spark.jobs.correction import read_base, read_heads
from airflow_paimon.spark.jobs.correction_tasks import correct_buckets
from airflow_paimon.spark.statements import keyed, run

Row = Mapping[str, Any]

NO_SESSION: Any = None
"""A session of which a correction asks only how many tasks run at once, as far as that is known."""


def arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table with the table's types; all columns, and the kinds where rows have them."""
    found = pa.Table.from_pylist([dict(r) for r in rows], arrow_schema(table.schema().fields))
    if any(ROW_KIND in r for r in rows):
        found = found.append_column(ROW_KIND, pa.array([r.get(ROW_KIND, "+I") for r in rows]))
    return found


def whole_rows(table: Table, snapshot: Snapshot | None = None) -> pa.Table:
    """What a full compaction would read, with rows that wait for one, as the view ``branch`` shows them."""
    plan = plan_snapshot(table, snapshot or table.latest_snapshot(), table.schema())
    read, splits = plan_read(plan, whole_buckets=True)
    return pa.Table.from_batches([b for s in splits for b in read_split(read, s)], read.output_schema)


def _request(table: Table, branch: str, **more: Any) -> CorrectBranch:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    values = {"warehouse": warehouse, "table": table.name, "branch": branch, **more}
    request = build_request("correct_branch", values)
    assert isinstance(request, CorrectBranch)
    return request


def correct(table: Table, branch: str, rows: Sequence[Row], **more: Any) -> OperationResult:
    """``correct_branch`` with a SELECT that gives these rows; ``mode``, ``partitions``."""
    request = _request(table, branch, sql="unused", **more)
    context = open_context(request)
    found = read_base(context, request, table.branch(branch))
    base = with_files(context, found, 1)
    results = list(correct_buckets(correction_on(request, base), arrow(base.table, rows).to_batches()))
    return finish(context, request, base, results, CommitIdentity())


def change(table: Table, rows: Sequence[Row], branch: str = MAIN, operation: str = "UPDATE") -> Receipt:
    """An UPDATE, DELETE or MERGE that gives these rows, with ``_row_kind``, of main or a branch."""
    view = table.branch(branch)
    write = plan_write(view, by_buckets=True)
    plan = plan_snapshot(view, write.planned_on, write.schema)
    write = replace(write, schema=keyed.without_merging(write.schema))
    limits = None
    if branch != MAIN:
        request = _request(table, branch, sql="unused")
        context = open_context(request)
        limits = correct_statement._limits(context, read_heads(context, request, view))
    correction = replace(
        keyed.correction_on(plan, write, None if limits is None else limits(None), False),
        writes_changelog=keyed.writes_changelog(view, plan.schema),
    )
    outcome = keyed.outcome_of(plan, write, list(correct_buckets(correction, arrow(view, rows).to_batches())))
    asked: Any = SimpleNamespace(kind=operation)
    tables: Any = None
    with patch.object(run, "compute_changes", lambda *asked, **how: outcome):
        return run.commit_statement(NO_SESSION, asked, view, tables, CommitOptions(), lambda found: {}, limits)[0]
