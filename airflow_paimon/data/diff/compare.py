"""Runs a planned diff in this process, with the parts that a job with tasks shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.branches.ownership import described
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.lineage import read_lineage
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.data.diff.details import diff_details
from airflow_paimon.data.diff.keyed import Findings, KeyedComparison, Unit, compare_unit
from airflow_paimon.data.diff.plain import compare_rows
from airflow_paimon.data.diff.scan import DiffPlan, Side, plan_diff
from airflow_paimon.data.in_process import fits_in_process
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read

Found = list[tuple[tuple[Any, ...], Findings]]


def small_diff(context: Context, request: DiffBranches) -> OperationResult | None:
    """Compare a branch with another branch, or with its base, if the difference is small; None if it is too large.

    Raises:
        UnsafeOperationError: the branch shares no snapshot with main, so it has no base. InvalidInputError: the two
            sides have different keys, so their rows can't be compared.
    """
    plan = plan_diff(context, request)
    return diff_result(context, request, plan, compare_here(plan, request.sample)) if is_small(plan) else None


def is_small(plan: DiffPlan) -> bool:
    """Whether the differing buckets are so small that this process compares them faster than tasks would start."""
    return fits_in_process(f for side in (plan.before, plan.after) for s in side.scan.splits for f in s.files)


def compare_here(plan: DiffPlan, sample: int) -> Found:
    """Compare all differing buckets in this process, one after the other."""
    if plan.keys:
        comparison, units = plan_units(plan, sample)
        return [(unit.values, compare_unit(comparison, unit)) for unit in units]
    before, after = (plan_read(s.scan, columns=plan.read_columns, time_travel=True) for s in (plan.before, plan.after))
    found = compare_rows(plan.after.schema, before, after, sample, plan.shared_row_ids)
    return [*found, *unchanged(plan, found)]


def plan_units(plan: DiffPlan, sample: int) -> tuple[KeyedComparison, list[Unit]]:
    """Plan the comparison by key, unit by unit. A bucket can turn out to hold no row."""
    before, old = _read(plan.before, plan)
    after, new = _read(plan.after, plan)
    units = [
        Unit(
            values=unit.values,
            before=tuple(old[i] for i in unit.before if i in old),
            after=tuple(new[i] for i in unit.after if i in new),
        )
        for unit in plan.differing
    ]
    return KeyedComparison(keys=plan.keys, before=before, after=after, sample=sample), units


def _read(side: Side, plan: DiffPlan) -> tuple[TableRead, dict[int, ReadSplit]]:
    """Plan the read of one side; returns the splits by bucket number."""
    read, splits = plan_read(side.scan, columns=plan.columns, time_travel=True, in_key_order=True)
    number = {(s.partition, s.bucket): i for i, s in enumerate(side.scan.splits)}
    return read, {number[(s.bucket.partition, s.bucket.bucket)]: s for s in splits}


def unchanged(plan: DiffPlan, found: Sequence[tuple[tuple[Any, ...], Findings]]) -> Found:
    """Count one side's rows that the other side has as well (tables without primary key)."""
    values = StoredPartitions(plan.after.schema).values
    out: Found = [(values(stored), Findings(unchanged=rows)) for stored, rows in plan.rows_before.items()]
    out += [(at, Findings(unchanged=-f.deleted - f.changed)) for at, f in found]
    return out


def diff_result(context: Context, request: DiffBranches, plan: DiffPlan, found: Found) -> OperationResult:
    """Build the result, whose details ``runbooks.diff_markdown.render_markdown`` renders. A diff changes nothing."""
    record = read_lineage(context.table, request.branch)
    about = {"about": described(record)} if record is not None else {}
    details = diff_details(plan, found, request, context.table.schema()) | about
    head = plan.after.snapshot.id if plan.after.snapshot is not None else None
    return context.result(None, branch=request.branch, changed=False, before=head, after=head, details=details)
