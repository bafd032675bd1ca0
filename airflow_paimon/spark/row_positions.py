"""What a row's place in its file decides, for rows that Spark's own Parquet reader has read.

What is the same for all rows of a file is a constant column of them (``parquet_scan``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.data.files.arrow_types import ROW_ID
from airflow_paimon.spark.arrow_frames import frame_of_arrow
from airflow_paimon.spark.spark_types import sql_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROW_INDEX = DataField(-1, "_tmp_metadata_row_index", AtomicType("BIGINT", (), True))
"""What Spark's Parquet reader fills in for ``_metadata.row_index``, which would cost a struct for each row."""

_WORD = 64
"""Bits: six of a position are those within a word."""
_WORDS = pa.list_(pa.field("item", pa.int64(), nullable=False))


def row_column(name: str, constant: str | None, *, stored: bool, complete: bool) -> Column:
    """Return the row ids or versions of rows. ``constant``: the column that has the first id, or the version, of a
    row's file, if the manifest holds it for any; ``stored``: the files have a column of that name, in which a null
    stands for what the manifest holds; ``complete``: the manifest holds it for all files.
    """
    from pyspark.sql import functions as sf

    found = [sf.col(sql_name(name))] if stored else []
    if constant is not None:
        held = sf.col(sql_name(constant))
        found.append(held + sf.col(ROW_INDEX.name) if name == ROW_ID else held)
    if not complete:
        found.append(sf.raise_error(sf.lit(f"a row without {name}")))
    return sf.coalesce(*found) if len(found) > 1 else found[0]


def without_deleted(frame: DataFrame, number: str, deleted: Sequence[Positions | None]) -> DataFrame:
    """Leave out the rows at these positions of each file. ``number``: the column with the number of a row's file.

    By a bitmap of each file, which takes the same however many rows are deleted. The bitmaps are the value of a
    subquery: Spark's generated code has them at hand, where a join would look them up and copy them for each row.
    """
    bits = pa.array([_bitmap(p) for p in deleted], _WORDS)
    lists = pa.list_(pa.field("item", _WORDS, nullable=False))
    one = pa.ListArray.from_arrays(pa.array([0, len(bits)], pa.int32()), bits, type=lists)
    vectors = frame_of_arrow(frame.sparkSession, pa.table({"bits": one}))
    view, index = f"airflow_paimon_{uuid4().hex}", ROW_INDEX.name
    word = f"get(get((SELECT bits FROM {view}), {sql_name(number)}), cast(shiftright({index}, 6) AS INT))"
    bit = f"shiftleft(1L, cast({index} & {_WORD - 1} AS INT))"
    vectors.createOrReplaceTempView(view)
    try:  # no word: after the last deleted row of the file
        return frame.where(f"coalesce({word} & {bit}, 0L) = 0L")
    finally:
        frame.sparkSession.catalog.dropTempView(view)


def _bitmap(positions: Positions | None) -> pa.Array:
    """One bit for each row up to the last deleted one, in words of 64 bits."""
    if positions is None or not len(positions):
        return np.empty(0, "<i8")
    bits = np.zeros((int(positions[-1]) // _WORD + 1) * _WORD, np.uint8)
    bits[positions] = 1
    return np.packbits(bits, bitorder="little").view("<i8")
