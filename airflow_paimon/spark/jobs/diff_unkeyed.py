"""Compares two versions of a table without primary key: as multisets of rows, in Spark's own plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.data.diff.keyed import RowDifferences
from airflow_paimon.data.diff.unkeyed import COUNT, PAIRED, DiffSide, Values, count_surplus
from airflow_paimon.data.files.arrow_types import ROW_ID
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.spark_types import sql_name
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_ROWS = internal_column("rows")


def count_differences(
    spark: SparkSession, schema: TableSchema, before: DiffSide, after: DiffSide, sample: int, shared_row_ids: int = 0
) -> list[tuple[Values, RowDifferences]]:
    """Like ``data.diff.unkeyed.compare_rows``, in parts."""
    old, new = (frame_of(spark, [(read, list(splits))]) for read, splits in (before, after))
    grouped = surplus(old, new, before[0].columns)
    if shared_row_ids:
        grouped = _paired(grouped, schema.partition_keys, shared_row_ids)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: count_surplus(batches, schema, sample).items())

    return collect(map_in_arrow(grouped, work, SCHEMA))


def surplus(before: DataFrame, after: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each row that one side has more often, with ``COUNT``: how much more often the later side has it."""
    from pyspark.sql import functions as sf

    weighed = [side.withColumn(COUNT, sf.lit(by).cast("long")) for side, by in ((before, -1), (after, 1))]
    return _uncancelled(weighed[0].union(weighed[1]), columns)


def _uncancelled(rows: DataFrame, columns: Sequence[str], *more: Column) -> DataFrame:
    """Add up the counts of rows that are equal in these columns, and keep one of each whose sum is not 0."""
    from pyspark.sql import functions as sf

    kinds = {f.name: f.dataType for f in rows.schema.fields}
    # as text where Spark takes -0.0 for 0.0
    grouped = [_comparable(name, kinds[name]).alias(name) for name in columns]
    counted = rows.groupBy(*grouped).agg(*more, sf.sum(COUNT).alias(COUNT)).where(sf.col(COUNT) != 0)
    back = {n: sf.col(sql_name(n)).cast(kinds[n]).alias(n) for n in columns if _is_float(kinds[n])}
    return counted.select(*(back.get(n, sf.col(sql_name(n))) for n in counted.columns))


def _paired(rows: DataFrame, partition_keys: Sequence[str], shared: int) -> DataFrame:
    """Mark pairs of rows as ``data.diff.pairs`` does, and add up the others without their ids."""
    from pyspark.sql import functions as sf

    kinds = {f.name: f.dataType for f in rows.schema.fields}
    contents = [n for n in rows.columns if n not in (ROW_ID, COUNT)]
    side = sf.when(sf.col(ROW_ID) < shared, sf.lit(0)).otherwise(sf.col(COUNT))
    keys = [_comparable(name, kinds[name]) for name in partition_keys]
    by_id = rows.groupBy(*keys, ROW_ID, side).agg(
        sf.collect_list(sf.struct(*(sql_name(n) for n in (*contents, ROW_ID, COUNT)))).alias(_ROWS)
    )
    both = sf.col(_ROWS)
    is_pair = (sf.size(both) == 2) & (both[0][COUNT] == -both[1][COUNT])
    pairs = by_id.where(is_pair).select(sf.inline(_ROWS)).withColumn(PAIRED, sf.lit(True))
    alone = by_id.where(~is_pair).select(sf.inline(_ROWS))
    rest = _uncancelled(alone, contents, sf.min(ROW_ID).alias(ROW_ID))
    return pairs.union(rest.withColumn(PAIRED, sf.lit(False)))


def _comparable(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as sf

    column = sf.col(sql_name(name))
    if not _is_float(kind):
        return column
    return sf.when(column == 0, column.cast("string")).otherwise(
        sf.when(sf.isnan(column), sf.lit("NaN")).otherwise(column.cast("double").cast("string"))
    )


def _is_float(kind: DataType) -> bool:
    from pyspark.sql import types as st

    return isinstance(kind, st.FloatType | st.DoubleType)
