"""The rows that differ by key, as a DataFrame: compared bucket by bucket, as ``diff_branches`` counts them.

Both sides of a bucket are sorted by key, so nothing is shuffled, and rows that are equal never leave the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as st

from airflow_paimon.core.format.types import DataField, RowType
from airflow_paimon.data.diff.compare import plan_units
from airflow_paimon.data.diff.keyed import ComparisonUnit, KeyedComparison, differing_rows
from airflow_paimon.data.diff.scan import DiffPlan
from airflow_paimon.spark.char_columns import filled_frame
from airflow_paimon.spark.jobs.small_input import is_small_view
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.shares import slim_split, weight
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, to_shipped
from airflow_paimon.spark.tasks import map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE, BEFORE = "_change", "_before"


def diff_frame(spark: SparkSession, plan: DiffPlan) -> DataFrame:
    """Return the rows that differ, with ``_change`` and ``_before``; those of a small diff are read in this process."""
    comparison, units = plan_units(plan, 0)
    before = DataField(0, BEFORE, RowType(tuple(comparison.before.fields)))
    return filled_frame(_stored_rows(spark, plan, comparison, units), [*comparison.after.fields, before])


def _stored_rows(
    spark: SparkSession, plan: DiffPlan, comparison: KeyedComparison, units: Sequence[ComparisonUnit]
) -> DataFrame:
    columns = spark_schema(comparison.after.fields).fields
    about = [st.StructField(CHANGE, st.StringType()), st.StructField(BEFORE, spark_schema(comparison.before.fields))]
    schema = st.StructType([*columns, *about])
    if has_jvm(spark) and is_small_view(
        f for side in (plan.before, plan.after) for s in side.scan.splits for f in s.files
    ):
        batches = [batch for unit in units for batch in _shipped_rows(comparison, unit)]
        rows = pa.Table.from_batches(batches, _arrow_schema(comparison)) if batches else []
        return spark.createDataFrame(rows, schema)
    slim = [replace(u, before=tuple(map(slim_split, u.before)), after=tuple(map(slim_split, u.after))) for u in units]
    groups = pack(slim, lambda u: sum(weight(s) for s in (*u.before, *u.after)))
    return map_tasks(spark, groups, partial(_shipped_rows, comparison), schema)


def _arrow_schema(comparison: KeyedComparison) -> pa.Schema:
    columns, before = (shipped_schema(side.fields) for side in (comparison.after, comparison.before))
    return pa.schema([*columns, pa.field(CHANGE, pa.string()), pa.field(BEFORE, pa.struct(list(before)))])


def _shipped_rows(comparison: KeyedComparison, unit: ComparisonUnit) -> Iterator[pa.RecordBatch]:
    """Return a unit's differing rows in Spark's types; a deleted one has the columns' types of the branch."""
    schema = _arrow_schema(comparison)
    columns, before = (shipped_schema(side.fields) for side in (comparison.after, comparison.before))
    for found in differing_rows(comparison, unit):
        rows = to_shipped(found.rows, columns)
        was = pa.nulls(rows.num_rows, schema.field(BEFORE).type)
        if found.before is not None:
            was = pa.StructArray.from_arrays(to_shipped(found.before, before).columns, fields=list(before))
        change = pa.array([found.change] * rows.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*rows.columns, change, was], schema=schema)
