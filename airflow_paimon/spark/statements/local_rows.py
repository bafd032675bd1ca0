"""Few rows that this process has, as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def arrow_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the rows of an Arrow table; times without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.schema([f.with_type(pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f for f in rows.schema])
    return spark.createDataFrame(rows.cast(schema).to_pylist(), from_arrow_schema(schema, prefer_timestamp_ntz=True))


def text_frame(spark: SparkSession, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> DataFrame:
    """Return rows with these columns, each with its type in Spark's notation."""
    return spark.createDataFrame(list(rows), ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))
