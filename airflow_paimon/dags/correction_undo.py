"""Undo a published correction: main gets its earlier files back, as one new snapshot.

check_params -> preview -> check -> diff -> report -> approve -> wait_for_quiet -> undo -> verify. check runs the checks
that the table requires on what comes back. Only the partitions that the publish changed go back; where main has newer
rows in them it is refused (switch keep_later off to drop everything after the publish).
docs/runbook.md is the page for the person on call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, task

from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.dags.flink_jobs import FlinkJob, need_not_wait, of_publishes, stops_shown, with_field
from airflow_paimon.dags.publishing import QUIET, add_in_order
from airflow_paimon.locked_fields import locked_names
from airflow_paimon.operators.branch import DiffBranchesOperator, RollbackOperator
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.runbooks import undo as runbook
from airflow_paimon.runbooks.fields import choice, shared_by_undos, switch, text
from airflow_paimon.runbooks.form import (
    check_policy,
    end_as_failed,
    error_lines,
    failed_errors,
    in_airflows_terms,
    report_lines,
)
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.runbooks.tasks import (
    DEFAULTS,
    SPARK,
    UNDO,
    UNDO_APPROVED,
    ask_for_approval,
    check_form,
    end_as_rejected,
    unless_checks_are_skipped,
    where_asked,
)
from airflow_paimon.sensors.quiet import BucketsQuietSensor
from airflow_paimon.shown.markdown import where_it_ran
from airflow_paimon.task_run import triggering_user

MORE = "More: the rows that the approver sees"
PLANNED = "{{ ti.xcom_pull('check_params')['%s'] }}"

PARAMS = {
    **shared_by_undos("table"),
    "tag": text(
        "Undo tag",
        "The tag airflow-paimon-undo-... that the correction's verify task named. Empty: the last publish is undone, "
        "whichever it is.",
    ),
    "keep_later": switch(
        "Preserve later changes",
        "On: restore only what the publish changed, and keep later changes, also of other keys; "
        "refused if the same rows changed again. Off: main becomes what it was before the "
        "publish, and loses every later commit.",
        on=True,
    ),
    **shared_by_undos("writers_stopped", "wait_for_quiet"),
    "changelog": choice(
        "Streaming readers",
        "For a table with a changelog-producer. auto: read both sides of what is restored, and "
        "emit the changes to streaming readers. none: emit nothing; readers keep the undone rows.",
        ["auto", "none"],
    ),
    **shared_by_undos(
        "reason", "approval", "notify", "remind_before", "approvers", "undo_retention", "skip_checks", "paimon_conn_id"
    ),
    **shared_by_undos("sample_rows", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form, and find the tag to go back to."""
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        check_policy(context["params"], locked_names(context["dag"].params))
        planned = runbook.plan_undo(context["params"])
    report_lines(*planned["lines"])
    return planned


@task(multiple_outputs=False, show_return_value_in_logs=False, trigger_rule="none_failed")
def report(**context: Any) -> dict[str, Any]:
    """Render what would change."""
    planned, preview, diff = (context["ti"].xcom_pull(task_ids=name) for name in ("check_params", "preview", "diff"))
    made = runbook.describe_plan(context["params"], planned, preview, triggering_user(context), diff)
    ran = where_it_ran({"check": context["ti"].xcom_pull(task_ids="check"), "diff": diff})
    made["markdown"] += (f"\n\n{ran}" if ran else "") + stops_shown(context)
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(multiple_outputs=False, show_return_value_in_logs=False)
def verify(**context: Any) -> dict[str, Any]:
    """Compare main with the target, bucket by bucket."""
    ti = context["ti"]
    with in_airflows_terms():
        found = runbook.verify_undone(
            context["params"], ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="undo")
        )
    report_lines(*found["lines"])
    return found


@task(trigger_rule="one_failed", retries=0)
def report_failure(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    if not (errors := failed_errors(context)):
        raise AirflowSkipException("Nothing failed")
    undone = context["ti"].xcom_pull(task_ids="undo")
    outcome = f"main was undone, as snapshot {undone['snapshot_after']}" if undone else "main is as it was"
    helps = runbook.what_helps(*next(iter(errors.items())))
    end_as_failed(f"{', '.join(errors)} failed; {outcome}", *error_lines(errors), *helps)


DEFAULT_ARGS: dict[str, Any] = {
    **DEFAULTS,
    "table": "{{ params.table }}",
    "spark_conn_id": "{{ params.spark_conn_id }}",
}


def correction_undo_dag(
    dag_id: str = "data_correction_undo", *, flink_jobs: Sequence[FlinkJob] = (), **changes: Unpack[Changes]
) -> DAG:
    """Make the DAG that undoes a published correction.

    ``flink_jobs``: as of ``correction_dag``. The rest: :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        partial(add_tasks, flink_jobs),
        changes,
        params=with_field(PARAMS, flink_jobs),
        default_args=DEFAULT_ARGS,
        description="Undo a published correction of a Paimon table",
        doc=__doc__,
        kind=Kind.UNDO,
    )


def add_tasks(flink_jobs: Sequence[FlinkJob]) -> None:
    """Add the tasks, in the order of their names above."""
    rollback = {
        "tag": PLANNED % "tag",
        "keep_later": "{{ params.keep_later }}",
        "changelog": "{{ params.changelog }}",
        **UNDO,
    }
    preview = RollbackOperator(task_id="preview", dry_run=True, pre_execute=need_not_wait, **rollback)
    check = CheckBranchOperator(
        task_id="check",
        table="{{ ti.xcom_pull('check_params')['compared']['table'] }}",
        branch=PLANNED % "branch",
        version=PLANNED % "tag",
        against="{{ 'base' if params.keep_later else 'main' }}",
        pre_execute=unless_checks_are_skipped,
        **SPARK,
    )
    diff = DiffBranchesOperator(
        task_id="diff",
        table="{{ ti.xcom_pull('check_params')['compared']['table'] }}",
        branch="{{ ti.xcom_pull('check_params')['compared']['branch'] }}",
        against="{{ ti.xcom_pull('check_params')['compared']['against'] }}",
        sample="{{ params.sample_rows }}",
        pre_execute=where_asked,
        trigger_rule="none_failed",
        **SPARK,
    )
    quiet = BucketsQuietSensor(tag=PLANNED % "tag", keep_later="{{ params.keep_later }}", **QUIET)
    undo = RollbackOperator(
        task_id="undo",
        **UNDO_APPROVED,
        outlets=[AssetAlias("data_correction")],
        **of_publishes(flink_jobs),
        **rollback,
    )
    add_in_order(
        [check_params(), preview, check, diff, report(), ask_for_approval("wait_for_quiet")],
        end_as_rejected(lambda context: ("nothing was undone, main is as it was", [])),
        quiet,
        [undo],
        [verify()],
        report_failure(),
        flink_jobs=flink_jobs,
    )
