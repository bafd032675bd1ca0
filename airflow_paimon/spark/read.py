"""``read_table``: a table as a DataFrame. What needs no merging goes through Spark's own Parquet reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.paths import MAIN
from airflow_paimon.core.scan import BucketSplit
from airflow_paimon.core.schema import TableSchema
from airflow_paimon.core.table import Table, open_table, resolve_version
from airflow_paimon.data.layers import Layer, plan_table_read
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_plan import ReadSplit, TableRead
from airflow_paimon.data.sections import Section
from airflow_paimon.spark.filters import parse_where
from airflow_paimon.spark.native_scan import divide, native_frame
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, to_shipped
from airflow_paimon.spark.tasks import OPEN_COST_BYTES, TASK_BYTES, map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EMPTY = b""


def read_table(
    spark: SparkSession,
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: str | Column | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
) -> DataFrame:
    """Read one pinned snapshot of a branch: the latest, or what ``version`` (int = snapshot id, str = tag) or
    ``timestamp`` (ISO with an offset, or epoch milliseconds) names.

    ``where`` (SQL text or a Column) decides which rows come, and also which partitions, files and row groups are
    opened; the same condition in ``.where()`` behind this call prunes only what Spark's own reader reads. The same goes
    for ``columns`` and ``.select()``. Types are those of Paimon's own connector.

    Raises:
        NotFoundError: no such table, branch, snapshot or tag. InvalidInputError: an unknown column, a naive timestamp.
        UnsupportedFeatureError: the table has a feature that would make our answer wrong.
        FormatError: a file of the table is missing or corrupt (also when the rows are read).
    """
    table = open_table(warehouse, name, branch, storage_options, path=path)
    wanted, needed, predicate = columns, columns, None
    if where is not None:
        schema = read_schema(table, version, timestamp)
        found = parse_where(spark, where, schema)
        predicate = found.predicate
        if columns is not None:
            extra = schema.field_names if found.columns is None else found.columns
            needed = list(dict.fromkeys([*columns, *(n for n in schema.field_names if n in extra)]))
    layers = plan_table_read(table, version=version, timestamp=timestamp, columns=needed, predicate=predicate)
    frame = frame_of(spark, layers)
    if where is not None:
        frame = frame.where(where)
    return frame if wanted is None or needed == wanted else frame.select(*(f"`{c}`" for c in wanted))


def read_schema(table: Table, version: int | str | None, timestamp: int | str | None) -> TableSchema:
    """Give the schema that a read goes by: time travel reads with that snapshot's, other reads with the latest."""
    view, snapshot = resolve_version(table, version, timestamp)
    travels = version is not None or timestamp is not None
    return view.schema(snapshot.schema_id if travels and snapshot is not None else None)


def frame_of(spark: SparkSession, layers: Sequence[Layer]) -> DataFrame:
    """Give the DataFrame of planned reads; all have the first one's columns."""
    parts: list[DataFrame] = []
    for read, splits in layers:
        division = divide(spark, read, splits)
        parts += [native_frame(spark, read, read.schemas[i], files) for i, files in sorted(division.native.items())]
        if division.merged:
            parts.append(task_frame(spark, read, division.merged))
    if not parts:
        return spark.createDataFrame([], spark_schema(layers[0][0].fields))
    return reduce(lambda one, other: one.union(other), parts)


def task_frame(spark: SparkSession, read: TableRead, splits: Sequence[ReadSplit]) -> DataFrame:
    """Read and merge splits in tasks of our own: any format, any storage."""
    groups = pack([slim_split(s) for s in splits], weight, TASK_BYTES)
    return map_tasks(spark, groups, partial(_read_rows, read), spark_schema(read.fields))


def _read_rows(read: TableRead, split: ReadSplit) -> Iterator[pa.RecordBatch]:
    target = shipped_schema(read.fields)
    for batch in read_split(read, split):
        yield to_shipped(batch, target)


def weight(split: ReadSplit) -> int:
    """Give the bytes that a task reads for a split, opening costs included."""
    return sum(f.file_size + OPEN_COST_BYTES for f in split.files)


def slim_split(split: ReadSplit) -> ReadSplit:
    """Leave statistics behind: they did their work in planning, and are most of what a split weighs."""
    sections = tuple(Section(tuple(tuple(map(_slim_file, run)) for run in s.runs)) for s in split.sections)
    bucket = split.bucket
    slim = BucketSplit(bucket.partition, bucket.values, bucket.bucket, bucket.total_buckets, ())
    return ReadSplit(bucket=slim, sections=sections, deletions=split.deletions)


def _slim_file(file: DataFile) -> DataFile:
    return file._replace(
        min_key=_EMPTY, max_key=_EMPTY, key_stats=EMPTY_STATS, value_stats=EMPTY_STATS, embedded_file_index=None
    )
