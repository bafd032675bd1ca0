"""Bounds of FLOAT and DOUBLE in Parquet files: there are none for a row group that holds NaN.

NaN is the greatest value to Spark and Paimon. Arrow leaves it out of minimum and maximum, and readers skip row groups
by these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.files.arrow_types import holds_floats, leaves_of
from airflow_paimon.data.files.parquet_footer import Struct, encoded_footer, read_struct, structs

# Field ids of parquet.thrift.
_GROUPS, _CHUNKS, _CHUNK, _TYPE, _PATH, _STATISTICS = 4, 1, 3, 1, 3, 12
_COUNTS = (3, 4)
_FLOATS = (4, 5)


def columns_with_nan(rows: pa.Table | pa.RecordBatch) -> frozenset[str]:
    """Return the columns that hold NaN, nested ones as well."""
    return frozenset(
        field.name for field, column in zip(rows.schema, rows.columns, strict=True)
        if holds_floats(field.type) and any(_has_nan(leaf) for leaf in _leaves(column))
    )  # fmt: skip


def _leaves(column: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        yield from leaves_of(chunk)


def _has_nan(leaf: pa.Array) -> bool:
    return bool(pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(leaf)).as_py())


def without_nan_bounds(footer: Struct, columns: Sequence[Collection[str]]) -> Struct:
    """Return a footer in which some columns of each row group have no bounds; ``columns``: a group's, by their names
    in the file.
    """
    groups = []
    for group, names in zip(footer[_GROUPS].value.values, columns, strict=True):
        chunks = [without_bounds(c) if _column(c) in names else c for c in group[_CHUNKS].value.values]
        groups.append(group | {_CHUNKS: structs(chunks)})
    return footer | {_GROUPS: structs(groups)}


def _column(chunk: Struct) -> str:
    """Return the name of the column that a chunk is of, or a leaf of."""
    return str(chunk[_CHUNK].value[_PATH].value.values[0], "utf-8")


def without_bounds(chunk: Struct) -> Struct:
    """Return what a footer says of a chunk with counts alone as its statistics, if it is one of floats."""
    inside: Struct = chunk[_CHUNK].value
    if inside[_TYPE].value not in _FLOATS or _STATISTICS not in inside:
        return chunk
    counts = {k: v for k, v in inside[_STATISTICS].value.items() if k in _COUNTS}
    inside = inside | {_STATISTICS: inside[_STATISTICS]._replace(value=counts)}
    return chunk | {_CHUNK: chunk[_CHUNK]._replace(value=inside)}


class FooterSink:
    """Passes a Parquet file on as it is written, but for its end, which ``finish`` writes."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._held: bytearray | None = None

    def write(self, data: bytes) -> int:
        if self._held is None:
            return self._sink.write(data)
        self._held += data
        return len(data)

    def flush(self) -> None:
        """Nothing waits here but the end."""

    def hold(self) -> None:
        """Keep what comes from now on: the footer."""
        self._held = bytearray()

    def finish(self, columns: Sequence[Collection[str]], path: str) -> None:
        """Write what was held; ``columns``: see ``without_nan_bounds``."""
        assert self._held is not None
        data, self._held = bytes(self._held), None
        if any(columns):
            length = int.from_bytes(data[-8:-4], "little") + 8
            footer = read_struct(data[-length:-8], path)
            data = data[:-length] + encoded_footer(without_nan_bounds(footer, columns))
        self._sink.write(data)
