"""Correct an upstream table, make the tables again that are made from it, publish all of them: one form, one approval.

check_params -> tag -> create_branch -> correct -> replay -> wait -> diff -> report -> approve -> publish -> verify ->
delete_branch -> delete_tag. What runs once for each table is mapped. Until publish commits, no main is touched; if one
table is refused then, those that were published are undone. Whatever fails, how_to_go_on says what stands and what
helps. To take all of it back: pipeline_correction_undo. docs/howto/pipeline-correction.md explains the form.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.operators.branch import (
    CreateBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    DeleteTagOperator,
    DiffBranchesOperator,
)
from airflow_paimon.operators.correction import CorrectFromBaseOperator, PublishApprovalOperator, branch_owner
from airflow_paimon.operators.pipeline import PublishTablesOperator, ReplayTablesOperator
from airflow_paimon.runbooks import notify, pipeline
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
from airflow_paimon.runbooks.pipeline_plan import EXAMPLE
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVAL_TIMEOUT = timedelta(hours=24)
CATCH_UP_TIMEOUT = timedelta(hours=6)
LABEL = "{{ task.table | truncate(200, True) }}"
APPROVAL = "More: approval"
MORE = "More: replay, conflicts, connections"

PARAMS = {
    "tables": Param(
        type="array",
        items={"type": "object"},
        minItems=1,
        title="Tables",
        description="Upstream first, each with what happens to it: correct, one statement on the view branch as in "
        "data_correction; or replay, statements on the view branch that read the tables before it by their names, or "
        f"module:name, a function. Such as: {EXAMPLE}",
    ),
    "reason": Param(
        None,
        type=["null", "string"],
        title="Reason",
        description="Why, or a ticket's number; kept with the branches.",
    ),
    "caught_up": Param(
        pipeline.REPLAYED,
        enum=list(pipeline.CAUGHT_UP),
        title="Caught up",
        description="replayed: when its replay has ended. main_at_start: besides, its branch's newest commit is not "
        "older than main's was when this run began. watermark: besides, its branch has the watermark below. The last "
        "two wait for other jobs that fill the branches.",
    ),
    "watermark": Param(
        None,
        type=["null", "string"],
        title="Watermark",
        description="Of Caught up: watermark; ISO with an offset, such as 2026-11-21T00:00:00+00:00.",
    ),
    "approval": Param(
        True,
        type="boolean",
        title="Ask for approval",
        description="Wait until somebody has looked at what changed in all tables and approved it, once.",
    ),
    "keep_branch": Param(
        False,
        type="boolean",
        title="Keep the branches",
        description="Keep branches and tags after publishing; remove them with data_correction_cleanup, table by "
        "table.",
    ),
    "clean_up": Param(
        True,
        type="boolean",
        title="Clean up when it fails or is rejected",
        description="Delete branches and tags then, unless a table stays published, or another job has written a "
        "branch. Off: they stay, and a failed task can be cleared instead of the whole run.",
    ),
    "branch": Param(
        None,
        type=["null", "string"],
        title="Branch",
        description="Name of the new branch of every table; left empty, one is made from this run.",
    ),
    "undo_retention": Param(
        "7 d",
        type="string",
        title="Undo for",
        description="How long the publishes can be undone with pipeline_correction_undo, such as 7 d; or: forever.",
    ),
    "start_tag": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Start: tag",
        description="The upstream tables (what is corrected, or read without being in the list) start at this tag "
        "instead of now. What main got after the start is not in their branches.",
    ),
    "start_snapshots": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=MORE,
        title="Start: snapshots",
        description="Or at these snapshots, one a line, such as flights.raw=118; of one upstream table 118 is enough.",
    ),
    "start_time": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Start: time",
        description="Or at their newest snapshots from before this time, ISO with an offset.",
    ),
    "streams": Param(
        False,
        type="boolean",
        section=MORE,
        title="Streams",
        description="The functions write streams: they run until nothing is new, or until the watermark is read.",
    ),
    "replay_timeout": Param(
        "1 h",
        type="string",
        section=MORE,
        title="Time for streams",
        description="How long the streams of one table may run, such as 1 h.",
    ),
    "checkpoint": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Checkpoints",
        description="Folder for the streams' checkpoints that Spark can reach, where tables are on an object store.",
    ),
    "tag_retention": Param(
        "30 d",
        type="string",
        section=MORE,
        title="Keep the tags for",
        description="How long the tags on the snapshots that the run starts from live at most; or: forever.",
    ),
    "sample_rows": Param(
        5,
        type="integer",
        minimum=0,
        maximum=50,
        section=MORE,
        title="Sample rows",
        description="Rows that the diff shows for each partition and kind of change.",
    ),
    "rewrite": Param(
        False,
        type="boolean",
        section=MORE,
        title="Take back a compaction",
        description="Tables without keys: when a compaction of main is in the way, take it back.",
    ),
    "keep_appended": Param(
        False,
        type="boolean",
        section=MORE,
        title="Keep appended rows",
        description="Tables without keys: rows that main got meanwhile in partitions that are replaced stay beside the "
        "new ones; otherwise they are a conflict.",
    ),
    "writers_stopped": Param(
        False,
        type="boolean",
        section=MORE,
        title="Writers are stopped",
        description="Promise that no writer of any main stays open over the publish: then sequence numbers don't "
        "matter.",
    ),
    "notify": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=APPROVAL,
        title="Notify",
        description="Who hears that the approval waits, and who answered it: names from the Paimon connection's extra "
        "notify, one a line. Left empty: all of them.",
    ),
    "remind_before": Param(
        None,
        type=["null", "string"],
        section=APPROVAL,
        title="Remind before",
        description="How long before the approval runs out they hear again, such as 2 h; or: never. Left empty: the "
        "Paimon connection's, or a quarter of the time.",
    ),
    "approvers": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=APPROVAL,
        title="Approvers",
        description="Ids of the users who may answer, one a line; some of the Paimon connection's approvers. Left "
        "empty: all of those, or everybody if it names none.",
    ),
    "four_eyes": Param(
        False,
        type="boolean",
        section=APPROVAL,
        title="Four eyes",
        description="Whoever triggered this run can't approve it. The Paimon connection may ask for it always.",
    ),
    "paimon_conn_id": Param(
        "paimon_default",
        type="string",
        section=MORE,
        title="Paimon connection",
        description="Airflow connection with the warehouse of all tables.",
    ),
    "spark_conn_id": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Spark connection",
        description="Where Spark jobs run. Empty: as the Paimon connection says, or spark_default.",
    ),
    "spark_conf": Param(
        {},
        type="object",
        section=MORE,
        title="Spark settings",
        description='Such as {"spark.executor.cores": "4"}, added to those of the Paimon connection.',
    ),
    "spark_options": Param(
        {},
        type="object",
        section=MORE,
        title="Spark options",
        description='Such as {"driver_memory": "4g", "num_executors": 8}. What could run code is refused here; the '
        "Paimon connection may open it.",
    ),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> list[dict[str, Any]]:
    """Check the form, and choose the branch, the tags and the snapshots to start from."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, PARAMS)
        notify.check_form(context["params"], APPROVAL_TIMEOUT, asked_by(context))
        planned = pipeline.plan_pipeline(context["params"], context["dag"].dag_id, context["run_id"])
    line = "{table}: branch {branch} from snapshot {base_snapshot}, which gets the tag {tag}"
    report_lines(f"{len(planned)} tables", *(line.format(**one) for one in planned))
    return planned


def tag_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "tag": one["tag"], "snapshot": one["base_snapshot"]}


def branch_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "branch": one["branch"]}


def new_branch_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "branch": one["branch"], "tag": one["tag"]}


def correct_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table; those that are replayed are skipped."""
    if one["correct"] is None:
        raise AirflowSkipException(f"{one['table']} is replayed")
    return {"table": one["table"], "branch": one["branch"], **one["correct"]}


def wait_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "branch": one["branch"], **one["wait"]}


def old_tag_arguments(one: dict[str, Any]) -> dict[str, Any]:
    """Of one table."""
    return {"table": one["table"], "tag": one["tag"]}


def replays(context: Context, jinja_env: Any) -> list[dict[str, Any]]:
    """Return the replay of each table; a table that is corrected has none."""
    nothing = {"sql": None, "function": None}
    planned = context["ti"].xcom_pull(task_ids="check_params")
    return [{"table": one["table"], "branch": one["branch"], **(one["replay"] or nothing)} for one in planned]


@task(multiple_outputs=False, show_return_value_in_logs=False)
def report(**context: Any) -> dict[str, Any]:
    """Render what changed in all tables for the approver, plan the publishes, pin what is approved."""
    ti = context["ti"]
    planned, replayed = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="replay")
    done = []
    for index, one in enumerate(planned):
        wrote = ti.xcom_pull(task_ids="correct", map_indexes=index) if one["correct"] else replayed[index]
        waited = ti.xcom_pull(task_ids="wait", map_indexes=index)["snapshot_id"]
        done.append({"wrote": wrote, "wait": waited, "diff": ti.xcom_pull(task_ids="diff", map_indexes=index)})
    with in_airflows_terms():
        made = pages.plan_publishes(context["params"], planned, done, asked_by(context))
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(retries=0)
def rejected(**context: Any) -> None:
    """Say who rejected it and what stands, and clean up. Ends the run as failed: nothing is corrected."""
    ti, params = context["ti"], context["params"]
    planned, answer = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="approve")
    by = answer["approved_by"] or f"no answer within {APPROVAL_TIMEOUT}"
    with in_airflows_terms():
        lines = pages.clean_up_all(params, planned, branch_owner(context), {})
        outcome, standing = pages.describe_outcomes(params, planned)
    summary = f"Rejected ({by}): {outcome}"
    report_lines(summary, *lines, *standing, level=logging.WARNING)
    end_as_failed(summary)


@task(multiple_outputs=False, show_return_value_in_logs=False)
def verify(**context: Any) -> dict[str, Any]:
    """Compare main of every table with its branch, bucket by bucket, and say how to undo."""
    ti = context["ti"]
    with in_airflows_terms():
        found = pages.verify_all(
            context["params"], ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="publish")
        )
    report_lines(*found["lines"])
    return found


@task(trigger_rule="all_done", retries=0)
def how_to_go_on(**context: Any) -> None:
    """If something failed, say what stands and what helps, clean up, and fail the run. Never touches a main."""
    params, errors = context["params"], failed_errors(context)
    if not errors:
        raise AirflowSkipException("Nothing failed")
    planned, first = context["ti"].xcom_pull(task_ids="check_params"), next(iter(errors))
    failed = first.partition("[")[0]
    if planned is None:
        summary = f"{first} failed. Nothing was made, nothing was changed"
        helps = "What helps: correct what the message names, and trigger pipeline_correction again"
        report_lines(summary, *error_lines(errors), helps, level=logging.ERROR)
        end_as_failed(summary)
    with in_airflows_terms():
        kinds = {name.partition("[")[0]: error["kind"] if error else None for name, error in errors.items()}
        cleaned = pages.clean_up_all(params, planned, branch_owner(context), kinds)
        outcome, standing = pages.describe_outcomes(params, planned)
        steps = pages.next_steps(params, planned, failed, errors[first])
    summary = f"{', '.join(errors)} failed; {outcome}"
    report_lines(summary, *error_lines(errors), *standing, *cleaned, *steps, level=logging.ERROR)
    end_as_failed(summary)


def unless_kept(context: Context) -> None:
    """Skip the cleaning up."""
    if context["params"]["keep_branch"]:
        raise AirflowSkipException("keep_branch is on: branches and tags stay")


with DAG(
    "pipeline_correction",
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["paimon"],
    description="Correct an upstream table, replay those made from it, have all approved once, publish all",
    doc_md=with_links(__doc__),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "paimon_conn_id": "{{ params.paimon_conn_id }}",
        "spark_conn_id": "{{ params.spark_conn_id }}",
    },
) as dag:
    planned = check_params()
    spark: dict[str, Any] = {"spark_conf": given("spark_conf"), "spark_options": given("spark_options")}
    tag = CreateTagOperator.partial(
        task_id="tag",
        map_index_template=LABEL,
        time_retained="{{ '' if params.tag_retention | trim | lower == 'forever' else params.tag_retention }}",
        if_exists="skip",
    ).expand_kwargs(planned.map(tag_arguments))
    create_branch = CreateBranchOperator.partial(
        task_id="create_branch",
        map_index_template=LABEL,
        if_exists="skip",
        branch_owner="{{ dag.dag_id }}/{{ run_id }}",
        reason=given("reason"),
    ).expand_kwargs(planned.map(new_branch_arguments))
    correct = CorrectFromBaseOperator.partial(task_id="correct", map_index_template=LABEL, **spark).expand_kwargs(
        planned.map(correct_arguments)
    )
    replay = ReplayTablesOperator(task_id="replay", tables=replays, trigger_rule="none_failed", **spark)
    wait = SnapshotCatchUpSensor.partial(
        task_id="wait",
        map_index_template=LABEL,
        min_snapshot_id="{{ ti.xcom_pull(task_ids='replay')[ti.map_index]['snapshot_after'] }}",
        deferrable=True,
        poke_interval=30,
        timeout=CATCH_UP_TIMEOUT.total_seconds(),
    ).expand_kwargs(planned.map(wait_arguments))
    diff = DiffBranchesOperator.partial(
        task_id="diff", map_index_template=LABEL, sample="{{ params.sample_rows }}", **spark
    ).expand_kwargs(planned.map(branch_arguments))
    reported = report()
    approve = PublishApprovalOperator(
        task_id="approve",
        table="{{ ti.xcom_pull(task_ids='check_params')[0]['table'] }}",
        subject="{{ ti.xcom_pull(task_ids='report')['subject'] }}",
        body="{{ ti.xcom_pull(task_ids='report')['markdown'] }}",
        required="{{ params.approval }}",
        on_approve="publish",
        on_reject="rejected",
        defaults=PublishApprovalOperator.REJECT,
        response_timeout=APPROVAL_TIMEOUT,
        notify=given("notify"),
        approvers=given("approvers"),
        remind_before=given("remind_before"),
        four_eyes="{{ params.four_eyes }}",
    )
    publish = PublishTablesOperator(
        task_id="publish",
        tables=pulled("report", "tables"),
        approved_by="{{ ti.xcom_pull(task_ids='approve')['approved_by'] or '' }}",
        four_eyes="{{ params.four_eyes }}",
        undo_retention="{{ params.undo_retention }}",
        rewrite="{{ params.rewrite }}",
        keep_appended="{{ params.keep_appended }}",
        writers_stopped="{{ params.writers_stopped }}",
        outlets=[AssetAlias("pipeline_correction")],
        **spark,
    )
    verified = verify()
    delete_branch = DeleteBranchOperator.partial(
        task_id="delete_branch", map_index_template=LABEL, if_missing="skip", pre_execute=unless_kept
    ).expand_kwargs(planned.map(branch_arguments))
    delete_tag = DeleteTagOperator.partial(
        task_id="delete_tag", map_index_template=LABEL, if_missing="skip", pre_execute=unless_kept
    ).expand_kwargs(planned.map(old_tag_arguments))
    planned >> tag >> create_branch >> correct >> replay >> wait >> diff >> reported >> approve
    approve >> [publish, rejected()]
    publish >> verified >> delete_branch >> delete_tag
    steps = [planned, tag, create_branch, correct, replay, wait, diff, reported, approve]
    [*steps, publish, verified, delete_branch, delete_tag] >> how_to_go_on()
