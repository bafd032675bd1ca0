"""diff_branches by the engine ``connector``: partitions whose live files differ are read and compared in Spark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.data.diff.compare import WITH_SAMPLES, diff_result
from airflow_paimon.data.diff.scan import DiffPlan, plan_diff
from airflow_paimon.spark.connector.compare import Comparison, Found, compare_frames
from airflow_paimon.spark.connector.frames import Reader, in_partitions
from airflow_paimon.spark.connector.session import paimon_catalog
from airflow_paimon.spark.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def diff_branches(spark: SparkSession, context: Context, request: DiffBranches) -> OperationResult:
    """Compare like the embedded engine, with the same result. Changes nothing.

    Raises:
        UnsafeOperationError: the branch shares no snapshot with main, so it has no base. InvalidInputError: the two
            sides have different keys. UnsupportedFeatureError: the session has no connector.
    """
    reader = Reader(spark, paimon_catalog(spark, request))
    plan = plan_diff(context, request)
    differing = {u.values for u in plan.differing}
    what = (
        f"diff_branches {plan.after.scan.table.label}: {len(plan.differing)} buckets in {len(differing)} partitions "
        f"differ, {'the other' if plan.rest else plan.skipped_buckets} buckets are the same on both sides"
    )
    found: Found = []
    if differing:
        with progress(spark, what):
            found = _compare(reader, plan, request)
    # the buckets that are the same in a partition that differs were read with it: to Spark 0.0 is -0.0
    values = StoredPartitions(plan.after.scan.schema).values
    skipped = {p: s for p, s in plan.skipped.items() if values(p) not in differing}
    left = dataclasses.replace(plan, skipped=skipped, shared_row_ids=0)
    return diff_result(context, request, left, found)


def _compare(reader: Reader, plan: DiffPlan, request: DiffBranches) -> Found:
    where = in_partitions(plan.after.scan.schema, sorted({u.values for u in plan.differing}, key=repr))
    before, after = (
        reader.read(side.scan.table, side.scan.snapshot, side.scan.schema).where(where)
        for side in (plan.before, plan.after)
    )
    comparison = Comparison(schema=plan.after.scan.schema, keys=plan.keys, columns=plan.columns, sample=request.sample)
    return compare_frames(comparison, before, after, WITH_SAMPLES)
