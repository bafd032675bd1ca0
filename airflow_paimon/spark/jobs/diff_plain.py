"""Compares two versions of a table without primary key: as multisets of rows, in Spark's own plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.diff.keyed import Findings
from airflow_paimon.data.diff.plain import COUNT, Side, Values, count_surplus
from airflow_paimon.spark.connector.compare import comparable
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


def count_differences(
    spark: SparkSession, schema: TableSchema, before: Side, after: Side, sample: int
) -> list[tuple[Values, Findings]]:
    """Count rows that one side has more often than the other: ``added`` and ``deleted`` by partition, in parts."""
    grouped = _surplus(spark, before, after)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: count_surplus(batches, schema, sample).items())

    return collect(map_in_arrow(grouped, work, SCHEMA))


def _surplus(spark: SparkSession, before: Side, after: Side) -> DataFrame:
    """Return each row that one side has more often, with how much more often the later side has it."""
    from pyspark.sql import functions as sf

    parts = [
        frame_of(spark, [(read, list(splits))]).withColumn(COUNT, sf.lit(weight).cast("long"))
        for (read, splits), weight in ((before, -1), (after, 1))
    ]
    both = reduce(lambda one, other: one.union(other), parts)
    kinds = {f.name: f.dataType for f in both.schema.fields}
    # as text where Spark takes -0.0 for 0.0
    grouped = [_comparable(name, kinds[name]).alias(name) for name in before[0].columns]
    counted = both.groupBy(*grouped).agg(sf.sum(COUNT).alias(COUNT)).where(sf.col(COUNT) != 0)
    return counted.select(*(sf.col(f"`{n}`").cast(kinds[n]).alias(n) for n in before[0].columns), COUNT)


def _comparable(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    column = sf.col(f"`{name}`")
    return comparable(column, kind) if isinstance(kind, st.FloatType | st.DoubleType) else column
