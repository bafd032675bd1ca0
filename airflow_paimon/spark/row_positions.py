"""What a row's file and its place in it decide, for rows that Spark's own Parquet reader has read.

A row's file is known by a constant of the reader, the file's size. Of few files, comparisons with their sizes find ids
and versions; of more files, or files of one size, a join with them does, which Spark does without a shuffle. So it does
for deleted rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.data.files.arrow_types import ROW_ID, SEQUENCE_NUMBER
from airflow_paimon.spark.arrow_frames import frame_of_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROW_INDEX = DataField(-1, "_tmp_metadata_row_index", AtomicType("BIGINT", (), True))
"""What Spark's Parquet reader fills in for ``_metadata.row_index``, which would cost a struct for each row."""

FEW_FILES = 16
"""Comparisons are code of the task's one loop, which Java compiles only up to 8,000 bytes: 30 for each of them."""

_SIZE = "_metadata.file_size"
_KEY = "file key"
_LOST = "a row of a file that is not in the plan"
_WORD = 64
"""Bits: six of a position are those within a word."""


class FileKeys:
    """``frame``: the rows; where a join is going to find their files they have a key of it, its size, or if two have
    the same size its name, which takes longer to compare. ``few``: ``value_of`` serves.

    ``vectors``: deleted rows are to be left out.
    """

    def __init__(self, frame: DataFrame, files: Sequence[DataFile], *, vectors: bool) -> None:
        from pyspark.sql import functions as sf

        self._sizes = [f.file_size for f in files]
        by_size = len(set(self._sizes)) == len(files)
        self.files = files
        self.few = by_size and len(files) <= FEW_FILES
        self.keys = pa.array(self._sizes, pa.int64()) if by_size else pa.array([f.file_name for f in files])
        self.frame, self._size = frame, _SIZE
        if vectors or not self.few:
            self.frame = frame.select("*", sf.col(_SIZE if by_size else "_metadata.file_name").alias(_KEY))
            self._size = f"`{_KEY}`"

    def value_of(self, values: Sequence[int | None]) -> Column:
        """Return the BIGINT of a row's file, given those of all files; a row of any other file is an error."""
        from pyspark.sql import functions as sf

        return sf.expr(_choice(self._size, sorted(zip(self._sizes, values, strict=True))))


def _choice(key: str, values: Sequence[tuple[int, int | None]]) -> str:
    """Return the search for a file's value by its size, as SQL: ``case`` would compare with all sizes in turn."""
    half = len(values) // 2
    if half:
        return f"if({key} < {values[half][0]}L, {_choice(key, values[:half])}, {_choice(key, values[half:])})"
    [(size, value)] = values
    found = "cast(null as bigint)" if value is None else f"{value}L"
    return f"if({key} = {size}L, {found}, cast(raise_error('{_LOST}') as bigint))"


def with_row_columns(
    frame: DataFrame, keys: FileKeys, asked: Sequence[DataField], stored: Collection[DataField]
) -> tuple[DataFrame, Mapping[str, Column]]:
    """Return the rows, and the columns of them that are row ids and versions, which the manifest holds. ``stored``:
    those that are columns of the files, in which a null stands for what the manifest holds.
    """
    from pyspark.sql import functions as sf

    firsts = [f.first_row_id for f in keys.files]
    versions = [f.max_sequence_number for f in keys.files]
    if keys.few:
        first, version = keys.value_of(firsts), keys.value_of(versions)
    else:
        owners = pa.table(
            {
                _KEY: keys.keys,
                "file first": pa.array(firsts, pa.int64()),
                "file version": pa.array(versions, pa.int64()),
            }
        )
        frame = frame.join(sf.broadcast(frame_of_arrow(frame.sparkSession, owners)), _KEY, "left")
        first, version = sf.col("`file first`"), sf.col("`file version`")
    filled = {ROW_ID: first + sf.col(ROW_INDEX.name), SEQUENCE_NUMBER: version}
    lost = sf.raise_error(sf.lit(_LOST))
    own = {f.name: [sf.col(f"`{f.name}`")] for f in stored}
    if keys.few and not own and None not in firsts:  # nothing can be null
        return frame, {f.name: filled[f.name] for f in asked}
    return frame, {f.name: sf.coalesce(*own.get(f.name, ()), filled[f.name], lost) for f in asked}


def without_deleted(frame: DataFrame, keys: FileKeys, deleted: Sequence[Positions | None]) -> DataFrame:
    """Leave out the rows at these positions of each file.

    By a bitmap of each file: what it takes does not depend on how many rows are deleted, as a join with the positions
    would (measured: 1.25 times a plain read, against 1.2 to 1.6).
    """
    from pyspark.sql import functions as sf

    bitmaps = pa.array([_bitmap(p) for p in deleted], pa.list_(pa.int64()))
    vectors = frame_of_arrow(frame.sparkSession, pa.table({"vector key": keys.keys, "vector bits": bitmaps}))
    index = f"`{ROW_INDEX.name}`"
    is_set = sf.expr(f"getbit(get(`vector bits`, cast(shiftright({index}, 6) as int)), cast({index} & 63 as int)) = 1")
    same_file = sf.col(f"`{_KEY}`") == sf.col("`vector key`")
    return frame.join(sf.broadcast(vectors), same_file & is_set, "left_anti")


def _bitmap(positions: Positions | None) -> pa.Array | None:
    """One bit for each row up to the last deleted one, in words of 64 bits."""
    if positions is None or not len(positions):
        return None
    bits = np.zeros((int(positions[-1]) // _WORD + 1) * _WORD, np.uint8)
    bits[positions] = 1
    return np.packbits(bits, bitorder="little").view("<i8")
