"""Statements on a table that is read together with another branch (``scan.fallback-branch``, ``scan.primary-branch``).

A statement changes files of the table's own branch only. It is refused where rows of the other branch may match, and
where readers would see another branch's rows instead of what it leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_paimon.core.errors import UnsafeOperationError, first_few
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.fallback_branches import plan_head_of_other, visible_in_other
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.spark.statements.outcome import StatementOutcome

_SHOWN = 3


def refuse_rows_of_other(plan: ScanPlan, predicate: Predicate | None) -> None:
    """Refuse a statement that rows of the other branch may match.

    Raises:
        UnsafeOperationError: names the branch and partitions.
    """
    other = plan_head_of_other(plan)
    if other is None:
        return
    shown = visible_in_other(plan, other)
    _, splits = plan_read(shown, predicate=predicate, layered=True, whole_buckets=True)
    found = [s.bucket for s in splits if s.files]
    if found:
        raise UnsafeOperationError(
            f"{plan.table.label}: the statement can match rows of branch {other.table.branch_name!r}, which readers "
            f"see in {_names(plan, found)}, and a statement changes rows of one branch. Name the partitions of "
            f"{plan.table.label} in WHERE (in ON of a MERGE), and run it on {other.table.label} for the others"
        )


def check_what_is_seen(outcome: StatementOutcome) -> None:
    """Refuse changes after which readers would see the other branch's rows in a changed partition.

    Raises:
        UnsafeOperationError: names the branch and partitions.
    """
    plan = outcome.read
    other = plan_head_of_other(plan)
    if other is None or not outcome.messages:
        return
    form = StoredPartitions(plan.schema).canonical
    theirs = {form(s.partition): s for s in other.splits if s.files}
    if TableOptions(plan.schema.options).primary_branch:
        hidden: Collection[bytes] = {form(m.partition) for m in outcome.messages}
    else:
        hidden = _emptied(outcome)
    found = [theirs[p] for p in sorted(hidden) if p in theirs]
    if found:
        outcome.discard()
        raise UnsafeOperationError(
            f"{plan.table.label}: after the statement readers would see the rows of branch "
            f"{other.table.branch_name!r} in {_names(plan, found)}; change or drop these partitions there first"
        )


def _emptied(outcome: StatementOutcome) -> set[bytes]:
    """Return the partitions that keep no file."""
    form = StoredPartitions(outcome.read.schema).canonical
    gone = {f.file_name for m in outcome.messages for f in m.replaced}
    kept = {form(s.partition) for s in outcome.read.splits if any(f.file_name not in gone for f in s.files)}
    new = {form(m.partition) for m in outcome.messages if m.new_files}
    return {form(m.partition) for m in outcome.messages if m.replaced} - kept - new


def _names(plan: ScanPlan, splits: Iterable[BucketSplit]) -> str:
    schema = plan.schema
    if not schema.partition_keys:
        return "the whole table"
    names = list(dict.fromkeys(shown_partition(schema, s.values) for s in splits))
    return f"partition {first_few(names, _SHOWN)}"
