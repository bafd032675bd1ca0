"""Correct data of a Paimon table on a branch, prove it, have it approved, publish it: one trigger, one form.

check_params -> tag_main -> create_branch -> correct -> wait -> diff -> report -> approve -> merge or fast_forward
-> verify -> delete_branch -> delete_tag. Until merge or fast_forward commits its one snapshot, main is not touched.
Whatever fails, how_to_go_on says what stands and what helps. docs/runbook.md is the page for the person on call.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.operators.branch import (
    CreateBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    DeleteTagOperator,
    DiffBranchesOperator,
    FastForwardOperator,
    MergeBranchOperator,
)
from airflow_paimon.operators.correction import CorrectFromBaseOperator, PublishApprovalOperator, branch_owner
from airflow_paimon.runbooks import advice, correction, leftovers, notify
from airflow_paimon.runbooks.form import (
    asked_by,
    end_as_failed,
    error_lines,
    errors_of,
    failed_tasks,
    given,
    in_airflows_terms,
    open_main,
    refuse_unknown,
    report_lines,
)
from airflow_paimon.runbooks.pages import with_links
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVAL_TIMEOUT = timedelta(hours=24)
CATCH_UP_TIMEOUT = timedelta(hours=6)
MORE = "More: views, waiting, conflicts, connections"
PLANNED = "{{ ti.xcom_pull('check_params')['%s'] }}"
REPORTED = "{{ ti.xcom_pull('report')['%s'] }}"

PARAMS = {
    "table": Param(
        type="string",
        minLength=3,
        title="Table",
        description="The table to correct, as database.table",
    ),
    "sql": Param(
        None,
        type=["null", "string"],
        format="multiline",
        title="SQL",
        description="One UPDATE, DELETE, MERGE or INSERT on `branch`, the table as it was when this run began (the "
        "correction's branch), such as: UPDATE branch SET amount = amount / 100 WHERE dt = '2026-11-18'. Or one SELECT "
        "that gives the corrected rows, with all columns of the table. `main` is the table as readers see it now.",
    ),
    "partitions": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Partitions",
        description="Of a SELECT only: one a line, such as dt=2026-11-18. With mode overwrite exactly these are "
        "replaced by its rows; one that gets no rows becomes empty, and rows of any other partition are refused.",
    ),
    "mode": Param(
        "overwrite",
        enum=["overwrite", "upsert"],
        title="Mode",
        description="Of a SELECT only. overwrite: the partitions become exactly its rows. upsert: its rows replace "
        "those with the same key, the others stay (primary-key tables only).",
    ),
    "reason": Param(
        None,
        type=["null", "string"],
        title="Reason",
        description="Why, or a ticket's number; kept with the branch.",
    ),
    "publish": Param(
        "merge",
        enum=["merge", "fast_forward"],
        title="Publish by",
        description="merge: partitions that only the branch changed go to main, even while main goes on in others. "
        "fast_forward: refused when main changed at all since this run began.",
    ),
    "approval": Param(
        True,
        type="boolean",
        title="Ask for approval",
        description="Wait until somebody has looked at the diff and approved it. Off: publish without asking.",
    ),
    "keep_branch": Param(
        False,
        type="boolean",
        title="Keep the branch",
        description="Keep the branch and the tag after publishing, to look at them. They hold files: remove them with "
        "data_correction_cleanup when you have seen enough.",
    ),
    "clean_up": Param(
        True,
        type="boolean",
        title="Clean up when it fails or is rejected",
        description="Delete the branch and the tag then, unless a publish landed or may still land, or another job has "
        "written the branch. Off: they stay, and a failed task can be cleared instead of the whole run.",
    ),
    "branch": Param(
        None,
        type=["null", "string"],
        title="Branch",
        description="Name of the new branch; left empty, one is made from this run. Letters, digits, '_' and '-'.",
    ),
    "undo_retention": Param(
        "7 d",
        type="string",
        title="Undo for",
        description="How long the publish can be undone with data_correction_undo, such as 7 d; or: forever.",
    ),
    "tag_retention": Param(
        "30 d",
        type="string",
        section=MORE,
        title="Keep the tag for",
        description="How long the tag on the snapshot that the run starts from lives at most, such as 30 d; or: "
        "forever. Whatever this says, the branch protects its files itself.",
    ),
    "function": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Function",
        description="Instead of SQL: module:name, called with the Spark session and the views, returns a DataFrame. "
        "The Paimon connection names the modules that a form may call.",
    ),
    "views": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=MORE,
        title="Further views",
        description="Other tables for the SQL, one a line, as name=database.table, name=database.table$branch_b or "
        "either with @ and a version: a tag, a snapshot id, branch.tag or branch.snapshot.",
    ),
    "all_rows": Param(
        False,
        type="boolean",
        section=MORE,
        title="Every row",
        description="Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table.",
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
    "wait_max_watermark_lag": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Wait: watermark lag",
        description="Wait until the branch's watermark is at most this far behind main's, such as 10 min. For branches "
        "that another job fills as well.",
    ),
    "wait_max_commit_lag": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Wait: commit lag",
        description="Wait until the branch's newest commit is at most this far behind main's, such as 1 h.",
    ),
    "wait_partitions": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=MORE,
        title="Wait: partitions",
        description="Wait until these partitions hold files on the branch that are not older than main's.",
    ),
    "notify": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=MORE,
        title="Notify",
        description="Who hears that the approval waits, and who answered it: names from the Paimon connection's extra "
        "notify, one a line. Left empty: all of them.",
    ),
    "remind_before": Param(
        None,
        type=["null", "string"],
        section=MORE,
        title="Remind before",
        description="How long before the approval runs out they hear again, such as 2 h; or: never. Left empty: the "
        "Paimon connection's, or a quarter of the time.",
    ),
    "approvers": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        section=MORE,
        title="Approvers",
        description="Ids of the users who may answer, one a line; some of the Paimon connection's approvers. Left "
        "empty: all of those, or everybody if it names none.",
    ),
    "four_eyes": Param(
        False,
        type="boolean",
        section=MORE,
        title="Four eyes",
        description="Whoever triggered this run can't approve it. The Paimon connection may ask for it always.",
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
        description="Promise that no writer of main stays open over the publish: then sequence numbers don't matter.",
    ),
    "changelog": Param(
        "auto",
        enum=["auto", "none"],
        section=MORE,
        title="Streaming readers",
        description="On a table with a changelog-producer, auto reads both sides of what is published and tells "
        "streaming readers the changes; none tells them nothing. The approval says what they see.",
    ),
    "engine": Param(
        "embedded",
        enum=["embedded", "connector"],
        section=MORE,
        title="Engine",
        description="Who reads and writes rows. connector: Paimon's own Spark connector, for tables that the embedded "
        "engine refuses; name its jar in the Spark options of the Paimon connection (packages or jars).",
    ),
    "paimon_conn_id": Param(
        "paimon_default",
        type="string",
        section=MORE,
        title="Paimon connection",
        description="Airflow connection with the warehouse.",
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
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form, and choose the branch, the tag and the snapshot to start from."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, PARAMS)
        notify.check_form(context["params"], APPROVAL_TIMEOUT, asked_by(context))
        planned = correction.plan_correction(context["params"], context["dag"].dag_id, context["run_id"])
    report_lines("{table}: branch {branch} from snapshot {base_snapshot}, which gets the tag {tag}".format(**planned))
    return planned


@task(multiple_outputs=False, show_return_value_in_logs=False)
def report(**context: Any) -> dict[str, Any]:
    """Render the request and the diff for the approver, plan the publish, pin what is approved."""
    ti = context["ti"]
    with in_airflows_terms():
        made = correction.plan_publish(
            context["params"],
            ti.xcom_pull(task_ids="check_params"),
            ti.xcom_pull(task_ids="diff"),
            ti.xcom_pull(task_ids="wait")["snapshot_id"],
            asked_by(context),
            (ti.xcom_pull(task_ids="correct") or {}).get("details"),
        )
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task(retries=0)
def rejected(**context: Any) -> None:
    """Say who rejected it and what stands, and clean up. Ends the run as failed: the data is not corrected."""
    ti, params = context["ti"], context["params"]
    planned, answer = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="approve")
    by = answer["approved_by"] or f"no answer within {APPROVAL_TIMEOUT}"
    with in_airflows_terms():
        main = open_main(params)
        lines = leftovers.clean_up_run(params, planned, branch_owner(context), {})
        outcome, standing = correction.describe_outcome(main, planned)
        lines += [*standing, correction.TO_CORRECT_DIFFERENTLY, *advice.how_to_remove(params, main, planned)]
    summary = f"Rejected ({by}): {outcome}"
    report_lines(summary, *lines, level=logging.WARNING)
    end_as_failed(summary)


@task(multiple_outputs=False, show_return_value_in_logs=False, trigger_rule="none_failed_min_one_success")
def verify(**context: Any) -> dict[str, Any]:
    """Compare main with the branch, bucket by bucket, and say how to undo."""
    ti, params = context["ti"], context["params"]
    planned, published = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids=params["publish"])
    with in_airflows_terms():
        found = correction.verify_published(params, planned, published)
    report_lines(*found["lines"])
    return found


@task(trigger_rule="one_failed", retries=0)
def how_to_go_on(**context: Any) -> None:
    """Say what failed, what stands and what helps, and clean up. Never touches main, and fails the run."""
    ti, params = context["ti"], context["params"]
    errors = errors_of(context, failed_tasks(context))
    planned, first = ti.xcom_pull(task_ids="check_params"), next(iter(errors))
    if planned is None:
        summary = f"{first} failed. Nothing was made, nothing was changed"
        report_lines(summary, *error_lines(errors), *advice.for_the_form(errors[first]), level=logging.ERROR)
        end_as_failed(summary)
    with in_airflows_terms():
        main, kinds = open_main(params), {name: error["kind"] if error else None for name, error in errors.items()}
        lines = leftovers.clean_up_run(params, planned, branch_owner(context), kinds)
        outcome, standing = correction.describe_outcome(main, planned)
        lines = [*standing, *lines, *advice.next_steps(params, main, planned, first, errors[first])]
    summary = f"{', '.join(errors)} failed; {outcome}"
    report_lines(summary, *error_lines(errors), *lines, level=logging.ERROR)
    end_as_failed(summary)


def unless_kept(context: Context) -> None:
    """Skip the cleaning up."""
    if context["params"]["keep_branch"]:
        raise AirflowSkipException("keep_branch is on: the branch and the tag stay")


with DAG(
    "data_correction",
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["paimon"],
    description="Correct data of a Paimon table on a branch, have it approved, publish it",
    doc_md=with_links(__doc__),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "table": "{{ params.table }}",
        "paimon_conn_id": "{{ params.paimon_conn_id }}",
        "spark_conn_id": "{{ params.spark_conn_id }}",
    },
) as dag:
    checked = check_params()
    tag_main = CreateTagOperator(
        task_id="tag_main",
        tag=PLANNED % "tag",
        snapshot=PLANNED % "base_snapshot",
        time_retained="{{ '' if params.tag_retention | trim | lower == 'forever' else params.tag_retention }}",
        if_exists="skip",
    )
    create_branch = CreateBranchOperator(
        task_id="create_branch",
        branch=PLANNED % "branch",
        tag=PLANNED % "tag",
        if_exists="skip",
        branch_owner="{{ dag.dag_id }}/{{ run_id }}",
        reason=given("reason"),
    )
    correct = CorrectFromBaseOperator(
        task_id="correct",
        branch=PLANNED % "branch",
        sql=given("sql"),
        function=given("function"),
        view=given("views"),
        all_rows="{{ params.all_rows }}",
        mode="{{ params.mode }}",
        partitions=given("partitions"),
        engine="{{ params.engine }}",
        spark_conf=given("spark_conf"),
        spark_options=given("spark_options"),
    )
    wait = SnapshotCatchUpSensor(
        task_id="wait",
        branch=PLANNED % "branch",
        min_snapshot_id="{{ ti.xcom_pull('correct')['snapshot_after'] }}",
        max_watermark_lag=given("wait_max_watermark_lag"),
        max_commit_lag=given("wait_max_commit_lag"),
        partitions=given("wait_partitions"),
        deferrable=True,
        poke_interval=30,
        timeout=CATCH_UP_TIMEOUT.total_seconds(),
    )
    diff = DiffBranchesOperator(
        task_id="diff",
        branch=PLANNED % "branch",
        sample="{{ params.sample_rows }}",
        engine="{{ params.engine }}",
        spark_conf=given("spark_conf"),
        spark_options=given("spark_options"),
    )
    reported = report()
    approve = PublishApprovalOperator(
        task_id="approve",
        subject=REPORTED % "subject",
        body=REPORTED % "markdown",
        required="{{ params.approval }}",
        on_approve="{{ params.publish }}",
        on_reject="rejected",
        defaults=PublishApprovalOperator.REJECT,
        response_timeout=APPROVAL_TIMEOUT,
        notify=given("notify"),
        approvers=given("approvers"),
        remind_before=given("remind_before"),
        four_eyes="{{ params.four_eyes }}",
    )
    publish_arguments = {
        "branch": PLANNED % "branch",
        "expected_branch_snapshot": REPORTED % "branch_snapshot",
        "approved_main_snapshot": REPORTED % "main_snapshot",
        "approved_by": "{{ ti.xcom_pull('approve')['approved_by'] or '' }}",
        "four_eyes": "{{ params.four_eyes }}",
        "undo_retention": "{{ params.undo_retention }}",
        "rewrite": "{{ params.rewrite }}",
        "writers_stopped": "{{ params.writers_stopped }}",
        "changelog": "{{ params.changelog }}",
        "spark_conf": given("spark_conf"),
        "spark_options": given("spark_options"),
        "outlets": [AssetAlias("data_correction")],
    }
    merge = MergeBranchOperator(task_id="merge", keep_appended="{{ params.keep_appended }}", **publish_arguments)
    fast_forward = FastForwardOperator(task_id="fast_forward", **publish_arguments)
    verified = verify()
    delete_branch = DeleteBranchOperator(
        task_id="delete_branch",
        branch=PLANNED % "branch",
        if_missing="skip",
        pre_execute=unless_kept,
    )
    delete_tag = DeleteTagOperator(
        task_id="delete_tag", tag=PLANNED % "tag", if_missing="skip", pre_execute=unless_kept
    )
    steps = [checked, tag_main, create_branch, correct, wait, diff, reported, approve]
    for earlier, later in pairwise(steps):
        earlier >> later
    approve >> [merge, fast_forward, rejected()]
    [merge, fast_forward] >> verified >> delete_branch >> delete_tag
    [*steps, merge, fast_forward, verified, delete_branch, delete_tag] >> how_to_go_on()
