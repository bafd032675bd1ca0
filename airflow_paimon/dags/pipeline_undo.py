"""Undo a correction of a pipeline: main of each of its tables gets its earlier files back, the last table first.

check_params -> check -> diff -> report -> approve -> wait_for_quiet -> undo -> verify. check runs what the tables
require as checks. Only the partitions that the publishes changed go back; where one of the tables has newer rows in
them, all of it is refused before anything is undone. To undo one table alone, or to drop what came later:
data_correction_undo.
docs/howto/pipeline-correction.md explains both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.dags.flink_jobs import FlinkJob, all_are_stopped, of_publishes, stops_shown, with_field
from airflow_paimon.dags.publishing import LABEL, QUIET, add_in_order, chosen
from airflow_paimon.locked_fields import locked_names
from airflow_paimon.operators.branch import DiffBranchesOperator
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.pipeline import LANDED_KEY, UndoTablesOperator
from airflow_paimon.runbooks import undo as runbook
from airflow_paimon.runbooks.fields import shared_by_undos
from airflow_paimon.runbooks.form import (
    check_policy,
    end_as_failed,
    error_lines,
    failed_errors,
    in_airflows_terms,
    needs_four_eyes,
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
from airflow_paimon.task_run import triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

MORE = "More: the rows that the approver sees"
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
    **shared_by_undos(
        "writers_stopped",
        "wait_for_quiet",
        "reason",
        "approval",
        "notify",
        "remind_before",
        "approvers",
        "undo_retention",
        "skip_checks",
        "paimon_conn_id",
    ),
    **shared_by_undos("sample_rows", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> list[dict[str, Any]]:
    """Check the form, find the publishes, and plan to undo all of them."""
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        check_policy(context["params"], locked_names(context["dag"].params))
        form = {**context["params"], **({"writers_stopped": True} if all_are_stopped(context) else {})}
        found = runbook.plan_undos(form, triggering_user(context))
        names = [one["table"] for one in found["tables"]]
        found["four_eyes"] = needs_four_eyes(context["params"], names, triggering_user(context))
    report_lines(found["subject"], *found["lines"])
    tables: list[dict[str, Any]] = found.pop("tables")
    context["ti"].xcom_push(key="plan", value=found)
    return tables


ROLLBACK = chosen("table", "tag")


def undone(context: Context, jinja_env: Any) -> list[dict[str, Any]]:
    """Return the tag to which each table goes back."""
    return [ROLLBACK(one) for one in context["ti"].xcom_pull(task_ids="check_params")]


@task(multiple_outputs=False, show_return_value_in_logs=False, trigger_rule="none_failed")
def report(**context: Any) -> dict[str, Any]:
    """Render what would change."""
    ti = context["ti"]
    planned, diffs = ti.xcom_pull(task_ids="check_params", key="plan"), ti.xcom_pull(task_ids="diff") or ()
    made = runbook.with_rows(planned, [one for one in diffs if one])
    made["markdown"] += stops_shown(context)
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(multiple_outputs=False, show_return_value_in_logs=False)
def verify(**context: Any) -> list[str]:
    """Compare main of each table with its tag, bucket by bucket."""
    ti = context["ti"]
    tables = ti.xcom_pull(task_ids="check_params")
    with in_airflows_terms():
        lines = runbook.verify_all_undone(context["params"], tables, ti.xcom_pull(task_ids="undo"))
    report_lines(*lines)
    return lines


@task(trigger_rule="one_failed", retries=0)
def report_failure(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    if not (errors := failed_errors(context)):
        raise AirflowSkipException("Nothing failed")
    landed = context["ti"].xcom_pull(task_ids="undo", key=LANDED_KEY) or []
    done = [f"{one['table']} is undone, as snapshot {one['snapshot']}" for one in landed]
    helps = runbook.what_helps(*next(iter(errors.items())))
    again = "Triggered again, this DAG goes on with the tables that are not undone yet"
    end_as_failed(f"{', '.join(errors)} failed", *done, *error_lines(errors), *helps, again)


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
        partial(add_tasks, flink_jobs),
        changes,
        params=with_field(PARAMS, flink_jobs),
        default_args={**DEFAULTS, "spark_conn_id": "{{ params.spark_conn_id }}"},
        description="Undo a published correction of a pipeline, in all of its tables",
        doc=__doc__,
        kind=Kind.PIPELINE_UNDO,
    )


def add_tasks(flink_jobs: Sequence[FlinkJob]) -> None:
    """Add the tasks, in the order of their names above."""
    checked = check_params()
    check = CheckBranchOperator.partial(
        task_id="check",
        branch="main",
        map_index_template=LABEL,
        pre_execute=unless_checks_are_skipped,
        **SPARK,
    ).expand_kwargs(checked.map(chosen("table", version="tag")))
    diff = DiffBranchesOperator.partial(
        task_id="diff",
        map_index_template=LABEL,
        sample="{{ params.sample_rows }}",
        pre_execute=where_asked,
        trigger_rule="none_failed",
        **SPARK,
    ).expand_kwargs(checked.map(chosen("table", "branch", "against")))
    approve = ask_for_approval(
        "wait_for_quiet",
        table="{{ ti.xcom_pull(task_ids='check_params')[0]['table'] }}",
        required="{{ params.approval or ti.xcom_pull(task_ids='check_params', key='plan')['four_eyes'] }}",
        four_eyes="{{ ti.xcom_pull(task_ids='check_params', key='plan')['four_eyes'] }}",
    )
    undo = UndoTablesOperator(
        task_id="undo",
        tables=undone,
        keep_later=True,
        **UNDO_APPROVED,
        **UNDO,
        outlets=[AssetAlias("pipeline_correction")],
        **of_publishes(flink_jobs),
    )
    add_in_order(
        [checked, check, diff, report(), approve],
        end_as_rejected(lambda context: ("nothing was undone", [])),
        BucketsQuietSensor.partial(map_index_template=LABEL, **QUIET).expand_kwargs(checked.map(ROLLBACK)),
        [undo],
        [verify()],
        report_failure(),
        flink_jobs=flink_jobs,
    )
