"""Writes Parquet data files, rolled at the target size, each described by a ``DataFile`` for the commit."""

from __future__ import annotations

import calendar
import logging
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.arrow_values import column_stats, to_values
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES, encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, FileSource, Stats
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.stats import ColumnStats, bounds, encode_stats, encode_value_stats, stats_modes
from airflow_paimon.core.format.types import AtomicType, DataField, with_nullable
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.files.arrow_types import (
    ROW_ID_FIELD,
    SEQUENCE_FIELD,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    VALUE_KIND_FIELD,
    file_fields,
    write_schema,
)
from airflow_paimon.data.merge.versions import is_retract

log = logging.getLogger(__name__)

ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20
"""In memory. A row group ends at the first limit reached."""

_SAMPLE_ROWS = 2048
_COMPRESSIONS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """Location and properties of the files of one bucket. ``values`` are the decoded partition values."""

    store: Store
    schema: TableSchema
    values: tuple[Any, ...]
    bucket: int
    level: int = 0
    source: FileSource = FileSource.APPEND
    min_sequence: int | None = None
    max_sequence: int | None = None
    """Overrides the lowest and highest sequence number in the metadata."""
    file_name: str | None = None
    """The name of a single file, with its extension; None: made up."""
    is_changelog: bool = False
    """Whether the file holds changes for streaming readers: a key may occur twice. Of any size, so that the changes of
    a key stay in one file."""
    stores_row_ids: bool = False
    """Whether the files hold ``_ROW_ID`` and ``_SEQUENCE_NUMBER`` (null = the version of the commit), as rows that had
    them before. See docs/contributing/format.md, Row tracking."""

    @property
    def prefix(self) -> str:
        """How the names of the files begin."""
        kind = "changelog" if self.is_changelog else "data"
        return self.schema.options.get(f"{kind}-file.prefix", f"{kind}-")

    @property
    def key_fields(self) -> tuple[DataField, ...]:
        return self.schema.key_fields if self.schema.primary_keys else ()

    @property
    def value_fields(self) -> tuple[DataField, ...]:
        """The columns with value statistics."""
        if not self.stores_row_ids:
            return self.schema.fields
        changes = self.source is not FileSource.COMPACT
        version = replace(SEQUENCE_FIELD, type=with_nullable(SEQUENCE_FIELD.type, changes))
        return (*self.schema.fields, ROW_ID_FIELD, version)


class RollingWriter:
    """Writes rows in the given order. Batches have the table's columns, ``_VALUE_KIND``, and for a primary-key table
    ``_SEQUENCE_NUMBER``; keyed rows must be sorted by key, each key once.

    ``first_sequence``: number of the first row of a table without primary key, whose files hold no such column.
    ``group_bytes``: size of a row group in memory.
    """

    def __init__(self, target: FileTarget, first_sequence: int = 0, *, group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._target = target
        self._group_bytes = group_bytes
        self._name = f"{target.prefix}{uuid.uuid4()}"
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._next_sequence = first_sequence
        self._size_limit = TableOptions(target.schema.options).target_file_size
        self._open: _UnfinishedFile | None = None
        self._paths: list[str] = []
        self._files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROW_GROUP_ROWS):
            piece = batch.slice(start, ROW_GROUP_ROWS)
            if self._pending_rows + piece.num_rows > ROW_GROUP_ROWS:
                self._flush()
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self._pending_bytes += piece.nbytes
            if self._pending_bytes >= self._group_bytes:
                self._flush()

    def finish(self) -> tuple[DataFile, ...]:
        """Close the last file and return the descriptions of all; empty without rows."""
        self._flush()
        self._close()
        return tuple(self._files)

    @property
    def paths(self) -> list[str]:
        """The files written so far."""
        return list(self._paths)

    def abandon(self) -> None:
        """Stop writing and delete the files. Only before a commit of them was attempted."""
        if self._open is not None:
            self._open.abandon()
            self._open = None
        delete_unused(self._target.store, self._paths)

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)  # in pieces: concatenating them would copy everything
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        for piece in _cut(rows, self._group_bytes):
            if self._open is None:
                folder = bucket_folder(self._target.schema, self._target.values, self._target.bucket)
                name = self._target.file_name or f"{self._name}-{len(self._paths)}.parquet"
                path = f"{folder}/{name}"
                self._paths.append(path)
                self._open = _UnfinishedFile(self._target, path, piece, self._next_sequence)
            self._open.write(piece)
            self._next_sequence += piece.num_rows
            if self._open.size >= self._size_limit and not self._target.is_changelog:
                self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._files.append(self._open.close())
            self._open = None


class Abandonable(Protocol):
    def abandon(self) -> None:
        """Delete what was written."""


@contextmanager
def abandoned_on_failure(writers: Iterable[Abandonable]) -> Iterator[None]:
    """Delete what these writers have written if the block fails."""
    try:
        yield
    except BaseException:
        for writer in writers:
            writer.abandon()
        raise


def delete_unused(store: Store, paths: Iterable[str]) -> None:
    """Delete data files that certainly no snapshot refers to.

    Failing to leaves orphans, which are harmless, and does not hide why the files were given up.
    """
    for path in paths:
        try:
            store.delete(path)
        except PaimonError as error:
            log.info("left the unused file %s behind (%s)", path, error)


def _cut(rows: pa.Table, group_bytes: int) -> list[pa.Table]:
    """Divide rows that take too much memory for one row group."""
    pieces = max(1, -(-rows.nbytes // (2 * group_bytes)))
    size = -(-rows.num_rows // pieces)
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


class _UnfinishedFile:
    """One Parquet file being written, with the statistics of its row groups."""

    def __init__(self, target: FileTarget, path: str, sample: pa.Table, first_sequence: int) -> None:
        self._target = target
        self._path = path
        self._fields = file_fields(target.value_fields, target.key_fields)
        if TableOptions(target.schema.options).flag("data-file.thin-mode"):  # a key is there once, as a value
            self._fields = self._fields[len(target.key_fields) :]
        self._sink = target.store.open_output(path)
        self._writer = parquet_writer(self._sink, self._fields, target.schema, dictionary_columns(sample, self._fields))
        self._first_sequence = first_sequence
        self._rows = 0
        self._deletes = 0
        self._first_keys: tuple[Any, ...] = ()
        self._last_keys: tuple[Any, ...] = ()
        self._sequences: list[int] = []
        self._collected: list[tuple[int, list[ColumnStats]]] = []

    @property
    def size(self) -> int:
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        self._describe(rows)
        self._writer.write_table(stored_rows(rows, self._writer.schema), row_group_size=max(1, rows.num_rows))
        self._rows += rows.num_rows

    def _describe(self, rows: pa.Table) -> None:
        keys = self._target.key_fields
        if keys:
            first, last = _key_values(rows.slice(0, 1), keys), _key_values(rows.slice(rows.num_rows - 1), keys)
            self._first_keys = self._first_keys or first
            self._last_keys = last
            self._deletes += int(is_retract(rows.column(VALUE_KIND)).sum())
            found = pc.min_max(rows.column(SEQUENCE_NUMBER))
            self._sequences += [found["min"].as_py(), found["max"].as_py()]
        stats = [column_stats(rows.column(f.name), f.type) for f in self._target.value_fields]
        self._collected.append((rows.num_rows, stats))

    def close(self) -> DataFile:
        self._writer.close()
        size = self.size
        self._sink.close()
        count = len(self._target.value_fields)
        return described_file(
            self._target,
            self._path.rsplit("/", 1)[-1],
            size,
            self._rows,
            [merged_stats([(rows, stats[i]) for rows, stats in self._collected]) for i in range(count)],
            first_sequence=self._first_sequence,
            sequences=self._sequences,
            keys=(self._first_keys, self._last_keys),
            deletes=self._deletes,
        )

    def abandon(self) -> None:
        """Leave the file unfinished; the store discards it."""
        self._writer.is_open = False  # otherwise it writes a footer when garbage-collected
        abandoned = ConnectionAbortedError()
        self._sink.__exit__(type(abandoned), abandoned, None)


def described_file(
    target: FileTarget,
    name: str,
    size: int,
    rows: int,
    exact: Sequence[ColumnStats],
    *,
    first_sequence: int = 0,
    sequences: Sequence[int] = (),
    keys: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ()),
    deletes: int = 0,
) -> DataFile:
    """Describe a written file for the commit. ``exact``: the statistics of ``value_fields``. ``sequences``: numbers of
    its rows, with the lowest and the highest; without any they begin at ``first_sequence``. ``keys``: the lowest and
    the highest.
    """
    schema = target.schema
    value_stats, value_stats_cols = value_stats_of(target, exact)
    if sequences:
        low, high = min(sequences), max(sequences)
    elif target.stores_row_ids:
        versions = exact[-1]  # a commit completes a lowest of 0 if all rows are changed, a highest of 0 if any is
        low, high = versions.minimum or 0, 0 if versions.null_count else versions.maximum
    elif TableOptions(schema.options).row_tracking:
        low, high = 0, 0  # the commit puts its snapshot id there
    else:
        low, high = first_sequence, first_sequence + rows - 1
    key_types = [f.type for f in target.key_fields]
    at = [schema.field_names.index(f.name) for f in target.key_fields]
    keyed = [exact[i] for i in at]
    return DataFile(
        file_name=name,
        file_size=size,
        row_count=rows,
        min_key=encode_row(keys[0], key_types) if at else EMPTY_ROW_BYTES,
        max_key=encode_row(keys[1], key_types) if at else EMPTY_ROW_BYTES,
        key_stats=encode_stats([s.minimum for s in keyed], [s.maximum for s in keyed], [0] * len(at), key_types)
        if at
        else EMPTY_STATS,
        value_stats=value_stats,
        min_sequence_number=low if target.min_sequence is None else target.min_sequence,
        max_sequence_number=high if target.max_sequence is None else target.max_sequence,
        schema_id=schema.id,
        level=target.level,
        creation_time_ms=local_millis(),
        delete_row_count=deletes,
        file_source=target.source.value,
        value_stats_cols=value_stats_cols,
        write_cols=tuple(f.name for f in target.value_fields) if target.stores_row_ids else None,
    )


def parquet_writer(
    sink: Any, fields: Sequence[DataField], schema: TableSchema, dictionaries: Sequence[str]
) -> pq.ParquetWriter:
    """Return a writer of these columns of a table, as its options say. ``dictionaries``: see ``dictionary_columns``.

    FLOAT and DOUBLE get no bounds: NaN is the greatest value to Spark and Paimon, but Arrow leaves it out of minimum
    and maximum, by which readers skip row groups. Nor do nested columns, which may hold them.
    """
    codec, level = compression(schema)
    arrow = write_schema(fields)
    return pq.ParquetWriter(
        sink,
        arrow,
        write_statistics=[f.name for f in arrow if not pa.types.is_floating(f.type) and not pa.types.is_nested(f.type)],
        compression=codec,
        compression_level=level,
        use_dictionary=list(dictionaries),
        store_schema=False,
        store_decimal_as_integer=True,
        use_deprecated_int96_timestamps=needs_int96(schema),
    )


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a file's schema in its types; those of a key have another name in ``rows``."""
    columns = []
    for field in schema:
        name = field.name if field.name in rows.schema.names else field.name.removeprefix("_KEY_")
        columns.append(_typed(rows.column(name), field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def value_stats_of(target: FileTarget, exact: Sequence[ColumnStats]) -> tuple[Stats, tuple[str, ...] | None]:
    """Return ``_VALUE_STATS`` and ``_VALUE_STATS_COLS`` as the table's options say. ``exact``: by ``value_fields``."""
    names, types = [f.name for f in target.value_fields], [f.type for f in target.value_fields]
    options = target.schema.options
    kept = [mode.apply(stats) for mode, stats in zip(stats_modes(names, options), exact, strict=True)]
    return encode_value_stats(names, kept, types, dense=TableOptions(options).flag("metadata.stats-dense-store", True))


def _typed(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    if column.type == data_type:
        return column
    return pa.chunked_array([_retyped(chunk, data_type) for chunk in column.chunks], data_type)


def _retyped(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast. A field that can't be null gets a value, any one, where its row is null: Arrow's cast and its Parquet
    writer look at the field alone. ``conform_rows`` has checked that it has one in the other rows.
    """
    if array.type == target or not pa.types.is_nested(target):
        return array if array.type == target else array.cast(target)
    if pa.types.is_struct(target):
        children = [_field(array.field(i), f) for i, f in enumerate(target)]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    if pa.types.is_map(target):
        return _with_child(array, target, _entries(array, target), array.buffers()[0])
    return _with_child(array, target, _field(array.values, target.value_field), array.buffers()[0])


def _field(array: pa.Array, field: pa.Field) -> pa.Array:
    array = _retyped(array, field.type)
    return array if field.nullable or not array.null_count else _without_validity(array)


def _entries(array: pa.MapArray, target: pa.MapType) -> pa.Array:
    fields = [target.key_field, target.item_field]
    return pa.StructArray.from_arrays([_field(a, f) for a, f in zip((array.keys, array.items), fields, strict=True)],
                                      fields=fields)  # fmt: skip


def _without_validity(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([array.field(i) for i in range(kind.num_fields)], fields=list(kind))
    if pa.types.is_map(kind):
        return _with_child(array, kind, _entries(array, kind), None)
    if pa.types.is_nested(kind):
        return _with_child(array, kind, array.values, None)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], null_count=0, offset=array.offset)


def _with_child(array: pa.Array, target: pa.DataType, child: pa.Array, validity: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(
        target, len(array), [validity, array.buffers()[1]], offset=array.offset, children=[child]
    )


def _key_values(rows: pa.Table, keys: Sequence[DataField]) -> tuple[Any, ...]:
    return tuple(to_values(rows.column(f.name), f.type)[0] for f in keys)


def merged_stats(parts: Sequence[tuple[int, ColumnStats]]) -> ColumnStats:
    """Combine the exact statistics of row groups (with their row counts); unknown in one means unknown in all."""
    if any(stats.null_count is None for _, stats in parts):
        return ColumnStats()
    nulls = sum(stats.null_count or 0 for _, stats in parts)
    if any(stats.minimum is None and stats.null_count != rows for rows, stats in parts):
        return ColumnStats(null_count=nulls)
    low, high = bounds([v for _, stats in parts for v in (stats.minimum, stats.maximum)])
    return ColumnStats(low, high, nulls)


def local_millis() -> int:
    """Return the local wall-clock time as if it were UTC, as in ``_CREATION_TIME`` (docs/contributing/format.md,
    Manifests).
    """
    now = time.time()
    return calendar.timegm(time.localtime(now)) * 1000 + int(now * 1000) % 1000


def compression(schema: TableSchema) -> tuple[str, int | None]:
    """Return the codec and its level; codecs unknown to Parquet become zstd."""
    options = TableOptions(schema.options)
    codec = _COMPRESSIONS.get(options.text("file.compression", "zstd").lower(), "zstd")
    return codec, options.number("file.compression.zstd-level", 1) if codec == "zstd" else None


def needs_int96(schema: TableSchema) -> bool:
    """Whether a timestamp is finer than microseconds: Paimon stores those as INT96."""
    times = (f.type for f in schema.fields if f.type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"))
    return any(isinstance(t, AtomicType) and t.args[0] > 6 for t in times)


def dictionary_columns(sample: pa.Table, fields: Sequence[DataField]) -> list[str]:
    """Return the columns with repeated values, estimated from some rows of the first row group.

    Never wide decimals: Paimon 0.9 can't read those from a dictionary.
    """
    rows = _spread(sample, _SAMPLE_ROWS)
    picked = []
    numbered = SEQUENCE_NUMBER if VALUE_KIND_FIELD in fields else None  # keys have numbers, rows have versions
    for field in fields:
        if not isinstance(field.type, AtomicType) or field.name == numbered or field.type.root == "BOOLEAN":
            continue
        if field.type.root == "DECIMAL" and field.type.args[0] > 18:
            continue
        name = field.name if field.name in rows.schema.names else field.name.removeprefix("_KEY_")
        if pc.count_distinct(rows.column(name), mode="all").as_py() * 4 <= rows.num_rows:
            picked.append(field.name)
    return picked


def _spread(rows: pa.Table, count: int) -> pa.Table:
    """Take about this many rows, evenly spaced. Chunk by chunk, because ``take`` copies the whole of a chunked
    column.
    """
    share = min(1.0, count / max(rows.num_rows, 1))
    taken = []
    for piece in rows.to_batches():
        at = np.linspace(0, piece.num_rows - 1, math.ceil(piece.num_rows * share)).astype(np.int64)
        taken.append(piece.take(pa.array(at)))
    return pa.Table.from_batches(taken, rows.schema)
