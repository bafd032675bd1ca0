"""The connection type ``paimon_flink``: the REST API of a Flink cluster's JobManager, and its SQL gateway.

What a try begins in Flink has a name that is made from the task's operation: the id of a job, the trigger and the
folder of a savepoint. So Flink itself refuses to do it twice, and a retry finds it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from airflow_paimon._compat import AirflowNotFoundException, BaseHook
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsafeOperationError

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["FlinkHook"]

ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
_SAVEPOINTS = ("execution.checkpointing.savepoint-dir", "state.savepoints.dir")
"""The setting of the cluster, by its names since and before Flink 1.20."""
_TIMEOUT_SECONDS = (10, 60)
_LISTED = 20
_MOST_MISSES = 30
log = logging.getLogger(__name__)
T = TypeVar("T")


class FlinkError(PaimonError):
    """Flink has refused something, or a job has failed."""

    kind = "flink"


class FlinkUnreachableError(FlinkError):
    """Nothing answers, or not yet."""


class FlinkSqlError(FlinkError):
    """A statement is wrong."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop with savepoint that was asked for. ``folder``: where the savepoint goes."""

    job_id: str
    trigger_id: str
    folder: str


@dataclass(frozen=True, slots=True)
class JobState:
    """What has become of a job, as seen by the task that stops it or has stopped it.

    ``state``: ``running``; ``stopping``, with a savepoint; ``stopped``, by that task, with ``savepoint``; ``ended`` by
    anything else; ``unknown``: the JobManager knows no such job, or none that got on.
    """

    state: str
    job_id: str | None = None
    savepoint: str | None = None


@dataclass(slots=True)
class FlinkPoll(Generic[T]):
    """A poll that may fail some times in a row, as while another JobManager takes over.

    ``until``: epoch seconds at which to give up, with the error ``late``.
    """

    poll: Callable[[], T | None]
    until: float | None = None
    late: str = ""
    misses: int = 0

    def __call__(self) -> T | None:
        """Poll once; None: not yet.

        Raises:
            FlinkError: it is late.
        """
        try:
            found = self.poll()
        except FlinkUnreachableError as error:
            self.misses += 1
            if self.misses >= _MOST_MISSES:
                raise
            log.warning("%s; checking again", error.message)
            found = None
        else:
            self.misses = 0
        if found is None and self.until is not None and self.until <= time.time():
            raise FlinkError(self.late)
        return found

    def wait(self, interval: float) -> T:
        """Poll every ``interval`` seconds until something is found."""
        while (found := self()) is None:
            time.sleep(interval)
        return found


class FlinkHook(BaseHook):
    """
    Reach a Flink cluster (1.20 or later) by the REST API of its JobManager and by its SQL gateway.

    The connection has the JobManager's host (``https://`` may stand before it) and port (8081 when left out), login and
    password where a proxy asks for them, and in its extra ``gateway``, the address of the SQL gateway (the same host
    and port 8083 when left out). ``any_sql``: SQL and savepoints of tasks may come from forms.

    :param flink_conn_id: the Airflow connection
    :param connection: take this connection instead of looking one up by its id
    """

    conn_name_attr = "flink_conn_id"
    default_conn_name = "flink_default"
    conn_type = "paimon_flink"
    hook_name = "Apache Flink (REST)"

    def __init__(self, flink_conn_id: str = default_conn_name, *, connection: Connection | None = None) -> None:
        super().__init__()
        self.flink_conn_id = flink_conn_id
        self._connection = connection

    @property
    def connection(self) -> Connection:
        """The Airflow connection, read once. ``InvalidInputError`` when there is none of that name."""
        if self._connection is None:
            try:
                self._connection = self.get_connection(self.flink_conn_id)
            except AirflowNotFoundException:
                raise InvalidInputError(
                    f"There is no Airflow connection {self.flink_conn_id!r}; create one of type {self.conn_type!r} "
                    f"with the JobManager's host"
                ) from None
        return self._connection

    @property
    def manager(self) -> str:
        """The address of the JobManager's REST API, where Flink's pages are as well."""
        return self._address(8081)

    @property
    def gateway(self) -> str:
        """The address of the SQL gateway."""
        given = str(self.connection.extra_dejson.get("gateway") or "").strip().rstrip("/")
        return given if "://" in given else f"http://{given}" if given else self._address(8083, fixed=True)

    @property
    def any_sql(self) -> bool:
        """Whether SQL and savepoints of tasks may come from forms."""
        return str(self.connection.extra_dejson.get("any_sql") or "").strip().lower() == "true"

    def job_url(self, job_id: str) -> str:
        """Return the address of a job's page."""
        return f"{self.manager}/#/job/running/{job_id}/overview"

    def test_connection(self) -> tuple[bool, str]:
        """Ask the JobManager and the gateway who they are: what the button *Test* does."""
        try:
            found = self._manager("GET", "/overview")
            gateway = self._gateway("GET", "/info")
        except PaimonError as error:
            return False, error.message
        return True, (
            f"Flink {found['flink-version']}, {found['jobs-running']} jobs run, {found['slots-available']} slots are "
            f"free; SQL gateway {gateway['version']}"
        )

    def polling(
        self, stop: Stop | None, job_id: str | None, *, until_finished: bool, until: float | None = None
    ) -> FlinkPoll[str]:
        """Return the poll of a stop, or else of a job, that is waited for. ``until``: epoch seconds."""
        if stop is not None:
            late = (
                f"Flink job {stop.job_id} has not stopped within the task's timeout. Its stop continues, and Clear "
                f"waits for it again. Its page shows what its savepoint waits for: {self.job_url(stop.job_id)}"
            )
            return FlinkPoll(partial(self.poll_stop, stop), until, late)
        late = (
            f"Not all of Flink job {job_id} runs within the task's timeout. It continues by itself. Its page shows "
            f"why, such as a lack of slots, and can cancel it: {self.job_url(str(job_id))}"
        )
        return FlinkPoll(partial(self.poll_job, str(job_id), until_finished=until_finished), until, late)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def jobs(self, job: str) -> list[dict[str, Any]]:
        """Return the jobs of a name, or the one of an id, the newest first: ``jid``, ``name``, ``state``."""
        found = self._manager("GET", "/jobs/overview")["jobs"]
        return sorted(
            (one for one in found if job in (one["name"], one["jid"])), key=lambda one: -int(one["start-time"])
        )

    def running(self, job: str) -> list[str]:
        """Return the ids of the jobs of a name that have not ended."""
        return [one["jid"] for one in self.jobs(job) if one["state"] not in ENDED]

    def state(self, job_id: str) -> str | None:
        """Return a job's state; None for one that the cluster doesn't know."""
        found = self._manager("GET", f"/jobs/{job_id}/status", may_miss=True)
        return None if found is None else str(found["status"])

    def poll_job(self, job_id: str, *, until_finished: bool) -> str | None:
        """Return the job's id once all of it runs, or once it has finished; None: not yet.

        Raises:
            FlinkError: it failed, was cancelled or is gone.
        """
        state = self.state(job_id)
        if state == "FINISHED":
            return job_id
        if state is None or state in ENDED:
            raise FlinkError(f"Flink job {job_id} {_ENDS[state]}{self._failure_cause(job_id)}. Its page: "
                             f"{self.job_url(job_id)}")  # fmt: skip
        if until_finished or state != "RUNNING":
            return None
        vertices = self._manager("GET", f"/jobs/{job_id}")["vertices"]
        return job_id if all(one["status"] in ("RUNNING", "FINISHED") for one in vertices) else None

    def cancel(self, job_id: str) -> None:
        """Cancel a job; one that has ended is left as it is."""
        self._manager("PATCH", f"/jobs/{job_id}?mode=cancel", may_miss=True)

    def _failure_cause(self, job_id: str) -> str:
        found = self._manager("GET", f"/jobs/{job_id}/exceptions", may_miss=True) or {}
        entries = found.get("exceptionHistory", {}).get("entries", [])
        return f": {_cause(entries[0]['stacktrace'])}" if entries else ""

    # -- stop with a savepoint -----------------------------------------------------------------------------------------

    def stop(self, job: str, place: str, folder: str | None = None, *, drain: bool = False) -> Stop | str:
        """Ask a job to stop with a savepoint, once for each ``place``; returns what to look at, or the savepoint that
        it has left there already.

        :param job: its id, or its name, if only one of that name runs
        :param place: the folder below the folder of savepoints, of this operation alone
        :param folder: the folder of savepoints; the cluster's own when left out

        Raises:
            NotFoundError: there is no such job. InvalidInputError: it has ended, several have the name, or there is no
                folder.
        """
        if left := self.state_of(job, place).savepoint:
            return left
        job_id = self._only_running(job, self.jobs(job))
        below = f"{(folder or self._savepoint_folder()).rstrip('/')}/{place}"
        trigger, previous = self._trigger(place, job_id)
        if previous is None:
            body = {"drain": drain, "targetDirectory": below, "triggerId": trigger}
            self._manager("POST", f"/jobs/{job_id}/stop", body)
        return Stop(job_id, trigger, below)

    def state_of(self, job: str, place: str) -> JobState:
        """Say what has become of a job, for the task whose savepoints lie in the folder ``place``.

        A job that failed or was cancelled before its first checkpoint has committed nothing: the savepoint that it was
        started from counts, or else the job before it.
        """
        for one in self.jobs(job):
            job_id, previous = one["jid"], self._trigger(place, one["jid"])[1]
            if one["state"] not in ENDED:
                return JobState("running" if previous is None else "stopping", job_id)
            if one["state"] == "FINISHED" and previous is not None and previous["status"]["id"] == "COMPLETED":
                return JobState("stopped", job_id, str(previous["operation"]["location"]))
            latest = self._last_checkpoints(job_id)
            made_progress = one["state"] == "FINISHED" or latest.get("completed") or latest.get("savepoint")
            left = _stopped_with(latest) if made_progress else (latest.get("restored") or {}).get("external_path")
            if left and f"/{place}/" in left and (not made_progress or one["state"] == "FINISHED"):
                return JobState("stopped", job_id, left)
            if made_progress:
                return JobState("ended", job_id)
        return JobState("unknown")

    def _trigger(self, place: str, job_id: str) -> tuple[str, dict[str, Any] | None]:
        """Return the trigger of a stop that has not failed, and what Flink knows of it: None before it is asked for,
        and some minutes after its end.
        """
        for number in count():
            trigger = _id(place, job_id, number)
            found = self._manager("GET", f"/jobs/{job_id}/savepoints/{trigger}", may_miss=True)
            if found is None or "failure-cause" not in (found.get("operation") or {}):
                return trigger, found
        raise AssertionError("unreachable")

    def poll_stop(self, stop: Stop) -> str | None:
        """Return the path of the savepoint once the job has ended with it; None: not yet.

        Raises:
            FlinkError: there is no savepoint.
        """
        at = f"/jobs/{stop.job_id}/savepoints/{stop.trigger_id}"
        found = self._manager("GET", at, may_miss=True)
        if found is None:  # the JobManager keeps this for some minutes, and only until it starts anew
            if left := self.savepoint_in(stop.job_id, stop.folder):
                return left
            raise FlinkError(
                f"Flink doesn't know any more what became of the savepoint of job {stop.job_id}, whose state is "
                f"{self.state(stop.job_id) or 'unknown'}. If it has ended, its savepoint is in {stop.folder}"
            )
        done = found.get("operation") or {}
        if "failure-cause" in done:
            raise FlinkError(
                f"Flink job {stop.job_id} made no savepoint, and its state is {self.state(stop.job_id)}: "
                f"{_cause(done['failure-cause'].get('stack-trace', ''))}. Its page: {self.job_url(stop.job_id)}"
            )
        if found["status"]["id"] != "COMPLETED":
            return None
        with suppress(FlinkUnreachableError):  # a JobManager of this job alone ends with it
            if self.state(stop.job_id) not in (None, *ENDED):
                return None
        return str(done["location"])

    def savepoint_in(self, job_id: str, folder: str | None = None) -> str | None:
        """Return the savepoint that a job was stopped with, if it lies in a folder, or in one below it."""
        path = _stopped_with(self._last_checkpoints(job_id))
        is_there = path is not None and (folder is None or _path(path).startswith(f"{_path(folder)}/"))
        return path if is_there else None

    def start_point_of(self, job_id: str) -> str | None:
        """Return what a job that has ended can be started from: a savepoint, or a checkpoint, if it was kept."""
        latest = self._last_checkpoints(job_id)
        return _stopped_with(latest) or (latest.get("completed") or {}).get("external_path")

    def describe_end(self, job_id: str) -> str:
        """Say how a job has ended, and what it has left to start from."""
        left = self.start_point_of(job_id)
        return f"{job_id} {_ENDS[self.state(job_id)]}" + (f" and left {left}" if left else "")

    def _last_checkpoints(self, job_id: str) -> dict[str, Any]:
        """Return the ``latest`` checkpoints of each kind (``completed``, ``savepoint``, ``restored``) of a job that has
        ended. Unless it was stopped with one, it looks twice: Flink may answer with what it knew some seconds ago.
        """
        for pause in (0, self._manager("GET", "/config")["refresh-interval"] / 1000):
            time.sleep(pause)
            found = (self._manager("GET", f"/jobs/{job_id}/checkpoints", may_miss=True) or {}).get("latest") or {}
            if _stopped_with(found) is not None:
                break
        return found

    def _only_running(self, job: str, known: list[dict[str, Any]]) -> str:
        active = [one["jid"] for one in known if one["state"] not in ENDED]
        if len(active) > 1:
            raise InvalidInputError(f"{len(active)} Flink jobs are named {job!r}: name one by its id: "
                                    f"{', '.join(active[:_LISTED])}")  # fmt: skip
        if active:
            return str(active[0])
        if known:
            raise InvalidInputError(
                f"Flink job {job!r} doesn't run: {self.describe_end(known[0]['jid'])}. Start it, or leave it out"
            )
        others = sorted(one["name"] for one in self._manager("GET", "/jobs/overview")["jobs"]
                        if one["state"] not in ENDED)  # fmt: skip
        listed = ", ".join(others[:_LISTED]) or "none"
        raise NotFoundError(f"There is no Flink job {job!r} at {self.manager}. Jobs that run there: {listed}")

    def _savepoint_folder(self) -> str:
        found = {one["key"]: one["value"] for one in self._manager("GET", "/jobmanager/config")}
        for name in _SAVEPOINTS:
            if found.get(name):
                return str(found[name])
        raise InvalidInputError(
            f"The Flink cluster at {self.manager} has no folder for savepoints: give savepoints, or set "
            f"{_SAVEPOINTS[0]} in its configuration"
        )

    # -- SQL -----------------------------------------------------------------------------------------------------------

    def open_session(self, settings: Mapping[str, str]) -> str:
        """Open a session of the gateway; returns its handle."""
        return str(self._gateway("POST", "/sessions", {"properties": dict(settings)})["sessionHandle"])

    def close_session(self, session: str) -> None:
        """Close a session. What it has submitted goes on."""
        with suppress(FlinkError):  # it ends by itself
            self._gateway("DELETE", f"/sessions/{session}")

    def start(self, session: str, statement: str, settings: Mapping[str, str] | None = None) -> str:
        """Give the gateway a statement; returns the handle of the operation, which goes on by itself."""
        body = {"statement": statement, "executionConfig": dict(settings or {})}
        return str(self._gateway("POST", f"/sessions/{session}/statements", body)["operationHandle"])

    def wait_for(self, session: str, operation: str, until: float, interval: float = 0.2) -> str | None:
        """Wait until a statement is done, or its job is submitted; returns the id of the job, if it has started one.

        ``until``: epoch seconds at which to give up.

        Raises:
            FlinkSqlError: the statement is wrong. FlinkError: Flink refuses it, or is late.
        """
        while True:
            found = self._gateway("GET", f"/sessions/{session}/operations/{operation}/result/0?rowFormat=JSON")
            if found["resultType"] != "NOT_READY":
                job_id: str | None = found.get("jobID")
                return job_id
            if until <= time.time():
                raise FlinkError(
                    "Flink's SQL gateway has not ended a statement within the task's timeout. Check the log of the "
                    f"gateway at {self.gateway}, or raise the timeout"
                )
            time.sleep(interval)

    def cancel_operation(self, session: str, operation: str) -> None:
        """Cancel a statement that isn't done."""
        with suppress(FlinkError):  # it is done, or gone
            self._gateway("POST", f"/sessions/{session}/operations/{operation}/cancel")

    def job_to_submit(self, origin: str, *, submitted: bool = False) -> tuple[str, bool]:
        """Return the id of the job that ``origin`` decides, and whether an earlier try has submitted it.

        ``submitted``: an earlier try is known to have done so.

        Raises:
            UnsafeOperationError: an earlier try's job has ended after it had got on, or Flink has forgotten it: to
                begin anew would do again what it has committed.
        """
        for number in count():
            job_id = _id(origin, "job", number)
            state = self.state(job_id)
            if state is None and number == 0 and submitted:
                raise UnsafeOperationError(
                    f"An earlier attempt started Flink job {job_id}, which Flink has forgotten: a new start would "
                    f"write rows twice. If it doesn't run, start it in Flink's SQL client from its newest savepoint or "
                    f"checkpoint"
                )
            if state is None:
                return job_id, False
            if state not in ENDED:
                return job_id, True
            latest = self._last_checkpoints(job_id)
            last, stopped = latest.get("completed") or {}, _stopped_with(latest)
            if state == "FINISHED" and stopped is None:
                return job_id, True
            if left := stopped or last.get("external_path") or last.get("id"):
                raise UnsafeOperationError(
                    f"Flink job {job_id}, which an earlier attempt started, {_ENDS[state]} after its checkpoint "
                    f"{left}{self._failure_cause(job_id)}. A new start would write twice what it has committed: run it "
                    "with savepoint set to that checkpoint"
                )
        raise AssertionError("unreachable")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _address(self, port: int, *, fixed: bool = False) -> str:
        host = str(self.connection.host or "").strip().rstrip("/")
        if not host:
            raise InvalidInputError(f"Connection {self.flink_conn_id!r} has no host: set it to the JobManager's")
        parts = urlsplit(host if "://" in host else f"http://{host}")
        given = parts.port or self.connection.port
        name = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        base = f"{parts.scheme}://{name}:{port if fixed or not given else given}"
        return base if fixed else base + parts.path

    def _manager(self, method: str, path: str, body: Any = None, *, may_miss: bool = False) -> Any:
        return self._ask("JobManager", self.manager, method, path, body, may_miss)

    def _gateway(self, method: str, path: str, body: Any = None) -> Any:
        return self._ask("SQL gateway", self.gateway, method, f"/v3{path}", body, False)

    def _ask(self, what: str, base: str, method: str, path: str, body: Any, may_miss: bool) -> Any:
        import requests

        user = (self.connection.login, self.connection.password or "") if self.connection.login else None
        try:
            answer = requests.request(method, base + path, json=body, auth=user, timeout=_TIMEOUT_SECONDS)
        except requests.RequestException as error:
            raise FlinkUnreachableError(
                f"Flink's {what} doesn't answer at {base} ({type(error).__name__}). Check that it runs, and connection "
                f"{self.flink_conn_id!r}"
            ) from None
        if may_miss and (answer.status_code == 404 or "FlinkJobNotFoundException" in answer.text):
            return None
        try:
            found = answer.json() if answer.content else {}
        except ValueError:
            raise FlinkUnreachableError(
                f"What answers at {base} is not Flink's {what}: HTTP {answer.status_code}. Check connection "
                f"{self.flink_conn_id!r}"
            ) from None
        if answer.status_code in (502, 503, 504):  # a proxy, or a JobManager that is being elected
            raise FlinkUnreachableError(f"Flink's {what} at {base} isn't ready: HTTP {answer.status_code}")
        if not answer.ok:
            said = "\n".join(map(str, found.get("errors", ())))
            refused = FlinkSqlError if base == self.gateway and _is_wrong(said) else FlinkError
            raise refused(f"Flink's {what} refuses: {_cause(said)}")
        return found


_ENDS = {"FINISHED": "has finished", "FAILED": "failed", "CANCELED": "was cancelled", None: "is gone"}


_SAYS_NOTHING = ("Internal server error.", "<Exception on server side:")
_WRONG = re.compile(
    r"Caused by: (?:org\.apache\.(?:calcite|flink\.(?:sql\.parser|table\.(?:api|catalog\.exceptions)))\."
    r"|java\.lang\.(?:IllegalArgument|NumberFormat|UnsupportedOperation)Exception\b)"
)
"""What a statement that Flink can't plan is refused with; behind a service that doesn't answer is another cause."""
_CLASS = re.compile(r"^(?:(?:[\w$]+\.)+[\w$]+: )+")


def _id(*parts: Any) -> str:
    """Return an id as Flink's are, 32 hexadecimal digits, that the parts alone decide."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


def _stopped_with(latest: Mapping[str, Any]) -> str | None:
    last = latest.get("savepoint") or {}
    return last.get("external_path") if last.get("checkpoint_type") == "SYNC_SAVEPOINT" else None


def _path(uri: str) -> str:
    """Return a URI without its empty authority: Flink takes ``file:///a`` and answers with ``file:/a``."""
    return uri.rstrip("/").replace(":///", ":/")


def _is_wrong(trace: str) -> bool:
    """Whether a trace says that a statement is wrong, and not that its job wasn't submitted."""
    causes = [line for line in trace.splitlines() if line.startswith("Caused by: ")]
    return bool(causes and _WRONG.match(causes[-1])) and "Failed to execute sql" not in trace


def _cause(trace: str) -> str:
    """Return the first line of a stack trace's last cause, without the names of classes before it."""
    lines = [line.strip() for line in trace.splitlines() if not line.lstrip().startswith(("at ", "... "))]
    messages = [line for line in lines if line and line not in _SAYS_NOTHING]
    causes = [line.removeprefix("Caused by: ") for line in messages if line.startswith("Caused by: ")]
    return _CLASS.sub("", (causes[-1:] or messages[:1] or ["no cause is given"])[0])[:1000]
