"""``sql``: one statement on the tables of a warehouse, parsed and evaluated by Spark: one result, or one commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.chain.guard import parse_on_stale
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import running_in_spark
from airflow_paimon.core.sql_text.call import is_call, parse_show_list
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.data.arguments import check_operation_id
from airflow_paimon.data.write import TableWrite, WriteMode
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jvm import kind_of
from airflow_paimon.spark.statements import alter, create, databases, show
from airflow_paimon.spark.statements.call import run_call
from airflow_paimon.spark.statements.dialect import spark_text
from airflow_paimon.spark.statements.insert import insert_rows, is_dynamic, overwritten
from airflow_paimon.spark.statements.outcome import StatementOutcome, notes_of
from airflow_paimon.spark.statements.parse import is_command_plan, parse_plan, parse_statement
from airflow_paimon.spark.statements.run import commit_statement
from airflow_paimon.spark.statements.select import is_query, query
from airflow_paimon.spark.statements.sql_request import SqlRequest, qualified
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement, table_of
from airflow_paimon.spark.statements.tables import NamedTables, names_of, own_rows
from airflow_paimon.spark.statements.views import check_view_names, registered
from airflow_paimon.spark.statements.write_statement import write_query, write_statement
from airflow_paimon.spark.truncated_times import refuse_truncated_times
from airflow_paimon.spark.write import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAKEN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE or DROP TABLE or DATABASE, ALTER TABLE, DESCRIBE, SHOW, USE or CALL"
)
_RUN: Mapping[str, Callable[[SqlRequest, Any], Any]] = {
    **show.RUN,
    **create.RUN,
    **alter.RUN,
    **databases.RUN,
}


@same_versions()
@cached_reads()
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
    """Run one statement on ``db.t`` or ``db.`t$branch_b```; docs/howto/spark-sql.md lists what of each is run.

    SELECT, DESCRIBE and SHOW return a DataFrame. A SELECT's tables' states are chosen now, and Spark reads their rows
    when it is asked for them. Other statements return the operation's result (docs/contributing/design.md, One result)
    as a dict.

    UPDATE, DELETE FROM, MERGE INTO, INSERT INTO and INSERT OVERWRITE are one commit; the result has the rows updated,
    deleted and inserted, and the files and bytes rewritten and kept. Semantics and errors are Spark's. On a table with
    a primary key the touched buckets are written again, on others the touched files.

    ``CALL sys.procedure(name => value, ...)`` runs an operation, with Paimon's names and arguments.

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
        raise InvalidInputError(f"sql takes one statement as a string, not {statement!r}")
    if not isinstance(all_rows, bool):
        raise InvalidInputError(f"all_rows confirms a change of all rows; it is True or False, not {all_rows!r}")
    if is_call(statement):
        others = {"views": views, "all_rows": all_rows, "on_stale": on_stale}
        return run_call(spark, warehouse, statement, operation_id, storage_options, **others)
    text = spark_text(statement)
    request = SqlRequest(spark, warehouse, text, views or {}, operation_id, all_rows, storage_options, writers_stopped)
    shown = parse_show_list(text)
    if shown is not None:
        return show.show_list(request, shown)
    parsed = parse_statement(spark, text)
    return _run_command(request) if parsed is None else _change(request, parsed, on_stale)


def _change(request: SqlRequest, parsed: Statement, on_stale: str | None) -> dict[str, Any]:
    """Run a statement that changes rows."""
    spark, views = request.spark, request.views
    target = replace(parsed.target, name=tuple(qualified(parsed.target.name, request.database)))
    parsed = replace(parsed, target=target)
    table = open_table(request.warehouse, table_of(target), storage_options=request.storage_options).require()
    check_operation_id(table, request.operation_id)
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    check_statement(parsed, table.schema(), all_rows=request.all_rows, flag="all_rows=True", dynamic=is_dynamic(spark))
    check_view_names(views)
    hidden = (target.alias or target.name[-1]).lower()
    if same := [name for name in views if name.lower() == hidden]:
        raise InvalidInputError(
            f"The view {same[0]!r} would hide the target {target.text}{target.at.where}; give another name"
        )

    def write(options: CommitOptions) -> tuple[Receipt, Mapping[str, Any]]:
        own = names_of(table, views)
        tables = NamedTables(spark, request, parsed.text, table, own, database=request.database)
        further = {n: tables.view(v) if isinstance(v, str) else v for n, v in views.items() if n not in own}
        with registered(spark, further):
            return (_change_rows if parsed.insert is None else _insert)(request, parsed, table, tables, options)

    return write_statement(request, table, {"statement": parsed.kind}, write, policy)


def _change_rows(
    request: SqlRequest, statement: Statement, table: Table, tables: NamedTables, options: CommitOptions
) -> tuple[Receipt, Mapping[str, Any]]:
    """Run UPDATE, DELETE and MERGE."""

    def described(outcome: StatementOutcome) -> Mapping[str, str]:
        return {**options.properties, DETAILS_PROPERTY: json.dumps(dict(outcome.details()))}

    receipt, outcome = commit_statement(request.spark, statement, table, tables, options, described)
    notes = notes_of(statement, outcome)
    return receipt, {} if receipt.replayed else {**outcome.details(), **({"notes": notes} if notes else {})}


def _insert(
    request: SqlRequest, statement: Statement, table: Table, tables: NamedTables, options: CommitOptions
) -> tuple[Receipt, Mapping[str, Any]]:
    spark = request.spark
    mode, partition = overwritten(statement, table.schema(), is_dynamic(spark))

    def own(write: TableWrite) -> DataFrame:
        return own_rows(spark, statement.text, plan_snapshot(table, write.planned_on, write.schema))

    def files(write: TableWrite) -> list[CommitMessage]:
        with query_errors(statement.title), tables.bound(statement, lambda: own(write)) as bound:
            rows = insert_rows(spark, bound, write.schema)
            refuse_truncated_times(rows, write.schema.fields, table.label)
            return write_files(rows, write)

    receipt, figures = write_query(
        request, table, WriteMode(mode, partition), options, files, read_own=lambda: tables.read_own
    )
    if receipt.snapshot is not None:
        return receipt, figures
    return receipt, {**figures, "notes": [f"{statement.title}: its query returned no rows"]}


def _run_command(request: SqlRequest) -> Any:
    """Run a statement that Spark can parse and that is no change of rows.

    Raises:
        InvalidInputError: it is none that ``sql`` runs.
    """
    plan = parse_plan(request.spark, request.statement)
    run = _RUN.get(kind_of(plan))
    if run is not None:
        return run(request, plan)
    if not is_command_plan(plan) and is_query(plan):
        return query(request, plan)[0]
    raise InvalidInputError(
        f"sql doesn't run this statement: it takes one {_TAKEN} on tables of the warehouse; spark.sql() runs others"
    )
