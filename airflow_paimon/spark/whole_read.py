"""Reads that Spark's tasks plan: a task for some manifests, then one for each group of files, which reads them, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.data.whole_read import GroupRead, Listed, WholeRead, plan_group, sort_out
from airflow_paimon.spark.shares import read_rows
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
    groups = _number_of_groups(whole.files, cores_of(spark))
    of = whole.of

    def sorted_out(listed: Sequence[Listed]) -> Iterator[pa.RecordBatch]:
        return _batches(sort_out(of, listed, groups))

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            yield from _rows(of, batches)

    entries = sum(map(_entries, whole.listed))
    most = max(1, min(_MOST_ENTRIES, entries // (_MANIFEST_TASKS * cores_of(spark))))
    pieces = pack(whole.listed, _entries, most)
    files = map_tasks(spark, [[piece] for piece in pieces], sorted_out, _SCHEMA)
    by_id: Any = getattr(files, "repartitionById", files.repartition)
    grouped = by_id(groups, files["group"]).sortWithinPartitions("group", "place")
    return map_in_arrow(grouped, rows, spark_schema(whole.read.fields))


def _number_of_groups(files: int, cores: int) -> int:
    return max(1, min(files, MOST_TASKS, max(cores, -(-files // FILES_A_TASK))))


def _entries(listed: Listed) -> int:
    manifest = listed.manifest
    return 1 if manifest is None else manifest.num_added_files + manifest.num_deleted_files


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


def _rows(of: GroupRead, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Plan and read one group after the other."""
    parts = (pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(2).to_pylist(), strict=True))
    for _, group in groupby(parts, key=itemgetter(0)):
        read, splits = plan_group(of, (data for _, data in group))
        for split in splits:
            for part in split.divided():
                yield from read_rows(read, part)
