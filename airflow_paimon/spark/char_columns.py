"""CHAR(n) columns of DataFrames as Paimon's connector shows them: filled up with blanks, and compared as CHARs.

Spark compares a column with this metadata and a literal, or two such columns, filled up to the same length
(``ApplyCharTypePadding``); all else sees a text with its blanks, as with the connector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.char_values import holds_char
from airflow_paimon.spark.spark_types import spark_schema, sql_name, sql_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_RAW_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark keeps the type of a column that is a STRING for it."""


def filled_frame(frame: DataFrame, fields: Sequence[DataField]) -> DataFrame:
    """Return a DataFrame of stored rows as users see it. ``fields``: its columns, at least those that hold CHARs."""
    from pyspark.sql import functions as sf

    chars = {f.name: f for f in fields if holds_char((f,))}
    filled = {
        name: _filled(sf.col(sql_name(name)), field.type).alias(name, metadata=_metadata(field))
        for name, field in chars.items()
        if name in frame.columns
    }
    return frame.select(*(filled.get(name, sql_name(name)) for name in frame.columns)) if filled else frame


def schema_with_chars(fields: Sequence[DataField]) -> StructType:
    """Return the schema of a relation with these columns, which Spark itself fills up."""
    found = spark_schema(fields)
    for known, field in zip(found.fields, fields, strict=True):
        known.metadata = _metadata(field) if holds_char((field,)) else known.metadata
    return found


def stored_char(value: Column, field: DataField) -> Column:
    """Return a value as it is stored in a CHAR column; the query fails where it is too long."""
    from pyspark.sql import functions as sf

    assert isinstance(field.type, AtomicType)
    (length,) = field.type.args
    too_long = sf.raise_error(sf.lit(f"column {field.name!r} is {field.type}; a value is longer")).cast("string")
    kept = sf.when(sf.char_length(sf.rtrim(value)) > length, too_long).otherwise(sf.substring(value, 1, length))
    return sf.when(sf.char_length(value) > length, kept).otherwise(sf.rpad(value, length, " "))


def _metadata(field: DataField) -> dict[str, str]:
    return {_RAW_TYPE: sql_type(field.type).lower() if isinstance(field.type, AtomicType) else sql_type(field.type)}


def _filled(column: Column, data_type: DataType) -> Column:
    from pyspark.sql import functions as sf

    if isinstance(data_type, RowType):
        parts = [_filled(column.getField(f.name), f.type).alias(f.name) for f in data_type.fields]
        return sf.when(column.isNotNull(), sf.struct(*parts))
    if isinstance(data_type, ArrayType):
        element = data_type.element
        return sf.transform(column, lambda x: _filled(x, element))
    if isinstance(data_type, MapType):
        key, value = data_type.key, data_type.value
        values = sf.transform_values(column, lambda _, x: _filled(x, value))
        return sf.transform_keys(values, lambda x, _: _filled(x, key))
    if data_type.root != "CHAR":
        return column
    (length,) = data_type.args
    return sf.when(sf.char_length(column) < length, sf.rpad(column, length, " ")).otherwise(column)
