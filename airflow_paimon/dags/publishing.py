"""What the DAGs have in common that change main: the tasks of those that correct, and the order around a publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import chain, task

from airflow_paimon.dags.factory import OwnTasks, add_own_tasks
from airflow_paimon.dags.flink_jobs import FlinkJob, add_flink_jobs, need_not_wait, stops_shown, with_stopped
from airflow_paimon.operators.branch import (
    CreateBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    DeleteTagOperator,
    DiffBranchesOperator,
)
from airflow_paimon.runbooks import advice
from airflow_paimon.runbooks import report as run_report
from airflow_paimon.runbooks.form import (
    end_as_failed,
    error_lines,
    failed_errors,
    form_of,
    form_of_table,
    in_airflows_terms,
    report_lines,
)
from airflow_paimon.runbooks.leftovers import clean_up_run, clean_up_unpublished
from airflow_paimon.runbooks.tasks import (
    NEW_BRANCH,
    NEW_TAG,
    SPARK,
    ask_for_approval,
    end_as_rejected,
    is_cleanup_wanted,
)
from airflow_paimon.sensors.quiet import BucketsQuietSensor
from airflow_paimon.task_run import triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

LABEL = "{{ task.table | truncate(200, True) }}"
"""What a mapped task is called."""
BRANCH = {"table": "table", "branch": "branch"}
PUBLISHED = "{%% set made = %s['details'] %%}{{ made['branch_snapshot'] }}:{{ made['branch_identity'] }}"
"""The branch's head that a publish has published; of an expression for the publish's result."""
SAMPLED: dict[str, Any] = {"sample": "{{ params.sample_rows }}", **SPARK}


OfTable = Mapping[str, str] | Callable[[Mapping[str, Any]], dict[str, Any]]
"""By argument of a task what is planned for a table; of several tables also a function that gives the arguments."""


@dataclass(frozen=True)
class EachTable:
    """Makes the tasks that each table of a run has: a mapped task if a run is about several, else one without an index.

    ``planned``: the task ``check_params``, which returns what is planned for each, or for the only one.
    """

    planned: Any
    several: bool

    def __call__(self, operator: Any, task_id: str, of_table: OfTable, **rest: Any) -> Any:
        """Make a task; ``rest``: its arguments that are the same for all tables."""
        if self.several:
            made = operator.partial(task_id=task_id, map_index_template=LABEL, **rest)
            return made.expand_kwargs(self.planned.map(of_table if callable(of_table) else picker(of_table)))
        assert not callable(of_table)
        return operator(task_id=task_id, **{name: self.first(key) for name, key in of_table.items()}, **rest)

    def first(self, key: str) -> str:
        """Return a template: what is planned for the first table."""
        return f"{{{{ ti.xcom_pull(task_ids='check_params'){'[0]' if self.several else ''}['{key}'] }}}}"

    def wait_for_quiet(self, of_table: Mapping[str, str], **rest: Any) -> Any:
        """Make the sensor right before main changes."""
        said = {"time_limit": "{{ params.wait_for_quiet or '0 s' }}", "writers_stopped": "{{ params.writers_stopped }}"}
        patience = {"deferrable": True, "poke_interval": 30, "pre_execute": need_not_wait}
        return self(BucketsQuietSensor, "wait_for_quiet", of_table, **said, **patience, **rest)


def picker(of_table: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Make a function for ``map``, which chooses arguments of a task from what is planned for a table."""

    def pick(one: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one[key] for name, key in of_table.items()}

    return pick


def tables_of(context: Context) -> list[dict[str, Any]] | None:
    """Return what ``check_params`` has planned for each table; None where it failed."""
    planned = context["ti"].xcom_pull(task_ids="check_params")
    return [planned] if isinstance(planned, dict) else planned


def results_of(context: Context, number: int, *names: str) -> dict[str, Any]:
    """Return the results of tasks on one of the tables, by the tasks' names; None of one that left none."""
    ti = context["ti"]
    index = number if isinstance(ti.xcom_pull(task_ids="check_params"), list) else -1
    return {name: ti.xcom_pull(task_ids=name, map_indexes=index) for name in names}


def _results_by_table(context: Context, planned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the tasks have found about each table, as ``plan_publishes`` takes it."""
    ti, found = context["ti"], list[dict[str, Any]]()
    replayed = ti.xcom_pull(task_ids="replay")
    for number, one in enumerate(planned):
        results = results_of(context, number, "correct", "wait", "check", "diff")
        wrote = replayed[number] if one.get("replay") else results["correct"]
        notice = run_report.affected_readers(one["preview"])
        found.append({**results, "wrote": wrote, "wait": results["wait"]["snapshot_id"], "notice": notice})
    return found


@task(multiple_outputs=False, show_return_value_in_logs=False)
def report(**context: Any) -> dict[str, Any]:
    """Render the request and the changes for the approver, plan the publish, pin what is approved.

    Skipped, as all that follows, when nothing has changed.
    """
    form, planned = with_stopped(context, form_of(context)), tables_of(context) or []
    with in_airflows_terms():
        done = _results_by_table(context, planned)
        made = run_report.plan_publishes(form, planned, done, triggering_user(context))
    if not made["changes"]:
        cleaned = clean_up_unpublished(form, planned)
        report_lines("Nothing to publish: main already has the rows of its branch", *cleaned)
        raise AirflowSkipException("The correction has changed nothing, so no approval is requested")
    made["markdown"] += stops_shown(context)
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


def clean_up_rejected(context: Context) -> tuple[str, list[str]]:
    """Clean up after a rejection; returns the outcome, and lines about what stands."""
    params, planned = form_of(context), tables_of(context) or []
    cleaned = clean_up_run(params, planned, {})
    outcome, standing = run_report.describe_outcome(params, planned)
    helps = [line for one in planned for line in advice.removal_advice(form_of_table(params, one), one)]
    return outcome, [*cleaned, *standing, run_report.TO_CORRECT_DIFFERENTLY, *helps]


@task(multiple_outputs=False, show_return_value_in_logs=False, trigger_rule="none_failed_min_one_success")
def verify(**context: Any) -> dict[str, Any]:
    """Compare main of each table with its branch, bucket by bucket, and say how to undo."""
    params, planned = form_of(context), tables_of(context) or []
    published = context["ti"].xcom_pull(task_ids=params.get("publish", "publish"))
    with in_airflows_terms():
        found = run_report.verify_published(params, planned, published if isinstance(published, list) else [published])
    report_lines(*found["lines"])
    return found


@task(trigger_rule="one_failed", retries=0)
def report_failure(**context: Any) -> None:
    """Say what failed, what stands and what helps, and clean up. Never touches main, and fails the run."""
    if not (errors := failed_errors(context)):
        raise AirflowSkipException("Nothing failed")
    planned, first = tables_of(context), next(iter(errors))
    if planned is None:
        helps = [*advice.form_advice(errors[first]), *advice.check_advice(context["params"], errors)]
        end_as_failed(f"{first} failed. Nothing was made, nothing was changed", *error_lines(errors), *helps)
    with in_airflows_terms():
        params = form_of(context)
        kinds = {name.partition("[")[0]: error["kind"] if error else None for name, error in errors.items()}
        cleaned = clean_up_run(params, planned, kinds)
        outcome, standing = run_report.describe_outcome(params, planned)
        steps = advice.next_steps(params, planned, first.partition("[")[0], errors[first])
        steps += advice.check_advice(params, errors)
    end_as_failed(f"{', '.join(errors)} failed; {outcome}", *error_lines(errors), *cleaned, *standing, *steps)


def add_publish_tasks(
    steps: Sequence[Any],
    rejected: Any,
    quiet: Any,
    publishes: Sequence[Any],
    after: Sequence[Any],
    last: Any,
    *,
    flink_jobs: Sequence[FlinkJob] = (),
    before_approval: OwnTasks | None = None,
    after_publish: OwnTasks | None = None,
) -> None:
    """Order the tasks of a DAG that changes main.

    ``steps``: up to the approval, the last of them. ``quiet``: what waits for open buckets. ``publishes``: what changes
    main, of which a run takes one. ``after``: the check of main first, then the cleaning up. ``last``: what says how to
    go on. The rest as ``correction_dag`` takes it.

    Raises:
        InvalidInputError: as ``add_flink_jobs`` and ``add_own_tasks`` do.
    """
    *_, reported, approve = steps
    chain(*steps, [quiet, rejected])
    chain(quiet, list(publishes), *after)
    [*steps, quiet, *publishes, *after] >> last
    add_flink_jobs(flink_jobs, quiet, publishes, last)
    add_own_tasks("before_approval", before_approval, reported, approve, last)
    *_, cleaning = after[:2]
    add_own_tasks("after_publish", after_publish, after[0], cleaning, last)


def add_correction(
    each: EachTable,
    writes: Sequence[Any],
    publishes: Sequence[Any],
    *,
    flink_jobs: Sequence[FlinkJob],
    before_approval: OwnTasks | None,
    after_publish: OwnTasks | None,
) -> None:
    """Add the tasks of a correction around those that write and check the branches (``writes``), and ``publishes``.

    Raises:
        InvalidInputError: as ``add_publish_tasks`` does.
    """
    tagged = {"table": "table", "branch": "from_branch", "tag": "tag"}
    start = {**BRANCH, "from_branch": "from_branch", "tag": "tag"}
    of_run: dict[str, Any] = {"if_missing": "skip", "pre_execute": is_cleanup_wanted}
    tag_id = "tag" if each.several else "tag_main"
    four_eyes = each.first("four_eyes") if each.several else "{{ params.four_eyes }}"
    result = "ti.xcom_pull('publish')[ti.map_index]" if each.several else "ti.xcom_pull(params.publish)"
    add_publish_tasks(
        [
            each.planned,
            each(CreateTagOperator, tag_id, {**tagged, "snapshot": "base_snapshot"}, **NEW_TAG),
            each(CreateBranchOperator, "create_branch", start, **NEW_BRANCH),
            *writes,
            each(DiffBranchesOperator, "diff", BRANCH, **SAMPLED),
            report(),
            ask_for_approval("wait_for_quiet", table=each.first("table"), four_eyes=four_eyes),
        ],
        end_as_rejected(clean_up_rejected),
        each.wait_for_quiet(BRANCH),
        publishes,
        [
            verify(),
            each(DeleteBranchOperator, "delete_branch", BRANCH, expected_branch_snapshot=PUBLISHED % result, **of_run),
            each(DeleteTagOperator, "delete_tag", tagged, **of_run),
        ],
        # Not as soon as one of several tables fails: the tasks of the others may still be at work.
        report_failure.override(trigger_rule="all_done" if each.several else "one_failed")(),
        flink_jobs=flink_jobs,
        before_approval=before_approval,
        after_publish=after_publish,
    )
