"""Divides work into tasks: each gets its own part of a plan and yields Arrow batches.

Where that isn't rows, it is results, pickled for the driver: values, or errors that a retry would not change.
"""

from __future__ import annotations

import pickle
import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.spark.jvm import has_jvm, mapped_in_arrow
from airflow_paimon.spark.spark_types import sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
SCHEMA = "value binary"
"""Of results."""
_ARROW = pa.schema([pa.field("value", pa.binary())])

TASK_BYTES = 128 * 1024 * 1024
_CORES_UNKNOWN = 16
"""Of a Spark Connect server."""

LEAST_TASKS, LEAST_TASK_BYTES = 8, 16 * 1024 * 1024
"""A read is cut into at least so many tasks, so that no core waits, unless they would be smaller than this."""

OPEN_COST_BYTES = 4 * 1024 * 1024
"""Cost of opening a file in bytes read meanwhile: Spark's default (spark.sql.files.openCostInBytes)."""


def pack(items: Iterable[T], weight: Callable[[T], int], target: int = TASK_BYTES) -> list[list[T]]:
    """Group items to about ``target`` bytes, in order; a larger item has its own group."""
    groups: list[list[T]] = []
    filled = 0
    for item in items:
        size = weight(item)
        if not groups or filled + size > target:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    return groups


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at once, as far as that is known."""
    return spark.sparkContext.defaultParallelism if has_jvm(spark) else _CORES_UNKNOWN


def share_of(total: int) -> int:
    """Return the bytes of one task of a read of so many."""
    return max(LEAST_TASK_BYTES, min(TASK_BYTES, total // LEAST_TASKS))


def map_tasks(
    spark: SparkSession,
    groups: Sequence[Sequence[T]],
    run: Callable[[T], Iterable[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return the DataFrame produced by one task per group. ``run`` and the items are pickled; ``run`` is called per
    item.

    A task unpickles only its own group, so a large plan doesn't slow down each task.
    """
    if not groups:
        return spark.createDataFrame([], schema)
    payloads = [pickle.dumps(list(group), pickle.HIGHEST_PROTOCOL) for group in groups]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with forgetting_zip_importers():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for item in pickle.loads(payloads[number]):
                        yield from run(item)

    return map_in_arrow(spark.range(0, len(groups), 1, len(groups)), work, schema)


def map_in_arrow(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Like ``DataFrame.mapInArrow``, but works without pandas, which PySpark requires there without using it, and with
    any names of columns: PySpark takes a name with a dot for a field of another column.
    """
    names = frame.columns
    if not has_jvm(frame.sparkSession) or not any("." in n or "`" in n for n in names):
        try:
            return frame.mapInArrow(work, schema)  # type: ignore[arg-type]  # it hands iterators over, not iterables
        except ImportError:
            if not has_jvm(frame.sparkSession):
                raise
    from pyspark.sql import functions as sf

    return mapped_in_arrow(frame, [sf.col(sql_name(name)) for name in names], work, schema)


@contextmanager
def forgetting_zip_importers() -> Iterator[None]:
    """Spare the next call of this Python worker re-reading every zip archive on ``sys.path``.

    PySpark calls ``importlib.invalidate_caches()`` for each task, and each time that it asks a data source for its
    schema or its partitions: 88 ms with PySpark's own archives and ours (measured).
    """
    try:
        yield
    finally:
        for path, importer in list(sys.path_importer_cache.items()):
            if isinstance(importer, zipimport.zipimporter):
                del sys.path_importer_cache[path]


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: PaimonError


def ship(make: Callable[[], Iterable[Any]]) -> Iterator[pa.RecordBatch]:
    """Yield the results of ``make`` as rows of a task. A refusal is a value too, as Spark would retry the task."""
    with forgetting_zip_importers():
        try:
            values = list(make())
        except PaimonError as error:
            if error.retryable:
                raise
            values = [_Refusal(error)]
        pickled = [pickle.dumps(v, pickle.HIGHEST_PROTOCOL) for v in values]
        yield pa.RecordBatch.from_arrays([pa.array(pickled, pa.binary())], schema=_ARROW)


def collect(frame: DataFrame, refused: Callable[[list[Any]], None] | None = None) -> list[Any]:
    """Run the tasks and return their values. ``refused`` takes those of the other tasks when one refuses.

    Raises:
        PaimonError: a task refused.
    """
    values: Sequence[Any] = [pickle.loads(row.value) for row in frame.collect()]
    made = [v for v in values if not isinstance(v, _Refusal)]
    for value in values:
        if isinstance(value, _Refusal):
            if refused is not None:
                refused(made)
            raise value.error
    return made
