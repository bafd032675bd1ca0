"""Submission of the bundled jobs: one job, one result file, and no driver that outlives its worker."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_paimon._compat import AirflowNotFoundException
from airflow_paimon.bundled import job_path, package_archive
from airflow_paimon.core.commit.idempotency import digest_of, request_digest
from airflow_paimon.core.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import SESSION_IS_READY
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.store.secrets import is_secret_name
from airflow_paimon.hooks._drivers import ENDED_STATES, AttemptDriver
from airflow_paimon.hooks._environment import driver_environment, spark_defaults, spark_submit_of_this_environment
from airflow_paimon.hooks._job_files import JobFolder, ResultFile, is_of_same_task, job_arguments, result_in
from airflow_paimon.hooks._job_process import TiedProcess
from airflow_paimon.hooks._kubernetes import (
    CONTEXT,
    UPLOAD_PATH,
    KubernetesSubmission,
    Pods,
    default_namespace,
    require_client,
)
from airflow_paimon.hooks._supervisor_watch import supervised
from airflow_paimon.hooks._yarn import ADDRESS, ResourceManager, YarnSubmission, kerberos_login
from airflow_paimon.hooks.cluster_job import JobWatch, Submission
from airflow_paimon.hooks.job_result import error_without_result, result_or_raise

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["SparkJobHook"]

_PROGRESS = re.compile(r"airflow_paimon\.spark\.progress: (\d+ % of step .*?) \(")
_CONNECT_SECONDS = 5.0
_HISTORY_SERVER = "spark.yarn.historyServer.address"
"""Spark's own setting; here it counts on every master."""
_NAMED = re.compile(r"(?:tracking URL:|SparkUI\b.*started at|Web UI available at) *(https?://\S+)")
_UI_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
"""All that Spark 4 says of its UI; the driver that says it in our log runs on this machine."""
_APPLICATION = re.compile(r"\b(application_\d+_\d+|app-\d{14}-\d{4}|spark-[0-9a-f]{32}|local-\d{13})\b")
_KILL_SECONDS = 4.0
"""Airflow follows its SIGTERM with SIGKILL after 5 seconds."""
_OWN_OPTIONS = frozenset({"self", "conf", "conn_id", "application_args"})
# With these, submit() returns while the application still runs.
_NOT_AWAITED = frozenset({"track_driver_via_k8s_api", "yarn_track_via_rm_api", "yarn_rm_auth", "status_poll_interval"})


class SparkJobHook(SparkSubmitHook):
    """
    Submit one bundled job with ``spark-submit`` and give its result.

    The job runs with the package as it is installed here, shipped as ``--py-files``. Storage options and secret Spark
    settings travel in files with mode 0600, never in arguments. In client deploy mode (also ``local``) the driver dies
    with this process, however it ends.

    :param spark_conn_id: an Airflow connection of type ``spark``; that it exists is checked
    :param conf: Spark settings
    :param options: further arguments of Airflow's ``SparkSubmitHook``, such as ``driver_memory``, ``jars``,
        ``packages``, ``py_files``, ``num_executors``, ``deploy_mode``, ``env_vars``
    :param on_tracking_url: is given the address of the application's page as soon as Spark's log tells it
    :param on_progress: is given each line by which the job says how far it is, every 10 s, without what it is about
    :param connection: the connection, where it was read before
    """

    def __init__(
        self,
        spark_conn_id: str = "spark_default",
        *,
        conf: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on_tracking_url: Callable[[str], None] | None = None,
        on_progress: Callable[[str], None] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._known_connection = connection
        check_options(options or {})
        super().__init__(conf=dict(conf or {}), conn_id=spark_conn_id, **dict(options or {}))
        self._secret_env: dict[str, str] = {}
        self._on_tracking_url = on_tracking_url
        self._on_progress = on_progress
        self._tracking_url: str | None = None
        self._job_prints = False
        self._process = TiedProcess(self.log, self._observe_line)
        self.cluster = self._open_cluster() if self._connection["deploy_mode"] == "cluster" else None
        """What is submitted to a cluster, where the driver runs in one and not on this machine."""

    def _open_cluster(self) -> YarnSubmission | KubernetesSubmission:
        if self._is_yarn:
            return YarnSubmission(self._resource_manager())
        if self._is_kubernetes:
            pods = Pods(self._connection["master"], self._connection["namespace"], self._conf.get(CONTEXT))
            return KubernetesSubmission(pods, self._conf.get(UPLOAD_PATH))
        raise UnsupportedFeatureError(
            f"Connection {self._conn_id!r}: deploy mode cluster needs YARN or Kubernetes, and the master is "
            f"{self._connection['master']}. Nothing was submitted. Use deploy mode client"
        )

    def _resource_manager(self) -> ResourceManager:
        address = str(self.get_connection(self._conn_id).extra_dejson.get(ADDRESS) or "").strip().rstrip("/")
        if not address:
            raise InvalidInputError(
                f"Connection {self._conn_id!r}: for jobs on YARN in deploy mode cluster, set the extra {ADDRESS}, such "
                f"as http://resourcemanager:8088"
            )
        login = kerberos_login(self._connection["keytab"], self._connection["principal"])
        return ResourceManager(address if "://" in address else f"http://{address}", login)

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs in a cluster, not on this machine."""
        return self.cluster is not None

    def run_job(
        self,
        request: Request,
        *,
        result_name: str,
        results_folder: str,
        texts: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """
        Run the request's job and give its result JSON.

        :param request: what to do
        :param result_name: path of the result file within the results folder; unique per try
        :param results_folder: where a driver on another machine leaves the result
        :param texts: fields of the request that name a file (``sql``), with the file's content
        :raises PaimonError: the job's own failure, of its class
        """
        if (earlier := self._find_earlier_attempt(request, result_name, results_folder, texts or {})) is not None:
            try:
                return self._wait(earlier, request, results_folder)
            except OutcomeUnknownError as error:
                if self._process.killed:
                    raise
                self.log.warning("%s. Submitting it again, which checks first", error.message)
        if self.cluster is not None:
            return self._wait(self._submit(request, result_name, results_folder, texts or {}), request, results_folder)
        with JobFolder() as folder:
            result = folder.result()
            code = self._spark_submit(folder, request, result, texts or {})
            if (found := result.take()) is not None:
                return result_or_raise(found)
            raise self._error_without_result(request, code, result)

    def submit_job(
        self,
        request: Request,
        *,
        result_name: str,
        results_folder: str,
        texts: Mapping[str, str] | None = None,
    ) -> Submission:
        """
        Submit the request's job to a cluster and return as soon as it has a driver. Arguments as of :meth:`run_job`.

        :raises UnsupportedFeatureError: in client mode, where the driver would end with this process
        """
        self.require_cluster_driver()
        if (earlier := self._find_earlier_attempt(request, result_name, results_folder, texts or {})) is not None:
            return earlier
        return self._submit(request, result_name, results_folder, texts or {})

    def _submit(self, request: Request, result_name: str, results_folder: str, texts: Mapping[str, str]) -> Submission:
        assert self.cluster is not None
        result = result_in(results_folder, result_name, request.storage_options)
        with JobFolder() as folder:
            code = self._spark_submit(folder, request, result, texts)
        driver = None if self._process.killed else self.cluster.submitted(request, failed=code != 0)
        if driver is None:
            raise self._error_without_result(request, code, result)
        self.log.info("The job's driver is %s", driver.id)
        return self._submission(request, driver)

    def _submission(self, request: Request, driver: AttemptDriver) -> Submission:
        assert self.cluster is not None
        return Submission(
            request.operation,
            request.table,
            driver.id,
            driver.result_name,
            driver.files,
            spark_url=self._tracking_url or driver.url,
            **self.cluster.place,
        )

    def _error_without_result(self, request: Request, code: int, result: ResultFile) -> PaimonError:
        for line in self._process.results:
            self.log.error("The job printed a result, but left no result file: %s", line)
        return error_without_result(request, code, result.uri)

    def watch(self, job: Submission, result: ResultFile) -> JobWatch:
        """Return what looks after a job that this connection's cluster runs."""
        assert self.cluster is not None
        return JobWatch(self.cluster.drivers, job.driver_id, result)

    def _find_earlier_attempt(
        self, request: Request, result_name: str, results_folder: str, texts: Mapping[str, str]
    ) -> Submission | None:
        """Return the job of an earlier try of this operation that its task doesn't wait for: its worker was lost, say.

        Such a job still runs; on Kubernetes also one that has ended well since, and whose result nobody took.
        """
        request_key = _request_key(request, texts)
        if request_key is None or self.cluster is None:
            return None
        try:
            found = self.cluster.earlier(request_key, result_name)
        except (RuntimeError, PaimonError) as error:
            if self._is_yarn:  # else nobody could watch or end what is submitted now
                what = f"{request.operation} on {request.table}: nothing was submitted"
                raise PaimonError(f"{what}: {error}") from error
            self.log.warning("Cannot determine whether an earlier attempt still runs: %s", error)
            return None
        for one in found:
            if not is_of_same_task(one.result_name, result_name):
                continue
            result = result_in(results_folder, one.result_name, request.storage_options)
            if one.state not in ENDED_STATES or (one.state == "Succeeded" and result.exists()):
                self.log.info("An earlier attempt has left %s (%s): waiting for that one", one.id, one.state)
                self._report_tracking_url(one.url)
                return self._submission(request, self.cluster.adopt(one, request_key, request.storage_options))
        return None

    def _wait(self, job: Submission, request: Request, results_folder: str) -> dict[str, Any]:
        assert self.cluster is not None
        result = job.result_file(results_folder, request.storage_options)
        watch = self.watch(job, result)
        with supervised(self._on_supervisor_lost):
            while (state := watch.poll()) is None:
                time.sleep(self.cluster.poll_seconds)
        return job.collect(result, state, request.storage_options)

    def require_cluster_driver(self) -> None:
        """Raise unless the driver outlives this process and the cluster can be asked for it."""
        if self.cluster is None:
            raise UnsupportedFeatureError(
                f"A task can be deferred only while its driver runs in a cluster. Connection {self._conn_id!r} (master "
                f"{self._connection['master']}) is in deploy mode client: its driver ends with it. Set deploy-mode "
                "cluster (YARN, Kubernetes), or leave deferrable=True out"
            )

    def _spark_submit(self, folder: JobFolder, request: Request, result: ResultFile, texts: Mapping[str, str]) -> int:
        """Run spark-submit to its end; return its exit code. Raises ``PaimonError`` when the task is killed before."""
        if self._process.killed:
            raise PaimonError(f"{request.operation} on {request.table}: the task was killed before it was submitted")
        master = str(self._connection["master"])
        if master.startswith("spark://"):
            _check_masters(str(self._conn_id), master)
        self._application_args = job_arguments(folder, request, texts, result.uri, shipped=self.is_cluster)
        if self.cluster is not None:
            self.cluster.begin(_request_key(request, texts), result.name, request.storage_options)
            self._conf |= self.cluster.settings(self._conf)
            self._files = ",".join(filter(None, [*map(str, folder.written), self._files])) or None
        self._py_files = ",".join(filter(None, [str(package_archive(folder.path)), self._py_files]))
        self._hide_secret_settings(folder)
        if self._name == "default-name":
            self._name = f"airflow-paimon {request.operation} {request.table}"
        command = self._build_spark_submit_command(str(job_path(request.operation)))
        env = {**driver_environment(self.is_cluster, master), **self._secret_env, **(self._env or {})}
        try:
            with supervised(self._on_supervisor_lost):
                return self._process.run(command, env)
        finally:
            self._run_post_submit_commands()

    def _hide_secret_settings(self, folder: JobFolder) -> None:
        # By the whole name: Azure's keys end with the account's host.
        secret = {k: v for k, v in self._conf.items() if is_secret_name(k)}
        self._conf = {k: v for k, v in self._conf.items() if k not in secret}
        secret |= self._hide_secret_variables()
        if not secret:
            return
        # With --properties-file Spark doesn't read its defaults, so they have to stand in it, too.
        base = self._settings_file()
        lines = [base.read_text()] if base is not None and base.is_file() else []
        lines += [f"{key} {_escaped(value)}" for key, value in secret.items()]
        self._properties_file = str(folder.write("spark.properties", "\n".join(lines) + "\n"))
        folder.written.remove(Path(self._properties_file))

    def _settings_file(self) -> Path | None:
        return Path(self._properties_file) if self._properties_file else spark_defaults()

    def _hide_secret_variables(self) -> dict[str, Any]:
        """Return secret ``env_vars`` as settings that carry them to the cluster: Airflow's hook puts all into argv."""
        if not (self._is_yarn or self._is_kubernetes):
            return {}
        secret = {k: v for k, v in (self._env_vars or {}).items() if is_secret_name(k)}
        self._env_vars = {k: v for k, v in (self._env_vars or {}).items() if k not in secret}
        self._secret_env = {k: str(v) for k, v in secret.items()} if self._is_yarn else {}
        prefix = YarnSubmission.variables if self._is_yarn else KubernetesSubmission.variables
        return {prefix + name: value for name, value in secret.items()}

    def _on_supervisor_lost(self) -> None:
        # Before anything is logged: the log went to the supervisor, and writing to it fails now.
        self._process.end()
        self.on_kill()

    # -- what Airflow's hook does, made strict -------------------------------------------------------------------------

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]  # Airflow's is a class method
        """Return the connection that this hook was given, else read it."""
        if self._known_connection is not None:
            return self._known_connection
        return super().get_connection(conn_id)

    def _resolve_connection(self) -> dict[str, Any]:
        try:
            found = self.get_connection(self._conn_id)
        except AirflowNotFoundException:
            # Airflow's own hook would go on with --master yarn.
            raise InvalidInputError(
                f"There is no Airflow connection {self._conn_id!r}; create one of type 'spark' (for this machine: "
                f"host local[*]), or run metadata-only operations with run_on='worker'"
            ) from None
        if found.conn_type != self.conn_type:  # Spark would get its host and password, and log where it went
            raise InvalidInputError(
                f"Connection {self._conn_id!r} is not a Spark connection: it is of type {found.conn_type!r}, and a job "
                f"takes one of type 'spark', or, by open_job_hook as operators do, of type 'spark_connect'"
            )
        values = dict(super()._resolve_connection())
        if "k8s" in values["master"]:
            require_client()
            values["namespace"] = values["namespace"] or default_namespace(self._settings_file())
        return values

    def _get_spark_binary_path(self) -> list[str]:
        binary = self._connection["spark_binary"] or "spark-submit"
        if os.sep not in binary and shutil.which(binary) is None:
            binary = spark_submit_of_this_environment() or binary
        return [binary]

    def _observe_line(self, line: str) -> None:
        """Notice what Spark says of the application, before the job itself prints, and how far the job is."""
        self._job_prints = self._job_prints or SESSION_IS_READY in line
        if not self._job_prints:
            if self.cluster is not None:
                self.cluster.notice(line)
            self._report_tracking_url(tracking_url(line, self._conf))
        if self._on_progress is not None and (found := _PROGRESS.search(line)):
            self._on_progress(found[1])

    def _report_tracking_url(self, url: str | None) -> None:
        if url is not None and url != self._tracking_url and self._on_tracking_url is not None:
            self._tracking_url = url
            self._on_tracking_url(url)

    def on_kill(self) -> None:
        """Kill the submission and, in cluster mode, the application; returns within 4 seconds."""
        self._process.end()
        if self.cluster is None:
            return
        kill = threading.Thread(target=self._kill_driver, args=[self.cluster], name="paimon-on-kill", daemon=True)
        kill.start()
        kill.join(_KILL_SECONDS)
        if kill.is_alive():
            self.log.warning("Killing the Spark application takes longer than %s s; going on without it", _KILL_SECONDS)

    def _kill_driver(self, cluster: YarnSubmission | KubernetesSubmission) -> None:
        try:
            if (ended := cluster.kill()) is not None:
                self.log.info("Driver %s was killed", ended)
        except (OSError, RuntimeError, PaimonError) as error:
            name = cluster.driver or "without a name"
            self.log.error("Driver %s could not be killed and may still run: %s", name, error)


def _request_key(request: Request, texts: Mapping[str, str]) -> str | None:
    """Name what is tried: the operation's id and what it is asked for, as another request must not get its result.

    None where the operation has no id.
    """
    if request.operation_id is None:
        return None
    return f"{request.operation_id} {request_digest(request)} {digest_of(dict(texts))}"


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``InvalidInputError`` unless all are arguments of Airflow's ``SparkSubmitHook`` that may be named."""
    known = set(inspect.signature(SparkSubmitHook.__init__).parameters) - _OWN_OPTIONS - _NOT_AWAITED
    if unknown := sorted(set(options) - known):
        raise InvalidInputError(f"spark_options has no {', '.join(unknown)}; there are: {', '.join(sorted(known))}")


def _escaped(value: Any) -> str:
    """Write a value for a Java properties file."""
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def tracking_url(line: str, settings: Mapping[str, Any]) -> str | None:
    """Return where to look at the application, as a line of Spark's log tells it; None when it tells nothing.

    With a history server in the settings it is that one's page of the application: it is there when the application is
    gone.
    """
    server = str(settings.get(_HISTORY_SERVER) or "").rstrip("/")
    if server:
        found = _APPLICATION.search(line)
        return f"{server if '://' in server else 'http://' + server}/history/{found[1]}" if found else None
    if port := _UI_PORT.search(line):
        return f"http://{settings.get('spark.driver.host') or socket.gethostname()}:{port[1]}"
    named = _NAMED.search(line)
    return named[1].rstrip(".,") if named else None


def _check_masters(conn_id: str, master: str) -> None:
    """Check that a standalone master takes connections, as ``spark-submit`` tries those that don't for minutes.

    Raises:
        PaimonError: none does; names the Spark connection and the addresses.
    """
    faults = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise PaimonError(
        f"Spark connection {conn_id!r}: no Spark master takes a connection ({'; '.join(faults)}), so nothing was "
        f"submitted. Check Host and Port in the connection, that the master runs, and that this machine reaches it"
    )
