"""Arrow tables to DataFrames and back, which Spark has had functions for since 4.0; few rows of this process as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.spark.jvm import batches_of_frame, frame_of_batches
from airflow_paimon.spark.rows_in import temporary_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = 10_000
"""A task each: Spark's default."""


def frame_of_arrow(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return the DataFrame of a table's rows. Without ``schema`` Spark says what its types become."""
    from pyspark.sql import DataFrame

    if not table.num_rows:
        table = table.schema.empty_table()  # PySpark fails on a map's column without any piece
    if hasattr(DataFrame, "toArrow"):
        # "no limit" is none for PySpark's cut into batches, which fails
        unlimited = int(spark.conf.get(_BATCH_CONF) or 0) < 1
        with temporary_conf(spark, {_BATCH_CONF: str(_BATCH_ROWS)} if unlimited else {}):
            return spark.createDataFrame(table) if schema is None else spark.createDataFrame(table, schema)
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = schema or from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    return frame_of_batches(spark, table.cast(to_arrow_schema(schema)).to_batches(_BATCH_ROWS), schema)


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Collect rows in Arrow form, as Python's own types can't hold all values."""
    if hasattr(frame, "toArrow"):
        table: pa.Table = frame.toArrow()
        return table
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    batches = batches_of_frame(frame)
    found = pa.Table.from_batches(batches) if batches else schema.empty_table()
    # One by one: Arrow refuses the cast of a struct to its own type where a null has fields that can't be null.
    columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(found.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def arrow_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the rows of an Arrow table; times without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.schema([f.with_type(pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f for f in rows.schema])
    return spark.createDataFrame(rows.cast(schema).to_pylist(), from_arrow_schema(schema, prefer_timestamp_ntz=True))


def text_frame(spark: SparkSession, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> DataFrame:
    """Return rows with these columns, each with its type in Spark's notation."""
    return spark.createDataFrame(list(rows), ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))
