"""Undo what corrections have published: of one table, or of all tables of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.dags.flink_jobs import (
    FlinkJob,
    need_not_wait,
    of_publishes,
    stops_shown,
    with_field,
    with_stopped,
)
from airflow_paimon.dags.publishing import SAMPLED, EachTable, add_publish_tasks, results_of, tables_of
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.operators.branch import DiffBranchesOperator, RollbackOperator
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.pipeline import COMMITTED_KEY, UndoTablesOperator
from airflow_paimon.runbooks import undo as runbook
from airflow_paimon.runbooks.advice import check_advice
from airflow_paimon.runbooks.fields import choice, shared, switch, text
from airflow_paimon.runbooks.form import (
    check_form_four_eyes,
    check_policy,
    end_as_failed,
    error_lines,
    failed_errors,
    in_airflows_terms,
    report_lines,
)
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.runbooks.report import is_pipeline
from airflow_paimon.runbooks.tasks import (
    DEFAULTS,
    SPARK,
    UNDO,
    UNDO_APPROVED,
    approval_page,
    ask_for_approval,
    check_form,
    end_as_rejected,
    is_check_wanted,
)
from airflow_paimon.task_run import REFUSALS, triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

OF_ONE = """Undo a published correction: main gets its earlier files back, as one new snapshot.

check_params -> preview -> check -> diff -> report -> approve -> wait_for_quiet -> undo -> verify. check runs the checks
that the table requires on what comes back. Only the partitions that the publish changed go back; where main has newer
rows in them it is refused (switch keep_later off to drop everything after the publish).
docs/runbook.md is the page for the person on call.
"""
OF_ALL = """Undo a pipeline's correction: main of each of its tables gets its earlier files back, the last table first.

check_params -> check -> diff -> report -> approve -> wait_for_quiet -> undo -> verify. check runs what the tables
require as checks. Only the partitions that the publishes changed go back; where one of the tables has newer rows in
them, all of it is refused before anything is undone. To undo one table alone, or to drop what came later:
data_correction_undo.
docs/howto/pipeline-correction.md explains both.
"""
MORE = "More: the rows that the approver sees"
TAG = {"table": "table", "tag": "tag"}
_WRITERS = {
    "writers_stopped": switch(
        "Writers are stopped",
        "Confirm that no writer of main stays open during the undo: needed if a table with dynamic buckets (bucket=-1) "
        "loses keys that the publish added.",
    ),
    **shared("wait_for_quiet"),
}
_REST = {
    "reason": text("Reason", "Shown to the approver."),
    "approval": switch(
        "Ask for approval",
        "Wait until the changes were reviewed and approved. Always on if the four-eyes rule applies.",
        on=True,
    ),
    **shared("notify", "remind_before", "approvers"),
    "undo_retention": text("Undo window", "How long the undo itself can be undone, such as 7 d; or: forever.", "7 d"),
    "skip_checks": switch(
        "Skip checks",
        "Undo even if a required check fails for the restored rows, or can't run. The snapshot records it.",
    ),
    **shared("paimon_conn_id"),
    **shared("sample_rows", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}
FIELDS_OF_ONE = {
    **shared("table"),
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
    **_WRITERS,
    "changelog": choice(
        "Streaming readers",
        "For a table with a changelog-producer. auto: read both sides of what is restored, and "
        "emit the changes to streaming readers. none: emit nothing; readers keep the undone rows.",
        ["auto", "none"],
    ),
    **_REST,
}
FIELDS_OF_ALL = {
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
    **_WRITERS,
    **_REST,
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> Any:
    """Check the form, and find the publishes and the tags to go back to; of several tables, plan all of it."""
    several = is_pipeline(context["params"])
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        check_policy(context["params"], locked_names(context["dag"].params))
        form = with_stopped(context, context["params"])
        planned, left_out = runbook.plan_undos(form)
        names = [one["table"] for one in planned]
        four_eyes = several and check_form_four_eyes(form, names, triggering_user(context))
    report_lines(*(line for one in planned for line in one["lines"]), *left_out)
    context["ti"].xcom_push(key="left_out", value=left_out)
    planned = [{**one, "four_eyes": four_eyes} for one in planned]
    return planned if several else planned[0]


@task(multiple_outputs=False, show_return_value_in_logs=False, trigger_rule="none_failed")
def report(**context: Any) -> dict[str, Any]:
    """Render what would change."""
    params, planned = context["params"], tables_of(context) or []
    if (preview := context["ti"].xcom_pull(task_ids="preview")) is not None:
        planned = [runbook.with_plan(params, planned[0], preview["details"])]
    done = [results_of(context, number, "check", "diff") for number, _ in enumerate(planned)]
    left_out = context["ti"].xcom_pull(task_ids="check_params", key="left_out")
    made = runbook.describe_undos(params, planned, done, left_out, triggering_user(context))
    made["markdown"] += stops_shown(context)
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(multiple_outputs=False, show_return_value_in_logs=False)
def verify(**context: Any) -> dict[str, Any]:
    """Compare main of each table with its tag, bucket by bucket."""
    with in_airflows_terms():
        found = runbook.verify_undone(context["params"], tables_of(context) or [], _undone(context))
    report_lines(*found["lines"])
    return found


@task(trigger_rule="one_failed", retries=0)
def report_failure(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    if not (errors := failed_errors(context)):
        raise AirflowSkipException("Nothing failed")
    committed = context["ti"].xcom_pull(task_ids="undo", key=COMMITTED_KEY) or [
        {"table": one["table"], "snapshot": one["snapshot_after"]} for one in _undone(context) if one["changed"]
    ]
    done = [f"main of {one['table']} was undone, as snapshot {one['snapshot']}" for one in committed]
    may_be_committed = "undo" in errors and (errors["undo"] or {}).get("kind") not in REFUSALS
    if may_be_committed or not done:
        done.append("whether the undo succeeded is open" if may_be_committed else "main is as it was")
    helps = [*runbook.advice_for(*next(iter(errors.items()))), *check_advice(context["params"], errors)]
    if is_pipeline(context["params"]):
        helps = [*helps, "Trigger this DAG again to undo the tables that are not undone yet"]
    end_as_failed(f"{', '.join(errors)} failed; {'; '.join(done)}", *error_lines(errors), *helps)


def _undone(context: Context) -> list[dict[str, Any]]:
    """Return the results of the undo, none where it failed or did not run."""
    found = context["ti"].xcom_pull(task_ids="undo") or []
    return found if isinstance(found, list) else [found]


def rollbacks(context: Context, jinja_env: Any) -> list[dict[str, Any]]:
    """Return the tag to which each table goes back."""
    return [{name: one[name] for name in TAG} for one in tables_of(context) or ()]


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
        params=with_field(FIELDS_OF_ONE, flink_jobs),
        default_args=DEFAULTS,
        description="Undo a published correction of a Paimon table",
        doc=OF_ONE,
        kind=Kind.UNDO,
    )


def pipeline_undo_dag(
    dag_id: str = "pipeline_correction_undo", *, flink_jobs: Sequence[FlinkJob] = (), **changes: Unpack[Changes]
) -> DAG:
    """Make the DAG that undoes a published correction of a pipeline, in all of its tables.

    ``flink_jobs``: as of ``correction_dag``. The rest: :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        partial(add_tasks, flink_jobs, several=True),
        changes,
        params=with_field(FIELDS_OF_ALL, flink_jobs),
        default_args=DEFAULTS,
        description="Undo a published correction of a pipeline, in all of its tables",
        doc=OF_ALL,
        kind=Kind.PIPELINE_UNDO,
    )


def add_tasks(flink_jobs: Sequence[FlinkJob], *, several: bool = False) -> None:
    """Add the tasks, in the order of their names above."""
    each, previews = EachTable(check_params(), several), []
    approved: dict[str, Any] = {**UNDO, **UNDO_APPROVED, **of_publishes(flink_jobs)}
    if several:
        kept, against, outlets = {}, "base", [AssetAlias("pipeline_correction")]
        undo = UndoTablesOperator(task_id="undo", tables=rollbacks, keep_later=True, outlets=outlets, **approved)
    else:
        kept, against = {"keep_later": "{{ params.keep_later }}"}, "{{ 'base' if params.keep_later else 'main' }}"
        way, outlets = {**kept, "changelog": "{{ params.changelog }}"}, [AssetAlias("data_correction")]
        plan = {"dry_run": True, "pre_execute": need_not_wait}
        previews = [each(RollbackOperator, "preview", TAG, **way, **UNDO, **plan)]
        undo = each(RollbackOperator, "undo", TAG, **way, outlets=outlets, **approved)
    checked = {"table": "name", "branch": "onto", "version": "tag"}
    unless_skipped, if_asked = {"pre_execute": is_check_wanted}, {"pre_execute": approval_page}
    check = each(CheckBranchOperator, "check", checked, against=against, **unless_skipped, **SPARK)
    compared = {"table": "name", "branch": "branch", "against": "against"}
    diff = each(DiffBranchesOperator, "diff", compared, trigger_rule="none_failed", **if_asked, **SAMPLED)
    four_eyes = f"ti.xcom_pull(task_ids='check_params'){'[0]' if several else ''}['four_eyes']"
    question = {"required": f"{{{{ params.approval or {four_eyes} }}}}", "four_eyes": each.first("four_eyes")}
    approve = ask_for_approval("wait_for_quiet", table=each.first("table"), **question)
    add_publish_tasks(
        [each.planned, *previews, check, diff, report(), approve],
        end_as_rejected(lambda context: ("nothing was undone, main is as it was", [])),
        each.wait_for_quiet(TAG, **kept),
        [undo],
        [verify()],
        report_failure(),
        flink_jobs=flink_jobs,
    )
