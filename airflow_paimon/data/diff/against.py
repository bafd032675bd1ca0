"""What a branch is compared with where nobody says it: its base, or main if the two share no snapshot."""

from __future__ import annotations

from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.data.diff.scan import BASE, DiffPlan, plan_diff


def plan_own_changes(context: Context, branch: str) -> DiffPlan:
    """Plan what a branch has changed: since its base, or, if it was created empty, in comparison with main.

    Raises:
        PaimonError: as ``plan_diff`` does.
    """
    view = context.table.branch(branch).require()
    against = BASE if branch_point(context.table, view) is not None else MAIN
    return plan_diff(context, DiffBranches(table=context.table.name, branch=branch, against=against))
