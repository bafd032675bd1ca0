"""Reads one data file, by its extension, into batches of the columns that its own schema has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from airflow_paimon.core.errors import FormatError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.arrow_values import is_bytes, is_text
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.features import file_format
from airflow_paimon.data.files.arrow_types import arrow_schema, arrow_type, leaves_of
from airflow_paimon.data.files.avro import avro_names, read_avro
from airflow_paimon.data.files.orc import read_orc

BATCH_ROWS = 131_072
"""Default number of rows per batch, the fastest to transfer to a JVM (docs/contributing/performance.md)."""

_NS_PER_US = 1000
_MAX_NS = 2**63 - 1


class FileBatch(NamedTuple):
    """Rows of a data file; ``start``: the first row's position in the file, as in deletion vectors."""

    start: int
    rows: pa.RecordBatch


RowGroupFilter = Callable[[pq.FileMetaData, int], bool]


def read_data_file(
    store: Store,
    path: str,
    fields: Sequence[DataField],
    *,
    other_path: str | None = None,
    legacy_ltz: bool = True,
    batch_rows: int = BATCH_ROWS,
    keep_row_group: RowGroupFilter | None = None,
) -> Iterator[FileBatch]:
    """Read these columns, matched by name, in the types of ``fields``.

    ``other_path``: used if there is no file at ``path``. ``legacy_ltz``: see ``read_orc``. ``keep_row_group`` skips
    row groups of Parquet files by their statistics.

    Columns missing in the file are null, as in Paimon.

    Raises:
        FormatError: truncated, or a column holds another type than the schema says.
        UnsupportedFeatureError: an unknown format, an encrypted file, or timestamps that Arrow can't hold.
    """
    kind = file_format(path)
    target = arrow_schema(fields)
    try:
        with _opened(store, path, other_path) as source:
            if kind == "parquet":
                batches = _parquet_batches(source, path, fields, batch_rows, keep_row_group)
            elif kind == "orc":
                batches = _numbered(read_orc(source, fields, path, legacy_ltz))
            elif kind == "avro":
                batches = _numbered(read_avro(source.read(), fields, batch_rows))
            else:
                raise UnsupportedFeatureError(f"Data file {path} has the unsupported format {kind!r}; {_WAY_OUT}")
            for start, rows in batches:
                for offset in range(0, rows.num_rows, batch_rows):
                    yield FileBatch(start + offset, conform(rows.slice(offset, batch_rows), target, path))
    except NotFoundError:
        raise FormatError(
            f"Data file {path} is missing: its snapshot was expired, its branch was deleted, or another engine "
            f"deleted a file that is still referenced; run check_table"
        ) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise _translated(error, path) from error


def column_names(source: Any, path: str) -> list[str]:
    """Return the names of the columns in an open data file of a format that ``read_data_file`` reads."""
    match file_format(path):
        case "parquet":
            return list(pq.ParquetFile(source).schema_arrow.names)
        case "orc":
            return list(orc.ORCFile(source).schema.names)
        case _:
            return avro_names(source.read())


_WAY_OUT = "use Paimon's own Spark connector"


def _opened(store: Store, path: str, other_path: str | None) -> Any:
    try:
        return store.open_input(path)
    except NotFoundError:
        if other_path is None or other_path == path:
            raise
        return store.open_input(other_path)


def _translated(error: Exception, path: str) -> Exception:
    text = str(error)
    if "encrypt" in text.lower():
        return UnsupportedFeatureError(f"Data file {path} is encrypted; {_WAY_OUT}")
    if "out of range for nanosecond" in text:
        return _out_of_range(path)
    return FormatError(f"Data file {path} is truncated or corrupt: {text}; run check_table")


def _out_of_range(path: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"Data file {path} has timestamps before 1677 or after 2262, which Arrow can't represent for this type and "
        f"format; {_WAY_OUT}"
    )


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[FileBatch]:
    start = 0
    for batch in batches:
        yield FileBatch(start, batch)
        start += batch.num_rows


def _parquet_batches(
    source: Any,
    path: str,
    fields: Sequence[DataField],
    batch_rows: int,
    keep: RowGroupFilter | None,
) -> Iterator[FileBatch]:
    file = pq.ParquetFile(source)
    present = set(file.schema_arrow.names)
    # if the file has none of them, the number of rows is still needed
    names = [f.name for f in fields if f.name in present] or file.schema_arrow.names[:1]
    coarse, fine = _int96_columns(file, fields)
    readers = [(file, [n for n in names if n not in coarse])]
    if coarse or fine:
        # INT96 is read as nanoseconds, silently wrapped when out of range: check, and use microseconds where they fit
        other = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", metadata=file.metadata)
        _check_range(file, other, sorted(fine), path)
        readers.append((other, [n for n in names if n in coarse]))
    readers = [(reader, own) for reader, own in readers if own]
    for first, last in _runs(file.metadata, keep):
        start = sum(file.metadata.row_group(i).num_rows for i in range(first))
        groups = list(range(first, last))
        parts = [r.iter_batches(batch_rows, row_groups=groups, columns=own, use_threads=False) for r, own in readers]
        for batches in zip(*parts, strict=True):
            batch = batches[0] if len(batches) == 1 else _beside(batches)
            yield FileBatch(start, batch)
            start += batch.num_rows


def _beside(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [c for b in batches for c in b.columns], names=[n for b in batches for n in b.schema.names]
    )


def _runs(metadata: pq.FileMetaData, keep: RowGroupFilter | None) -> Iterator[tuple[int, int]]:
    """Return ranges of adjacent row groups to read, half-open; a single one when nothing is skipped."""
    first = 0
    for group in range(metadata.num_row_groups):
        if keep is not None and not keep(metadata, group):
            if first < group:
                yield first, group
            first = group + 1
    if first < metadata.num_row_groups:
        yield first, metadata.num_row_groups


def _int96_columns(file: pq.ParquetFile, fields: Sequence[DataField]) -> tuple[set[str], set[str]]:
    """Return the columns with INT96 timestamps: those that microseconds can hold, and those that are finer."""
    columns = [file.schema.column(i) for i in range(len(file.schema.names))]
    stored = {c.path.split(".")[0] for c in columns if c.physical_type == "INT96"}
    wide = {f.name: arrow_type(f.type) for f in fields if f.name in stored}
    fine = {n for n, t in wide.items() if any(u.unit == "ns" for u in _timestamp_types(t))}
    return set(wide) - fine, fine


def _timestamp_types(data_type: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_timestamp(data_type):
        yield data_type
    for i in range(data_type.num_fields):
        yield from _timestamp_types(data_type.field(i).type)


def _check_range(fine: pq.ParquetFile, coarse: pq.ParquetFile, names: list[str], path: str) -> None:
    """Read INT96 timestamps in microseconds too, which do not wrap.

    Paimon stores times before 1970 with negative nanoseconds of the day. Arrow reads them correctly as nanoseconds, but
    in microseconds as a time from 2262 to 2554. Real times of those years are recognised by their nanoseconds: wrapping
    by 2**64 shifts the last three digits, so that whole microseconds end in 384. Ambiguous values are refused.
    """
    if not names:
        return
    pairs = zip(*(f.iter_batches(columns=names, use_threads=False) for f in (fine, coarse)), strict=True)
    for in_nanos, in_micros in pairs:
        for exact, rough in zip(_timestamps(in_nanos), _timestamps(in_micros), strict=True):
            nanos, micros = (a.drop_null().cast(pa.int64()).to_numpy() for a in (exact, rough))
            far = np.abs(micros) > _MAX_NS // _NS_PER_US
            before_1970 = far & (micros > 0) & (micros <= 2 * _MAX_NS // _NS_PER_US + 1) & (nanos % _NS_PER_US == 0)
            if (far & ~before_1970).any():
                raise _out_of_range(path)


def _timestamps(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    for column in batch.columns:
        yield from (leaf for leaf in leaves_of(column) if pa.types.is_timestamp(leaf.type))


def conform(batch: pa.RecordBatch, target: pa.Schema, path: str) -> pa.RecordBatch:
    """Return exactly the target's columns and types; columns stored with other types are converted."""
    positions = {name: i for i, name in enumerate(batch.schema.names)}
    columns = []
    for field in target:
        at = positions.get(field.name)
        if at is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(at)
        if not _same_kind(column.type, field.type):
            raise FormatError(f"Data file {path}: column {field.name!r} should hold {field.type}, not {column.type}")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether ``target`` may be stored as ``source``, so that a cast neither parses nor reinterprets."""
    if pa.types.is_dictionary(source):
        return _same_kind(source.value_type, target)
    if pa.types.is_struct(target):
        if not pa.types.is_struct(source):
            return False
        stored = {source.field(i).name: source.field(i).type for i in range(source.num_fields)}
        wanted = [target.field(i) for i in range(target.num_fields)]
        return all(f.name not in stored or _same_kind(stored[f.name], f.type) for f in wanted)
    if pa.types.is_map(target):
        if not pa.types.is_map(source):
            return False
        return _same_kind(source.key_type, target.key_type) and _same_kind(source.item_type, target.item_type)
    if pa.types.is_list(target):
        is_list = pa.types.is_list(source) or pa.types.is_large_list(source)
        return is_list and _same_kind(source.value_type, target.value_type)
    if pa.types.is_decimal(target):
        return bool(pa.types.is_decimal(source) and source.scale == target.scale)
    return source == target or any(s(source) and t(target) for s, t in _STORED_AS)


_STORED_AS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_int32, pa.types.is_date32),
    (pa.types.is_int32, pa.types.is_time32),
    (pa.types.is_time, pa.types.is_time32),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (is_text, is_text),
    (is_bytes, is_text),
    (is_bytes, is_bytes),
)
