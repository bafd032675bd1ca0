"""``sql``: one statement on the tables of a warehouse, parsed and evaluated by Spark: one result, or one commit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import OnStale
from airflow_paimon.core.commit.committer import CommitIdentity, Receipt, require_committable
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import running_in_spark
from airflow_paimon.core.sql_text.call import is_call, parse_show_list
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.data.arguments import check_operation_id
from airflow_paimon.data.arrow_write import commit_in_tries, write_once, write_result
from airflow_paimon.data.write import TableWrite
from airflow_paimon.spark.compaction import in_tasks_if_large
from airflow_paimon.spark.cut_off import refuse_cut_off
from airflow_paimon.spark.jobs.small_input import view_frame
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.statements.asked import Asked, current_database, qualified
from airflow_paimon.spark.statements.call import run_call
from airflow_paimon.spark.statements.dialect import spark_text
from airflow_paimon.spark.statements.errors import statement_errors
from airflow_paimon.spark.statements.insert import insert_rows, is_dynamic, overwritten
from airflow_paimon.spark.statements.landed import OPERATION, figures_of, landed_figures, made_of
from airflow_paimon.spark.statements.other import run_other
from airflow_paimon.spark.statements.outcome import Outcome, notes_of
from airflow_paimon.spark.statements.parse import parse_statement
from airflow_paimon.spark.statements.run import TRIES, commit_statement
from airflow_paimon.spark.statements.show import show_list
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement, table_of
from airflow_paimon.spark.statements.tables import NamedTables, names_of, own_rows, warehouse_tables
from airflow_paimon.spark.statements.views import check_view_names, plan_view, registered
from airflow_paimon.spark.tasks import cores_of
from airflow_paimon.spark.write import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@same_versions()
@reading_once()
@running_in_spark()
def sql(
    spark: SparkSession,
    warehouse: str,
    statement: str,
    views: Mapping[str, Any] | None = None,
    operation_id: str | None = None,
    all_rows: bool = False,
    *,
    on_stale: str | None = None,
    writers_stopped: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Run one statement on ``db.t`` or ``db.`t$branch_b```.

    SELECT, DESCRIBE and SHOW return a DataFrame. A SELECT's tables' states are chosen now, and Spark reads their rows
    when it is asked for them.

    CREATE TABLE [AS SELECT], REPLACE TABLE AS SELECT, ALTER TABLE and DROP TABLE return the operation's result as a
    dict; docs/howto/spark-sql.md lists what of each is run.

    UPDATE, DELETE FROM, MERGE INTO, INSERT INTO and INSERT OVERWRITE are one commit, and return the operation's result
    (docs/contributing/design.md, One result) as a dict, with the rows updated, deleted and inserted, and the files and
    bytes rewritten and kept. Spark parses the statement and evaluates it: semantics and errors are Spark's. On a table
    with a primary key the touched buckets are written again, on others the touched files.

    ``CALL sys.procedure(name => value, ...)`` runs an operation, with Paimon's names and arguments, and returns the
    operation's own result (docs/comparison.md).

    Args:
        views: Further tables by the name that the statement gives them: ``db.t``, ``db.t$branch_b`` or either with
            ``@VERSION`` (a tag, a snapshot id, ``branch.tag``, ``branch.snapshot``, ``set:NAME`` for the newest version
            of a table set, the same one for all views), or a DataFrame. Temporary views of the session can be named as
            well.
        operation_id: A retry with the same id returns the first try's result; another statement under it is refused.
            Of no use to CREATE TABLE without AS and to DROP TABLE: write IF NOT EXISTS and IF EXISTS.
        on_stale: On the delta branch of a chain table: ``record`` lists the full partitions that become stale as
            ``details["stale"]``; ``refuse`` refuses such a statement. By default an INSERT INTO is refused where a full
            partition would hide its rows, and other statements are recorded.
        writers_stopped: Confirms that no job of another engine writes the rows that a statement changes or overwrites,
            or the partitions that it drops (docs/howto/flink-tables.md, Open writers).
        all_rows: Confirms an UPDATE or DELETE without WHERE, an INSERT OVERWRITE of the whole table, REPLACE TABLE of
            one that exists, and DROP TABLE.

    Raises:
        InvalidInputError: what Spark says is wrong, with its position; every row without ``all_rows``; a key changed.
        NotFoundError: no such table, branch or version. AlreadyExistsError: CREATE TABLE of one that exists.
        UnsafeOperationError: DROP TABLE of one that somebody needs; rows that a running job may have open.
        UnsupportedFeatureError: a table or form that is not written here.
        ConflictError: other writers kept changing the same files.
    """
    if not isinstance(statement, str):
        raise InvalidInputError(f"sql takes one statement as text, not {statement!r}")
    if not isinstance(all_rows, bool):
        raise InvalidInputError(f"all_rows confirms a change of all rows; it is True or False, not {all_rows!r}")
    database = current_database(spark) if has_jvm(spark) else None
    if is_call(statement):
        others = {"views": views, "all_rows": all_rows, "on_stale": on_stale}
        return run_call(spark, warehouse, statement, operation_id, storage_options, database=database, **others)
    statement = spark_text(statement)
    asked = Asked(spark, warehouse, statement, views or {}, operation_id, all_rows, storage_options, writers_stopped)
    shown = parse_show_list(statement)
    if shown is not None:
        return show_list(asked, shown)
    parsed = parse_statement(spark, statement)
    if parsed is None:
        return run_other(asked)
    named = tuple(qualified(parsed.target.name, database))
    parsed = replace(parsed, target=replace(parsed.target, name=named))
    rest = (operation_id, all_rows, on_stale, storage_options)
    return _change(spark, warehouse, parsed, views or {}, *rest, writers_stopped=writers_stopped)


def _change(
    spark: SparkSession,
    warehouse: str,
    parsed: Statement,
    views: Mapping[str, Any],
    operation_id: str | None,
    all_rows: bool,
    on_stale: str | None,
    storage_options: Mapping[str, Any] | None,
    *,
    writers_stopped: bool,
) -> dict[str, Any]:
    """Run a statement that changes rows."""
    started = time.monotonic()
    statement = parsed.text
    table = open_table(warehouse, table_of(parsed.target), storage_options=storage_options).require()
    check_operation_id(table, operation_id)
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    check_statement(parsed, table.schema(), all_rows=all_rows, flag="all_rows=True", dynamic=is_dynamic(spark))
    named = _check_views(parsed, views)
    asked = {"statement": statement, "all_rows": all_rows, "views": {n: _text(v) for n, v in named.items()}}
    asked |= {} if policy is None else {"on_stale": policy}
    figures: dict[str, Any] = {}

    def write(identity: CommitIdentity) -> tuple[Receipt, tuple[CommitMessage, ...]]:
        own = names_of(table, named)
        database = current_database(spark)
        tables = warehouse_tables(spark, warehouse, storage_options, statement, table, own, database=database)
        others = {name: view for name, view in named.items() if name not in own}
        with _named(spark, warehouse, parsed, others, storage_options):
            receipt, found = _run(spark, parsed, table, tables, identity, policy, writers_stopped)
        figures.update(found)
        return receipt, ()

    def report(landed: Snapshot | None) -> Mapping[str, Any]:
        if landed is not None and not figures:
            figures.update(landed.values(DETAILS_PROPERTY, dict) or landed_figures(table, landed))
        return report_write(table, landed)

    run = in_tasks_if_large(spark, table.name)
    said = digest_of(asked)
    written = write_once(
        *(table, OPERATION, said, operation_id, write, report), run=run, writers_stopped=writers_stopped
    )
    details = {"statement": parsed.kind, **figures, **written.report}
    details |= {"replayed": True} if written.replayed else {}
    return write_result(table, OPERATION, written, details, started)


def _check_views(statement: Statement, views: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse names that are not names, and one that would hide the target."""
    check_view_names(views)
    target = statement.target
    for name in views:
        if name.lower() == (target.alias or target.name[-1]).lower():
            raise InvalidInputError(
                f"The view {name!r} would hide the target {target.text}{target.at.where}; give another name"
            )
    return views


def _text(view: Any) -> str:
    return view if isinstance(view, str) else "DataFrame"


@contextmanager
def _named(
    spark: SparkSession,
    warehouse: str,
    statement: Statement,
    views: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
) -> Iterator[None]:
    """Register the views, each of one pinned snapshot."""
    text = statement.text
    frames: dict[str, DataFrame] = {
        name: view_frame(spark, plan_view(warehouse, view, storage_options, text)) if isinstance(view, str) else view
        for name, view in views.items()
    }
    with registered(spark, frames):
        yield


def _run(
    spark: SparkSession,
    statement: Statement,
    table: Table,
    tables: NamedTables,
    identity: CommitIdentity,
    on_stale: OnStale | None,
    writers_stopped: bool,
) -> tuple[Receipt, Mapping[str, Any]]:
    if statement.insert is not None:
        return _insert(spark, statement, table, tables, identity, on_stale, writers_stopped)
    made = made_of(table, statement.text)

    def described(outcome: Outcome) -> Mapping[str, str]:
        return {**made, DETAILS_PROPERTY: json.dumps(dict(outcome.details()))}

    receipt, outcome = commit_statement(
        *(spark, statement, table, tables, identity, described), on_stale=on_stale, writers_stopped=writers_stopped
    )
    notes = notes_of(statement, outcome)
    return receipt, {} if receipt.replayed else {**outcome.details(), **({"notes": notes} if notes else {})}


def _insert(
    spark: SparkSession,
    statement: Statement,
    table: Table,
    tables: NamedTables,
    identity: CommitIdentity,
    policy: OnStale | None,
    writers_stopped: bool,
) -> tuple[Receipt, Mapping[str, Any]]:
    mode, partition = overwritten(statement, table.schema(), is_dynamic(spark))

    def own(write: TableWrite) -> DataFrame:
        return own_rows(spark, statement.text, plan_snapshot(table, write.planned_on, write.schema))

    def files(write: TableWrite) -> list[CommitMessage]:
        with statement_errors(statement), tables.bound(statement, lambda: own(write)) as bound:
            rows = insert_rows(spark, bound, write.schema)
            refuse_cut_off(rows, write.schema.fields, table.label)
            return write_files(rows, write)

    receipt, _ = commit_in_tries(
        *(table, mode, partition, identity, policy, files, TRIES, lambda: tables.read_own),
        tasks=cores_of(spark),
        properties=made_of(table, statement.text),
        writers_stopped=writers_stopped,
    )
    if receipt.replayed:
        return receipt, {}
    notes = [] if receipt.snapshot else [f"{statement.kind} on {statement.target.text}: its query returned no rows"]
    return receipt, {**figures_of(table, receipt.before, receipt.snapshot), **({"notes": notes} if notes else {})}
