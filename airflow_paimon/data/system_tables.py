"""The system tables that have the rows of a table: ``$audit_log``, ``$ro``, ``$row_tracking``; with Paimon's columns.

``$audit_log`` is a batch read whose first column is each row's kind, and in which deletes are rows as long as no
compaction has dropped them. ``$ro`` reads, of a primary-key table, the files of the top level alone, which need no
merge: the rows as of the last full compaction. ``$row_tracking`` adds the id and the version of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.chain.branch_states import is_chain_read
from airflow_paimon.data.files.arrow_types import SEQUENCE_FIELD
from airflow_paimon.data.read_splits import KIND_FIELD, TableRead
from airflow_paimon.data.row_columns import with_row_columns

AUDIT_LOG, READ_OPTIMIZED, ROW_TRACKING = "audit_log", "ro", "row_tracking"
WITH_ROWS = (AUDIT_LOG, READ_OPTIMIZED, ROW_TRACKING)
"""The system tables that have a table's rows."""
_WITH_NUMBERS = "table-read.sequence-number.enabled"


def check_system_table(table: Table, name: str) -> str:
    """Return the plain name of a system table that has the rows of a table.

    Raises:
        InvalidInputError: it is another one, or the view merges branches.
    """
    kind = name.lstrip("$").lower()
    if kind not in WITH_ROWS:
        raise InvalidInputError(
            f"{table.label}: ${kind} has no rows of the table; $audit_log, $ro and $row_tracking have. See "
            f"airflow_paimon.core.table.inspect for the others"
        )
    if is_chain_read(table):
        raise InvalidInputError(
            f"{table.label} is read from several branches, which have no ${kind} together: name one of them"
        )
    if kind == ROW_TRACKING and not TableOptions(table.schema().options).row_tracking:
        raise InvalidInputError(
            f"{table.label} has no $row_tracking: its rows have no ids (option row-tracking.enabled, of new tables)"
        )
    return kind


def system_fields(kind: str, schema: TableSchema) -> tuple[DataField, ...]:
    """Return the columns of the system table of a table with this schema."""
    if kind != AUDIT_LOG:
        return with_row_columns(schema).fields if kind == ROW_TRACKING else schema.fields
    numbered = schema.primary_keys and TableOptions(schema.options).flag(_WITH_NUMBERS)
    return (KIND_FIELD, *([SEQUENCE_FIELD] if numbered else []), *schema.fields)


def with_kinds(read: TableRead, columns: Sequence[str] | None) -> TableRead:
    """Return a read of a table as that of ``$audit_log``.

    Raises:
        InvalidInputError: it has no such column.
    """
    known = [f.name for f in system_fields(AUDIT_LOG, read.schema)]
    selected = known if columns is None else list(columns)
    unknown = [c for c in selected if c not in known]
    if unknown:
        raise InvalidInputError(f"{read.label}$audit_log has no column {unknown[0]!r} (columns: {', '.join(known)})")
    return replace(read, columns=tuple(selected), kinds=True)
