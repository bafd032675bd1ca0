"""Flink jobs that a correction stops right before its publish and starts from their savepoints after it.

stop_NAME, between wait_for_quiet and the publish -> resume_NAME, after the publish, whatever became of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator, Param

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError
from airflow_paimon.core.requests.text_files import names_file
from airflow_paimon.hooks.flink import FlinkHook
from airflow_paimon.operators.flink import (
    SAVEPOINT,
    FlinkSqlOperator,
    FlinkStopOperator,
    savepoint_place,
    starts_job,
    statements_of,
)
from airflow_paimon.task_run import in_airflows_terms, operation_id

if TYPE_CHECKING:
    from airflow.sdk import Context

FIELD = "flink_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJob:
    """A Flink job that writes the tables of a correction DAG.

    ``name``: its name in Flink, which no other job has. ``sql`` and ``settings``: what starts it, as
    ``FlinkSqlOperator`` takes them. ``savepoints``: the folder for its savepoints, when not the cluster's own.
    """

    name: str
    sql: str
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


def form_field(jobs: Sequence[FlinkJob]) -> Param:
    """Make the field that chooses among the jobs: all of them, unless a run says otherwise.

    Raises:
        InvalidInputError: two jobs can't be told apart.
    """
    names = [job.name for job in jobs]
    if len({job.task_name for job in jobs}) < len(jobs):
        raise InvalidInputError(f"flink_jobs: two jobs have the same name for their tasks: {', '.join(names)}")
    return Param(
        names,
        title="Flink jobs",
        description="Jobs that are stopped right before the publish and started from their savepoints after it, also "
        "when it fails. With all of them the publish may replace what they have open.",
        type=["array", "null"],
        items={"type": "string", "enum": names},
        examples=names,
    )


def all_are_stopped(params: Mapping[str, Any], declared: Sequence[str]) -> bool:
    """Say whether a run stops all jobs that the DAG's author has declared."""
    return bool(declared) and set(declared) <= set(params.get(FIELD) or ())


def declared_jobs(context: Context) -> list[str]:
    """Name the jobs that the DAG's author has declared."""
    params: Any = context["dag"].params
    return list(params.get_param(FIELD).schema["items"]["enum"]) if FIELD in params else []


def of_publishes(jobs: Sequence[FlinkJob]) -> dict[str, Any]:
    """Return the arguments of the publishes that wait for the stops; the stop of a job that isn't chosen is skipped."""
    return {"trigger_rule": "none_failed_min_one_success", "pre_execute": partial(check_stopped, jobs)}


def need_not_wait(jobs: Sequence[FlinkJob], context: Context) -> None:
    """Let the wait for quiet buckets succeed, if all jobs are stopped after it."""
    if all_are_stopped(context["params"], [job.name for job in jobs]):
        context["task"].writers_stopped = True


def add_flink_jobs(jobs: Sequence[FlinkJob], quiet: BaseOperator, publishes: list[Any], last: BaseOperator) -> None:
    """Add the tasks of each job, and let the publishes wait for the stops."""
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
            trigger_rule="all_done",
        )
        quiet >> stop >> publishes >> resume >> last
        stop >> resume
        stop >> last


def check_stopped(jobs: Sequence[FlinkJob], context: Context) -> None:
    """Let the publish replace what the jobs had open, if all of them are stopped, and see that they still are.

    Raises:
        AirflowSkipException: the run publishes the other way.
            UnsafeOperationError: a job runs again, as it does when only the publish was cleared.
    """
    params = context["params"]
    if params["publish"] != context["ti"].task_id:
        raise AirflowSkipException(f"This run publishes by {params['publish']}")
    with in_airflows_terms(context):
        for job in jobs:
            if job.name in (params[FIELD] or ()) and (ids := FlinkHook(job.flink_conn_id).running(job.name)):
                raise UnsafeOperationError(
                    f"Flink job {job.name!r} runs again ({', '.join(ids)}): clear task stop_{job.task_name} with its "
                    f"downstream"
                )
    if all_are_stopped(params, [job.name for job in jobs]):
        context["task"].writers_stopped = True


def _unless_left_out(name: str, context: Context) -> None:
    if name not in (context["params"][FIELD] or ()):
        raise AirflowSkipException(f"Flink job {name!r} is not among the Flink jobs of this run: it goes on")


class StopFlinkJobOperator(FlinkStopOperator, FlinkSqlOperator):
    """Stop a job, unless Flink refuses the SQL that is to start it again."""

    template_fields: Sequence[str] = (*FlinkSqlOperator.template_fields, "job", "savepoints")

    def execute(self, context: Context) -> str:
        """Let Flink plan the job, and stop it."""
        hook = FlinkHook(self.flink_conn_id)
        with in_airflows_terms(context):
            self._refuse_from_outside(hook, context)
            self._explain(hook)
        return super().execute(context)


class ResumeFlinkJobOperator(FlinkSqlOperator):
    """
    Start a job from the savepoint with which a task of the same run has stopped it, whatever that task said in the end.

    Skipped when that task never began, or the job runs.

    :param stopped_by: the task
    """

    def __init__(self, *, stopped_by: str, **kwargs: Any) -> None:
        super().__init__(deferrable=False, **kwargs)
        self.stopped_by = stopped_by

    def _start(self, context: Context, hook: FlinkHook) -> str | None:
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[self.stopped_by], run_ids=[ti.run_id])
        if states.get(ti.run_id, {}).get(self.stopped_by) not in ("success", "failed"):
            raise AirflowSkipException(f"Task {self.stopped_by} did not run, so the job was not stopped")
        try:
            self.savepoint = self._left_savepoint(context, hook)
            return super()._start(context, hook)
        except PaimonError as error:
            error.message += f". {self._by_hand(ti.xcom_pull(task_ids=self.stopped_by))}"
            error.args = (error.message,)
            raise

    def on_kill(self) -> None:
        """Leave the job alone, which is to run; a retry finds it."""
        self._job = None
        super().on_kill()

    def _left_savepoint(self, context: Context, hook: FlinkHook) -> str | None:
        """Return the savepoint; None when an earlier try has started the job from it.

        Raises:
            AirflowSkipException: the job runs. UnsafeOperationError: there is no savepoint of this run, or the job ran
                since.
        """
        ti, name = context["ti"], str(self.job_name)
        if hook.job_to_submit(operation_id(context))[1]:
            return None
        while active := hook.running(name):
            if not hook.is_stopping(active[0]):
                raise AirflowSkipException(f"Flink job {name!r} runs: {active[0]}")
            time.sleep(self.poll_interval)
        if left := hook.stopped_in(name, savepoint_place(ti.dag_id, ti.run_id, self.stopped_by)):
            return left
        said = ti.xcom_pull(task_ids=self.stopped_by)
        if said and not hook.jobs(name):  # the JobManager has begun anew since, and knows no job that has ended
            return str(said)
        raise UnsafeOperationError(
            f"Flink job {name!r} doesn't run, and this run has not stopped it last: {hook.how_it_ended(name)}"
        )

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Submit the job, but never from nothing: it would read its source from the start."""
        if self.savepoint is None:
            raise UnsafeOperationError(
                f"Flink job {self.job_name!r}, which this task had started, is not known any more"
            )
        return super()._run(*args, **kwargs)

    def _by_hand(self, stopped_with: object) -> str:
        path = self.savepoint or stopped_with or "(the path that it left)"
        return (
            f"To start Flink job {self.job_name!r}: clear task {self.task_id}; or give Flink's SQL client SET "
            f"'pipeline.name' = '{self.job_name}'; SET '{SAVEPOINT}' = '{path}'; and then its SQL"
        )
