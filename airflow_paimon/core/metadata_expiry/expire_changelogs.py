"""expire_changelogs: changelogs that outlive their snapshots, as the options ``changelog.num-retained.*`` have it.

They go the way of snapshots: into the trash, and after the grace time what no other root names is deleted.
"""

from __future__ import annotations

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.metadata_expiry.ages import time_before
from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import (
    changelog_hints,
    chosen_branches,
    every_branch,
    expiry_report,
    options_of,
)
from airflow_paimon.core.metadata_expiry.expiry_run import ExpirySelection, run_expiry
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import (
    BranchExpiry,
    SnapshotRule,
    plan_changelogs,
    retention_rule,
)
from airflow_paimon.core.metadata_expiry.root_values import CHANGELOG, Roots
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpireChangelogs
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table


def expire_changelogs(context: Context, request: ExpireChangelogs) -> OperationResult:
    """Expire long-lived changelogs of a branch, or of all, and delete what only they name.

    Raises:
        InvalidInputError: the arguments contradict each other, or the time is naive or in the future.
        FormatError: something that is needed can't be read. ConflictError: see ``run_expiry``.
    """
    table = context.table
    branches = chosen_branches(table, request)
    older_than_ms = time_before(request.older_than, context.now_ms, table.name)
    limits = (older_than_ms, request.retain_min, request.retain_max, request.max_deletes)
    if request.delete_all and any(limit is not None for limit in limits):
        raise InvalidInputError(
            f"{table.name}: delete_all expires all long-lived changelogs; leave older_than, retain_min, retain_max and "
            f"max_deletes out, or delete_all"
        )

    def rule(view: Table, options: TableOptions) -> SnapshotRule | None:
        if request.delete_all:
            return None
        return retention_rule(
            options,
            view.label,
            now_ms=context.now_ms,
            kind=CHANGELOG,
            older_than_ms=older_than_ms,
            retain_min=request.retain_min,
            retain_max=request.retain_max,
            max_deletes=request.max_deletes,
        )

    def choose(roots: Roots) -> ExpirySelection:
        plans: list[tuple[Table, BranchExpiry]] = []
        for view in (table.branch(name) for name in branches or every_branch(roots)):
            options = options_of(view)
            if options is not None:
                plans.append((view, plan_changelogs(roots, view.branch_name, rule(view, options))))
        return ExpirySelection(
            expiring=tuple(r for _, plan in plans for r in plan.expired),
            reason="older than is to be kept",
            after=tuple(action for view, plan in plans for action in changelog_hints(view, plan)),
            report=expiry_report([plan for _, plan in plans], "changelogs"),
        )

    return run_expiry(context, choose, operations_since_ms=context.now_ms)
