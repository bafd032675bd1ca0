"""Prepares the rows of a DataFrame for a write: checks them and distributes them to buckets and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.dynamic_buckets_plan import BUCKET_BITS, BUCKET_MASK
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import encode_partition
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import KnownBuckets, TableWrite, bucket_groups
from airflow_paimon.spark.bucket_hash import can_compute, with_bucket
from airflow_paimon.spark.jvm import hinted
from airflow_paimon.spark.spark_types import shipped_type, sql_name
from airflow_paimon.spark.tasks import forgetting_zip_importers, map_in_arrow
from airflow_paimon.spark.truncated_times import refuse_marked, refuse_truncated_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

GROUP = internal_column("group")
"""The column by which rows are distributed; tasks remove it again."""

_GROUP_MASK = (1 << (63 - BUCKET_BITS)) - 1

_NAMES_AS_THEY_ARE = {"spark.sql.parser.quotedRegexColumnNames": "false"}
"""A session may take names in backticks for regular expressions."""
BATCH_CONF = {
    # by default Spark estimates the size of every row, which takes longer than anything else in a write
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}


@contextmanager
def temporary_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session, and restore them at the end."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def check_frame(frame: DataFrame, schema: TableSchema, label: str, *, partial: bool = False) -> None:
    """Refuse a DataFrame whose columns or types do not fit, before anything runs.

    Raises:
        InvalidInputError: names the column. UnsupportedFeatureError: Spark has cut off its values.
    """
    _check_types(frame.schema, schema, label, partial=partial)
    refuse_truncated_times(frame, schema.fields, label)


def check_columns(found: StructType, schema: TableSchema, label: str, *, partial: bool = False) -> None:
    """As ``check_frame``, of the columns that Spark tells."""
    _check_types(found, schema, label, partial=partial)
    refuse_marked(found, schema.fields, label)


def _check_types(found: StructType, schema: TableSchema, label: str, *, partial: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Since 4.2 a timestamp has no zone of itself.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    conform(to_arrow_schema(found, **zone).empty_table(), schema, label, partial=partial)


def conform(
    rows: pa.Table | pa.RecordBatch, schema: TableSchema, label: str, *, partial: bool = False
) -> pa.RecordBatch:
    """Check rows from Spark and return them in the table's types (``conform_rows``)."""
    return conform_rows(from_shipped(rows, schema), schema, label, partial=partial)


def conform_for(write: TableWrite, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Check rows that a task writes (``conform``); where the table merges rows they may lack columns."""
    return conform(rows, write.schema, write.label, partial=write.partial)


def from_shipped(rows: pa.Table | pa.RecordBatch, schema: TableSchema) -> pa.Table | pa.RecordBatch:
    """Reverse ``to_shipped`` for types that Spark does not have: TIME arrives as an INT of milliseconds."""
    for field in schema.fields:
        target, at = arrow_type(field.type), rows.schema.get_field_index(field.name)
        if at < 0 or not _holds_time(target) or rows.schema.field(at).type != shipped_type(field.type):
            continue
        rows = rows.set_column(at, field.name, rows.column(at).cast(target))
    return rows


def _holds_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time32(kind)) or any(_holds_time(kind.field(i).type) for i in range(kind.num_fields))


def distributed(frame: DataFrame, write: TableWrite) -> DataFrame:
    """Distribute rows so that all rows of a bucket are in one task, and all of a key in a table with dynamic buckets.

    If a row's bucket is not fixed, the rows of a partition are distributed to few tasks; without partitions rows are
    not moved.
    """
    keys = write.schema.partition_keys
    if write.default_buckets <= 0 and write.dynamic is None:
        return rebalanced(frame, keys) if keys else frame
    return by_bucket(frame, write)


def rebalanced(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Distribute rows to few tasks of similar size; those with the same values of the columns to as few as possible."""
    from pyspark.sql import functions as sf

    keys = [sf.col(sql_name(name)) for name in columns]
    if hasattr(frame, "toArrow"):
        return frame.hint("rebalance", *keys)
    return hinted(frame, "rebalance", keys)


def by_bucket(frame: DataFrame, write: TableWrite) -> DataFrame:
    """Distribute rows so that all rows of a bucket are in one task, and keep the column ``GROUP``."""
    from pyspark.sql import functions as sf

    grouped = _grouped_by_spark(frame, write)
    if grouped is None and not _group_columns(write):  # all rows go to the one bucket
        grouped = frame.withColumn(GROUP, sf.lit(0).cast("long"))
    if grouped is None:
        group = _group_column(write)
        grouped = _grouped_in_tasks(frame, write) if group is None else frame.withColumn(GROUP, group)
    buckets, group = write.default_buckets, sf.col(GROUP)
    if write.dynamic is not None:
        group = sf.shiftright(group, BUCKET_BITS)
    if write.dynamic is not None and not write.schema.partition_keys:
        buckets = write.dynamic.shares(encode_partition((), ()))
    if not write.schema.partition_keys and buckets > 0 and hasattr(grouped, "repartitionById"):
        return grouped.repartitionById(buckets, sf.pmod(group, sf.lit(buckets)).cast("int"))
    return grouped.repartition(group)


def _grouped_by_spark(frame: DataFrame, write: TableWrite) -> DataFrame | None:
    """Compute the group without Python, where Spark can: keys of whole numbers and dates, and fixed buckets, as many in
    all partitions."""
    from pyspark.sql import functions as sf

    schema, buckets = write.schema, write.default_buckets
    fields = [schema.field(n) for n in schema.bucket_keys]
    partitions = schema.partition_fields
    if write.dynamic is not None or buckets <= 0 or not fields or set(write.total_buckets.values()) - {buckets}:
        return None
    if any(f.default_value is not None for f in partitions):  # null is that partition, too
        return None
    if not can_compute(frame, fields, TableOptions(schema.options).bucket_function):
        return None
    with temporary_conf(frame.sparkSession, _NAMES_AS_THEY_ARE):
        grouped = with_bucket(frame, fields, buckets, GROUP)
    if not partitions:
        return grouped
    keys = sf.hash(*(sf.col(sql_name(f.name)) for f in partitions))
    return grouped.withColumn(GROUP, sf.col(GROUP) + keys)


def _group_columns(write: TableWrite) -> list[str]:
    hashed = write.schema.trimmed_primary_keys if write.dynamic else write.schema.bucket_keys
    names = [*write.schema.partition_keys, *(hashed if write.dynamic or write.default_buckets > 0 else ())]
    return list(dict.fromkeys(names))


def _group_column(write: TableWrite) -> Column | None:
    """Compute the group in an Arrow UDF: only the deciding columns are sent to Python. Spark 4.1 and later."""
    try:
        from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # re-exported, since 4.1
    except ImportError:
        return None
    from pyspark.sql import functions as sf

    names = _group_columns(write)

    def groups(columns: Iterator[Any]) -> Iterator[pa.Array]:
        groups_of = _Groups(write).of
        with forgetting_zip_importers():
            for arrays in columns:
                given = arrays if isinstance(arrays, tuple) else (arrays,)
                yield pa.array(groups_of(pa.table(list(given), names=names)))

    groups.__annotations__ = (
        {"columns": Iterator[pa.Array], "return": Iterator[pa.Array]}
        if len(names) == 1
        else {"columns": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    )
    column: Column = arrow_udf(groups, "long")(*(sf.col(sql_name(n)) for n in names))
    return column


class _Groups:
    """Computes the column ``GROUP`` in one task. With dynamic buckets its lower bits hold the row's bucket plus one, 0
    if its key is new, so that the task that writes doesn't look the key up again."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._assigners = Assigners(write.dynamic)

    def of(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        write, schema = self._write, self._write.schema
        part = replace(schema, fields=tuple(f for f in schema.fields if f.name in rows.schema.names))
        try:
            groups, known = bucket_groups(write, conform(rows, part, write.label), self._assigners)
        except InvalidInputError:  # the task that writes reports the error, and is not retried
            return np.zeros(rows.num_rows, np.int64)
        return groups if known is None else (groups & _GROUP_MASK) << BUCKET_BITS | (known + 1)


def _grouped_in_tasks(frame: DataFrame, write: TableWrite) -> DataFrame:
    from pyspark.sql import types as st

    names = _group_columns(write)
    target = st.StructType([*frame.schema.fields, st.StructField(GROUP, st.LongType())])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups_of = _Groups(write).of
        for batch in batches:
            chosen = pa.Table.from_batches([batch]).select(names)
            yield batch.append_column(GROUP, pa.array(groups_of(chosen)))

    return map_in_arrow(frame, add, target)


def without_group(write: TableWrite, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, KnownBuckets | None]:
    """Remove the column ``GROUP``; return the known bucket of each row, if rows were distributed by dynamic ones."""
    at = batch.schema.get_field_index(GROUP)
    if at < 0:
        return batch, None
    rows = batch.remove_column(at)
    if write.dynamic is None:
        return rows, None
    return rows, (np.asarray(batch.column(at).to_numpy()) & BUCKET_MASK) - 1
