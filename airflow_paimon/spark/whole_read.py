"""Reads that Spark's tasks plan: a task for some manifests, then one for each group of files, which divides them by
their bytes, then those that read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import without_collecting
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.layers import Layer
from airflow_paimon.data.whole_read import (
    GroupRead,
    Listed,
    WholeRead,
    bytes_of,
    entries_of,
    packed,
    plan_group,
    sort_out,
    unpacked,
)
from airflow_paimon.spark.shares import bytes_of_files, pieces_of, read_rows
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.tasks import (
    TASK_BYTES,
    cores_of,
    forgetting_zip_importers,
    map_in_arrow,
    map_tasks,
    pack,
    set_imports_apart,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_PLAN = 5000
"""Files that a task plans, about."""
MOST_TASKS = 20_000
_MANIFEST_TASKS, _MOST_ENTRIES = 4, 100_000
"""Tasks for each core that read manifests, and the entries of one, unless a manifest has more."""
_SORTED = pa.schema([("group", pa.int32()), ("place", pa.int64()), ("data", pa.binary())])
_PLANNED = pa.schema([("task", pa.int32()), ("data", pa.binary())])
_ROWS = 1000


def whole_frame(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return the DataFrame of a read that tasks plan. Their errors are raised when rows are asked for.

    Raises:
        FormatError: the largest manifest is missing or corrupt.
    """
    return reduce(lambda one, other: one.union(other), (_branch_frame(spark, one) for one in whole.branches))


def _branch_frame(spark: SparkSession, whole: WholeRead) -> DataFrame:
    read = whole.read

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            for data in (data for batch in batches for data in batch.column(1).to_pylist()):
                schemas, splits = unpacked(data)
                for split in splits:
                    yield from read_rows(replace(read, schemas=schemas), split)

    return map_in_arrow(planned_files(spark, whole), rows, spark_schema(whole.read.fields))


def planned_files(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return a task for each about ``TASK_BYTES`` of one branch: rows of a packed pair, schemas by id and splits."""
    of, groups = replace(whole.of, schemas=_schemas(whole.of.state.table)), _groups(spark, whole)
    task_bytes = TASK_BYTES
    size = bytes_of_files(whole.files, bytes_of(whole), task_bytes)
    tasks = max(1, min(whole.files, MOST_TASKS, max(cores_of(spark), -(-size // task_bytes))))

    def planned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            for group, (read, splits) in planned_groups(of, batches):
                first = group * tasks // groups
                pieces = ((read.schemas, some) for some in pieces_of(splits, task_bytes))
                yield from _batches((((first + n) % tasks, packed(p)) for n, p in enumerate(pieces)), _PLANNED)

    return _by_number(map_in_arrow(grouped_files(spark, whole), planned, "task int, data binary"), "task", tasks)


def _schemas(table: Table) -> dict[int, TableSchema]:
    """Read the schemas of a branch, which may be made anew before tasks plan: see ``schemas_of``. Which of them the
    files have is not known yet. Tasks read those of main themselves.
    """
    return {} if table.branch_name == MAIN else {schema.id: schema for schema in table.schemas()}


def grouped_files(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return what ``planned_groups`` takes: a task for each group of files."""
    cores, groups = cores_of(spark), _groups(spark, whole)
    of = replace(whole, listed=(), second=None)

    def sorted_out(listed: Sequence[Listed]) -> Iterator[pa.RecordBatch]:
        with without_collecting():
            yield from _batches(((o.group, o.place, o.data) for o in sort_out(of, listed, groups)), _SORTED)

    most = max(1, min(_MOST_ENTRIES, sum(map(_entries, whole.listed)) // (_MANIFEST_TASKS * cores)))
    pieces = pack(whole.listed, _entries, most)
    files = map_tasks(spark, [[piece] for piece in pieces], sorted_out, "group int, place long, data binary")
    return _by_number(files, "group", groups).sortWithinPartitions("group", "place")


def _groups(spark: SparkSession, whole: WholeRead) -> int:
    return max(1, min(whole.files, MOST_TASKS, max(cores_of(spark), -(-whole.files // FILES_A_PLAN))))


def _by_number(frame: DataFrame, column: str, tasks: int) -> DataFrame:
    """Bring the rows to the tasks that a column numbers."""
    by_id: Any = getattr(frame, "repartitionById", frame.repartition)
    found: DataFrame = by_id(tasks, frame[column])
    return found


def planned_groups(of: GroupRead, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Layer]]:
    """Plan one group of files after the other."""
    parts = (pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(2).to_pylist(), strict=True))
    for number, group in groupby(parts, key=itemgetter(0)):
        yield number, plan_group(of, (data for _, data in group))


def _entries(listed: Listed) -> int:
    return 1 if listed.manifest is None else entries_of(listed.manifest)


def _batches(found: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    some: list[tuple[Any, ...]] = []
    for one in found:
        some.append(one)
        if len(some) == _ROWS:
            yield _batch(some, schema)
            some = []
    if some:
        yield _batch(some, schema)


def _batch(some: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*some, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
