"""Reads Avro data files. Slow, as row by row: Paimon writes them only with ``file.format=avro``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

import fastavro
import pyarrow as pa

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import read_blocks, read_header
from airflow_paimon.core.format.avro.types import parse_avro_schema
from airflow_paimon.core.format.snapshot import parse_json
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.arrow_types import arrow_schema

_DAMAGE = (ValueError, EOFError, StopIteration, IndexError, KeyError, TypeError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Convert = Callable[[Any], Any]


def read_avro(data: bytes, fields: Sequence[DataField], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Read these columns of an Avro data file; those that it lacks are null.

    Raises:
        FormatError: not an Avro file, or truncated.
    """
    target = arrow_schema(fields)
    converters = [(f.name, _converter(f.type)) for f in fields]
    try:
        rows: list[Any] = []
        for record in _records(data):
            rows.append(record)
            if len(rows) == batch_rows:
                yield _batch(rows, converters, target)
                rows = []
        if rows:
            yield _batch(rows, converters, target)
    except (*_DAMAGE, FormatError, UnsupportedFeatureError) as error:
        raise FormatError(f"An Avro data file is truncated or corrupt: {error}; run check_table") from error


def _records(data: bytes) -> Iterator[Any]:
    """Read the records, the blocks of which are unpacked within bounds (``core.format.unpack``)."""
    header = read_header(data)
    parse_avro_schema(header.schema)  # refuses types of which a few bytes can stand for any number of values
    schema = fastavro.parse_schema(parse_json(header.schema))
    for number, block in read_blocks(data, header, header.end):
        plain = io.BytesIO(block)
        for _ in range(number):
            yield fastavro.schemaless_reader(plain, schema, None)


def avro_names(data: bytes) -> list[str]:
    """Return the names of the columns in an Avro data file."""
    schema: Any = parse_json(read_header(data).schema)
    return [field["name"] for field in schema["fields"]]


def _batch(rows: list[Any], converters: list[tuple[str, _Convert]], target: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([convert(row.get(name)) for row in rows], field.type)
        for (name, convert), field in zip(converters, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _converter(data_type: DataType) -> _Convert:
    """Return a function that converts fastavro's values to those that ``pyarrow.array`` accepts; null stays null."""
    inner = _value_converter(data_type)
    return lambda value: None if value is None else inner(value)


def _value_converter(data_type: DataType) -> _Convert:
    if isinstance(data_type, RowType):
        children = [(f.name, _converter(f.type)) for f in data_type.fields]
        return lambda value: {name: convert(value.get(name)) for name, convert in children}
    if isinstance(data_type, ArrayType):
        element = _converter(data_type.element)
        return lambda value: [element(v) for v in value]
    if isinstance(data_type, MapType):
        return _map_converter(data_type)
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp_converter(data_type)
    if data_type.root == "TIME":
        return _time_millis
    return lambda value: value


def _map_converter(data_type: MapType) -> _Convert:
    """A map is an Avro map when its keys are strings, otherwise an array of (key, value) records."""
    key, value = _converter(data_type.key), _converter(data_type.value)

    def convert(found: Any) -> list[tuple[Any, Any]]:
        pairs = found.items() if isinstance(found, dict) else [(e["key"], e["value"]) for e in found]
        return [(key(k), value(v)) for k, v in pairs]

    return convert


def _timestamp_converter(data_type: AtomicType) -> _Convert:
    """Paimon has marked both kinds of timestamp either way: only the digits matter, not the Avro zone flag."""
    divisor = timedelta(milliseconds=1) if data_type.args[0] <= 3 else timedelta(microseconds=1)

    def convert(value: Any) -> int:
        if isinstance(value, int):
            return value
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        count: int = (aware - _EPOCH) // divisor
        return count

    return convert


def _time_millis(value: Any) -> int:
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    return int(value)
