"""The system tables that have the rows of a table: ``$audit_log``, ``$ro``, ``$row_tracking``; with Paimon's columns.

``$audit_log`` is a batch read whose first column is each row's kind, and in which deletes are rows as long as no
compaction has dropped them. ``$ro`` reads, of a primary-key table, the files of the top level alone, which need no
merge: the rows as of the last full compaction. ``$row_tracking`` adds the id and the version of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_columns, check_table, timestamp_argument
from airflow_paimon.data.chain.scan import is_chain_read
from airflow_paimon.data.files.arrow_types import SEQUENCE_FIELD
from airflow_paimon.data.grouped_read import MANY_ENTRIES, by_groups
from airflow_paimon.data.layers import Layer, PinnedLayers, pin_layers, plan_pinned
from airflow_paimon.data.read import read_split
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.data.scan import KIND_FIELD, TableRead
from airflow_paimon.data.whole_read import WholeRead, whole_of_pinned

AUDIT_LOG, READ_OPTIMIZED, ROW_TRACKING = "audit_log", "ro", "row_tracking"
WITH_ROWS = (AUDIT_LOG, READ_OPTIMIZED, ROW_TRACKING)
"""The system tables that have a table's rows."""
_WITH_NUMBERS = "table-read.sequence-number.enabled"


def read_system_table(
    table: Table,
    name: str,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Read ``$audit_log``, ``$ro`` or ``$row_tracking`` of a branch as one Arrow table; ``version``, ``timestamp``,
    ``columns`` and ``where`` are those of ``read_arrow``. ``where`` names columns of the table. ``$audit_log`` also has
    ``_SEQUENCE_NUMBER`` if the option ``table-read.sequence-number.enabled`` of the table is true.

    The other system tables (``$snapshots``, ``$consumers``, ...) hold no rows: see ``inspect``.

    Raises:
        InvalidInputError: another system table, an unknown column, or a view that merges branches of a chain table.
    """
    check_table(table)
    check_columns(table, columns)
    at = {"version": version, "timestamp": timestamp_argument(timestamp)}
    planned = by_groups(plan_system_table(table, name, columns=columns, where=where, more_than=MANY_ENTRIES, **at))
    layers = ((replace(read, fills_chars=True), splits) for read, splits in planned.layers)
    batches = (batch for read, splits in layers for split in splits for batch in read_split(read, split))
    return pa.Table.from_batches(batches, planned.read.output_schema)


def plan_system_table(
    table: Table, name: str, *, columns: Sequence[str] | None = None, **asked: Any
) -> list[Layer] | WholeRead:
    """Plan a read of one of ``WITH_ROWS``, or leave that to tasks; ``asked``: the other arguments of
    ``plan_or_whole``.

    Raises:
        InvalidInputError: see ``read_system_table``.
    """
    kind = check_system_table(table, name)
    at = {key: asked.pop(key, None) for key in ("version", "timestamp")}
    return plan_pinned_system_table(pin_layers(table, **at), kind, columns=columns, **asked)


def plan_pinned_system_table(
    pinned: PinnedLayers,
    kind: str,
    *,
    columns: Sequence[str] | None = None,
    more_than: int | None = None,
    **asked: Any,
) -> list[Layer] | WholeRead:
    """Plan a read of one of ``WITH_ROWS`` of a pinned state, or leave that to tasks; ``asked``: the other arguments
    of ``plan_pinned_or_whole``.
    """
    if kind == ROW_TRACKING and columns is None:
        columns = with_row_columns(pinned.states[0].schema).field_names
    with reading_once():
        named = None if kind == AUDIT_LOG else columns
        whole = whole_of_pinned(pinned, columns=named, more_than=more_than, **asked)
        if whole is None:
            return _plan_all(pinned, kind, columns, **asked)
    if kind == READ_OPTIMIZED:
        return whole.changed(top_level=True)
    if kind == ROW_TRACKING:
        return whole
    first, *others = (replace(w, read=_with_kinds(w.read, columns)) for w in whole.branches)
    return replace(first, second=others[0] if others else None).changed(kinds=first.read.columns)


def _plan_all(pinned: PinnedLayers, kind: str, columns: Sequence[str] | None, **asked: Any) -> list[Layer]:
    if kind == READ_OPTIMIZED:
        return plan_pinned(pinned, columns=columns, top_level=True, **asked)
    if kind == ROW_TRACKING:
        return plan_pinned(pinned, columns=columns, **asked)
    return [(_with_kinds(read, columns), splits) for read, splits in plan_pinned(pinned, **asked)]


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


def _with_kinds(read: TableRead, columns: Sequence[str] | None) -> TableRead:
    known = [f.name for f in system_fields(AUDIT_LOG, read.schema)]
    asked = known if columns is None else list(columns)
    unknown = [c for c in asked if c not in known]
    if unknown:
        raise InvalidInputError(f"{read.label}$audit_log has no column {unknown[0]!r} (columns: {', '.join(known)})")
    return replace(read, columns=tuple(asked), kinds=True)
