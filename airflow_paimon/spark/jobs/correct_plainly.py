"""correct_branch without a session: small statements that plain Python evaluates exactly as Spark does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.correction.checks import check_statement_alone
from airflow_paimon.core.correction.plain_merge import PlainMerge, read_plain_merge
from airflow_paimon.core.correction.plain_query import read_plain_query
from airflow_paimon.core.correction.plain_statement import PlainStatement, read_plain
from airflow_paimon.core.correction.sql_words import tokens_of, without_comments
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.row_columns import ROW_COLUMNS
from airflow_paimon.spark.jobs.correct_statement import ALL_ROWS, change_without_spark
from airflow_paimon.spark.jobs.correct_statements import JOINED, correct_by_statements
from airflow_paimon.spark.jobs.correction import (
    branch_to_correct,
    correct_idempotently,
)
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, divided, read_sql
from airflow_paimon.spark.jobs.plain_views import PlainViews
from airflow_paimon.spark.jobs.select_plainly import select_plainly
from airflow_paimon.spark.statements.plain import NotPlainError, as_statement
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement

log = logging.getLogger(__name__)

_CARRIED = frozenset({
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR", "VARCHAR", "STRING",
    "BINARY", "VARBINARY", "BYTES", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
})  # fmt: skip


def correct_plainly(context: Context, request: CorrectBranch, memory_bytes: int) -> OperationResult | None:
    """Run the statements or the query of ``--sql`` in this process; None if it is Spark's, or takes more memory.

    What is wrong with a statement is Spark's to say, too: it knows the place.

    Raises:
        PaimonError: as ``correct_branch`` does, of what was written here.
    """
    sql = read_sql(request)
    branch = branch_to_correct(context, request)
    schema = branch.schema()
    if sql is None or not all(_is_carried(field.type) for field in schema.fields):
        return None
    views = PlainViews(context, request, memory_bytes)
    change = _query(context, request, branch, sql, views) or _statements(context, request, branch, sql, views)
    if change is None:
        return None
    asked, correct = change
    try:
        return correct_idempotently(context, request, asked, correct)
    except NotPlainError as error:
        log.info("%s", error.message)
        return None


_Correct = tuple[str, Callable[[CommitIdentity], OperationResult]]
"""The text by which another try is known, and what runs it."""


def _query(context: Context, request: CorrectBranch, branch: Table, sql: str, views: PlainViews) -> _Correct | None:
    tokens = tokens_of(without_comments(sql))
    if not tokens or not tokens[0].is_word("select") or any(name.lower() in sql.lower() for name in ROW_COLUMNS):
        return None  # a view has row ids, too, if a query names them
    schema = branch.schema()
    query = read_plain_query(sql, schema, {**views.columns, BRANCH_VIEW: schema.fields})
    return None if query is None else (sql, partial(select_plainly, query, context, request, branch, sql, views))


def _statements(
    context: Context, request: CorrectBranch, branch: Table, sql: str, views: PlainViews
) -> _Correct | None:
    plain = _read(request, branch, divided(request, sql), views)
    if len(plain) > 1:
        together = partial(_together, context, request, branch, plain, views)
        return JOINED.join(one.text for one in plain), together
    return (sql, partial(_change, plain[0], context, request, branch, views)) if plain else None


def _read(
    request: CorrectBranch, branch: Table, texts: Sequence[str], views: PlainViews
) -> list[PlainStatement | PlainMerge]:
    """Return the statements; none if one of them is not to be run here."""
    schema = branch.schema()
    keys = (*schema.partition_keys, *schema.primary_keys)
    # a new key is filled up, one that is there may not be
    merges = all(schema.field(n).type.root != "CHAR" for n in keys)
    found: list[PlainStatement | PlainMerge] = []
    for text in texts:
        one = read_plain(text, schema) or (read_plain_merge(text, schema, views.columns) if merges else None)
        if one is None:
            return []
        found.append(one)
    try:
        for plain in found:
            statement = as_statement(plain)
            check_statement_alone(statement.kind, request.mode, request.partitions)
            check_statement(statement, schema, all_rows=request.all_rows, flag=ALL_ROWS)
    except InvalidInputError:
        return []
    return found


def _is_carried(data_type: DataType) -> bool:
    """Whether values that a statement leaves as they are go the same way as Spark's, in any depth."""
    if isinstance(data_type, RowType):
        return all(_is_carried(field.type) for field in data_type.fields)
    if isinstance(data_type, MapType):
        return _is_carried(data_type.key) and _is_carried(data_type.value)
    if isinstance(data_type, ArrayType):
        return data_type.root == "ARRAY" and _is_carried(data_type.element)
    return data_type.root in _CARRIED


def _change(
    plain: PlainStatement | PlainMerge,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    views: PlainViews,
    identity: CommitIdentity,
) -> OperationResult:
    return change_without_spark(plain, context, request, branch, identity, views)


def _together(
    context: Context,
    request: CorrectBranch,
    branch: Table,
    plain: Sequence[PlainStatement | PlainMerge],
    views: PlainViews,
    identity: CommitIdentity,
) -> OperationResult:
    statements = [as_statement(one) for one in plain]
    by_statement = {id(statement): one for statement, one in zip(statements, plain, strict=True)}

    def change(inside: Context, working: Table, statement: Statement) -> OperationResult:
        one = by_statement[id(statement)]
        return change_without_spark(one, inside, request, working, CommitIdentity(), views)

    return correct_by_statements(context, request, branch, statements, change, identity)
