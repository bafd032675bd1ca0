"""Tasks that the DAGs which correct and undo have in common, and arguments of tasks that they share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import task

from airflow_paimon import notify
from airflow_paimon._compat import AirflowSkipException
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.runbooks.form import check_approval, end_as_failed, form_value, refuse_unknown, table_names
from airflow_paimon.task_run import in_airflows_terms, triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVAL_TIMEOUT = timedelta(hours=24)
CATCH_UP: dict[str, Any] = {"deferrable": True, "poke_interval": 30, "timeout": timedelta(hours=6).total_seconds()}
DEFAULTS: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "paimon_conn_id": "{{ params.paimon_conn_id }}",
    "spark_conn_id": "{{ params.spark_conn_id }}",
}
NEW_TAG: dict[str, Any] = {
    "time_retained": "{{ '' if params.tag_retention | trim | lower == 'forever' else params.tag_retention }}",
    "if_exists": "skip",
}
NEW_BRANCH: dict[str, Any] = {
    "if_exists": "skip",
    "branch_owner": "{{ dag.dag_id }}/{{ run_id }}",
    "reason": form_value("reason"),
}
SUBMISSION: dict[str, Any] = {"spark_conf": form_value("spark_conf"), "spark_options": form_value("spark_options")}
SPARK: dict[str, Any] = {**SUBMISSION, "run_on": "{{ 'spark' if params.in_spark else '' }}"}
"""Of tasks that read or write rows."""
APPROVED_BY = "{{ ti.xcom_pull(task_ids='approve')['approved_by'] or '' }}"
APPROVED_AT = "{{ ti.xcom_pull(task_ids='approve')['answered_at'] or '' }}"
PUBLISH: dict[str, Any] = {
    "approved_by": APPROVED_BY,
    "approved_at": APPROVED_AT,
    "four_eyes": "{{ params.four_eyes }}",
    "undo_retention": "{{ params.undo_retention }}",
    "writers_stopped": "{{ params.writers_stopped }}",
    **SUBMISSION,
}
MERGE = {name: f"{{{{ params.{name} }}}}" for name in ("revert_compaction", "keep_appended", "on_overlap")}
"""What only a merge of a branch takes."""
UNDO: dict[str, Any] = {
    "reason": form_value("reason"),
    "undo_retention": "{{ params.undo_retention }}",
    "writers_stopped": "{{ params.writers_stopped }}",
    "skip_checks": "{{ params.skip_checks }}",
}
UNDO_APPROVED: dict[str, Any] = {
    "approved_by": APPROVED_BY,
    "approved_at": APPROVED_AT,
    "four_eyes": "{{ ti.xcom_pull(task_ids='approve')['four_eyes'] }}",
}


def check_form(context: Context, params: Iterable[str]) -> None:
    """Refuse parameters that the form doesn't have, and people who can't be asked.

    Raises:
        InvalidInputError, UnsafeOperationError: says which, and why.
    """
    refuse_unknown(context["dag_run"].conf, params)
    check_approval(context["params"], APPROVAL_TIMEOUT, triggering_user(context))


def ask_for_approval(
    on_approve: str,
    *,
    asked_in: str = "report",
    required: str = "{{ params.approval }}",
    **arguments: Any,
) -> PublishApprovalOperator:
    """Make the task ``approve``, with the ``subject`` and ``markdown`` that the task ``asked_in`` has returned."""
    people: dict[str, Any] = {name: form_value(name) for name in ("notify", "approvers", "remind_before")}
    return PublishApprovalOperator(
        task_id="approve",
        subject=f"{{{{ ti.xcom_pull(task_ids='{asked_in}')['subject'] }}}}",
        body=f"{{{{ ti.xcom_pull(task_ids='{asked_in}')['markdown'] }}}}",
        required=required,
        on_approve=on_approve,
        on_reject="rejected",
        defaults=PublishApprovalOperator.REJECT,
        response_timeout=APPROVAL_TIMEOUT,
        **people,
        **arguments,
    )


def end_as_rejected(clean_up: Callable[[Context], tuple[str, list[str]]]) -> Any:
    """Make the task ``rejected``: it says who rejected it and what stands, and ends the run as failed.

    ``clean_up`` cleans up, and returns the outcome in a few words, and lines about it.
    """

    @task(retries=0)
    def rejected(**context: Any) -> None:
        """Say who rejected it and what stands, and clean up. Ends the run as failed."""
        by = context["ti"].xcom_pull(task_ids="approve")["approved_by"] or f"no answer within {APPROVAL_TIMEOUT}"
        with in_airflows_terms():
            outcome, lines = clean_up(context)  # type: ignore[arg-type]
        end_as_failed(f"Rejected ({by}): {outcome}", *lines, level=logging.WARNING)

    return rejected()


def approval_page(context: Context) -> None:
    """Skip what only an approver looks at, where nobody will be asked."""
    params = context["params"]
    if not params["approval"] and not notify.asks_four_eyes(PaimonHook(params["paimon_conn_id"]), table_names(params)):
        raise AirflowSkipException("Ask for approval is off: the rows are not reviewed")


def is_check_wanted(context: Context) -> None:
    """Skip the checks."""
    if context["params"]["skip_checks"]:
        raise AirflowSkipException("skip_checks is on: what the table requires is not checked")


def is_cleanup_wanted(context: Context) -> None:
    """Skip the cleaning up."""
    if context["params"]["keep_branch"]:
        raise AirflowSkipException("keep_branch is on: branches and tags stay")
