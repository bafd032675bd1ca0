"""Correct data of a Paimon table on a branch, check it, have it approved, publish it: one trigger, one form.

check_params -> tag_main -> create_branch -> correct -> wait -> check -> diff -> report -> approve -> wait_for_quiet ->
merge or fast_forward -> verify -> delete_branch -> delete_tag. Until merge or fast_forward commits its one snapshot,
main is not touched.
Whatever fails, report_failure reports what was published and what helps. docs/runbook.md is the page for the person on
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, task

from airflow_paimon.dags.factory import Changes, OwnTasks, make_dag
from airflow_paimon.dags.flink_jobs import FlinkJob, of_publishes, with_field
from airflow_paimon.dags.publishing import BRANCH, SAMPLED, EachTable, add_correction
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.operators.branch import FastForwardOperator, MergeBranchOperator
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.correction import CorrectFromBaseOperator
from airflow_paimon.runbooks import correction
from airflow_paimon.runbooks.fields import choice, shared, switch, text, texts
from airflow_paimon.runbooks.form import (
    corrected_table,
    form_of,
    form_value,
    in_airflows_terms,
    report_lines,
)
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.runbooks.tasks import CATCH_UP, DEFAULTS, MERGE, PUBLISH, SPARK, check_form
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor

ROW_FIELDS = "Rows: partitions, other tables, functions"
REVIEW_FIELDS = "Checks and approval"
PUBLISH_FIELDS = "Publish and undo"
BRANCH_FIELDS = "Branch, tag and clean-up"
WAIT_FIELDS = "Wait for other jobs"
SPARK_FIELDS = "Spark and connections"
REPORTED = "{{ ti.xcom_pull('report')['tables'][0]['%s'] }}"

PARAMS = {
    **shared("table"),
    "sql": text(
        "SQL",
        "UPDATE, DELETE, MERGE or INSERT on `branch`, the table as of the start of this run, such as: "
        "UPDATE branch SET amount = amount / 100 WHERE dt = '2026-11-18' AND amount BETWEEN 10000 AND 999999. "
        "Separate several statements by semicolons: they become one commit. "
        "Or one SELECT that returns the corrected rows of whole partitions, with all columns. "
        "`main` is the current table.",
        format="multiline",
    ),
    **shared("reason", "approval"),
    "partitions": texts(
        "Partitions",
        "For a SELECT: the partitions that its rows replace, one a line, such as dt=2026-11-18, or dt={ds} for the "
        "run's date. One without rows becomes empty; rows of other partitions are refused.",
        section=ROW_FIELDS,
    ),
    "mode": choice(
        "Mode",
        "For a SELECT. overwrite: its rows replace the partitions. upsert: its rows replace those with the same key "
        "(primary-key tables only).",
        ["overwrite", "upsert"],
        section=ROW_FIELDS,
    ),
    "all_rows": switch(
        "Allow full-table change",
        "Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table.",
        section=ROW_FIELDS,
    ),
    "views": texts(
        "Additional input tables",
        "Other tables for the SQL, one a line: name=database.table or name=database.table$branch_b, also with @ and "
        "a version: a tag, a snapshot id, branch.tag or branch.snapshot.",
        section=ROW_FIELDS,
    ),
    "function": text(
        "Function",
        "Instead of SQL: module:name, called with the Spark session and the views; returns a DataFrame. "
        "The Paimon connection names the allowed modules.",
        section=ROW_FIELDS,
    ),
    "chain_branch": text(
        "Branch of a chain table",
        "For a chain table: its delta branch, or its snapshot branch for full partitions that were loaded. The same as "
        "a table of the form database.table$branch_delta.",
        section=ROW_FIELDS,
    ),
    **shared("checks", "sample_rows", "notify", "remind_before", "approvers", "four_eyes", section=REVIEW_FIELDS),
    "publish": choice(
        "Publish by",
        "merge: publishes the changed partitions, while main may change in others. "
        "fast_forward: refused if main changed at all since this run began.",
        ["merge", "fast_forward"],
        section=PUBLISH_FIELDS,
    ),
    **shared(
        "undo_retention", "revert_compaction", "keep_appended", "on_overlap", "writers_stopped", section=PUBLISH_FIELDS
    ),
    "changelog": choice(
        "Streaming readers",
        "For a table with a changelog-producer. auto: read both sides of what is published, and emit the changes to "
        "streaming readers. none: emit nothing. The approval shows what readers see.",
        ["auto", "none"],
        section=PUBLISH_FIELDS,
    ),
    **shared("branch", "keep_branch", "clean_up", "tag_retention", section=BRANCH_FIELDS),
    "wait_max_watermark_lag": text(
        "Wait: watermark lag",
        "For branches that another job fills as well: wait until the branch's watermark is at most this far behind "
        "main's, such as 10 min.",
        section=WAIT_FIELDS,
    ),
    "wait_max_commit_lag": text(
        "Wait: commit lag",
        "Wait until the branch's newest commit is at most this far behind main's, such as 1 h.",
        section=WAIT_FIELDS,
    ),
    "wait_partitions": texts(
        "Wait: partitions",
        "Wait until these partitions have files on the branch that are not older than main's.",
        section=WAIT_FIELDS,
    ),
    **shared("wait_for_quiet", section=WAIT_FIELDS),
    "engine": choice(
        "Engine",
        "Who runs the statement. connector: Paimon's own Spark connector, for tables that the built-in engine refuses: "
        "one UPDATE, DELETE, MERGE or INSERT; name its jar in the Spark options of the Paimon connection (packages or "
        "jars).",
        ["embedded", "connector"],
        section=SPARK_FIELDS,
    ),
    **shared("paimon_conn_id", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=SPARK_FIELDS),
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form, choose the branch, the tag and the snapshot to start from, and say what the run will touch."""
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        planned = correction.plan_correction(
            form_of(context), context["dag"].dag_id, context["run_id"], locked_names(context["dag"].params)
        )
        effects = correction.plan_effects(form_of(context), planned)
    text = "branch {branch} from snapshot {base_snapshot}, which gets the tag {tag}".format(**planned)
    report_lines(f"{corrected_table(planned)}: {text}")
    preview = correction.preview_of(effects)
    report_lines(*preview["lines"])
    if nothing := correction.matches_nothing(form_of(context), effects):
        report_lines(nothing)
        raise AirflowSkipException("Nothing was created, and no approval is requested")
    return {**planned, "preview": preview}


def correction_dag(
    dag_id: str = "data_correction",
    *,
    flink_jobs: Sequence[FlinkJob] = (),
    before_approval: OwnTasks | None = None,
    after_publish: OwnTasks | None = None,
    **changes: Unpack[Changes],
) -> DAG:
    """Make the DAG that corrects a table on a branch, has it approved and publishes it.

    ``flink_jobs``: the Flink jobs that write the tables, by whose names the form gets a field. They are stopped right
    before the publish and started from their savepoints after it, also when it is refused or fails.
    ``before_approval``: tasks between ``report`` and ``approve``. ``after_publish``: tasks between ``verify`` and
    ``delete_branch``. The rest: :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        partial(add_tasks, before_approval, after_publish, flink_jobs),
        changes,
        params=with_field(PARAMS, flink_jobs),
        default_args=DEFAULTS,
        description="Correct data of a Paimon table on a branch, have it approved, publish it",
        doc=__doc__,
        kind=Kind.CORRECTION,
    )


def add_tasks(before_approval: OwnTasks | None, after_publish: OwnTasks | None, flink_jobs: Sequence[FlinkJob]) -> None:
    """Add the tasks, in the order of their names above."""
    each = EachTable(check_params(), several=False)
    correct = each(
        CorrectFromBaseOperator,
        "correct",
        BRANCH,
        sql=form_value("sql"),
        function=form_value("function"),
        view=form_value("views"),
        all_rows="{{ params.all_rows }}",
        mode="{{ params.mode }}",
        partitions=form_value("partitions"),
        engine="{{ params.engine }}",
        **SPARK,
    )
    wait = each(
        SnapshotCatchUpSensor,
        "wait",
        BRANCH,
        min_snapshot_id="{{ ti.xcom_pull('correct')['snapshot_after'] }}",
        max_watermark_lag=form_value("wait_max_watermark_lag"),
        max_commit_lag=form_value("wait_max_commit_lag"),
        partitions=form_value("wait_partitions"),
        **CATCH_UP,
    )
    check = each(CheckBranchOperator, "check", BRANCH, rules=form_value("checks"), view=form_value("views"), **SAMPLED)
    approved: dict[str, Any] = {
        "expected_branch_snapshot": REPORTED % "expected_branch_snapshot",
        "approved_main_snapshot": REPORTED % "approved_main_snapshot",
        "changelog": "{{ params.changelog }}",
        **PUBLISH,
        "outlets": [AssetAlias("data_correction")],
        **of_publishes(flink_jobs),
    }
    merge = each(MergeBranchOperator, "merge", BRANCH, **MERGE, **approved)
    fast_forward = each(FastForwardOperator, "fast_forward", BRANCH, **approved)
    add_correction(
        each,
        [correct, wait, check],
        [merge, fast_forward],
        flink_jobs=flink_jobs,
        before_approval=before_approval,
        after_publish=after_publish,
    )
