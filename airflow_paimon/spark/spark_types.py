"""Paimon's types as Spark types, and the conversion of batches for Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.arrow_types import arrow_type

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


def spark_schema(fields: Iterable[DataField]) -> st.StructType:
    """Return the schema of a DataFrame with these columns. All are nullable: columns may be older than NOT NULL."""
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
