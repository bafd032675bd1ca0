"""Undo a published correction: main gets its earlier files back, as one new snapshot.

check_params -> preview -> report -> approve -> undo -> verify. Only the partitions that the publish changed go back;
where main has newer rows in them it is refused (switch keep_later off to drop everything after the publish).
docs/runbook.md is the page for the person on call.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import pairwise
from typing import Any

from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.operators.branch import RollbackOperator
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.runbooks import notify
from airflow_paimon.runbooks import undo as runbook
from airflow_paimon.runbooks.form import (
    asked_by,
    end_as_failed,
    error_lines,
    errors_of,
    failed_tasks,
    given,
    in_airflows_terms,
    refuse_unknown,
    report_lines,
)
from airflow_paimon.runbooks.pages import with_links

APPROVAL_TIMEOUT = timedelta(hours=24)
PLANNED = "{{ ti.xcom_pull('check_params')['%s'] }}"

PARAMS = {
    "table": Param(
        type="string",
        minLength=3,
        title="Table",
        description="The table, as database.table",
    ),
    "tag": Param(
        None,
        type=["null", "string"],
        title="Undo tag",
        description="The tag airflow-paimon-undo-... that the correction's verify task named. Left empty: the last "
        "publish is undone.",
    ),
    "keep_later": Param(
        True,
        type="boolean",
        title="Keep what came later",
        description="On: only what the publish changed goes back; refused where it changed again. Off: main becomes "
        "what it was before the publish, and loses everything that was written since.",
    ),
    "writers_stopped": Param(
        False,
        type="boolean",
        title="Writers are stopped",
        description="Promise that no writer of main stays open over the undo: needed where a table with dynamic "
        "buckets (bucket=-1) loses the keys that the publish brought.",
    ),
    "changelog": Param(
        "auto",
        enum=["auto", "none"],
        title="Streaming readers",
        description="On a table with a changelog-producer, auto reads both sides of what goes back and tells streaming "
        "readers the changes; none is faster and tells them nothing.",
    ),
    "reason": Param(None, type=["null", "string"], title="Reason", description="Shown to the approver."),
    "approval": Param(
        False,
        type="boolean",
        title="Ask for approval",
        description="Wait until somebody has looked at what would change and approved it. Where the Paimon "
        "connection asks for four eyes, it is asked always.",
    ),
    "notify": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Notify",
        description="Who hears that the approval waits, and who answered it: names from the Paimon connection's extra "
        "notify, one a line. Left empty: all of them.",
    ),
    "remind_before": Param(
        None,
        type=["null", "string"],
        title="Remind before",
        description="How long before the approval runs out they hear again, such as 2 h; or: never. Left empty: the "
        "Paimon connection's, or a quarter of the time.",
    ),
    "approvers": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Approvers",
        description="Ids of the users who may answer, one a line; some of the Paimon connection's approvers. Left "
        "empty: all of those, or everybody if it names none.",
    ),
    "undo_retention": Param(
        "7 d",
        type="string",
        title="Undo for",
        description="How long the undo itself can be undone, such as 7 d; or: forever.",
    ),
    "paimon_conn_id": Param(
        "paimon_default",
        type="string",
        title="Paimon connection",
        description="Airflow connection with the warehouse.",
    ),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form, and find the tag to go back to."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, PARAMS)
        notify.check_form(context["params"], APPROVAL_TIMEOUT, asked_by(context))
        planned = runbook.plan_undo(context["params"])
    report_lines(*planned["lines"])
    return planned


@task(multiple_outputs=False, show_return_value_in_logs=False)
def report(**context: Any) -> dict[str, Any]:
    """Render what would change."""
    ti = context["ti"]
    planned, preview = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="preview")
    made = runbook.describe_plan(context["params"], planned, preview, asked_by(context))
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(retries=0)
def rejected(**context: Any) -> None:
    """Say who rejected it. Ends the run as failed: nothing was undone."""
    by = context["ti"].xcom_pull(task_ids="approve")["approved_by"] or f"no answer within {APPROVAL_TIMEOUT}"
    summary = f"Rejected ({by}): nothing was undone, main is as it was"
    report_lines(summary, level=logging.WARNING)
    end_as_failed(summary)


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
def how_to_go_on(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    errors = errors_of(context, failed_tasks(context))
    undone = context["ti"].xcom_pull(task_ids="undo")
    outcome = f"main was undone, as snapshot {undone['snapshot_after']}" if undone else "main is as it was"
    summary = f"{', '.join(errors)} failed; {outcome}"
    first = next(iter(errors))
    report_lines(summary, *error_lines(errors), runbook.what_helps(first, errors[first]), level=logging.ERROR)
    end_as_failed(summary)


with DAG(
    "data_correction_undo",
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["paimon"],
    description="Undo a published correction of a Paimon table",
    doc_md=with_links(__doc__),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "table": "{{ params.table }}",
        "paimon_conn_id": "{{ params.paimon_conn_id }}",
    },
) as dag:
    checked = check_params()
    rollback = {
        "tag": PLANNED % "tag",
        "keep_later": "{{ params.keep_later }}",
        "writers_stopped": "{{ params.writers_stopped }}",
        "changelog": "{{ params.changelog }}",
        "undo_retention": "{{ params.undo_retention }}",
    }
    preview = RollbackOperator(task_id="preview", dry_run=True, **rollback)
    reported = report()
    approve = PublishApprovalOperator(
        task_id="approve",
        subject="{{ ti.xcom_pull('report')['subject'] }}",
        body="{{ ti.xcom_pull('report')['markdown'] }}",
        required="{{ params.approval }}",
        on_approve="undo",
        on_reject="rejected",
        defaults=PublishApprovalOperator.REJECT,
        response_timeout=APPROVAL_TIMEOUT,
        notify=given("notify"),
        approvers=given("approvers"),
        remind_before=given("remind_before"),
    )
    undo = RollbackOperator(
        task_id="undo",
        approved_by="{{ ti.xcom_pull('approve')['approved_by'] or '' }}",
        four_eyes="{{ ti.xcom_pull('approve')['four_eyes'] }}",
        outlets=[AssetAlias("data_correction")],
        **rollback,
    )
    verified = verify()
    steps = [checked, preview, reported, approve, undo, verified]
    for earlier, later in pairwise(steps):
        earlier >> later
    approve >> rejected()
    steps >> how_to_go_on()
