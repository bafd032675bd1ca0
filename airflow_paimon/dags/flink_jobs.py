"""Flink jobs that a DAG stops right before it changes main and starts from their savepoints after it.

stop_NAME, between wait_for_quiet and the publish -> resume_NAME, after the publish, whatever became of it.
resume_NAME and report_failure are teardown tasks, which Airflow runs even in a run that a person marks as failed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator, Param

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError
from airflow_paimon.core.requests.text_files import names_file
from airflow_paimon.core.table.paths import MAIN, Identifier, parse_identifier
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.hooks.flink import FlinkHook, FlinkPoll, JobState
from airflow_paimon.operators.flink import (
    SAVEPOINT,
    FlinkSqlOperator,
    FlinkStopOperator,
    savepoint_place,
    starts_job,
    statements_of,
)
from airflow_paimon.runbooks.form import STOPPED, open_main, table_names
from airflow_paimon.shown.markdown import escape
from airflow_paimon.task_run import ERROR_KEY, in_airflows_terms, operation_id

if TYPE_CHECKING:
    from airflow.sdk import Context

FIELD = "flink_jobs"
_BEGUN = "flink_job"
"""The XCom of a task that may have stopped a job; unlike its state, it outlasts a Clear after which it is skipped."""
_SECONDS_TO_END = 30
"""How long a task may go on that a person has ended: until its next heartbeat, and until it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJob:
    """A Flink job that writes the tables of a DAG that corrects or undoes.

    ``name``: its name in Flink, which no other job has. ``sql`` and ``settings``: what starts it, as
    ``FlinkSqlOperator`` takes them. ``tables``: those that it writes, such as ``sales.orders``; a run on other ones
    leaves the job alone. Left out: all tables of the DAG, which are locked then. ``savepoints``: the folder for its
    savepoints, when not the cluster's own.
    """

    name: str
    sql: str
    tables: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    flink_conn_id: str = FlinkHook.default_conn_name
    savepoints: str | None = None

    def __post_init__(self) -> None:
        if not names_file(self.sql, FlinkSqlOperator.file_fields["sql"]) and not starts_job(
            statements_of(self.sql)[-1]
        ):
            raise InvalidInputError(f"The SQL of Flink job {self.name!r} starts no job")

    @property
    def task_name(self) -> str:
        """The name, of letters that a task's id may have."""
        return re.sub(r"[^\w-]+", "_", self.name)


def with_field(params: Mapping[str, Param], jobs: Sequence[FlinkJob]) -> dict[str, Param]:
    """Return a form's fields, if there are any jobs with one that chooses among them: all, unless a run says otherwise.

    Raises:
        InvalidInputError: two jobs can't be told apart, or a table has no valid name.
    """
    if not jobs:
        return dict(params)
    names = [job.name for job in jobs]
    if len({job.task_name for job in jobs}) < len(jobs):
        raise InvalidInputError(f"flink_jobs: two jobs have the same name for their tasks: {', '.join(names)}")
    chosen = Param(
        names,
        title="Flink jobs",
        description="Jobs that are stopped right before the publish and started from their savepoints after it, also "
        "when it fails. With all jobs of a table its publish may replace what they have open.",
        type=["array", "null"],
        items={"type": "string", "enum": names},
        examples=names,
        tables={job.name: [_main_of(parse_identifier(table)) for table in job.tables] for job in jobs},
    )
    return {**params, FIELD: chosen}


def writing_jobs(context: Context, table: str | None = None) -> list[str]:
    """Name the declared jobs that write a table of a run, or the one that is named."""
    params: Any = context["dag"].params
    if FIELD not in params:
        return []
    names = table_names(context["params"]) if table is None else [table]
    mine = {_main_of(parse_identifier(name)) for name in names}
    declared = params.get_param(FIELD).schema["tables"]
    return [name for name, tables in declared.items() if not tables or mine & set(tables)]


def stopped_jobs(context: Context, table: str | None = None) -> list[str]:
    """Name the jobs that a run stops, or those of them that write the table that is named."""
    chosen = context["params"].get(FIELD) or ()
    return [name for name in writing_jobs(context, table) if name in chosen]


def all_are_stopped(context: Context, table: str | None = None) -> bool:
    """Say whether a run stops all declared jobs that write its tables, or the one that is named."""
    return bool(found := stopped_jobs(context, table)) and found == writing_jobs(context, table)


def with_stopped(context: Context, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form with the names of its tables of which the run stops all writers."""
    return {**form, STOPPED: [name for name in table_names(form) if all_are_stopped(context, name)]}


def stops_shown(context: Context) -> str:
    """Say to the approver which jobs a run stops, as Markdown; empty for none."""
    if not (jobs := stopped_jobs(context)):
        return ""
    others = "." if all_are_stopped(context) else "; other jobs of this DAG continue."
    named = escape(", ".join(jobs))
    return f"\n\nFlink jobs that are stopped right before main changes, and started after it: {named}{others}"


def of_publishes(jobs: Sequence[FlinkJob]) -> dict[str, Any]:
    """Return the arguments of the publishes that wait for the stops; the stop of a job that isn't chosen is skipped."""
    return {"trigger_rule": "none_failed_min_one_success", "pre_execute": partial(check_stopped, jobs)}


def need_not_wait(context: Context) -> None:
    """Let a plan, or the wait for quiet buckets, succeed, if all jobs are stopped after it."""
    if all_are_stopped(context, context["task"].table):
        context["task"].writers_stopped = True


def add_flink_jobs(jobs: Sequence[FlinkJob], quiet: BaseOperator, publishes: Sequence[Any], last: Any) -> None:
    """Add the tasks of each job, and let the publishes wait for the stops.

    Raises:
        InvalidInputError: the DAG has a limit of time, at which Airflow skips teardown tasks, too; or nothing says what
            a job writes.
    """
    if not jobs:
        return
    field = "tables" if "tables" in quiet.dag.params else "table"
    if open_ended := [job.name for job in jobs if not job.tables and field not in locked_names(quiet.dag.params)]:
        raise InvalidInputError(
            f"DAG {quiet.dag.dag_id!r} can correct any table: give Flink job {open_ended[0]!r} the tables that it "
            f"writes, or lock the field {field}"
        )
    if quiet.dag.dagrun_timeout is not None:
        raise InvalidInputError(
            f"DAG {quiet.dag.dag_id!r}: dagrun_timeout would leave the Flink jobs stopped; limit the tasks instead, by "
            f"execution_timeout in default_args"
        )
    last.as_teardown(on_failure_fail_dagrun=True)
    for job in jobs:
        stop = StopFlinkJobOperator(
            task_id=f"stop_{job.task_name}",
            job=job.name,
            sql=job.sql,
            settings=job.settings,
            job_name=job.name,
            savepoints=job.savepoints,
            flink_conn_id=job.flink_conn_id,
            deferrable=False,
            pre_execute=partial(_unless_left_out, job.name),
        )
        resume = ResumeFlinkJobOperator(
            task_id=f"resume_{job.task_name}",
            sql=job.sql,
            settings=job.settings,
            job_name=job.name,
            flink_conn_id=job.flink_conn_id,
            stopped_by=stop.task_id,
            publishes=[one.task_id for one in publishes],
        ).as_teardown(on_failure_fail_dagrun=True)
        quiet >> stop >> list(publishes) >> resume >> last
        stop >> resume
        stop >> last


def check_stopped(jobs: Sequence[FlinkJob], context: Context) -> None:
    """Let the publish of a table replace what its jobs had open, if all are stopped, and see that they still are.

    An earlier try that has published returns its result, whatever runs.

    Raises:
        AirflowSkipException: the run publishes the other way.
            UnsafeOperationError: a job runs again, as it does when only the publish was cleared.
    """
    if (way := context["params"].get("publish", context["ti"].task_id)) != context["ti"].task_id:
        raise AirflowSkipException(f"This run publishes by {way}")
    chosen = [job for job in jobs if job.name in stopped_jobs(context)]
    with in_airflows_terms(context):
        runs = [(job, ids) for job in chosen if (ids := FlinkHook(job.flink_conn_id).running(job.name))]
        if runs and not _has_published(context):
            job, ids = runs[0]
            raise UnsafeOperationError(
                f"Flink job {job.name!r} runs again ({', '.join(ids)}): clear task stop_{job.task_name} with its "
                f"downstream"
            )
    task: Any = context["task"]
    for one in getattr(task, "tables", ()):
        if all_are_stopped(context, one["table"]):
            one["writers_stopped"] = True
    if all_are_stopped(context):
        task.writers_stopped = True


def _main_of(table: Identifier) -> str:
    return str(replace(table, branch=MAIN))


def _has_published(context: Context) -> bool:
    """Whether an earlier try has changed all tables of the run."""
    from airflow_paimon.core.publish.undoable_publishes import undoable_publishes

    mains = [open_main({**context["params"], "table": name}) for name in table_names(context["params"])]
    mine = operation_id(context)
    return all(any(one.snapshot.commit_user == mine for one in undoable_publishes(main)) for main in mains)


def _unless_left_out(name: str, context: Context) -> None:
    if name not in stopped_jobs(context):
        raise AirflowSkipException(f"Flink job {name!r} is left out, or writes other tables: it keeps running")


class StopFlinkJobOperator(FlinkStopOperator, FlinkSqlOperator):
    """Stop a job, unless Flink refuses the SQL that is to start it again."""

    template_fields: Sequence[str] = (*FlinkSqlOperator.template_fields, "job", "savepoints")

    def execute(self, context: Context) -> str:
        """Let Flink plan the job, and stop it."""
        context["ti"].xcom_push(key=_BEGUN, value=self.job)
        hook = FlinkHook(self.flink_conn_id)
        with in_airflows_terms(context):
            self._refuse_from_outside(hook, context)
            self._explain(hook)
        return super().execute(context)


class ResumeFlinkJobOperator(FlinkSqlOperator):
    """
    Let a job run that a task of the same run may have stopped: start it from that savepoint, unless it runs.

    Skipped when that task never began. The new job's id is made from the savepoint, so Flink refuses a second one.

    :param stopped_by: the task
    :param publishes: the tasks that must have ended before the job starts
    """

    def __init__(self, *, stopped_by: str, publishes: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(deferrable=False, **kwargs)
        self.stopped_by = stopped_by
        self.publishes = publishes

    def _start(self, context: Context, hook: FlinkHook) -> str | None:
        ti, name = context["ti"], str(self.job_name)
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        began = states.get(self.stopped_by) in ("success", "failed")
        if not began and ti.xcom_pull(task_ids=self.stopped_by, key=_BEGUN) is None:
            raise AirflowSkipException(f"Task {self.stopped_by} did not run, so the job was not stopped")
        self._let_end(ti, states)
        said = ti.xcom_pull(task_ids=self.stopped_by)
        try:
            found = self._final_tag(hook, savepoint_place(ti.dag_id, ti.run_id, self.stopped_by))
            if found.state == "running":
                self.log.info("Flink job %r runs: %s", name, found.job_id)
                return self._wait(context, hook, job_id=found.job_id)
            self.savepoint = said = self._own_savepoint(ti, hook, found, said)
            return super()._start(context, hook)
        except UnsafeOperationError:
            raise
        except PaimonError as error:
            path = self.savepoint or (None if self._was_cleared(ti) else said)
            by_hand = f"; or {self._by_hand(path)}" if path else ""
            error.set_message(f"{error.message}. To start the job: clear task {self.task_id}{by_hand}")
            raise

    def on_kill(self) -> None:
        """Leave the job alone, which is to run; a retry finds it."""

    def _let_end(self, ti: Any, states: Mapping[str, Any]) -> None:
        """Wait for a stop or a publish that a person has ended: neither must go on once the job was looked at."""
        ended = [one for one in (self.stopped_by, *self.publishes) if states.get(one) in ("success", "failed")]
        if any(ti.xcom_pull(task_ids=n) is None and ti.xcom_pull(task_ids=n, key=ERROR_KEY) is None for n in ended):
            self.log.info("A task was ended from outside: waiting %s s until its worker has ended", _SECONDS_TO_END)
            time.sleep(_SECONDS_TO_END)

    def _final_tag(self, hook: FlinkHook, place: str) -> JobState:
        """Return what has become of the job, once no stop goes on."""

        def poll() -> JobState | None:
            found = hook.state_of(str(self.job_name), place)
            return None if found.state == "stopping" else found

        late = f"Flink job {self.job_name!r} has not stopped within {self.timeout} s, as it was asked to"
        return FlinkPoll(poll, time.time() + self.timeout, late).wait(self.poll_interval)

    def _own_savepoint(self, ti: Any, hook: FlinkHook, found: JobState, said: str | None) -> str:
        """Return the savepoint to start from.

        Raises:
            UnsafeOperationError: the job has run since, or was stopped by others, or nobody can tell.
        """
        if found.savepoint is not None:
            return found.savepoint
        if found.job_id is not None:
            left = hook.start_point_of(found.job_id)
            helps = f"Unless another run has stopped it, which will start it: {self._by_hand(left)}"
            raise UnsafeOperationError(
                f"Flink job {self.job_name!r} doesn't run, and this run has not stopped it last: "
                f"{hook.describe_end(found.job_id)}. {helps if left else 'Start it yourself'}"
            )
        if said is None or self._was_cleared(ti):
            raise UnsafeOperationError(
                f"Flink knows no job {self.job_name!r} any more, so it can't determine whether the job ran after task "
                f"{self.stopped_by} stopped it. If it did not: {self._by_hand(said)}"
            )
        return said

    def _was_cleared(self, ti: Any) -> bool:
        """Whether this may be long after the savepoint, and the job may have run meanwhile."""
        return bool(ti.max_tries > self.retries)

    def _by_hand(self, path: str | None) -> str:
        where = path or f"the path of its savepoint, which the log of task {self.stopped_by} shows"
        quoted = str(self.job_name).replace("'", "''")
        return (
            f"give Flink's SQL client SET 'pipeline.name' = '{quoted}'; SET '{SAVEPOINT}' = '{where}'; and then the "
            f"job's settings and SQL"
        )
