"""Paimon's types as Arrow types, the columns of a data file with their Parquet field ids, and values of metadata
(``core.format.binary_row``) as Arrow scalars and columns.

See docs/contributing/format.md, Data files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType, types_within
from airflow_paimon.core.table.internal_columns import internal_column

KEY_PREFIX = "_KEY_"
SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"
ROW_ID = "_ROW_ID"
ROW_KIND = "_row_kind"
"""The column by which callers of ``write_arrow`` mark inserts and deletes: ``+I -U +U -D``."""

KEY_FIELD_ID_OFFSET = 1073741823
SEQUENCE_NUMBER_ID = 2147483646
VALUE_KIND_ID = 2147483645
ROW_ID_ID = 2147483642
_NESTED_ID_BASE = 536870911
_NESTED_ID_STEP = 1024

_FIELD_ID = b"PARQUET:field_id"
_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), pa.string()),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), pa.binary()),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
}


def timestamp_unit(precision: int) -> str:
    """Return the Arrow unit that holds a TIMESTAMP of this precision: ms up to 3, us up to 6, then ns."""
    return "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type of a column in reads.

    CHAR, VARCHAR and STRING are ``string``; TIME is ``time32[ms]``; TIMESTAMP has no zone, TIMESTAMP_LTZ is UTC.
    Everything is nullable but map keys: a column may have become NOT NULL after its rows were written.

    Raises:
        UnsupportedFeatureError: VARIANT, BLOB, VECTOR and other types that this engine does not know.
    """
    if isinstance(data_type, RowType):
        return pa.struct([arrow_field(f) for f in data_type.fields])
    if isinstance(data_type, MapType):
        return pa.map_(pa.field("key", arrow_type(data_type.key), nullable=False), arrow_type(data_type.value))
    if isinstance(data_type, ArrayType):
        if data_type.root != "ARRAY":
            raise UnsupportedFeatureError(f"Columns of type {data_type.root} are not supported by the built-in engine")
        return pa.list_(pa.field("element", arrow_type(data_type.element)))
    if data_type.root == "DECIMAL":
        return pa.decimal128(*data_type.args)
    if data_type.root == "TIMESTAMP":
        return pa.timestamp(timestamp_unit(data_type.args[0]))
    if data_type.root == "TIMESTAMP_LTZ":
        return pa.timestamp(timestamp_unit(data_type.args[0]), tz="UTC")
    simple = _SIMPLE.get(data_type.root)
    if simple is None:
        raise UnsupportedFeatureError(f"Columns of type {data_type.root} are not supported by the built-in engine")
    return simple


def arrow_field(field: DataField) -> pa.Field:
    return pa.field(field.name, arrow_type(field.type))


def arrow_schema(fields: Iterable[DataField]) -> pa.Schema:
    """Return the schema of rows with these columns."""
    return pa.schema([arrow_field(f) for f in fields])


def key_field(field: DataField) -> DataField:
    """Return the ``_KEY_`` copy of a primary-key column."""
    return DataField(field.id + KEY_FIELD_ID_OFFSET, KEY_PREFIX + field.name, field.type)


SEQUENCE_FIELD = DataField(SEQUENCE_NUMBER_ID, SEQUENCE_NUMBER, AtomicType("BIGINT", (), False))
VALUE_KIND_FIELD = DataField(VALUE_KIND_ID, VALUE_KIND, AtomicType("TINYINT", (), False))
ROW_ID_FIELD = DataField(ROW_ID_ID, ROW_ID, AtomicType("BIGINT", (), False))

FILE_NAME, FILE_POSITION = internal_column("file"), internal_column("position")
"""Columns that no file holds: a row's data file, and its place there, deleted rows counted as well."""
FILE_NAME_FIELD = DataField(-1, FILE_NAME, AtomicType("STRING"))
FILE_POSITION_FIELD = DataField(-2, FILE_POSITION, AtomicType("BIGINT"))


def file_fields(fields: tuple[DataField, ...], key_fields: tuple[DataField, ...]) -> tuple[DataField, ...]:
    """Return the columns of a data file: for a primary-key table keys, sequence number and kind come first."""
    if not key_fields:
        return fields
    return (*(key_field(f) for f in key_fields), SEQUENCE_FIELD, VALUE_KIND_FIELD, *fields)


def write_schema(fields: Iterable[DataField]) -> pa.Schema:
    """Return the schema to write a Parquet file with: field ids on every level, NOT NULL as required."""
    return pa.schema([_with_id(f.name, f.type, f.id, f.id, 0) for f in fields])


def _with_id(name: str, data_type: DataType, field_id: int, base: int, depth: int) -> pa.Field:
    """``base``: the id of the column (or ROW field) around lists and maps; ``depth``: the nesting depth within it."""
    inner: pa.DataType
    if isinstance(data_type, RowType):
        inner = pa.struct([_with_id(f.name, f.type, f.id, f.id, 0) for f in data_type.fields])
    elif isinstance(data_type, MapType):
        offset = _NESTED_ID_STEP * base
        key = _with_id("key", data_type.key, _NESTED_ID_BASE - offset - depth - 1, base, depth + 1)
        value = _with_id("value", data_type.value, _NESTED_ID_BASE + offset + depth + 1, base, depth + 1)
        inner = pa.map_(key.with_nullable(False), value)
    elif isinstance(data_type, ArrayType):
        element_id = _NESTED_ID_BASE + _NESTED_ID_STEP * base + depth + 1
        inner = pa.list_(_with_id("element", data_type.element, element_id, base, depth + 1))
    else:
        inner = arrow_type(data_type)
    return pa.field(name, inner, nullable=data_type.nullable, metadata={_FIELD_ID: str(field_id).encode()})


def finer_than_micros(fields: Iterable[DataField]) -> list[str]:
    """Return the columns with timestamps finer than microseconds, to which Spark truncates."""
    return [f.name for f in fields if is_finer_than_micros(f.type)]


def is_finer_than_micros(data_type: DataType) -> bool:
    """Whether there is such a timestamp in a type."""
    atoms = (t for t in types_within(data_type) if isinstance(t, AtomicType))
    return any(t.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and t.args[0] > 6 for t in atoms)


def holds_floats(kind: pa.DataType) -> bool:
    """Whether there is a FLOAT or DOUBLE in a type."""
    return bool(pa.types.is_floating(kind)) or any(holds_floats(kind.field(i).type) for i in range(kind.num_fields))


def leaves_of(column: pa.Array) -> Iterator[pa.Array]:
    """Return the values that a column holds, one array for each atomic type in its own."""
    if pa.types.is_struct(column.type):
        for child in column.flatten():
            yield from leaves_of(child)
    elif pa.types.is_map(column.type):
        yield from leaves_of(column.keys)
        yield from leaves_of(column.items)
    elif pa.types.is_list(column.type):
        yield from leaves_of(column.flatten())
    else:
        yield column


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values of a column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


_PER_MILLI = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def scalar_of(value: Any, data_type: DataType) -> pa.Scalar:
    """Return the Arrow scalar of a partition, key or statistics value.

    Raises:
        UnsupportedFeatureError: a timestamp that 64 bits of the type's unit can't hold.
    """
    target = arrow_type(data_type)
    if value is None:
        return pa.scalar(None, target)
    if isinstance(value, Timestamp):
        count = value.millis * _PER_MILLI[target.unit] + value.nanos_of_milli // (1_000_000 // _PER_MILLI[target.unit])
        try:
            return pa.array([count], pa.int64()).view(target)[0]
        except (OverflowError, pa.ArrowInvalid):
            raise UnsupportedFeatureError(f"Timestamp {value} is out of the range of Arrow's {target}") from None
    if pa.types.is_time32(target):
        return pa.array([value], pa.int32()).view(target)[0]
    return pa.scalar(value, target)


def repeated(value: Any, data_type: DataType, rows: int) -> pa.Array:
    """Return a column that has one value in every row."""
    return pa.repeat(scalar_of(value, data_type), rows) if value is not None else pa.nulls(rows, arrow_type(data_type))


def replaced(rows: pa.RecordBatch, name: str, values: pa.Array | np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Return the rows with other values of a column, in the type that it has."""
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(at)
    return rows.set_column(at, field, values if isinstance(values, pa.Array) else pa.array(values, field.type))


def with_partition(
    rows: pa.RecordBatch, schema: TableSchema, values: Sequence[Any], names: Iterable[str]
) -> list[pa.Array]:
    """Return these columns of rows of a partition: those of the partition have its ``values``."""
    constant = dict(zip(schema.partition_keys, values, strict=True))
    return [
        repeated(constant[n], schema.field(n).type, rows.num_rows) if n in constant else rows.column(n) for n in names
    ]


def value_of(scalar: pa.Scalar) -> Any:
    """Return the metadata value of an Arrow scalar of an atomic type."""
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(scalar.type):
        return Timestamp.from_nanos(scalar.value * _NANOS[scalar.type.unit])
    if pa.types.is_time32(scalar.type):
        return scalar.value
    return scalar.as_py()
