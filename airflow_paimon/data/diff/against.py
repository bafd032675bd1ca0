"""What a branch is compared with where nobody says it: its base, or main if the two share no snapshot."""

from __future__ import annotations

from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.history import branch_point, publish_target
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.data.diff.scan import BASE, DiffPlan, plan_diff


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
