"""diff_branches: the rows in which a branch differs from another branch, or from where it started.

Buckets whose live files are the same on both sides are not read. Tables with a primary key are compared by key, bucket
by bucket: both sides of a bucket are sorted by key, so nothing is shuffled, and rows that are equal never leave the
tasks. Others are compared as multisets of rows, in Spark's own plan, of which those of row-tracking tables are paired
by ``_ROW_ID``, and only files that one side does not have are read. Small differences are compared in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.types import DataField, RowType
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.data.diff.differing_buckets import DiffPlan, plan_diff
from airflow_paimon.data.diff.keyed import ComparisonUnit, KeyedComparison, compare_unit, differing_rows
from airflow_paimon.data.diff.run_diff import Found, compare_here, diff_result, is_small, plan_units, unchanged
from airflow_paimon.data.diff.unkeyed import COUNT, PAIRED, count_surplus
from airflow_paimon.data.files.arrow_types import ROW_ID
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.spark.char_columns import filled_frame
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.jobs.small_input import is_small_view
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.shares import slim_split, weight
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, sql_name, to_shipped
from airflow_paimon.spark.tasks import SCHEMA, collect, map_in_arrow, map_tasks, pack, ship

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

CHANGE, BEFORE = "_change", "_before"
_ROWS = internal_column("rows")


def diff_branches(spark: SparkSession, context: Context, request: DiffBranches) -> OperationResult:
    """Compare a branch with another branch, or with its base (``against="base"``). Changes nothing.

    ``details`` is what ``shown.diff_markdown.render_markdown`` takes.

    Raises:
        UnsafeOperationError: the branch shares no snapshot with main, so it has no base. InvalidInputError: the two
            sides have different keys, so their rows can't be compared.
    """
    plan = plan_diff(context, request)
    return diff_result(context, request, plan, find_differences(spark, plan, request.sample))


def find_differences(spark: Any, plan: DiffPlan, sample: int) -> Found:
    """Compare what a plan says, in this process where it is little.

    ``spark``: a session; None will do where it is little.

    Raises:
        PaimonError: a file can't be read.
    """
    if is_small(plan):
        return compare_here(plan, sample)
    what = (
        f"diff_branches {plan.after.scan.table.label}: {len(plan.differing)} buckets differ, "
        f"{'the others' if plan.rest else plan.skipped_buckets} are the same on both sides"
    )
    if not plan.differing:
        return []
    with task_errors(), progress(spark, what):
        return _compare_keyed(spark, plan, sample) if plan.keys else _compare_unkeyed(spark, plan, sample)


def _compare_keyed(spark: SparkSession, plan: DiffPlan, sample: int) -> Found:
    comparison, units = plan_units(plan, sample)

    def compare(unit: ComparisonUnit) -> Iterator[pa.RecordBatch]:
        return ship(lambda: [(unit.values, compare_unit(comparison, unit))])

    return collect(map_tasks(spark, _unit_groups(units), compare, SCHEMA))


def _unit_groups(units: Sequence[ComparisonUnit]) -> list[list[ComparisonUnit]]:
    """Return the buckets that each task compares."""
    slim = [replace(u, before=tuple(map(slim_split, u.before)), after=tuple(map(slim_split, u.after))) for u in units]
    return pack(slim, lambda u: sum(weight(s) for s in (*u.before, *u.after)))


def _compare_unkeyed(spark: SparkSession, plan: DiffPlan, sample: int) -> Found:
    """Like ``data.diff.unkeyed.compare_rows``, in parts."""
    schema, columns = plan.after.scan.schema, plan.read_columns
    sides = [plan_read(side.scan, columns=columns) for side in (plan.before, plan.after)]
    before, after = (frame_of(spark, plan_of(side)) for side in sides)
    grouped = surplus(before, after, sides[0][0].columns)
    if plan.shared_row_ids:
        grouped = _paired(grouped, schema.partition_keys, plan.shared_row_ids)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: count_surplus(batches, schema, sample).items())

    found = collect(map_in_arrow(grouped, work, SCHEMA))
    return [*found, *unchanged(plan, found)]


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


def diff_frame(spark: SparkSession, plan: DiffPlan) -> DataFrame:
    """Return the rows that differ, with ``_change`` and ``_before``; those of a small diff are read in this process."""
    comparison, units = plan_units(plan, 0)
    before = DataField(0, BEFORE, RowType(tuple(comparison.before.fields)))
    return filled_frame(_stored_rows(spark, plan, comparison, units), [*comparison.after.fields, before])


def _stored_rows(
    spark: SparkSession, plan: DiffPlan, comparison: KeyedComparison, units: Sequence[ComparisonUnit]
) -> DataFrame:
    from pyspark.sql import types as st

    columns = spark_schema(comparison.after.fields).fields
    about = [st.StructField(CHANGE, st.StringType()), st.StructField(BEFORE, spark_schema(comparison.before.fields))]
    schema = st.StructType([*columns, *about])
    if has_jvm(spark) and is_small_view(
        f for side in (plan.before, plan.after) for s in side.scan.splits for f in s.files
    ):
        batches = [batch for unit in units for batch in _shipped_rows(comparison, unit)]
        rows = pa.Table.from_batches(batches, _arrow_schema(comparison)) if batches else []
        return spark.createDataFrame(rows, schema)
    return map_tasks(spark, _unit_groups(units), partial(_shipped_rows, comparison), schema)


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
