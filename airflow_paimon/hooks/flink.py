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
from typing import TYPE_CHECKING, Any
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


class FlinkError(PaimonError):
    """Flink has refused something, or a job has failed."""

    kind = "flink"


class FlinkUnreachableError(FlinkError):
    """Nothing answers, or not yet."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop with savepoint that was asked for. ``folder``: where the savepoint goes."""

    job_id: str
    trigger_id: str
    folder: str


@dataclass(slots=True)
class PatientLook:
    """A look that may find nothing for some times in a row, as while another JobManager takes over."""

    look: Callable[[], str | None]
    misses: int = 0

    def __call__(self) -> str | None:
        """Look once; None: not yet."""
        try:
            found = self.look()
        except FlinkUnreachableError as error:
            self.misses += 1
            if self.misses >= _MOST_MISSES:
                raise
            log.warning("%s; looking again", error.message)
            return None
        self.misses = 0
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

    def look(self, stop: Stop | None, job_id: str | None, *, until_finished: bool) -> PatientLook:
        """Return the look at a stop, or else at a job, that is waited for."""
        if stop is not None:
            return PatientLook(partial(self.look_at_stop, stop))
        return PatientLook(partial(self.look_at_job, str(job_id), until_finished=until_finished))

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

    def look_at_job(self, job_id: str, *, until_finished: bool) -> str | None:
        """Return the job's id once all of it runs, or once it has finished; None: not yet.

        Raises:
            FlinkError: it failed, was cancelled or is gone.
        """
        state = self.state(job_id)
        if state == "FINISHED":
            return job_id
        if state is None or state in ENDED:
            raise FlinkError(f"Flink job {job_id} {_ENDS[state]}{self._why_failed(job_id)}. Its page: "
                             f"{self.job_url(job_id)}")  # fmt: skip
        if until_finished or state != "RUNNING":
            return None
        vertices = self._manager("GET", f"/jobs/{job_id}")["vertices"]
        return job_id if all(one["status"] in ("RUNNING", "FINISHED") for one in vertices) else None

    def cancel(self, job_id: str) -> None:
        """Cancel a job; one that has ended is left as it is."""
        self._manager("PATCH", f"/jobs/{job_id}?mode=cancel", may_miss=True)

    def _why_failed(self, job_id: str) -> str:
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
        below = f"{(folder or self._savepoint_folder()).rstrip('/')}/{place}"
        known = self.jobs(job)
        for one in known:
            if one["state"] == "FINISHED" and (left := self.savepoint_in(one["jid"], below)):
                return left
        job_id = self._only_running(job, known)
        for number in count():
            trigger = _id(place, job_id, number)
            status = self._manager("GET", f"/jobs/{job_id}/savepoints/{trigger}", may_miss=True)
            if status is None:
                asked = {"drain": drain, "targetDirectory": below, "triggerId": trigger}
                self._manager("POST", f"/jobs/{job_id}/stop", asked)
            elif "failure-cause" in (status.get("operation") or {}):  # of an earlier try
                continue
            return Stop(job_id, trigger, below)
        raise AssertionError("unreachable")

    def look_at_stop(self, stop: Stop) -> str | None:
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

    def stopped_in(self, job: str, place: str) -> str | None:
        """Return the savepoint that the newest job of a name was stopped with, if it lies in a folder ``place``."""
        newest = next(iter(self.jobs(job)), None)
        left = self.savepoint_in(newest["jid"]) if newest is not None and newest["state"] == "FINISHED" else None
        return left if left is not None and f"/{place}/" in left else None

    def savepoint_in(self, job_id: str, folder: str | None = None) -> str | None:
        """Return the savepoint that a job was stopped with, if it lies in a folder, or in one below it."""
        found = self._manager("GET", f"/jobs/{job_id}/checkpoints", may_miss=True) or {}
        last = (found.get("latest") or {}).get("savepoint") or {}
        path = str(last.get("external_path") or "")
        is_there = folder is None or _path(path).startswith(f"{_path(folder)}/")
        return path if is_there and last.get("checkpoint_type") == "SYNC_SAVEPOINT" else None

    def how_it_ended(self, job: str) -> str:
        """Say how the newest job of a name, which doesn't run, has ended, and what it has left to start from."""
        newest = next(iter(self.jobs(job)), None)
        if newest is None:
            return "the JobManager knows no job of that name any more"
        found = self._manager("GET", f"/jobs/{newest['jid']}/checkpoints", may_miss=True) or {}
        latest = found.get("latest") or {}
        left = self.savepoint_in(newest["jid"]) or (latest.get("completed") or {}).get("external_path")
        return f"{newest['jid']} {_ENDS[newest['state']]}" + (f" and left {left}" if left else "")

    def is_stopping(self, job_id: str) -> bool:
        """Whether a stop with savepoint goes on."""
        found = self._manager("GET", f"/jobs/{job_id}/checkpoints", may_miss=True) or {}
        return any(
            one["status"] == "IN_PROGRESS" and one.get("checkpoint_type") == "SYNC_SAVEPOINT"
            for one in found.get("history", ())
        )

    def _only_running(self, job: str, known: list[dict[str, Any]]) -> str:
        active = [one["jid"] for one in known if one["state"] not in ENDED]
        if len(active) > 1:
            raise InvalidInputError(f"{len(active)} Flink jobs are named {job!r}: name one by its id: "
                                    f"{', '.join(active[:_LISTED])}")  # fmt: skip
        if active:
            return str(active[0])
        if known:
            raise InvalidInputError(
                f"Flink job {job!r} doesn't run: {self.how_it_ended(job)}. Start it, or leave it out"
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
        asked = {"statement": statement, "executionConfig": dict(settings or {})}
        return str(self._gateway("POST", f"/sessions/{session}/statements", asked)["operationHandle"])

    def wait_for(self, session: str, operation: str, interval: float = 0.2) -> str | None:
        """Wait until a statement is done, or its job is submitted; returns the id of the job, if it has started one.

        Raises:
            FlinkError: Flink refuses it.
        """
        while True:
            found = self._gateway("GET", f"/sessions/{session}/operations/{operation}/result/0?rowFormat=JSON")
            if found["resultType"] != "NOT_READY":
                job_id: str | None = found.get("jobID")
                return job_id
            time.sleep(interval)

    def cancel_operation(self, session: str, operation: str) -> None:
        """Cancel a statement that isn't done."""
        with suppress(FlinkError):  # it is done, or gone
            self._gateway("POST", f"/sessions/{session}/operations/{operation}/cancel")

    def job_to_submit(self, operation_id: str) -> tuple[str, bool]:
        """Return the id of the job of an operation, and whether an earlier try has submitted it.

        Raises:
            UnsafeOperationError: an earlier try's job has failed after it had got on: to begin anew would do again what
                it has committed.
        """
        for number in count():
            job_id = _id(operation_id, "job", number)
            state = self.state(job_id)
            if state is None:
                return job_id, False
            if state not in ENDED or state == "FINISHED":
                return job_id, True
            found = self._manager("GET", f"/jobs/{job_id}/checkpoints", may_miss=True) or {}
            if last := (found.get("latest") or {}).get("completed"):
                raise UnsafeOperationError(
                    f"Flink job {job_id}, which an earlier try started, {_ENDS[state]} after its checkpoint "
                    f"{last.get('external_path') or last.get('id')}{self._why_failed(job_id)}. Started anew it would "
                    f"write again what it has committed: run it with savepoint set to that checkpoint"
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
            raise FlinkError(f"Flink's {what} refuses: {_cause(said)}")
        return found


_ENDS = {"FINISHED": "has finished", "FAILED": "failed", "CANCELED": "was cancelled", None: "is gone"}


_SAYS_NOTHING = ("Internal server error.", "<Exception on server side:")
_CLASS = re.compile(r"^(?:(?:[\w$]+\.)+[\w$]+: )+")


def _id(*parts: Any) -> str:
    """Return an id as Flink's are, 32 hexadecimal digits, that the parts alone decide."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


def _path(uri: str) -> str:
    """Return a URI without its empty authority: Flink takes ``file:///a`` and answers with ``file:/a``."""
    return uri.rstrip("/").replace(":///", ":/")


def _cause(trace: str) -> str:
    """Return the first line of a stack trace's last cause, without the names of classes before it."""
    lines = [line.strip() for line in trace.splitlines() if not line.lstrip().startswith(("at ", "... "))]
    told = [line for line in lines if line and line not in _SAYS_NOTHING]
    causes = [line.removeprefix("Caused by: ") for line in told if line.startswith("Caused by: ")]
    return _CLASS.sub("", (causes[-1:] or told[:1] or ["it says no more"])[0])[:1000]
