"""correct_branch with an UPDATE, DELETE, MERGE or INSERT on the view ``branch``: one statement, one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.chain.guard import chain_part
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.sql_text.checks import check_statement_alone
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_text import partition_text
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.correct_rows import write_rows
from airflow_paimon.spark.jobs.correction import (
    CorrectionBase,
    made_of,
    properties,
    read_heads,
    result_of,
)
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.statements.insert import insert_rows, is_dynamic, overwritten
from airflow_paimon.spark.statements.outcome import StatementOutcome, notes_of
from airflow_paimon.spark.statements.parse import parse_statement
from airflow_paimon.spark.statements.run import commit_statement, compute_changes
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement
from airflow_paimon.spark.statements.tables import NamedTables, names_of, own_rows
from airflow_paimon.spark.statements.target_files import Limits
from airflow_paimon.spark.statements.views import registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_ROWS = "--all-rows"


def statement_of(spark: SparkSession, request: CorrectBranch, sql: str | None) -> Statement | None:
    """Return the statement in the file of ``--sql``; None for a SELECT, a function, or what Spark will refuse.

    Raises:
        InvalidInputError: its target is not ``branch``, or flags are given that only a SELECT takes.
    """
    if sql is None or not has_jvm(spark):
        return None
    try:
        statement = parse_statement(spark, sql)
    except InvalidInputError as error:
        error.set_message(f"sql (--sql): {error.message}")
        raise
    if statement is None:
        return None
    target = statement.target
    if tuple(part.lower() for part in target.name) != (BRANCH_VIEW,):
        raise InvalidInputError(
            f"sql (--sql): the target of a statement is the branch that is corrected, so name it {BRANCH_VIEW}, not "
            f"{target.text!r}{target.at.where}"
        )
    check_statement_alone(statement.kind, request.mode, request.partitions)
    return statement


def correct_by_statement(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    statement: Statement,
    views: Mapping[str, str],
    identity: CommitIdentity,
) -> OperationResult:
    """Run a statement on the branch. The rows of an INSERT OVERWRITE are written as those of a SELECT.

    Raises:
        InvalidInputError: what Spark or ``check_statement`` says is wrong; nothing was changed.
        ConflictError: other writers kept changing the same files.
    """
    base = read_heads(context, request, branch)
    dynamic = is_dynamic(spark)
    check_statement(statement, base.schema, all_rows=request.all_rows, flag=ALL_ROWS, dynamic=dynamic)
    what = f"correct_branch {branch.label}: {statement.kind}"
    own = {BRANCH_VIEW, *names_of(branch, views)}  # of the snapshot that each try of the statement is computed on
    restricted = request.restricted_sql
    tables = NamedTables(spark, request, statement.text, branch, own, restricted=restricted)
    named = registered(spark, tables.views({MAIN_VIEW: request.table, **views}, own), marked=restricted)
    with named, progress(spark, what):
        if statement.kind != "INSERT OVERWRITE":
            return _change(spark, context, request, statement, base, tables, identity)
        as_select = _as_select(request, statement, base, dynamic)
        found = read_heads(context, as_select, branch)
        made = made_of(as_select, branch, statement.text)

        def own_at_head() -> DataFrame:
            return own_rows(spark, statement.text, plan_snapshot(branch, found.head, found.schema))

        with query_errors(statement.title), tables.bound(statement, own_at_head) as bound:
            rows = insert_rows(spark, bound, found.schema)
            return write_rows(spark, context, as_select, found, rows, identity, made)


def _as_select(request: CorrectBranch, statement: Statement, base: CorrectionBase, dynamic: bool) -> CorrectBranch:
    """Return the request that replaces what the INSERT OVERWRITE replaces."""
    mode, partition = overwritten(statement, base.schema, dynamic)
    if mode == "dynamic_overwrite":
        raise UnsupportedFeatureError(
            "sql (--sql): INSERT OVERWRITE of the partitions that occur in the rows is not done on a branch; name them "
            "with PARTITION (...)"
        )
    static = partition_text(partition or {})
    return replace(request, partitions=(static,) if static else ())


def _change(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    statement: Statement,
    base: CorrectionBase,
    tables: NamedTables,
    identity: CommitIdentity,
) -> OperationResult:
    limits, made = _limits(context, base), made_of(request, base.table, statement.text)
    if request.dry_run:
        outcome = compute_changes(spark, statement, base.table, tables, limits=limits, dry_run=True)
        return base.result(context, request, _details(statement, base, outcome), changed=bool(outcome.rows))

    def described(outcome: StatementOutcome) -> Mapping[str, str]:
        return properties(request, made, _details(statement, base, outcome))

    options = CommitOptions(identity=identity)
    receipt, outcome = commit_statement(spark, statement, base.table, tables, options, described, limits)
    if receipt.replayed and receipt.snapshot is not None:
        return result_of(context, request, receipt.snapshot)
    changed, details = receipt.snapshot is not None, _details(statement, base, outcome)
    before = receipt.before if changed else None
    return base.result(context, request, details, changed=changed, before=before, after=receipt.snapshot)


def _limits(context: Context, base: CorrectionBase) -> Limits | None:
    """Return what finds the highest sequence number of buckets at the branch point; None: it is what they hold now.

    See docs/contributing/publishing.md, A running writer keeps winning. The branches of a chain table are not
    published.
    """
    if not base.schema.primary_keys or chain_part(base.table) is not None:
        return None
    stored, point = StoredPartitions(base.schema), branch_point(context.table, base.table)

    def found(selection: Selection | None) -> dict[BucketKey, int]:
        plan = plan_snapshot(base.table, point, base.schema, selection)
        return {stored.bucket(s): highest_sequence(s.files) for s in plan.splits}

    return found


def _details(statement: Statement, base: CorrectionBase, outcome: StatementOutcome) -> dict[str, Any]:
    values = StoredPartitions(base.schema).values
    names = sorted({shown_partition(base.schema, values(m.partition)) for m in outcome.messages})
    notes = notes_of(statement, outcome)
    return {
        "statement": statement.kind,
        "rows": outcome.rows,
        **outcome.details(),
        **({"notes": notes} if notes else {}),
        "changed_partitions": names[:100],
        "partition_count": len(names),
        **base.heads,
    }
