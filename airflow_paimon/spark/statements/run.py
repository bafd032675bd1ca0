"""Runs a statement: evaluated on the head, written, committed once; all of it again when another writer was faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_paimon.core.chain.guard import is_chain_rows
from airflow_paimon.core.commit.conditions import KEYS_STAY, has_moving_keys
from airflow_paimon.core.commit.draft import CommitOptions, Receipt
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.format.snapshot import Operation
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import until_committed
from airflow_paimon.data.moving_keys import check_corrected
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.rows_in import BATCH_CONF, temporary_conf
from airflow_paimon.spark.statements.append import change_append
from airflow_paimon.spark.statements.keyed import change_keyed
from airflow_paimon.spark.statements.other_branch import check_what_is_seen
from airflow_paimon.spark.statements.outcome import StatementOutcome, notes_of
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.tables import NamedTables, own_rows
from airflow_paimon.spark.statements.target_files import Limits, TargetFiles, known_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_OPERATIONS = {
    "UPDATE": Operation.UPDATE,
    "DELETE": Operation.DELETE,
    "MERGE": Operation.MERGE,
    "INSERT": Operation.WRITE,
    "INSERT OVERWRITE": Operation.OVERWRITE,
}
Properties = Callable[[StatementOutcome], Mapping[str, str]]


def compute_changes(
    spark: SparkSession,
    statement: Statement,
    table: Table,
    tables: NamedTables,
    *,
    limits: Limits | None = None,
    dry_run: bool = False,
) -> StatementOutcome:
    """Compute UPDATE, DELETE, MERGE or INSERT INTO on the head; nothing is committed. A dry run writes no file either.

    Raises:
        InvalidInputError: Spark refuses the statement, or it would match a row twice or change a key.
    """
    target = TargetFiles(table)
    keyed = bool(target.schema.primary_keys)
    chained = keyed and is_chain_rows(table)
    check_writable(target.schema, table=table.label, branch=table.branch_name, chained=chained, by_buckets=keyed)
    with (
        query_errors(statement.title),
        tables.bound(statement, lambda: own_rows(spark, statement.text, target.whole())) as bound,
        temporary_conf(spark, BATCH_CONF),
    ):
        if keyed:
            outcome = change_keyed(spark, bound, target, limits, dry_run)
        else:
            outcome = change_append(spark, bound, target, dry_run)
    if statement.insert is None:
        check_what_is_seen(outcome)
    if outcome.changes_nothing:
        outcome = replace(outcome, partitions=known_partitions(outcome.read))
    for note in notes_of(statement, outcome):
        log.warning("%s: %s", table.label, note)
    return outcome


def commit_statement(
    spark: SparkSession,
    statement: Statement,
    table: Table,
    tables: NamedTables,
    options: CommitOptions,
    properties: Properties,
    limits: Limits | None = None,
) -> tuple[Receipt, StatementOutcome]:
    """Evaluate and commit. ``properties``: the snapshot's properties, of what will be committed.

    Raises:
        ConflictError: other writers kept changing the same files.
        UnsafeOperationError: a running job may have a bucket open, and the options don't say that writers are stopped.
    """

    def attempt() -> tuple[Receipt, StatementOutcome]:
        outcome = compute_changes(spark, statement, table, tables, limits=limits)
        try:
            stay = has_moving_keys(outcome.write.schema)  # without a new key, all that are left stay in their buckets
            if outcome.inserted:
                stay = check_corrected(table, outcome.write, outcome.messages)
            receipt = _commit(table, statement, outcome, replace(options, properties=properties(outcome)), stay)
        except REFUSALS:
            outcome.discard()
            raise
        if receipt.replayed:  # another try of the operation was faster, with files of its own
            outcome.discard()
        return receipt, outcome

    return until_committed(table.label, attempt)


def _commit(
    table: Table,
    statement: Statement,
    outcome: StatementOutcome,
    options: CommitOptions,
    keys_stay: bool,
) -> Receipt:
    keyed = bool(table.schema().primary_keys)
    options = replace(
        options,
        properties={**options.properties, **KEYS_STAY} if keys_stay else options.properties,
        written_with=outcome.read.schema if keyed else outcome.write.schema,
    )
    messages, operation = outcome.messages, _OPERATIONS[statement.kind]
    if not keyed:
        return commit_rewrite(table, messages, options, read=outcome.read, operation=operation)
    assigned = None if keys_stay else (outcome.write.planned_on,)
    return commit_buckets(
        table, messages, options, operation=operation, assigned=assigned, vectors=outcome.read.index_entries
    )
