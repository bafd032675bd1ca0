"""correct_branch without a session: small statements that plain Python evaluates exactly as Spark does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.correction.checks import check_statement_alone
from airflow_paimon.core.correction.plain_statement import PlainStatement, read_plain
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import finer_than_micros
from airflow_paimon.spark.jobs.correct_statement import ALL_ROWS, change_without_spark
from airflow_paimon.spark.jobs.correct_statements import JOINED, correct_by_statements
from airflow_paimon.spark.jobs.correction import branch_to_correct, correct_idempotently
from airflow_paimon.spark.jobs.correction_sources import divided, read_sql
from airflow_paimon.spark.statements.plain import NotPlainError, as_statement
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement

log = logging.getLogger(__name__)

_CARRIED = frozenset({
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR", "VARCHAR", "STRING",
    "BINARY", "VARBINARY", "BYTES", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
})  # fmt: skip


def correct_plainly(context: Context, request: CorrectBranch, memory_bytes: int) -> OperationResult | None:
    """Run the statements of ``--sql`` in this process; None if one of them is Spark's, or takes more memory.

    What is wrong with a statement is Spark's to say, too: it knows the place.

    Raises:
        PaimonError: as ``correct_branch`` does, of what was written here.
    """
    sql = read_sql(request)
    branch = branch_to_correct(context, request)
    plain = _read(request, branch, divided(request, sql))
    if not plain:
        return None
    try:
        if len(plain) > 1:
            return _together(context, request, branch, plain, memory_bytes)
        change = partial(_change, plain[0], context, request, branch, memory_bytes)
        return correct_idempotently(context, request, sql, change)
    except NotPlainError as error:
        log.info("%s", error.message)
        return None


def _read(request: CorrectBranch, branch: Table, texts: Sequence[str]) -> list[PlainStatement]:
    """Return the statements; none if one of them is not to be run here."""
    schema = branch.schema()
    if finer_than_micros(schema.fields) or not all(_is_carried(field.type) for field in schema.fields):
        return []
    found = [plain for text in texts if (plain := read_plain(text, schema)) is not None]
    if len(found) < len(texts):
        return []
    try:
        for plain in found:
            check_statement_alone(plain.kind, request.mode, request.partitions)
            check_statement(as_statement(plain), schema, all_rows=request.all_rows, flag=ALL_ROWS)
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
    plain: PlainStatement,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    memory_bytes: int,
    identity: CommitIdentity,
) -> OperationResult:
    return change_without_spark(plain, context, request, branch, identity, memory_bytes)


def _together(
    context: Context, request: CorrectBranch, branch: Table, plain: Sequence[PlainStatement], memory_bytes: int
) -> OperationResult:
    statements = [as_statement(one) for one in plain]
    by_statement = {id(statement): one for statement, one in zip(statements, plain, strict=True)}

    def change(inside: Context, working: Table, statement: Statement) -> OperationResult:
        one = by_statement[id(statement)]
        return change_without_spark(one, inside, request, working, CommitIdentity(), memory_bytes)

    def correct(identity: CommitIdentity) -> OperationResult:
        return correct_by_statements(context, request, branch, statements, change, identity)

    return correct_idempotently(context, request, JOINED.join(one.text for one in statements), correct)
