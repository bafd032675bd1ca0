"""The columns ``_ROW_ID`` and ``_SEQUENCE_NUMBER`` of row-tracking tables: named in a read, not part of ``*``.

A *plain* file has its ids in the manifest (``_FIRST_ROW_ID`` + position in the file), a *stored* one (UPDATE, MERGE,
compaction) in a column. A null version of a stored file is its ``_MAX_SEQUENCE_NUMBER``. See
docs/contributing/format.md, Row tracking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.row_tracking.row_ids_plan import has_row_ids, is_stored, stored_ids
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.predicate import Bounds
from airflow_paimon.data.files.arrow_types import (
    FILE_NAME,
    FILE_NAME_FIELD,
    FILE_POSITION,
    FILE_POSITION_FIELD,
    ROW_ID,
    ROW_ID_FIELD,
    SEQUENCE_FIELD,
    SEQUENCE_NUMBER,
    replaced,
)

ROW_COLUMNS = {ROW_ID: ROW_ID_FIELD, SEQUENCE_NUMBER: SEQUENCE_FIELD}
POSITION_COLUMNS = {FILE_NAME: FILE_NAME_FIELD, FILE_POSITION: FILE_POSITION_FIELD}
"""Where a row of a table without primary key lies; not to be named by users (``scan.with_positions``)."""


def with_row_columns(schema: TableSchema) -> TableSchema:
    """Return the schema with the columns that a read may also name: those of row tracking, where it is on."""
    if not TableOptions(schema.options).row_tracking:
        return schema
    return replace(schema, fields=(*schema.fields, *ROW_COLUMNS.values()))


def stored_row_fields(file: DataFile) -> tuple[DataField, ...]:
    """Return the row-tracking columns that the file itself holds."""
    return tuple(f for f in ROW_COLUMNS.values() if f.name in (file.write_cols or ()))


def row_bounds(file: DataFile) -> dict[str, Bounds]:
    """Return the bounds of a file's row ids and versions, as far as the manifest tells them."""
    count, newest = file.row_count, file.max_sequence_number
    if file.first_row_id is not None:
        ids = Bounds(file.first_row_id, file.first_row_id + count - 1, 0, count)
        return {ROW_ID: ids, SEQUENCE_NUMBER: Bounds(newest, newest, 0, count)}
    if not is_stored(file):
        return {}
    # not the column's own statistics: a null stands for the highest
    out = {SEQUENCE_NUMBER: Bounds(file.min_sequence_number, newest, 0, count)}
    found = stored_ids(file)
    return out if found is None else {ROW_ID: Bounds(found.first, found.last, 0, count), **out}


def check_row_ids(files: Iterable[DataFile], table: str) -> None:
    """Refuse files without row ids, whose rows have neither an id nor a version.

    Raises:
        FormatError: names the file.
    """
    for file in files:
        if not has_row_ids(file):
            raise FormatError(
                f"{table}: file {file.file_name} has no row ids, although row-tracking.enabled is set: it was written "
                f"before the option, or by an engine that ignores it. Its other columns can be read; INSERT OVERWRITE "
                f"of its rows gives them ids",
                details={"file": file.file_name},
            )


def fill_row_columns(batch: pa.RecordBatch, file: DataFile, start: int) -> pa.RecordBatch:
    """Fill in ids and versions that the manifest holds, and positions.

    ``start``: the position of the batch's first row in the file.

    Raises:
        FormatError: a row without an id.
    """
    if ROW_ID in batch.schema.names:
        if file.first_row_id is not None:
            first = file.first_row_id + start
            ids = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
            batch = replaced(batch, ROW_ID, pc.coalesce(batch.column(ROW_ID), ids))
        if batch.column(ROW_ID).null_count:
            raise FormatError(f"Data file {file.file_name} has rows whose {ROW_ID} is null; run check_table")
    if FILE_NAME in batch.schema.names:
        batch = replaced(batch, FILE_NAME, pa.repeat(file.file_name, batch.num_rows))
    if FILE_POSITION in batch.schema.names:
        batch = replaced(batch, FILE_POSITION, pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64)))
    if SEQUENCE_NUMBER in batch.schema.names:
        changed_in = pa.scalar(file.max_sequence_number, pa.int64())
        batch = replaced(batch, SEQUENCE_NUMBER, pc.coalesce(batch.column(SEQUENCE_NUMBER), changed_in))
    return batch
