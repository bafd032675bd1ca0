"""Paimon's types as Spark types, and the conversion of batches for Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.arrow_types import arrow_type, is_finer_than_micros

_SIMPLE: dict[str, type[st.DataType]] = {
    "BOOLEAN": st.BooleanType,
    "TINYINT": st.ByteType,
    "SMALLINT": st.ShortType,
    "INT": st.IntegerType,
    "BIGINT": st.LongType,
    "FLOAT": st.FloatType,
    "DOUBLE": st.DoubleType,
    "CHAR": st.StringType,
    "VARCHAR": st.StringType,
    "STRING": st.StringType,
    "BINARY": st.BinaryType,
    "VARBINARY": st.BinaryType,
    "BYTES": st.BinaryType,
    "DATE": st.DateType,
    "TIME": st.IntegerType,
    "TIMESTAMP": st.TimestampNTZType,
    "TIMESTAMP_LTZ": st.TimestampType,
}


def spark_type(data_type: DataType) -> st.DataType:
    """Return the Spark type of a column, as Paimon's connector does: CHAR and VARCHAR are strings, TIME is an INT of
    milliseconds, TIMESTAMP has no zone; Spark cuts timestamps off after the microsecond.
    """
    if isinstance(data_type, RowType):
        return spark_schema(data_type.fields)
    if isinstance(data_type, MapType):
        return st.MapType(spark_type(data_type.key), spark_type(data_type.value))
    if isinstance(data_type, ArrayType):
        return st.ArrayType(spark_type(data_type.element))
    if data_type.root == "DECIMAL":
        return st.DecimalType(*data_type.args)
    return _SIMPLE[data_type.root]()


def paimon_type(kind: st.DataType, nullable: bool = True) -> DataType:
    """Return the type of a column that Spark declares, as Paimon's connector does; ids of nested fields are to be
    assigned.

    Raises:
        UnsupportedFeatureError: Paimon has no such type, or this package doesn't write it.
    """
    if isinstance(kind, st.StructType):
        fields = [
            DataField(0, f.name, paimon_type(f.dataType, f.nullable), (f.metadata or {}).get("comment")) for f in kind
        ]
        return RowType(tuple(fields), nullable)
    if isinstance(kind, st.MapType):
        return MapType(paimon_type(kind.keyType, False), paimon_type(kind.valueType, kind.valueContainsNull), nullable)
    if isinstance(kind, st.ArrayType):
        return ArrayType(paimon_type(kind.elementType, kind.containsNull), nullable)
    if isinstance(kind, st.DecimalType):
        return AtomicType("DECIMAL", (kind.precision, kind.scale), nullable)
    if isinstance(kind, st.CharType | st.VarcharType):
        return AtomicType("CHAR" if isinstance(kind, st.CharType) else "VARCHAR", (kind.length,), nullable)
    if type(kind) not in _DECLARED or "collate" in kind.simpleString():
        raise UnsupportedFeatureError(f"The type {kind.simpleString()} is not one that a table can be created with")
    return replace(_DECLARED[type(kind)], nullable=nullable)


_DECLARED: dict[type[st.DataType], AtomicType] = {
    st.BooleanType: AtomicType("BOOLEAN"),
    st.ByteType: AtomicType("TINYINT"),
    st.ShortType: AtomicType("SMALLINT"),
    st.IntegerType: AtomicType("INT"),
    st.LongType: AtomicType("BIGINT"),
    st.FloatType: AtomicType("FLOAT"),
    st.DoubleType: AtomicType("DOUBLE"),
    st.StringType: AtomicType("STRING"),
    st.BinaryType: AtomicType("BYTES"),
    st.DateType: AtomicType("DATE"),
    st.TimestampType: AtomicType("TIMESTAMP_LTZ", (6,)),
    st.TimestampNTZType: AtomicType("TIMESTAMP", (6,)),
}
_SQL_NAMES = {"TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP_LTZ": "TIMESTAMP", "TIME": "INT",
              "BYTES": "BINARY", "VARBINARY": "BINARY",}  # fmt: skip


def sql_type(data_type: DataType) -> str:
    """Return a column's type as Spark's SQL spells it, CHAR and VARCHAR with their length; without its own NOT NULL."""
    if isinstance(data_type, RowType):
        fields = (f"{sql_name(f.name)}: {sql_type(f.type)}{_details(f)}" for f in data_type.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(data_type, MapType):
        return f"MAP<{sql_type(data_type.key)}, {sql_type(data_type.value)}>"
    if isinstance(data_type, ArrayType):
        return f"ARRAY<{sql_type(data_type.element)}>"
    name = _SQL_NAMES.get(data_type.root, data_type.root)
    args = data_type.args if data_type.root in ("CHAR", "VARCHAR", "DECIMAL") else ()
    return f"{name}({','.join(map(str, args))})" if args else name


def is_declared(field: DataField) -> bool:
    """Whether a column that is declared with ``sql_type`` gets exactly the field's type, but for nested ids."""
    return field.default_value is None and _is_declared(field.type)


def _is_declared(data_type: DataType) -> bool:
    if isinstance(data_type, RowType):
        return all(is_declared(f) for f in data_type.fields)
    if isinstance(data_type, MapType):
        plain = data_type.root == "MAP" and not data_type.key.nullable and data_type.value.nullable
        return plain and _is_declared(data_type.key) and _is_declared(data_type.value)
    if isinstance(data_type, ArrayType):
        return data_type.root == "ARRAY" and data_type.element.nullable and _is_declared(data_type.element)
    lengths = ("CHAR", "VARCHAR", "DECIMAL")
    return data_type.root in lengths or replace(data_type, nullable=True) in _DECLARED.values()


def _details(field: DataField) -> str:
    comment = f" COMMENT {sql_text(field.description)}" if field.description is not None else ""
    return f"{'' if field.type.nullable else ' NOT NULL'}{comment}"


def sql_name(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def sql_text(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


TRUNCATED = "airflow_paimon.cut-off"
"""The mark, in a column's metadata, that Spark has its timestamps cut off after the microsecond."""


def spark_schema(fields: Iterable[DataField]) -> st.StructType:
    """Return the schema of a DataFrame with these columns. All are nullable: columns may be older than NOT NULL."""
    return st.StructType([st.StructField(f.name, spark_type(f.type), metadata=metadata_of(f)) for f in fields])


def metadata_of(field: DataField) -> dict[str, bool]:
    return {TRUNCATED: True} if is_finer_than_micros(field.type) else {}


def unmarked_schema(fields: Iterable[DataField]) -> st.StructType:
    """Return ``spark_schema`` for values that are to be stored, not read."""
    return st.StructType([st.StructField(f.name, spark_type(f.type)) for f in fields])


def shipped_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects for a column."""
    return _shipped(arrow_type(data_type))


def _shipped(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([f.with_type(_shipped(f.type)) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_shipped(kind.key_type)), _shipped(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_shipped(kind.value_type)))
    return kind


def shipped_schema(fields: Iterable[DataField]) -> pa.Schema:
    return pa.schema([pa.field(f.name, shipped_type(f.type)) for f in fields])


def to_shipped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of rows as ``data`` reads them; ``schema`` is its ``shipped_schema``."""
    if batch.schema == schema:
        return batch
    columns = [_ship(c, f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _ship(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Arrow's cast rounds towards 1970, Paimon and Spark down
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(target, safe=False)
