"""Corrections of few rows without tasks of ours: starting Python workers takes longer than all of their work.

Views of small tables are read in this process and handed to Spark as local rows; the rows that a query gives are
fetched if its plan reads little and they are few. What is more than that stays distributed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.data import read_splits
from airflow_paimon.data.read_groups import ReadPlan
from airflow_paimon.spark.arrow_frames import collect_arrow, frame_of_arrow
from airflow_paimon.spark.char_columns import filled_frame
from airflow_paimon.spark.jvm import has_jvm, kind_of, physical, sequence_items
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.shares import read_rows
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

VIEW_BYTES = 8 << 20
"""Spark keeps local rows up to 48 MB of Arrow as they are; Parquet files are several times smaller than that."""
FEW_FILES = VIEW_BYTES // read_splits.OPEN_BYTES
"""More files than this are never read in the driver's own process."""
MOST_ROWS = 200_000
_RESULT_LIMIT = "spark.driver.maxResultSize"
"""The setting that Spark names when rows are too wide for the driver."""
_LOCAL_LEAVES = ("LocalTableScanExec", "OneRowRelationExec", "EmptyRelationExec")
_KEPT_LEAVES = ("RDDScanExec",)


def view_frame(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """Return the DataFrame of a planned read as users see it; of a small table with rows that were read already."""
    return filled_frame(stored_frame(spark, plan), plan.read.fields)


def stored_frame(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """As ``view_frame``, with rows as they are stored: by such keys they are found again."""
    groups = [] if plan.is_large else list(plan.groups)
    files = [f for group in groups for f in group.files]
    if not files or any(g.inputs for g in groups) or not has_jvm(spark) or not is_small_view(files):
        return frame_of(spark, plan)
    fields = plan.read.fields
    batches = [b for g in groups for read, splits in g.layers for s in splits for b in read_rows(read, s)]
    rows = pa.Table.from_batches(batches, shipped_schema(fields))
    return frame_of_arrow(spark, rows, spark_schema(fields))


def is_small_view(files: Iterable[DataFile]) -> bool:
    """Whether ``view_frame`` reads these files in this process."""
    return read_splits.fits_in_process(files, min(VIEW_BYTES, read_splits.LIMIT_BYTES))


def few_rows(rows: DataFrame, *, kept: bool = False) -> pa.Table | None:
    """Run a query that reads little and give its rows; None where it reads much, or gives many rows.

    ``kept``: what it reads besides files are few rows that Spark holds in memory.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not has_jvm(rows.sparkSession):
        return None
    limited = rows.limit(MOST_ROWS + 1)  # asked for its plan and run, so that it is planned once
    if _bytes_read(limited, _LOCAL_LEAVES + (_KEPT_LEAVES if kept else ())) > read_splits.LIMIT_BYTES:
        return None
    try:
        found = collect_arrow(limited)
    except (PySparkException, Py4JJavaError) as error:
        if _RESULT_LIMIT not in str(error):
            raise
        return None
    return found if found.num_rows <= MOST_ROWS else None


def _bytes_read(rows: DataFrame, local: Sequence[str]) -> float:
    """Return how many bytes of files the physical plan reads; infinite where it reads anything else."""
    from py4j.protocol import Py4JError

    try:
        return _bytes_of(physical(rows), local)
    except Py4JError as error:  # a plan of another version of Spark
        log.info("What the query reads can't be estimated: %s", str(error).splitlines()[0])
        return float("inf")


def _bytes_of(plan: Any, local: Sequence[str]) -> float:
    name, children = kind_of(plan), sequence_items(plan.children())
    if children:
        return sum(_bytes_of(child, local) for child in children)
    if name in local:
        return 0.0
    if name == "FileSourceScanExec":
        return float(plan.selectedPartitions().totalFileSize())
    return float("inf")
