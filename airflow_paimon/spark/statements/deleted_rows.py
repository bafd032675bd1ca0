"""Where the rows of a DELETE lie: tasks bring the positions of each file as bitmaps, a few bytes for many rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.deletion_vectors import Positions, read_bitmap, write_bitmap
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION
from airflow_paimon.spark.task_results import ship

FilePositions = dict[str, bytes]
"""Positions of the rows of files, by name, as ``write_bitmap`` writes them."""


def positions_by_file(batches: Iterable[pa.RecordBatch]) -> dict[str, Positions]:
    """Return the positions of rows by their file, ascending and each once."""
    parts: dict[str, list[Positions]] = {}
    for batch in batches:
        names = batch.column(FILE_NAME).dictionary_encode()
        codes = names.indices.to_numpy()
        positions = batch.column(FILE_POSITION).to_numpy().astype(np.uint64)
        for code, name in enumerate(names.dictionary.to_pylist()):
            parts.setdefault(name, []).append(positions[codes == code] if len(names.dictionary) > 1 else positions)
    return {name: np.unique(np.concatenate(found)) for name, found in parts.items()}


def ship_positions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    return ship(lambda: [{name: write_bitmap(found) for name, found in positions_by_file(batches).items()}])


def merged_positions(tasks: Iterable[FilePositions]) -> dict[str, Positions]:
    """Merge what the tasks brought; rows of one file may come from several."""
    parts: dict[str, list[Positions]] = {}
    for found in tasks:
        for name, bitmap in found.items():
            parts.setdefault(name, []).append(read_bitmap(bitmap))
    return {name: found[0] if len(found) == 1 else np.unique(np.concatenate(found)) for name, found in parts.items()}
