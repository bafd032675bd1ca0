"""Look-ups that read rows: the first ones of a table, and their number. The only module here that reads data files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.masking import masks_of
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_read import count_rows, read_batches
from airflow_paimon.data.diff.keyed import json_rows
from airflow_paimon.data.where import where_argument
from airflow_paimon.shown.listing import Listing


def head(
    table: Table,
    limit: int,
    version: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
) -> Listing:
    """List some rows as a reader sees them, ``limit`` at most (0: all); values of masked columns are hidden.

    Raises:
        PaimonError: as ``read_arrow``.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInputError(f"{table.label}: limit is a whole number from 0 on, not {limit!r}")
    condition = where_argument(table, where, version)
    reader = read_batches(table, version, columns=columns, where=condition, limit=limit or None)
    found = pa.Table.from_batches(reader, reader.schema)
    masks = masks_of((table.branch(MAIN).schema(), table.schema()))
    rows = [tuple(masks.row(row).values()) for row in json_rows(found)]
    are_numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    kinds = ["value number" if any(one(field.type) for one in are_numbers) else "value" for field in found.schema]
    return Listing(title="rows", columns=tuple(zip(found.schema.names, kinds, strict=True)), rows=rows)


def count(table: Table, version: int | str | None = None, where: str | pc.Expression | None = None) -> Listing:
    """Count the rows that a reader sees: merged, and without deleted ones.

    Raises:
        PaimonError: as ``read_arrow``.
    """
    found = count_rows(table, version, where=where_argument(table, where, version))
    return Listing(title="counts", columns=(("rows", "number"),), rows=[(found,)])
