"""Who asked for what brings rows to main or takes rows from it, and whether somebody else has to approve it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.requests import Approved, ExpirePartitions, RollbackTo
from airflow_paimon.task_run import triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.hooks.paimon import PaimonHook


def with_requester(request: Approved, hook: PaimonHook, context: Context) -> Approved:
    """Take the user who triggered the run as the one who asked for it, even if the argument names another; ask for four
    eyes where the connection does.
    """
    user = triggering_user(context)
    four_eyes = request.four_eyes or (hook.four_eyes and _changes_readers_rows(request, hook))
    return replace(request, four_eyes=four_eyes, requested_by=request.requested_by if user is None else user)


def _changes_readers_rows(request: Approved, hook: PaimonHook) -> bool:
    from airflow_paimon.core.publish.approval import changes_readers_rows  # not for every DAG that is parsed

    branch = request.branch if isinstance(request, RollbackTo | ExpirePartitions) else "main"
    return changes_readers_rows(request, hook.get_table(request.table, branch))
