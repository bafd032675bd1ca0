"""correct_branch with engine=connector and an UPDATE, DELETE, MERGE or INSERT: Paimon's connector runs it.

The statement's target becomes a staging branch that starts from the branch's head, and what the connector commits there
becomes one commit of the branch. Other tables are read at one snapshot each, as with the embedded engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.commit.staging import Staging, discard_staging, open_staging, take_over
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.spark.connector.frames import Reader
from airflow_paimon.spark.connector.rows import check_target, require_compacted, require_visible
from airflow_paimon.spark.jobs.correct_statement import ALL_ROWS
from airflow_paimon.spark.jobs.correction import Base, made_of, properties, result_of
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.statements.errors import statement_errors
from airflow_paimon.spark.statements.insert import is_dynamic
from airflow_paimon.spark.statements.parse import parse_plan, planned_frame, with_target
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement
from airflow_paimon.spark.statements.tables import NamedTables
from airflow_paimon.spark.statements.views import registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNCERTAIN = ("sequence.field", "ignore-delete")
"""Parts of the names of options by which the connector drops a change of a row with a primary key without a word."""


def check_request(request: CorrectBranch, base: Base, statement: Statement, dynamic: bool) -> None:
    """Refuse what the connector would not do right on a branch.

    Raises:
        InvalidInputError: as with the embedded engine, or a dry run. UnsupportedFeatureError: the kind of table.
    """
    check_statement(statement, base.schema, all_rows=request.all_rows, flag=ALL_ROWS, dynamic=dynamic)
    check_target(base.table, base.schema, "upsert")
    if request.dry_run:
        raise InvalidInputError(
            f"{base.table.label}: engine=connector finds the rows of a statement only by writing them; run it without "
            f"--dry-run, as the branch is not main, or with engine=embedded"
        )
    found = [o for o in base.schema.options if any(part in o for part in _UNCERTAIN)]
    if base.schema.primary_keys and found:
        raise UnsupportedFeatureError(
            f"{base.table.label}: with the option {found[0]} Paimon's connector may drop what {statement.kind} says; "
            f"use engine=embedded, or a SELECT",
            details={"feature": found[0]},
        )


def run_statement(
    reader: Reader,
    context: Context,
    request: CorrectBranch,
    base: Base,
    statement: Statement,
    views: Mapping[str, DataFrame],
    tables: NamedTables,
    identity: CommitIdentity,
) -> OperationResult:
    """Run a statement on the branch, as one commit.

    Raises:
        InvalidInputError: what Spark or the connector says is wrong. ConflictError: the branch was written meanwhile.
    """
    check_request(request, base, statement, is_dynamic(reader.spark))
    require_visible(base, lambda values: True)

    made = made_of(request, base.table, statement.text)

    def described(removed: Sequence[ManifestEntry], added: Sequence[ManifestEntry]) -> Mapping[str, str]:
        return properties(request, made, {"statement": statement.kind, **base.figures(removed, added)})

    staging = open_staging(base.table, base.head, base.schema, request.operation_id, context.now_iso, shares=True)
    try:
        what = f"correct_branch {base.table.label}: {statement.kind}, engine connector"
        with registered(reader.spark, views, marked=request.restricted_sql), progress(reader.spark, what):
            _execute(reader, base, statement, tables, staging)
        require_compacted(staging, base)
        taken = take_over(staging, None, expected_rows=0, identity=identity, properties=described)
    finally:
        discard_staging(staging.view)
    landed = taken.receipt.snapshot
    if landed is not None and taken.receipt.replayed:
        return result_of(context, request, landed)
    details = {"statement": statement.kind, **base.figures(taken.removed, taken.added)}
    if landed is None:
        details["notes"] = [f"{statement.kind} changed nothing: Paimon's connector committed no change"]
    return base.result(context, request, details, changed=landed is not None, after=landed)


def _execute(reader: Reader, base: Base, statement: Statement, tables: NamedTables, staging: Staging) -> None:
    from py4j.protocol import Py4JJavaError

    spark = reader.spark
    parts = reader.parts(staging.view)

    def own() -> DataFrame:
        return reader.read(base.table, base.head, base.schema)

    with statement_errors(statement):
        try:
            plan = with_target(spark, parse_plan(spark, statement.text), parts)
            tables.check(statement, own)
            planned_frame(spark, tables.plan(plan, own, parts))
        except Py4JJavaError as error:
            cause = error.java_exception
            if str(cause.getClass().getName()) in _REFUSALS:
                raise InvalidInputError(
                    f"{base.table.label}: Paimon's connector refuses the {statement.kind}: {cause.getMessage()}"
                ) from None
            raise


_REFUSALS = frozenset({"java.lang.UnsupportedOperationException", "java.lang.IllegalArgumentException"})
