"""diff_branches: the rows in which a branch differs from another branch, or from where it started.

Buckets whose live files are the same on both sides are not read. Tables with a primary key are compared by key, bucket
by bucket; others as multisets of rows, and only files that one side does not have are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.data.diff.keyed import Findings, KeyedComparison, Unit, compare_unit
from airflow_paimon.data.diff.scan import DiffPlan, Side, plan_diff
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.jobs.diff_details import diff_details
from airflow_paimon.spark.jobs.diff_plain import Values, count_differences
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.read import slim_split, weight
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = list[tuple[Values, Findings]]


def diff_branches(spark: SparkSession, context: Context, request: DiffBranches) -> OperationResult:
    """Compare a branch with another branch, or with its base (``against="base"``). Changes nothing.

    ``details`` is what ``runbooks.diff_markdown.render_markdown`` takes.

    Raises:
        UnsafeOperationError: the branch shares no snapshot with main, so it has no base. InvalidInputError: the two
            sides have different keys, so their rows can't be compared.
    """
    plan = plan_diff(context, request)
    what = (
        f"diff_branches {plan.after.table.label}: {len(plan.differing)} buckets differ, {plan.skipped_buckets} are the "
        f"same on both sides"
    )
    found: Found = []
    if plan.differing:
        with task_errors(context.table.name), progress(spark, what):
            found = _compare_keyed(spark, plan, request) if plan.keys else _compare_plain(spark, plan, request)
    details = diff_details(plan, found, request)
    head = plan.after.snapshot.id if plan.after.snapshot is not None else None
    return context.result(None, branch=request.branch, changed=False, before=head, after=head, details=details)


def _compare_keyed(spark: SparkSession, plan: DiffPlan, request: DiffBranches) -> Found:
    before, old = _read(plan.before, plan)
    after, new = _read(plan.after, plan)
    comparison = KeyedComparison(keys=plan.keys, before=before, after=after, sample=request.sample)
    units = [
        Unit(
            values=unit.values,
            before=tuple(old[i] for i in unit.before if i in old),
            after=tuple(new[i] for i in unit.after if i in new),
        )
        for unit in plan.differing
    ]
    groups = pack(units, lambda u: sum(weight(s) for s in (*u.before, *u.after)))
    return collect(map_tasks(spark, groups, partial(_compare, comparison), SCHEMA))


def _compare(comparison: KeyedComparison, unit: Unit) -> Iterator[pa.RecordBatch]:
    return ship(lambda: [(unit.values, compare_unit(comparison, unit))])


def _read(side: Side, plan: DiffPlan) -> tuple[TableRead, dict[int, ReadSplit]]:
    """Plan the read of one side; the splits by the number of their bucket. A bucket can turn out to hold no row."""
    read, splits = plan_read(side.scan, columns=plan.columns, time_travel=True)
    number = {(s.partition, s.bucket): i for i, s in enumerate(side.scan.splits)}
    return read, {number[(s.bucket.partition, s.bucket.bucket)]: slim_split(s) for s in splits}


def _compare_plain(spark: SparkSession, plan: DiffPlan, request: DiffBranches) -> Found:
    before, after = (plan_read(s.scan, columns=plan.columns, time_travel=True) for s in (plan.before, plan.after))
    found = count_differences(spark, plan.after.schema, before, after, request.sample)
    return [*found, *_unchanged(plan, found)]


def _unchanged(plan: DiffPlan, found: Sequence[tuple[Values, Findings]]) -> Found:
    """What one side's files hold and the other side does not lack is unchanged."""
    out: Found = [(values, Findings(unchanged=rows)) for values, rows in plan.rows_before.items()]
    out += [(values, Findings(unchanged=-f.deleted)) for values, f in found]
    return out
