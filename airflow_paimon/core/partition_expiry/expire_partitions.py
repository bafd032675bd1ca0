"""expire_partitions: drops old partitions with a commit; their data files are deleted when the snapshots expire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.chain.expire import chain_expiry
from airflow_paimon.core.chain.provenance import prune_records
from airflow_paimon.core.commit.conditions import Condition
from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.partition_expiry.drop_run import DropStep, ExpiryPlan, PartitionDrop, run_drops
from airflow_paimon.core.partition_expiry.partition_expiry_plan import (
    ExpiryRule,
    cutoff_at,
    expiry_limit,
    expiry_rule,
    plan_partition_expiry,
)
from airflow_paimon.core.publish.approval import approval_properties, changes_readers_rows, check_four_eyes
from airflow_paimon.core.publish.required_checks import refuse_without_checks, unchecked_properties
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpirePartitions
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table

_LISTED = 100


def expire_partitions(context: Context, request: ExpirePartitions) -> OperationResult:
    """Drop the partitions of an ordinary table, or the segments of a chain table, that are older than requested.

    Raises:
        InvalidInputError: no age is given, or the request does not fit the table.
        ConflictError: the partitions to drop kept changing.
        UnsafeOperationError: the request has an age of its own, and four eyes or checks are asked for.
    """
    properties = _approved(context, request)
    if TableOptions(context.table.schema().options).chain_table:
        result = run_drops(context, chain_expiry(context, request), properties)
        if result.changed and not request.dry_run:
            prune_records(context.table, context.now_ms)
        return result
    return run_drops(context, _ordinary(context, request), properties)


def _approved(context: Context, request: ExpirePartitions) -> dict[str, str]:
    """Check that what doesn't go by the table's own options may go; returns what the snapshots say of that."""
    view = context.table.branch(request.branch).require()
    four_eyes = check_four_eyes(request, view, "expired")
    properties = approval_properties(request, four_eyes=four_eyes)
    if not changes_readers_rows(request, view):
        return properties
    refuse_without_checks(request, context.table, "expired")
    return properties | unchecked_properties(context.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrdinaryExpiry:
    """One branch of an ordinary table. ``schema`` is the newest when the operation began."""

    view: Table
    schema: TableSchema
    rule: ExpiryRule
    cutoff: datetime
    limit: int
    guard_options: None = None

    @property
    def branch(self) -> str:
        return self.view.branch_name

    def plan(self, cutoff: datetime) -> ExpiryPlan:
        head = self.view.latest_snapshot()
        scan = plan_snapshot(self.view, head, self.schema)
        found = plan_partition_expiry(self.schema, partition_contents(scan), self.rule, cutoff, self.limit)
        what = "last updated" if self.rule.strategy == "update-time" else "its time is"
        drops = tuple(PartitionDrop.of(h, f"{what} {t}, before {cutoff}") for h, t in found.expired)
        warnings = _reappearing(self.schema, self.view) if drops else []
        if found.unreadable:
            warnings.append(
                f"{len(found.unreadable)} partitions have no readable time and stay (details.unreadable): check "
                "partition.timestamp-pattern and -formatter, drop them yourself, or use strategy update-time"
            )
        report = {
            "strategy": self.rule.strategy,
            "kept": found.younger,
            "over_limit": found.over_limit,
            "unreadable": [h.text for h in found.unreadable[:_LISTED]],
            "warnings": warnings,
        }
        steps = (DropStep(branch=self.branch, drops=drops),) if drops else ()
        return ExpiryPlan(cutoff=cutoff, preconditions=(scan.precondition,), steps=steps, report=report)

    def conditions(self, plan: ExpiryPlan, step: DropStep) -> Sequence[Condition]:
        """None: the commit compares the partitions' own files."""
        return ()

    def needed_again(self, plan: ExpiryPlan, step: DropStep) -> frozenset[str]:
        """Empty: no partition of an ordinary table depends on another one."""
        return frozenset()


def _ordinary(context: Context, request: ExpirePartitions) -> _OrdinaryExpiry:
    view = context.table.branch(request.branch).require()
    schema = view.schema()
    if request.min_full_partitions != 1:
        raise InvalidInputError(f"{view.label}: min_full_partitions is for chain tables only; leave it out")
    rule = expiry_rule(
        schema,
        view.label,
        expiration_time=request.expiration_time,
        strategy=request.strategy,
        pattern=request.timestamp_pattern,
        formatter=request.timestamp_formatter,
    )
    return _OrdinaryExpiry(
        view=view,
        schema=schema,
        rule=rule,
        cutoff=cutoff_at(context.now_local, rule.age, view.label),
        limit=expiry_limit(request.limit, TableOptions(schema.options), view.label),
    )


def _reappearing(schema: TableSchema, view: Table) -> list[str]:
    options = TableOptions(schema.options)
    other = options.fallback_branch or options.primary_branch
    if other is None:
        return []
    return [
        f"{view.label} is read together with branch {other!r} (scan.fallback-branch or scan.primary-branch): where "
        f"that one has an expired partition, readers see its rows; expire that branch, too"
    ]
