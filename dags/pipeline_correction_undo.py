"""Undo a correction of a pipeline: main of each of its tables gets its earlier files back, the last table first.

check_params -> approve -> undo -> verify. Only the partitions that the publishes changed go back; where one of the
tables has newer rows in them, all of it is refused before anything is undone. To undo one table alone, or to drop what
came later: data_correction_undo. docs/howto/pipeline-correction.md explains both.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.operators.pipeline import UndoTablesOperator
from airflow_paimon.runbooks import notify
from airflow_paimon.runbooks import pipeline_report as pages
from airflow_paimon.runbooks.form import (
    asked_by,
    end_as_failed,
    error_lines,
    failed_errors,
    given,
    in_airflows_terms,
    pulled,
    refuse_unknown,
    report_lines,
)
from airflow_paimon.runbooks.pages import with_links

APPROVAL_TIMEOUT = timedelta(hours=24)

PARAMS = {
    "tables": Param(
        type="array",
        items={"type": "string"},
        minItems=1,
        title="Tables",
        description="The tables in the order in which they were published, one a line, as database.table; the log of "
        "the run's task verify has them.",
    ),
    "branch": Param(
        type="string",
        minLength=1,
        title="Branch",
        description="The run's branch, which all of these tables had; the log of the run's task verify names it.",
    ),
    "writers_stopped": Param(
        False,
        type="boolean",
        title="Writers are stopped",
        description="Promise that no writer of any main stays open over the undo: needed where a table with dynamic "
        "buckets (bucket=-1) loses the keys that the publish brought.",
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
        description="Airflow connection with the warehouse of all tables.",
    ),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form, find the publishes, and plan to undo all of them."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, PARAMS)
        notify.check_form(context["params"], APPROVAL_TIMEOUT, asked_by(context))
        found = pages.plan_undo(context["params"], asked_by(context))
    report_lines(found["subject"], *found["lines"], *found["markdown"].splitlines())
    return found


@task(retries=0)
def rejected(**context: Any) -> None:
    """Say who rejected it. Ends the run as failed: nothing was undone."""
    by = context["ti"].xcom_pull(task_ids="approve")["approved_by"] or f"no answer within {APPROVAL_TIMEOUT}"
    summary = f"Rejected ({by}): nothing was undone"
    report_lines(summary, level=logging.WARNING)
    end_as_failed(summary)


@task(multiple_outputs=False, show_return_value_in_logs=False)
def verify(**context: Any) -> list[str]:
    """Compare main of each table with its tag, bucket by bucket."""
    ti = context["ti"]
    tables = ti.xcom_pull(task_ids="check_params")["tables"]
    with in_airflows_terms():
        lines = pages.verify_undone(context["params"], tables, ti.xcom_pull(task_ids="undo"))
    report_lines(*lines)
    return lines


@task(trigger_rule="one_failed", retries=0)
def how_to_go_on(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    errors = failed_errors(context)
    helps = (
        "What helps: correct what the message names and trigger pipeline_correction_undo again: it goes on with the "
        "tables that are not undone yet. Where main got newer rows in the partitions to undo, correct them with "
        "data_correction, or undo that table with data_correction_undo and Keep what came later off"
    )
    summary = f"{', '.join(errors)} failed"
    report_lines(summary, *error_lines(errors), helps, level=logging.ERROR)
    end_as_failed(summary)


with DAG(
    "pipeline_correction_undo",
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["paimon"],
    description="Undo a published correction of a pipeline, in all of its tables",
    doc_md=with_links(__doc__),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "paimon_conn_id": "{{ params.paimon_conn_id }}",
    },
) as dag:
    checked = check_params()
    approve = PublishApprovalOperator(
        task_id="approve",
        table="{{ ti.xcom_pull(task_ids='check_params')['tables'][0]['table'] }}",
        subject="{{ ti.xcom_pull(task_ids='check_params')['subject'] }}",
        body="{{ ti.xcom_pull(task_ids='check_params')['markdown'] }}",
        required="{{ params.approval }}",
        on_approve="undo",
        on_reject="rejected",
        defaults=PublishApprovalOperator.REJECT,
        response_timeout=APPROVAL_TIMEOUT,
        notify=given("notify"),
        approvers=given("approvers"),
        remind_before=given("remind_before"),
    )
    undo = UndoTablesOperator(
        task_id="undo",
        tables=pulled("check_params", "tables"),
        keep_later=True,
        writers_stopped="{{ params.writers_stopped }}",
        approved_by="{{ ti.xcom_pull(task_ids='approve')['approved_by'] or '' }}",
        four_eyes="{{ ti.xcom_pull(task_ids='approve')['four_eyes'] }}",
        undo_retention="{{ params.undo_retention }}",
        outlets=[AssetAlias("pipeline_correction")],
    )
    verified = verify()
    checked >> approve >> [undo, rejected()]
    undo >> verified
    [checked, approve, undo, verified] >> how_to_go_on()
