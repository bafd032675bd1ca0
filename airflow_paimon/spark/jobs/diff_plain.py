"""Compares two versions of a table without primary key: as multisets of rows, in Spark's own plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.diff.json_rows import json_rows
from airflow_paimon.data.diff.keyed import Findings
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNT = "__airflow_paimon_count"

Values = tuple[Any, ...]
Side = tuple[TableRead, Sequence[ReadSplit]]


def count_differences(
    spark: SparkSession, schema: TableSchema, before: Side, after: Side, sample: int
) -> list[tuple[Values, Findings]]:
    """Count rows that one side has more often than the other: ``added`` and ``deleted`` by partition, in parts."""
    grouped = _surplus(spark, before, after)
    keys = schema.partition_keys
    types = [f.type for f in schema.partition_fields]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: _counted(batches, keys, types, sample).items())

    return collect(map_in_arrow(grouped, work, SCHEMA))


def _counted(
    batches: Iterator[pa.RecordBatch], keys: Sequence[str], types: Sequence[Any], sample: int
) -> dict[Values, Findings]:
    found: dict[Values, Findings] = {}
    for batch in batches:
        for values, rows in _by_partition(batch, keys, types):
            _count(found.setdefault(values, Findings()), rows, sample)
    return found


def _surplus(spark: SparkSession, before: Side, after: Side) -> DataFrame:
    """Give each row that one side has more often, with how much more often the later side has it."""
    from pyspark.sql import functions as sf

    parts = [
        frame_of(spark, [(read, list(splits))]).withColumn(_COUNT, sf.lit(weight).cast("long"))
        for (read, splits), weight in ((before, -1), (after, 1))
    ]
    both = reduce(lambda one, other: one.union(other), parts)
    columns = [f"`{name}`" for name in before[0].columns]
    counted = both.groupBy(*columns).agg(sf.sum(_COUNT).alias(_COUNT))
    return counted.where(sf.col(_COUNT) != 0)


def _by_partition(
    batch: pa.RecordBatch, keys: Sequence[str], types: Sequence[Any]
) -> Iterator[tuple[Values, pa.Table]]:
    rows = pa.Table.from_batches([batch])
    if not keys or not rows.num_rows:
        if rows.num_rows:
            yield (), rows
        return
    numbered = rows.append_column("__row", pa.array(range(rows.num_rows)))
    for group in numbered.group_by(list(keys)).aggregate([("__row", "list")]).to_pylist():
        part = rows.take(pa.array(group["__row_list"]))
        values = [to_values(part.column(k).slice(0, 1), t)[0] for k, t in zip(keys, types, strict=True)]
        yield tuple(values), part


def _count(found: Findings, rows: pa.Table, sample: int) -> None:
    counts = rows.column(_COUNT)
    plain = rows.drop_columns([_COUNT])
    for kind, mask in (("added", pc.greater(counts, 0)), ("deleted", pc.less(counts, 0))):
        some = plain.filter(mask)
        if not some.num_rows:
            continue
        number = pc.sum(pc.abs(counts.filter(mask))).as_py()
        setattr(found, kind, getattr(found, kind) + number)
        found.sample(kind, sample, lambda n, some=some: json_rows(some.slice(0, n)))  # type: ignore[misc]
