"""diff_branches: the rows in which a branch differs from another branch, or from where it started.

Buckets whose live files are the same on both sides are not read. Tables with a primary key are compared by key, bucket
by bucket; others as multisets of rows, of which those of row-tracking tables are paired by ``_ROW_ID``, and only files
that one side does not have are read. Small differences are compared in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.data.diff.compare import Found, compare_here, diff_result, is_small, plan_units, unchanged
from airflow_paimon.data.diff.keyed import ComparisonUnit, KeyedComparison, compare_unit
from airflow_paimon.data.diff.scan import DiffPlan, plan_diff
from airflow_paimon.data.scan import plan_read
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.jobs.diff_unkeyed import count_differences
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.shares import slim_split, weight
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        return _compare_keyed(spark, plan, sample) if plan.keys else _compare_plain(spark, plan, sample)


def _compare_keyed(spark: SparkSession, plan: DiffPlan, sample: int) -> Found:
    comparison, planned = plan_units(plan, sample)
    units = [
        replace(u, before=tuple(map(slim_split, u.before)), after=tuple(map(slim_split, u.after))) for u in planned
    ]
    groups = pack(units, lambda u: sum(weight(s) for s in (*u.before, *u.after)))
    return collect(map_tasks(spark, groups, partial(_compare, comparison), SCHEMA))


def _compare(comparison: KeyedComparison, unit: ComparisonUnit) -> Iterator[pa.RecordBatch]:
    return ship(lambda: [(unit.values, compare_unit(comparison, unit))])


def _compare_plain(spark: SparkSession, plan: DiffPlan, sample: int) -> Found:
    before, after = (plan_read(s.scan, columns=plan.read_columns) for s in (plan.before, plan.after))
    found = count_differences(spark, plan.after.scan.schema, before, after, sample, plan.shared_row_ids)
    return [*found, *unchanged(plan, found)]
