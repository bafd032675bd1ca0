"""Writes a Parquet file again with some of its columns replaced; the others are copied as they are stored.

Copying a column costs neither decoding nor encoding: its pages, and what the footer says of them, go into the new file.
The row groups stay, so this is for rows that stay in their order.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.arrow_values import column_stats
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.stats import ColumnStats
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.data.files.arrow_types import write_schema
from airflow_paimon.data.files.parquet_footer import (
    I16,
    MAGIC,
    Struct,
    ThriftValue,
    encoded_footer,
    footer_of,
    i64,
    structs,
)
from airflow_paimon.data.files.write import (
    FileTarget,
    described_file,
    dictionary_columns,
    merged_stats,
    parquet_writer,
    stored_rows,
)

_WRITERS = re.compile(rb"parquet-cpp-arrow version |parquet-rs version |parquet-mr version 1\.1\d\.")
"""Those that say right what a column chunk holds; Java's did not in its early releases."""
_MOST_GROUP_ROWS = 1 << 24
"""A row group of other columns is held in memory, encoded."""

# Field ids of parquet.thrift.
_SCHEMA, _ROWS, _GROUPS, _KEY_VALUES, _CREATED_BY, _ENCRYPTION = 2, 3, 4, 5, 6, 8
_NAME, _CHILDREN = 4, 5
_CHUNKS, _GROUP_BYTES, _GROUP_ROWS, _SORTED, _GROUP_START, _GROUP_STORED, _ORDINAL = 1, 2, 3, 4, 5, 6, 7
_OTHER_FILE, _CHUNK_START, _CHUNK = 1, 2, 3
_CHUNK_INDEXES = (4, 5, 6, 7)
_CHUNK_SECRETS = (8, 9)
_RAW_BYTES, _STORED_BYTES, _DATA_AT, _INDEX_AT, _DICTIONARY_AT = 6, 7, 9, 10, 11
_BLOOM_FILTERS = (14, 15)
_TYPE, _STATISTICS, _COUNTS = 1, 12, (3, 4)
_FLOATS = (4, 5)
"""The physical types FLOAT and DOUBLE."""


@dataclass(frozen=True, slots=True)
class _ColumnChunk:
    """A column of a file: its part of the schema, and which of the chunks of a row group are its."""

    elements: Sequence[Struct]
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptColumns:
    """``replaced``: the columns that are written; the others of ``target`` are copied from the open file ``source``."""

    source: Any
    footer: Struct
    columns: Mapping[str, _ColumnChunk]
    target: FileTarget
    replaced: tuple[DataField, ...]

    @property
    def group_rows(self) -> list[int]:
        """The rows of each row group."""
        return [g[_GROUP_ROWS].value for g in self.footer[_GROUPS].value.values]

    def write(self, rows: Iterable[pa.RecordBatch], stats: Mapping[str, ColumnStats]) -> DataFile:
        """Write the file. ``rows``: the replaced columns of all rows in order; ``stats``: of the other columns.

        Raises:
            FormatError: the file has another number of rows.
        """
        target = self.target
        name = f"{target.prefix}{uuid.uuid4()}-0.parquet"
        path = f"{bucket_folder(target.schema, target.values, target.bucket)}/{name}"
        with target.store.open_output(path) as sink:
            out = _FileOutput(sink)
            own = self._write_groups(out, rows, name)
            size = out.at
        exact = [own.get(f.name) or stats.get(f.name, ColumnStats()) for f in target.value_fields]
        return described_file(target, name, size, sum(self.group_rows), exact)

    def _write_groups(self, out: _FileOutput, rows: Iterable[pa.RecordBatch], name: str) -> dict[str, ColumnStats]:
        """Write everything; return the statistics of the replaced columns."""
        out.write(MAGIC)
        fields = self.target.value_fields
        whole = _footer_of_rows(write_schema(fields).empty_table(), fields, self.target, [])[0]
        groups: list[Struct] = []
        collected: list[tuple[int, list[ColumnStats]]] = []
        dictionaries: list[str] | None = None
        stored = self.footer[_GROUPS].value.values
        for old, table in zip(stored, _in_groups(rows, self.group_rows, name), strict=True):
            if dictionaries is None:
                dictionaries = dictionary_columns(table, self.replaced)
            new, data = _footer_of_rows(table, self.replaced, self.target, dictionaries)
            groups.append(self._group(out, old, new, data, len(groups)))
            collected.append((table.num_rows, [column_stats(table.column(f.name), f.type) for f in self.replaced]))
        whole = {k: v for k, v in whole.items() if k != _KEY_VALUES}
        whole |= {_ROWS: i64(sum(self.group_rows)), _GROUPS: structs(groups)}
        out.write(encoded_footer(whole))
        return {
            f.name: merged_stats([(count, stats[i]) for count, stats in collected]) for i, f in enumerate(self.replaced)
        }

    def _group(self, out: _FileOutput, old: Struct, new: Struct, data: bytes, ordinal: int) -> Struct:
        """Write the chunks of a row group; return what the footer says of it."""
        [group] = new[_GROUPS].value.values
        columns = _columns_of(new)
        start, chunks = out.at, list[Struct]()
        for field in self.target.value_fields:
            own = columns.get(field.name)
            if own is not None:
                chunks += [out.copy(c, pa.BufferReader(data)) for c in _chunks(group, own)]
            else:
                copied = [out.copy(c, self.source) for c in _chunks(old, self.columns[field.name])]
                chunks += map(_without_bounds, copied)  # their writer may have left NaN out of them
        whole = {k: v for k, v in group.items() if k != _SORTED}
        raw = sum(c[_CHUNK].value[_RAW_BYTES].value for c in chunks)
        whole |= {_CHUNKS: structs(chunks), _GROUP_BYTES: i64(raw), _GROUP_START: i64(start)}
        return whole | {_GROUP_STORED: i64(out.at - start), _ORDINAL: ThriftValue(I16, ordinal)}


def kept_columns(
    source: Any, path: str, target: FileTarget, replaced: Collection[str], row_count: int
) -> KeptColumns | None:
    """Plan a file without primary key that is written again with these columns replaced; all rows stay.

    ``source``: the open file. None: its other columns can't be copied, as they are stored in another way than a file
    that is written now says, or one of them is missing.
    """
    footer = footer_of(source, path)
    groups = footer[_GROUPS].value.values
    if not _WRITERS.match(footer.get(_CREATED_BY, _NO_NAME).value) or _ENCRYPTION in footer:
        return None
    counts = [g[_GROUP_ROWS].value for g in groups]
    if sum(counts) != row_count or not all(0 < n <= _MOST_GROUP_ROWS for n in counts):
        return None
    fields = target.value_fields
    written = _columns_of(_footer_of_rows(write_schema(fields).empty_table(), fields, target, [])[0])
    stored = _columns_of(footer)
    kept = [f.name for f in fields if f.name not in replaced]
    if any(n not in stored or stored[n].elements != written[n].elements for n in kept):
        return None
    if not all(_can_be_copied(c) for n in kept for g in groups for c in _chunks(g, stored[n])):
        return None
    own = tuple(f for f in fields if f.name in replaced)
    return KeptColumns(source=source, footer=footer, columns=stored, target=target, replaced=own)


_NO_NAME = ThriftValue(0, b"")


def _can_be_copied(chunk: Struct) -> bool:
    inside = chunk.get(_CHUNK)
    if inside is None or _OTHER_FILE in chunk or any(i in chunk for i in _CHUNK_SECRETS):
        return False
    return _INDEX_AT not in inside.value


def _columns_of(footer: Struct) -> dict[str, _ColumnChunk]:
    """Return the columns by name; the schema is a tree, written from the root on, and its leaves have chunks."""
    elements = footer[_SCHEMA].value.values
    out: dict[str, _ColumnChunk] = {}
    at, first = 1, 0
    while at < len(elements):
        end = _end_of(elements, at)
        leaves = sum(_CHILDREN not in e for e in elements[at:end])
        out[elements[at][_NAME].value.decode()] = _ColumnChunk(elements[at:end], first, leaves)
        at, first = end, first + leaves
    return out


def _end_of(elements: Sequence[Struct], at: int) -> int:
    children = elements[at][_CHILDREN].value if _CHILDREN in elements[at] else 0
    at += 1
    for _ in range(children):
        at = _end_of(elements, at)
    return at


def _chunks(group: Struct, column: _ColumnChunk) -> Sequence[Struct]:
    found: Sequence[Struct] = group[_CHUNKS].value.values
    return found[column.first : column.first + column.count]


def _without_bounds(chunk: Struct) -> Struct:
    """Return what a footer says of a chunk with counts alone as its statistics, if it is one of floats."""
    inside: Struct = chunk[_CHUNK].value
    if inside[_TYPE].value not in _FLOATS or _STATISTICS not in inside:
        return chunk
    counts = {k: v for k, v in inside[_STATISTICS].value.items() if k in _COUNTS}
    inside = inside | {_STATISTICS: inside[_STATISTICS]._replace(value=counts)}
    return chunk | {_CHUNK: chunk[_CHUNK]._replace(value=inside)}


class _FileOutput:
    """A file that is written, and how far."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.at = 0

    def write(self, data: bytes) -> None:
        self._sink.write(data)
        self.at += len(data)

    def copy(self, chunk: Struct, source: Any) -> Struct:
        """Copy the pages of a column chunk; return what the footer says of it, without indexes, which stay behind."""
        inside: Struct = chunk[_CHUNK].value
        pages = inside[_DATA_AT].value
        dictionary = inside[_DICTIONARY_AT].value if _DICTIONARY_AT in inside else 0
        start = min(pages, dictionary) if dictionary > 0 else pages
        by, size = self.at - start, inside[_STORED_BYTES].value
        source.seek(start)
        data = source.read(size)
        if len(data) != size:
            raise FormatError("A column of a data file is cut short; run check_table")
        self.write(data)
        left = {k: v for k, v in inside.items() if k not in (_DICTIONARY_AT, *_BLOOM_FILTERS)}
        left[_DATA_AT] = i64(pages + by)
        if dictionary > 0:
            left[_DICTIONARY_AT] = i64(dictionary + by)
        whole = {k: v for k, v in chunk.items() if k not in _CHUNK_INDEXES}
        return whole | {_CHUNK_START: i64(0), _CHUNK: chunk[_CHUNK]._replace(value=left)}


def _footer_of_rows(
    rows: pa.Table, fields: Sequence[DataField], target: FileTarget, dictionaries: Sequence[str]
) -> tuple[Struct, bytes]:
    """Write rows as a file of one row group, in memory; returns its footer and all of it."""
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, fields, target.schema, dictionaries) as writer:
        if rows.num_rows:
            writer.write_table(stored_rows(rows, writer.schema), row_group_size=rows.num_rows)
    data = sink.getvalue()
    return footer_of(pa.BufferReader(data), "in memory"), data


def _in_groups(batches: Iterable[pa.RecordBatch], counts: Sequence[int], name: str) -> Iterator[pa.Table]:
    """Cut rows into tables of so many rows each.

    Raises:
        FormatError: there are more or fewer rows.
    """
    source = iter(batches)
    left: list[pa.RecordBatch] = []
    for count in counts:
        taken, missing = [], count
        while missing:
            batch = left.pop() if left else next(source, None)
            if batch is None:
                raise FormatError(f"A data file has fewer rows than its footer lists, while {name} is written")
            taken.append(batch.slice(0, missing))
            if batch.num_rows > missing:
                left.append(batch.slice(missing))
            missing -= taken[-1].num_rows
        yield pa.Table.from_batches(taken)
    if left or any(b.num_rows for b in source):
        raise FormatError(f"A data file has more rows than its footer lists, while {name} is written")
