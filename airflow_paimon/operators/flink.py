"""Operators that stop Flink jobs and start them, by the REST APIs of Flink. No table of Paimon's is opened here."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon import settings as defaults
from airflow_paimon._compat import AirflowTaskTimeout, BaseOperator
from airflow_paimon.arguments import StrictTemplates, as_dict, is_blank, is_literal
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.forms.origin import from_outside, source_of
from airflow_paimon.hooks.flink import FlinkError, FlinkHook, Stop
from airflow_paimon.links import FlinkLink, store_links
from airflow_paimon.task_run import (
    ERROR_KEY,
    answer_of,
    commit_user_prefix,
    deadline_of,
    in_airflows_terms,
    keys_of_earlier_tries,
    operation_id,
)

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

__all__ = ["FlinkSqlOperator", "FlinkStopOperator"]

MODES = ("streaming", "batch")
_MODE, _NAME, SAVEPOINT = "execution.runtime-mode", "pipeline.name", "execution.state-recovery.path"
_JOB_ID = "$internal.pipeline.job-id"
"""Flink's own setting for the id of a job that is submitted (``PipelineOptionsInternal``)."""
_SUBMITTED = "flink_job_"
"""Begins the key of an XCom that says that a job was submitted: Flink forgets jobs that have ended."""
_STARTS_JOB = ("insert", "update", "delete", "execute")
_DATES = frozenset({"ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz", "logical_date", "data_interval_start",
                    "data_interval_end"})  # fmt: skip
"""What templates of SQL may name: what nobody can write text into."""
_PARTS = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/|(?P<end>;)", re.DOTALL)
_COMMENT = re.compile(r"('(?:[^']|'')*'|`(?:[^`]|``)*`)|--[^\n]*|/\*(?!\+).*?\*/", re.DOTALL)
_EXECUTE = re.compile(r"^((?:\s|--[^\n]*\n|/\*.*?\*/)*)execute\s+statement\s+set\b", re.IGNORECASE | re.DOTALL)
_SET = re.compile(r"(?:execute|explain|compile)\b.*\bstatement\s+set\b", re.IGNORECASE | re.DOTALL)


class FlinkOperator(StrictTemplates, BaseOperator):
    """What both have in common: the connection, the wait here or in the triggerer, and the job's page."""

    template_fields: Sequence[str] = ("flink_conn_id",)
    operator_extra_links = (FlinkLink(),)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        flink_conn_id: str = FlinkHook.default_conn_name,
        deferrable: bool = defaults.DEFERRABLE,
        poll_interval: float = 2.0,
        timeout: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flink_conn_id = flink_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.flink_url: str | None = None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Come back from the triggerer."""
        self.flink_url = FlinkHook(self.flink_conn_id).job_url(event["job_id"])
        if event.get("timed_out"):
            raise AirflowTaskTimeout(f"Flink job {event['job_id']} took longer than execution_timeout")
        if "error" in event:
            context["ti"].xcom_push(key=ERROR_KEY, value=event["error"])
        return str(answer_of(event))

    def _wait(
        self,
        context: Context,
        hook: FlinkHook,
        *,
        stop: Stop | None = None,
        job_id: str | None = None,
        until_finished: bool = False,
    ) -> str:
        self.flink_url = hook.job_url(stop.job_id if stop else str(job_id))
        store_links(self, context)
        until = None if until_finished else time.time() + self.timeout
        poll = hook.polling(stop, job_id, until_finished=until_finished, until=until)
        if self.deferrable:
            if (found := poll()) is not None:
                return found
            from airflow_paimon.triggers.flink import FlinkTrigger

            self.defer(
                trigger=FlinkTrigger(
                    flink_conn_id=self.flink_conn_id,
                    stop=None if stop is None else asdict(stop),
                    job_id=job_id,
                    until_finished=until_finished,
                    poll_interval=self.poll_interval,
                    until=until,
                    deadline=deadline_of(self, context),
                ),
                method_name="execute_complete",
            )
        return poll.wait(self.poll_interval)


class FlinkStopOperator(FlinkOperator):
    """
    Stop a running Flink job with a savepoint, and return the savepoint's path.

    A retry asks for no second savepoint: it finds the one that the first try asked for, also when the job has ended
    meanwhile. So does Clear, while the job has not been started again. A task that is killed leaves the stop going on.

    :param job: the job's id, or its name if only one job of that name runs (templated)
    :param savepoints: the folder for savepoints, as Flink's machines see it; left out, the cluster's own (templated).
        The savepoint is in a folder below it that is named after the task
    :param drain: let the job process all that is in flight as if no more came: for a job that will not go on
    :param flink_conn_id: connection of type ``paimon_flink`` (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poll_interval: seconds between two polls
    :param timeout: fail when the stop takes more seconds; it continues, and a retry waits for it again
    """

    template_fields: Sequence[str] = (*FlinkOperator.template_fields, "job", "savepoints")

    def __init__(
        self, *, job: str | XComArg, savepoints: str | None = None, drain: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.savepoints = savepoints
        self.drain = drain

    def execute(self, context: Context) -> str:
        """Ask the job to stop, and wait until it has."""
        ti = context["ti"]
        with in_airflows_terms(context):
            if is_blank(self.job):
                raise InvalidInputError("job is empty: name the Flink job that is to stop")
            hook = FlinkHook(self.flink_conn_id)
            folder = None if is_blank(self.savepoints) else self.savepoints
            place = savepoint_place(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
            stop = hook.stop(str(self.job).strip(), place, folder, drain=self.drain)
            if isinstance(stop, str):
                self.log.info("This task has stopped the job already")
                return stop
            self.log.info("Flink job %s was asked to stop with a savepoint in %s", stop.job_id, stop.folder)
            return self._wait(context, hook, stop=stop)


class FlinkSqlOperator(FlinkOperator):
    """
    Give a statement or a script to Flink's SQL gateway, and return the id of the job that it starts.

    The script's last statement may start a job: ``INSERT``, ``EXECUTE STATEMENT SET``, ``UPDATE`` or ``DELETE``; those
    before it prepare it, as ``CREATE CATALOG`` does, and are run again by a retry. In streaming mode the task succeeds
    once all of the job runs, and in batch mode once it has finished. The job's id is made from the task: a retry finds
    the job that the first try has submitted, and with ``savepoint`` Clear does as well. A task that is killed cancels
    its job. Queries are refused, as nobody gets their rows.

    :param sql: the text, or a ``.sql`` file beside the DAG (templated). Templates may name dates only, as
        ``{{ ds }}``: what runs in Flink is the DAG's own code, unless the connection's ``any_sql`` says otherwise
    :param runtime_mode: ``streaming`` or ``batch``
    :param settings: Flink's settings of the session, such as ``{"parallelism.default": "4"}`` (templated, as ``sql``)
    :param job_name: the job's name, by which it can be stopped (templated)
    :param savepoint: start the job from this savepoint, such as another task's result (templated)
    :param flink_conn_id: connection of type ``paimon_flink`` (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poll_interval: seconds between two polls
    :param timeout: fail when a statement, or the start of a streaming job, takes more seconds. A batch job may run as
        long as ``execution_timeout`` lets it
    """

    template_fields: Sequence[str] = (*FlinkOperator.template_fields, "sql", "settings", "job_name", "savepoint")
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql", "settings": "json"}
    file_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"sql": (".sql",)}

    def __init__(
        self,
        *,
        sql: str,
        runtime_mode: str = "streaming",
        settings: Mapping[str, Any] | None = None,
        job_name: str | None = None,
        savepoint: str | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if runtime_mode not in MODES:
            raise InvalidInputError(f"runtime_mode must be one of {', '.join(MODES)}, not {runtime_mode!r}")
        self.sql = sql
        self.runtime_mode = runtime_mode
        self.settings = settings
        self.job_name = job_name
        self.savepoint = savepoint
        self._job: tuple[FlinkHook, str] | None = None
        self._statement: tuple[FlinkHook, str, str] | None = None

    def execute(self, context: Context) -> str | None:
        """Run the statements, and wait for the job."""
        with in_airflows_terms(context):
            hook = FlinkHook(self.flink_conn_id)
            self._refuse_from_outside(hook, context)
            return self._start(context, hook)

    def _start(self, context: Context, hook: FlinkHook) -> str | None:
        *before, last = statements = statements_of(self.sql)
        if not starts_job(last):
            if not is_blank(self.savepoint):
                raise InvalidInputError("sql starts no job, so there is nothing to start from savepoint")
            result = self._run(hook, statements)
            return result and self._wait(context, hook, job_id=result, until_finished=self.runtime_mode == "batch")
        ti, origin = context["ti"], self._origin(context)
        mark = f"{_SUBMITTED}{hashlib.sha256(origin.encode()).hexdigest()[:16]}"
        if submitted := mark in keys_of_earlier_tries(ti):
            ti.xcom_push(key=mark, value=True)
        job_id, is_there = hook.job_to_submit(origin, submitted=submitted)
        self._job = hook, job_id
        if is_there:
            self.log.info("An earlier attempt has submitted the job %s", job_id)
        else:
            self._run(hook, before, last, job_id)
        ti.xcom_push(key=mark, value=True)
        return self._wait(context, hook, job_id=job_id, until_finished=self.runtime_mode == "batch")

    def _origin(self, context: Context) -> str:
        """Say what decides the job's id: the try's operation, or else the savepoint, from which Clear starts no second
        job either.
        """
        if is_blank(self.savepoint):
            return operation_id(context)
        ti = context["ti"]
        return f"{savepoint_place(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)}\n{str(self.savepoint).strip()}"

    def on_kill(self) -> None:
        """Cancel the statement, and the job."""
        if self._statement is not None:
            hook, session, operation = self._statement
            hook.cancel_operation(session, operation)
        if self._job is not None:
            hook, job_id = self._job
            try:
                hook.cancel(job_id)
            except FlinkError as error:
                self.log.error("Flink job %s was not cancelled and may still run: %s", job_id, error.message)

    def _explain(self, hook: FlinkHook) -> None:
        """Let Flink plan the job, which starts nothing.

        Raises:
            FlinkError: Flink refuses the SQL.
        """
        *before, last = statements_of(self.sql)
        explained, is_set = _EXECUTE.subn(r"\1EXPLAIN STATEMENT SET", last, count=1)
        if _first_word(last) != "execute":
            explained = f"EXPLAIN {last}"
        elif not is_set:  # a compiled plan
            return
        self._run(hook, [*before, explained])

    def _session_settings(self) -> dict[str, str]:
        given = {name: str(value) for name, value in as_dict("settings", self.settings).items()}
        own = {_MODE: self.runtime_mode, "table.dml-sync": "false"}
        if not is_blank(self.job_name):
            own[_NAME] = str(self.job_name)
        if self.savepoint is not None:
            if is_blank(self.savepoint):
                raise InvalidInputError(f"savepoint rendered to {self.savepoint!r}: leave it out for a job without one")
            own[SAVEPOINT] = str(self.savepoint).strip()
        if twice := sorted(own.keys() & given.keys()):
            raise InvalidInputError(f"settings can't have {', '.join(twice)}: the operator sets it")
        return given | own

    def _run(self, hook: FlinkHook, before: list[str], last: str | None = None, job_id: str = "") -> str | None:
        """Run statements in a session of their own; ``last`` submits the job. Returns the id that Flink says."""
        session, found = hook.open_session(self._session_settings()), None
        try:
            for statement in before:
                found = self._run_one(hook, session, statement, {})
            if last is not None:
                self._submit(hook, session, last, job_id)
        finally:
            hook.close_session(session)
        return found

    def _submit(self, hook: FlinkHook, session: str, statement: str, job_id: str) -> None:
        try:
            found = self._run_one(hook, session, statement, {_JOB_ID: job_id})
        except FlinkError:
            if hook.state(job_id) is None:
                raise
            self.log.info("An earlier attempt has submitted the job %s meanwhile", job_id)
        else:
            if found != job_id:
                raise FlinkError(
                    f"Flink gave the job the id {found} instead of {job_id}, by which a retry would find it. Cancel "
                    f"it: {hook.job_url(str(found))}. Flink 1.20 and 2.0 are known to take it"
                )

    def _run_one(self, hook: FlinkHook, session: str, statement: str, config: Mapping[str, str]) -> str | None:
        operation = hook.start(session, statement, config)
        self._statement = hook, session, operation
        try:
            return hook.wait_for(session, operation, time.time() + self.timeout)
        finally:
            self._statement = None

    def _refuse_from_outside(self, hook: FlinkHook, context: Context) -> None:
        """Refuse SQL, settings and savepoints that a form can say something in."""
        outside = from_outside(self, ("sql", "settings", "savepoint"), context, throughout=True)
        if not outside or hook.any_sql:
            return
        declared = context["dag"].task_dict.get(context["ti"].task_id)
        for name in sorted(outside):
            # The result of a task is what a savepoint is for.
            known = _DATES | ({"ti", "task_instance"} if name == "savepoint" else set())
            if not _names_only(known, declared, name):
                raise UnsafeOperationError(
                    f"{name} is not the DAG's own code alone: its templates may name {', '.join(sorted(known))}. "
                    f"Values of a form could run anything in Flink; to allow that to every user who may trigger the "
                    f'DAG, set "any_sql": "true" in the extra of connection {self.flink_conn_id!r}'
                )


def savepoint_place(dag_id: str, run_id: str, task_id: str, map_index: int | None = None) -> str:
    """Name the folder of the savepoints of a task in a run."""
    parts = [dag_id, run_id, task_id, -1 if map_index is None else map_index]
    return commit_user_prefix(dag_id, task_id) + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def statements_of(sql: str) -> list[str]:
    """Split a script of which the last statement may start a job.

    Raises:
        InvalidInputError: it is empty, has a query, or another statement that starts a job.
    """
    found = split_flink_sql(sql)
    if not found:
        raise InvalidInputError("sql is empty")
    if queries := [one for one in found if _first_word(one) in ("select", "with", "values", "table")]:
        raise InvalidInputError(f"sql has a query, whose rows would be lost: INSERT them INTO a table: {queries[0]}")
    if early := [one for one in found[:-1] if starts_job(one)]:
        raise InvalidInputError(
            f"Only the last statement may start a job, not: {early[0]}. Put several into one EXECUTE STATEMENT SET "
            f"BEGIN ... END, or into a task each"
        )
    return found


def split_flink_sql(text: str) -> list[str]:
    """Split a script at its semicolons; those inside of a statement set are its own."""
    ends = [match.start() for match in _PARTS.finditer(text) if match["end"]]
    found: list[str] = []
    inside = False
    for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(text)], strict=True):
        part = text[start:end].strip()
        bare = _COMMENT.sub(r"\1", part).strip()
        if inside:
            found[-1] += f"; {part}"
            inside = bare.lower() != "end"
        elif bare:
            found.append(part)
            inside = bool(_SET.match(bare)) and not re.search(r"\bend$", bare, re.IGNORECASE)
    return found


def starts_job(statement: str) -> bool:
    """Say whether Flink starts a job for a statement, and tells its id."""
    return _first_word(statement) in _STARTS_JOB


def _first_word(statement: str) -> str:
    match = re.match(r"[\s(]*(\w*)", _COMMENT.sub(r"\1", statement))
    return match[1].lower() if match else ""


def _names_only(known: frozenset[str] | set[str], declared: Any, name: str) -> bool:
    """Whether an argument is texts whose templates name nothing but what is known."""
    from airflow.sdk import XComArg
    from jinja2 import TemplateError

    from airflow_paimon._compat import MappedOperator

    if declared is None or isinstance(declared, MappedOperator):
        return False
    value, env = source_of(declared, name, getattr(declared, name, None)), declared.get_template_env()
    if isinstance(value, XComArg):
        return "ti" in known
    texts = [one for one in (value.values() if isinstance(value, Mapping) else [value]) if not is_literal(one)]
    try:
        return all(isinstance(one, str) and _names(env.parse(one)) <= known for one in texts)
    except TemplateError:
        return False


def _names(template: Any) -> set[str]:
    """Return what a template names: variables, and a word for other templates."""
    from jinja2 import meta

    return meta.find_undeclared_variables(template) | {"include" for _ in meta.find_referenced_templates(template)}
