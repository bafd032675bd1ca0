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


class Places:
    """Rows of files, by their positions; a row may come several times."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Positions]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        names = batch.column(FILE_NAME).dictionary_encode()
        codes = names.indices.to_numpy()
        positions = batch.column(FILE_POSITION).to_numpy().astype(np.uint64)
        for code, name in enumerate(names.dictionary.to_pylist()):
            own = positions[codes == code] if len(names.dictionary) > 1 else positions
            self._parts.setdefault(name, []).append(own)

    def by_file(self) -> dict[str, Positions]:
        """Return the positions by file, ascending and each once."""
        return {name: np.unique(np.concatenate(found)) for name, found in self._parts.items()}

    def bitmaps(self) -> FilePositions:
        return {name: write_bitmap(found) for name, found in self.by_file().items()}

    def twice(self) -> tuple[str, int] | None:
        """Return the file and position of a row that has come more than once."""
        for name, found in self._parts.items():
            ordered = np.sort(np.concatenate(found))
            again = np.flatnonzero(ordered[1:] == ordered[:-1])
            if len(again):
                return name, int(ordered[again[0]])
        return None


def positions_by_file(batches: Iterable[pa.RecordBatch]) -> dict[str, Positions]:
    """Return the positions of rows by their file, ascending and each once."""
    return _places(batches).by_file()


def ship_positions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    return ship(lambda: [_places(batches).bitmaps()])


def _places(batches: Iterable[pa.RecordBatch]) -> Places:
    places = Places()
    for batch in batches:
        places.add(batch)
    return places


def merged_positions(tasks: Iterable[FilePositions]) -> dict[str, Positions]:
    """Merge what the tasks brought; rows of one file may come from several."""
    parts: dict[str, list[Positions]] = {}
    for found in tasks:
        for name, bitmap in found.items():
            parts.setdefault(name, []).append(read_bitmap(bitmap))
    return {name: found[0] if len(found) == 1 else np.unique(np.concatenate(found)) for name, found in parts.items()}
