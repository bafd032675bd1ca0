"""What a branch is compared with where nobody says it: its base, or main if the two share no snapshot."""

from __future__ import annotations

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CheckBranchData, DiffBranches
from airflow_paimon.core.table.history import branch_point, publish_target
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import resolve_version
from airflow_paimon.data.diff.differing_buckets import BASE, DiffPlan, plan_diff


def plan_own_changes(context: Context, branch: str, against: str = BASE) -> DiffPlan:
    """Plan what a branch has changed since its base, or, if it was created empty, in comparison with main.

    ``against``: ``main`` compares with main in any case. Of a chain table's branch, main is what it is published onto.

    Raises:
        PaimonError: as ``plan_diff`` does.
    """
    view = context.table.branch(branch).require()
    if against == MAIN or branch_point(context.table, view) is None:
        against = publish_target(context.table, view).branch_name
    return plan_diff(context, DiffBranches(table=context.table.name, branch=branch, against=against))


def planned_changes(context: Context, request: CheckBranchData) -> DiffPlan:
    """Plan what a check looks at: a branch's own changes, or what going back to a version of it would change.

    Raises:
        InvalidInputError: the version is the newest. PaimonError: as ``plan_diff`` does.
    """
    if request.version is None:
        return plan_own_changes(context, request.branch, request.against)
    view = context.table.branch(request.branch).require()
    (of, target), head = resolve_version(view, request.version), view.latest_snapshot()
    if of.branch_name != view.branch_name:
        raise InvalidInputError(
            f"{view.label}: {request.version} is a version of {of.label}; give a version of {view.label}"
        )
    if target is None or head is None or target.identity == head.identity:
        raise InvalidInputError(
            f"{view.label}: {request.version} is its newest snapshot, so nothing goes back to it; leave version "
            "(--version) out"
        )
    before = head if request.against == MAIN else view.snapshot(target.id + 1)
    diff = DiffBranches(table=context.table.name, branch=request.branch, against=f"{request.branch}@{before.id}")
    return plan_diff(context, diff, target)
