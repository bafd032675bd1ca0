"""Reads that Spark's tasks plan: a task for some manifests, then one for each group of files, which reads them, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.table.scan import without_collecting
from airflow_paimon.data.layers import Layer
from airflow_paimon.data.whole_read import GroupRead, Listed, WholeRead, entries_of, plan_group, sort_out
from airflow_paimon.spark.shares import read_layer
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.tasks import (
    cores_of,
    forgetting_zip_importers,
    map_in_arrow,
    map_tasks,
    pack,
    set_imports_apart,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_TASK = 500
"""Files that a task plans and reads, about."""
MOST_TASKS = 20_000
_MANIFEST_TASKS, _MOST_ENTRIES = 4, 100_000
"""Tasks for each core that read manifests, and the entries of one, unless a manifest has more."""
_SCHEMA = "group int, place long, data binary"
_ARROW = pa.schema([("group", pa.int32()), ("place", pa.int64()), ("data", pa.binary())])
_ROWS = 1000


def whole_frame(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return the DataFrame of a read that tasks plan. Their errors are raised when rows are asked for."""
    of = whole.of

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            for layer in planned_groups(of, batches):
                yield from read_layer(layer)

    return map_in_arrow(grouped_files(spark, whole), rows, spark_schema(whole.read.fields))


def grouped_files(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return what ``planned_groups`` takes: a task for each group of files."""
    cores = cores_of(spark)
    groups = max(1, min(whole.files, MOST_TASKS, max(cores, -(-whole.files // FILES_A_TASK))))
    of = whole.of

    def sorted_out(listed: Sequence[Listed]) -> Iterator[pa.RecordBatch]:
        with without_collecting():
            yield from _batches((one.group, one.place, one.data) for one in sort_out(of, listed, groups))

    most = max(1, min(_MOST_ENTRIES, sum(map(_entries, whole.listed)) // (_MANIFEST_TASKS * cores)))
    pieces = pack(whole.listed, _entries, most)
    files = map_tasks(spark, [[piece] for piece in pieces], sorted_out, _SCHEMA)
    by_id: Any = getattr(files, "repartitionById", files.repartition)
    grouped: DataFrame = by_id(groups, files["group"]).sortWithinPartitions("group", "place")
    return grouped


def planned_groups(of: GroupRead, batches: Iterable[pa.RecordBatch]) -> Iterator[Layer]:
    """Plan one group of files after the other."""
    parts = (pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(2).to_pylist(), strict=True))
    for _, group in groupby(parts, key=itemgetter(0)):
        yield plan_group(of, (data for _, data in group))


def _entries(listed: Listed) -> int:
    return 1 if listed.manifest is None else entries_of(listed.manifest)


def _batches(found: Iterable[tuple[int, int, bytes]]) -> Iterator[pa.RecordBatch]:
    some: list[tuple[int, int, bytes]] = []
    for one in found:
        some.append(one)
        if len(some) == _ROWS:
            yield _batch(some)
            some = []
    if some:
        yield _batch(some)


def _batch(some: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    columns = zip(*some, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )
