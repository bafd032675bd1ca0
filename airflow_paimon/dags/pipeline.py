"""Correct an upstream table, rebuild the tables that are made from it, publish all of them: one form, one approval.

check_params -> tag -> create_branch -> correct -> replay -> wait -> check -> diff -> report -> approve ->
wait_for_quiet -> publish -> verify -> delete_branch -> delete_tag. What runs once for each table is mapped. Until
publish commits, no main is touched; if one table is refused then, those that were published are undone. Whatever fails,
report_failure reports what was published and what helps. To undo all of it: pipeline_correction_undo.
docs/howto/pipeline-correction.md explains the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.dags.factory import Changes, OwnTasks, make_dag
from airflow_paimon.dags.flink_jobs import FlinkJob, of_publishes, with_field
from airflow_paimon.dags.publishing import BRANCH, SAMPLED, EachTable, add_correction
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.correction import CorrectFromBaseOperator
from airflow_paimon.operators.pipeline import PublishTablesOperator, ReplayTablesOperator
from airflow_paimon.runbooks import pipeline
from airflow_paimon.runbooks.fields import choice, shared, switch, text, texts
from airflow_paimon.runbooks.form import check_form_four_eyes, in_airflows_terms, report_lines, xcom_value
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.runbooks.pipeline_plan import EXAMPLE
from airflow_paimon.runbooks.tasks import CATCH_UP, DEFAULTS, MERGE, PUBLISH, SPARK, check_form
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor
from airflow_paimon.task_run import triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVAL = "More: approval"
MORE = "More: replay, conflicts, connections"

PARAMS = {
    "tables": Param(
        type="array",
        items={"type": "object"},
        minItems=1,
        title="Tables",
        description="Upstream first, each with what happens to it: correct, statements on the view branch as in "
        "data_correction; or replay, statements on the view branch that read the tables before it by their names, or "
        f"module:name, a function. checks: rules that its branch must keep, as in data_correction. Such as: {EXAMPLE}",
    ),
    **shared("reason"),
    "caught_up": choice(
        "Ready when",
        "replayed: when its replay has ended. main_at_start: also, its branch's newest commit is not "
        "older than main's was when this run began. watermark: also, its branch has the watermark below. The last "
        "two wait for other jobs that fill the branches.",
        pipeline.CAUGHT_UP,
    ),
    "watermark": text("Watermark", "For Ready when: watermark. ISO with an offset, such as 2026-11-21T00:00:00+00:00."),
    **shared("approval", "keep_branch", "clean_up", "branch", "undo_retention"),
    "table_set": text(
        "Table set",
        "A set of tables that gets a new version when all are published: readers of that version never see some of "
        "the tables published and others not. Their undo makes another version. Empty: none.",
        section=MORE,
    ),
    "start_tag": text(
        "Start: tag",
        "The upstream tables (what is corrected, or read without being in the list) start at this tag "
        "instead of now. What main got after the start is not in their branches.",
        section=MORE,
    ),
    "start_snapshots": texts(
        "Start: snapshots",
        "Or at these snapshots, one a line, such as flights.raw=118; of one upstream table 118 is enough.",
        section=MORE,
    ),
    "start_time": text(
        "Start: time", "Or at their newest snapshots from before this time, ISO with an offset.", section=MORE
    ),
    "streams": switch(
        "Streams",
        "The functions write streams: they run until nothing is new, or until the watermark is read.",
        section=MORE,
    ),
    "replay_timeout": text(
        "Time for streams", "How long the streams of one table may run, such as 1 h.", "1 h", section=MORE
    ),
    "checkpoint": text(
        "Checkpoints",
        "Folder for the streams' checkpoints that Spark can reach, where tables are on an object store.",
        section=MORE,
    ),
    **shared(
        "tag_retention",
        "sample_rows",
        "revert_compaction",
        "keep_appended",
        "on_overlap",
        "writers_stopped",
        "wait_for_quiet",
        section=MORE,
    ),
    **shared("notify", "remind_before", "approvers", "four_eyes", section=APPROVAL),
    **shared("paimon_conn_id", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> list[dict[str, Any]]:
    """Check the form, and choose the branch, the tags and the snapshots to start from."""
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        planned = pipeline.plan_pipeline(
            context["params"], context["dag"].dag_id, context["run_id"], locked_names(context["dag"].params)
        )
        four_eyes = check_form_four_eyes(context["params"], [one["table"] for one in planned], triggering_user(context))
    planned = [{**one, "four_eyes": four_eyes} for one in planned]
    line = "{table}: branch {branch} from snapshot {base_snapshot}, which gets the tag {tag}"
    effects = [f"{one['table']}: {effect}" for one in planned for effect in one["preview"]["lines"]]
    report_lines(f"{len(planned)} tables", *(line.format(**one) for one in planned), *effects)
    return planned


def correct_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table; those that are replayed are skipped."""
    if one["correct"] is None:
        raise AirflowSkipException(f"{one['table']} is replayed")
    return {"table": one["table"], "branch": one["branch"], **one["correct"]}


def wait_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "branch": one["branch"], **one["wait"]}


def replays(context: Context, jinja_env: Any) -> list[dict[str, Any]]:
    """Return the replay of each table; a table that is corrected has none."""
    nothing = {"sql": None, "function": None}
    planned = context["ti"].xcom_pull(task_ids="check_params")
    return [{"table": one["table"], "branch": one["branch"], **(one["replay"] or nothing)} for one in planned]


def pipeline_dag(
    dag_id: str = "pipeline_correction",
    *,
    flink_jobs: Sequence[FlinkJob] = (),
    before_approval: OwnTasks | None = None,
    after_publish: OwnTasks | None = None,
    **changes: Unpack[Changes],
) -> DAG:
    """Make the DAG that corrects a table and makes again those that are made from it.

    ``flink_jobs``: as of ``correction_dag``. ``before_approval``: tasks between ``report`` and ``approve``.
    ``after_publish``: tasks between ``verify`` and ``delete_branch``. The rest:
    :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        partial(add_tasks, before_approval, after_publish, flink_jobs),
        changes,
        params=with_field(PARAMS, flink_jobs),
        default_args=DEFAULTS,
        description="Correct an upstream table, rebuild downstream tables, publish all after one approval",
        doc=__doc__,
        kind=Kind.PIPELINE,
    )


def add_tasks(before_approval: OwnTasks | None, after_publish: OwnTasks | None, flink_jobs: Sequence[FlinkJob]) -> None:
    """Add the tasks, in the order of their names above."""
    each = EachTable(check_params(), several=True)
    correct = each(CorrectFromBaseOperator, "correct", correct_arguments, **SPARK)
    replay = ReplayTablesOperator(task_id="replay", tables=replays, trigger_rule="none_failed", **SPARK)
    written = "{{ ti.xcom_pull(task_ids='replay')[ti.map_index]['snapshot_after'] }}"
    wait = each(SnapshotCatchUpSensor, "wait", wait_arguments, min_snapshot_id=written, **CATCH_UP)
    check = each(CheckBranchOperator, "check", {**BRANCH, "rules": "checks", "view": "views"}, **SAMPLED)
    publish = PublishTablesOperator(
        task_id="publish",
        tables=xcom_value("report", "tables"),
        table_set="{{ params.table_set or '' }}",
        outlets=[AssetAlias("pipeline_correction")],
        **MERGE,
        **PUBLISH,
        **of_publishes(flink_jobs),
    )
    add_correction(
        each,
        [correct, replay, wait, check],
        [publish],
        flink_jobs=flink_jobs,
        before_approval=before_approval,
        after_publish=after_publish,
    )
