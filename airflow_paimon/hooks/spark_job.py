"""Submission of the bundled jobs: one job, one result file, and no driver that outlives its worker."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_paimon._compat import AirflowException, AirflowNotFoundException
from airflow_paimon.bundled import job_path, package_archive
from airflow_paimon.core.commit.idempotency import digest_of, request_digest
from airflow_paimon.core.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import (
    RESULT_URI,
    SESSION_IS_READY,
    STORAGE_OPTIONS,
    STORAGE_OPTIONS_ONCE,
    to_arguments,
)
from airflow_paimon.core.requests.printed import printable
from airflow_paimon.core.requests.requests import Request, flag_name
from airflow_paimon.core.store.secrets import is_secret_name
from airflow_paimon.hooks._drivers import ENDED_STATES, Driver, KubernetesDriver, YarnDriver, check_masters
from airflow_paimon.hooks._environment import driver_environment, spark_defaults, spark_submit_of_this_environment
from airflow_paimon.hooks._job_files import (
    AttemptDriver,
    JobFolder,
    ResultFile,
    delete_job_files,
    is_of_same_task,
    result_in,
)
from airflow_paimon.hooks._job_process import TIED_CHILD
from airflow_paimon.hooks._kubernetes import (
    CONTEXT,
    POLL_SECONDS,
    UPLOAD_PATH,
    Pods,
    creates_no_pod,
    default_namespace,
    deployed_pod,
    is_upload_folder,
    refusal,
    require_client,
    settings_of,
    upload_folder,
)
from airflow_paimon.hooks._supervisor_watch import supervised
from airflow_paimon.hooks._tracking import tracking_url
from airflow_paimon.hooks._yarn import ResourceManager, pages_address, tags_of
from airflow_paimon.hooks.cluster_job import RESULT_LINE, JobWatch, Submission
from airflow_paimon.hooks.job_result import error_without_result, result_or_raise

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["SparkJobHook"]

_PROGRESS = re.compile(r"airflow_paimon\.spark\.progress: (\d+ % of step .*?) \(")
_KILL_SECONDS = 4.0
"""Airflow follows its SIGTERM with SIGKILL after 5 seconds."""
_OWN_OPTIONS = frozenset({"self", "conf", "conn_id", "application_args"})
# With these, submit() returns while the application still runs.
_NOT_AWAITED = frozenset({"track_driver_via_k8s_api", "yarn_track_via_rm_api", "yarn_rm_auth", "status_poll_interval"})


@dataclass(frozen=True, slots=True)
class _KubernetesSubmission:
    """A submission to Kubernetes: by what its driver is found, and what is left to delete when that is gone."""

    request_key: str
    result_name: str
    files: str | None
    storage_options: Mapping[str, Any] | None = field(repr=False)

    def delete_files(self) -> None:
        """Delete what was uploaded, with the secrets in it."""
        if self.files is not None:
            delete_job_files(self.files, self.storage_options)


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
        self._result_lines: list[str] = []
        self._on_tracking_url = on_tracking_url
        self._on_progress = on_progress
        self._tracking_url: str | None = None
        self._job_prints = False
        self._yarn_pages: str | None = None
        self._should_track_driver_status = False  # that is done here, without curl
        self._refusal: str | None = None
        self._kubernetes_submission: _KubernetesSubmission | None = None
        self._killed = False
        self._upload_path = self._conf.get(UPLOAD_PATH)
        if self._is_kubernetes_cluster:  # this, too; with it spark-submit returns when there is a driver
            self._track_driver_via_k8s_api = True
            self._conf["spark.kubernetes.submission.waitAppCompletion"] = "false"
        if self.is_cluster and not (self._is_yarn or self._is_kubernetes):
            raise UnsupportedFeatureError(
                f"Connection {spark_conn_id!r}: deploy mode cluster needs YARN or Kubernetes, and the master is "
                f"{self._connection['master']}. Nothing was submitted. Use deploy mode client"
            )

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs in a cluster, not on this machine."""
        return bool(self._connection["deploy_mode"] == "cluster")

    @property
    def _is_kubernetes_cluster(self) -> bool:
        return self.is_cluster and bool(self._is_kubernetes)

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
                if self._killed:
                    raise
                self.log.warning("%s. Submitting it again, which checks first", error.message)
        if self._is_kubernetes_cluster:  # there spark-submit returns at once
            job = self._submit(request, result_name, results_folder, texts or {})
            return self._wait(job, request, results_folder)
        with JobFolder() as folder:
            in_cluster = result_in(results_folder, result_name, request.storage_options)
            result = in_cluster if self.is_cluster else folder.result()
            failure = self._spark_submit(folder, request, result, texts or {})
            found = result.take()
            if found is not None:
                return result_or_raise(found)
            self._log_printed()
            raise error_without_result(request, self._exit_code(), result.uri) from failure

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
        result = result_in(results_folder, result_name, request.storage_options)
        with JobFolder() as folder:
            failure = self._spark_submit(folder, request, result, texts)
            if self._kubernetes_submission is not None:
                return self._submitted_to_kubernetes(request, self._kubernetes_submission, failure, result.uri)
            driver = self._yarn_application_id
            if failure is not None or driver is None:
                self._log_printed()
                raise error_without_result(request, self._exit_code() or 1, result.uri) from failure
            self.log.info("The job's driver is %s", driver)
            return Submission(request.operation, request.table, driver, result_name, spark_url=self._tracking_url)

    def _submitted_to_kubernetes(
        self, request: Request, job: _KubernetesSubmission, failure: AirflowException | None, uri: str
    ) -> Submission:
        if self._kubernetes_driver_pod is None and not self._killed:
            self._kubernetes_driver_pod = self._find_created_pod(request, job, failed=failure is not None)
        pod = self._kubernetes_driver_pod
        if pod is None or self._killed:
            if self._refusal is not None:
                raise PaimonError(f"{request.operation} on {request.table}: Kubernetes refuses it: {self._refusal}")
            raise error_without_result(request, self._exit_code(), uri) from failure
        self.log.info("The job's driver is %s", pod)
        return self._on_kubernetes(request, pod, job)

    def _find_created_pod(self, request: Request, job: _KubernetesSubmission, *, failed: bool) -> str | None:
        """Return the driver that ``spark-submit``, which has ended, created without naming it; None if there is none.

        Spark names it at the level INFO only, and doesn't know it where the answer to its creation got lost.

        Raises ``OutcomeUnknownError`` when Kubernetes doesn't tell.
        """
        if creates_no_pod(self._refusal):
            job.delete_files()
            return None
        try:
            pod = self._pods().created(job.request_key, job.result_name)
            if pod is not None and failed and pod.state == "Pending":
                # Its settings come after it, so it may wait for them for ever.
                self._pods().delete(pod.id)
                pod = None
        except (RuntimeError, PaimonError) as error:
            self.log.warning("Whether a driver was created isn't known: %s", error)
            if self._refusal is not None:
                return None
            raise OutcomeUnknownError(
                f"{request.operation} on {request.table}: spark-submit named no driver, and Kubernetes doesn't report "
                f"whether one exists ({error}); a retry of this task checks again"
            ) from error
        if pod is not None:
            return pod.id
        job.delete_files()
        return None

    def _on_kubernetes(self, request: Request, pod: str, job: _KubernetesSubmission) -> Submission:
        return Submission(
            request.operation,
            request.table,
            pod,
            job.result_name,
            job.files,
            namespace=self._connection["namespace"],
            spark_url=self._tracking_url,
            context=self._conf.get(CONTEXT),
        )

    def driver(self, job: Submission) -> Driver:
        """Return the driver of a job that this connection's cluster runs."""
        if self._is_yarn:
            return YarnDriver(self._require_resource_manager(), job.driver_id)
        return KubernetesDriver(self._pods(), job.driver_id)

    def _find_earlier_attempt(
        self, request: Request, result_name: str, results_folder: str, texts: Mapping[str, str]
    ) -> Submission | None:
        """Return the job of an earlier try of this operation that its task doesn't wait for: its worker was lost, say.

        Such a job still runs; on Kubernetes also one that has ended well since, and whose result nobody took.
        """
        request_key = _request_key(request, texts)
        if request_key is None or not self.is_cluster:
            return None
        try:
            found = self._drivers_of(request_key, result_name)
        except (RuntimeError, PaimonError) as error:
            self.log.warning("Cannot determine whether an earlier attempt still runs: %s", error)
            return None
        for one in found:
            if not is_of_same_task(one.result_name, result_name):
                continue
            result = result_in(results_folder, one.result_name, request.storage_options)
            if one.state not in ENDED_STATES or (one.state == "Succeeded" and result.exists()):
                self.log.info("An earlier attempt has left %s (%s): waiting for that one", one.id, one.state)
                return self._adopt(one, request_key, request)
        return None

    def _drivers_of(self, request_key: str, result_name: str) -> list[AttemptDriver]:
        """Return the drivers of all tries, those at work first. On YARN only where its address is known."""
        if self._is_kubernetes:
            return sorted(self._pods().drivers_of(request_key), key=lambda one: one.state in ENDED_STATES)
        manager = self._resource_manager() if tags_of(request_key, result_name) else None
        return manager.drivers_of(request_key, result_name) if manager is not None else []

    def _adopt(self, earlier: AttemptDriver, request_key: str, request: Request) -> Submission:
        """Let this try wait for a driver, and end it if the task is killed."""
        if self._is_yarn:
            self._yarn_application_id = earlier.id
            self._report_tracking_url(earlier.url)
            return Submission(request.operation, request.table, earlier.id, earlier.result_name, spark_url=earlier.url)
        files = earlier.files if earlier.files and is_upload_folder(earlier.files, self._upload_path) else None
        if earlier.files != files:
            self.log.warning("%s is not below %s, and stays", earlier.files, self._upload_path)
        self._kubernetes_submission = _KubernetesSubmission(
            request_key, earlier.result_name, files, request.storage_options
        )
        self._kubernetes_driver_pod = earlier.id
        return self._on_kubernetes(request, earlier.id, self._kubernetes_submission)

    def _require_resource_manager(self) -> ResourceManager:
        if (manager := self._resource_manager()) is None:
            raise InvalidInputError(
                f"Connection {self._conn_id!r}: to wait for a job on YARN in the triggerer, set the extra "
                f"{self._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY}, such as http://resourcemanager:8088"
            )
        return manager

    def _resource_manager(self) -> ResourceManager | None:
        """Return YARN's resource manager, None where its address isn't known.

        Raises ``InvalidInputError`` when the connection has a keytab, and there is no requests-kerberos to log in with.
        """
        try:
            address: str | None = self._get_yarn_rm_base_url()
        except ValueError:
            address = self._yarn_pages
        try:
            return ResourceManager(address, self._resolved_yarn_rm_auth) if address else None
        except RuntimeError as error:
            raise InvalidInputError(f"Connection {self._conn_id!r}: {error}") from None

    def _wait(self, job: Submission, request: Request, results_folder: str) -> dict[str, Any]:
        result = job.result_file(results_folder, request.storage_options)
        watch = JobWatch(self.driver(job), result)
        with supervised(self._on_supervisor_lost):
            while (state := watch.poll()) is None:
                time.sleep(POLL_SECONDS if self._is_kubernetes else self._status_poll_interval)
        return job.collect(result, state, request.storage_options)

    def require_cluster_driver(self) -> None:
        """Raise unless the driver outlives this process and the cluster can be asked for it."""
        master = self._connection["master"]
        if not self.is_cluster:
            raise UnsupportedFeatureError(
                f"A task can be deferred only while its driver runs in a cluster. Connection {self._conn_id!r} (master "
                f"{master}) is in deploy mode client: its driver ends with it. Set deploy-mode cluster (YARN, "
                "Kubernetes), or leave deferrable=True out"
            )
        if self._is_yarn:
            self._require_resource_manager()
        # Then spark-submit returns when there is a driver, and on_kill ends that driver by itself.
        self._yarn_track_via_rm_api = self._is_yarn

    def _spark_submit(
        self, folder: JobFolder, request: Request, result: ResultFile, texts: Mapping[str, str]
    ) -> AirflowException | None:
        """Run spark-submit to its end; return what it failed with. Raises ``PaimonError`` when the task is killed."""
        if self._killed:
            raise PaimonError(f"{request.operation} on {request.table}: the task was killed before it was submitted")
        master = str(self._connection["master"])
        if master.startswith("spark://"):
            check_masters(str(self._conn_id), master)
        shipped: dict[str, Any] = {
            name: self._shipped_name(folder.write(f"{name}.sql", text)) for name, text in texts.items()
        }
        self._result_lines = []
        if self._is_yarn and self.is_cluster:
            self._prepare_for_yarn(_request_key(request, texts), result.name)
        if self._is_kubernetes_cluster:
            # Without an operation id no retry looks for the driver, but this try does.
            request_key, uploads = _request_key(request, texts) or result.name, upload_folder(self._upload_path)
            self._conf |= settings_of(request_key, result.name, uploads)
            self._kubernetes_driver_pod = self._refusal = None
            self._kubernetes_submission = _KubernetesSubmission(
                request_key, result.name, uploads, request.storage_options
            )
        application = self._prepare(folder, dataclasses.replace(request, **shipped), result.uri)
        try:
            # Stdin is the task's line to its supervisor: the job must not hold it.
            with supervised(self._on_supervisor_lost):
                self.submit(application, stdin=subprocess.DEVNULL)
        except AirflowException as error:
            return error
        finally:
            self._end_submission()
        return None

    def _log_printed(self) -> None:
        for line in self._result_lines:
            self.log.error("The job printed a result, but left no result file: %s", line)

    def _prepare(self, folder: JobFolder, request: Request, result_uri: str) -> str:
        """Set what this submission needs; return the file to submit."""
        arguments = [*to_arguments(request), f"{flag_name(RESULT_URI)}={result_uri}"]
        if request.storage_options:
            path = folder.write("storage-options.json", json.dumps(dict(request.storage_options)))
            # A driver that reads it in place deletes it; elsewhere Spark's staging folder goes with the application.
            name = STORAGE_OPTIONS if self.is_cluster else STORAGE_OPTIONS_ONCE
            arguments.append(f"{flag_name(name)}={self._shipped_name(path)}")
        self._application_args = arguments
        archive = package_archive(folder.path)
        self._py_files = ",".join(filter(None, [str(archive), self._py_files]))
        if self.is_cluster and folder.written:
            self._files = ",".join(filter(None, [*map(str, folder.written), self._files]))
        self._hide_secret_settings(folder)
        if self._name == "default-name":
            self._name = f"airflow-paimon {request.operation} {request.table}"
        return str(job_path(request.operation))

    def _prepare_for_yarn(self, request_key: str | None, result_name: str) -> None:
        # YARN would start a driver that failed a second time, beside the task that reports the failure.
        self._conf.setdefault("spark.yarn.maxAppAttempts", "1")
        tags = [*filter(None, [self._conf.get("spark.yarn.tags")]), *tags_of(request_key, result_name)]
        if tags:
            self._conf["spark.yarn.tags"] = ",".join(tags)

    def _shipped_name(self, path: Path) -> str:
        # ``--files`` puts a file into the working folder of a driver on another machine.
        return path.name if self.is_cluster else str(path)

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
        prefix = "spark.yarn.appMasterEnv." if self._is_yarn else "spark.kubernetes.driverEnv."
        return {prefix + name: value for name, value in secret.items()}

    def _on_supervisor_lost(self) -> None:
        self._killed = True
        # Before anything is logged: the log went to the supervisor, and writing to it fails now.
        if self._submit_sp is not None:
            self._submit_sp.kill()
        self.on_kill()

    def _end_submission(self) -> None:
        process = self._submit_sp
        if process is None:
            return
        if process.poll() is None:  # an exception, a timeout say, came between
            process.kill()
            process.wait()
        process.stdout.close()

    def _exit_code(self) -> int | None:
        return self._submit_sp.returncode if self._submit_sp is not None else None

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
        if found.conn_type == "paimon":
            raise InvalidInputError(
                f"Connection {self._conn_id!r} is of type {found.conn_type!r}; for Spark it must be of type 'spark' "
                f"or 'spark_connect'"
            )
        if found.conn_type == "spark_connect":
            raise UnsupportedFeatureError(
                f"Connection {self._conn_id!r} is of type spark_connect, which spark-submit can't use: open it with "
                f"open_job_hook, as the operators do, or use a connection of type 'spark'"
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

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        if self._killed and self._submit_sp is not None:  # while it was being started
            self._submit_sp.kill()
        super()._process_spark_submit_log(self._observe_line(line) for line in itr if not self._is_result(line))

    def _observe_line(self, line: str) -> str:
        self._job_prints = self._job_prints or SESSION_IS_READY in line
        if not self._job_prints:
            self._notice_spark(line)
        if self._on_progress is not None and (found := _PROGRESS.search(line)):
            self._on_progress(found[1])
        return printable(line)

    def _notice_spark(self, line: str) -> None:
        """Notice what Spark itself says of the application."""
        if self._is_yarn and self._yarn_pages is None:
            self._yarn_pages = pages_address(line)
        if self._is_kubernetes:
            self._kubernetes_driver_pod = deployed_pod(line) or self._kubernetes_driver_pod
            self._refusal = self._refusal or refusal(line)
        self._report_tracking_url(tracking_url(line, self._conf))

    def _report_tracking_url(self, url: str | None) -> None:
        if url is not None and url != self._tracking_url and self._on_tracking_url is not None:
            self._tracking_url = url
            self._on_tracking_url(url)

    def _is_result(self, line: str) -> bool:
        """Keep the line by which a job prints its result out of the log: who runs the job logs the result."""
        if not line.startswith(RESULT_LINE):
            return False
        self._result_lines.append(line.strip())
        return True

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        environment = driver_environment(self.is_cluster, self._connection["master"])
        self._env = {**environment, **self._secret_env, **(self._env or {})}
        return [sys.executable, "-I", "-S", str(TIED_CHILD), str(os.getpid()), *command]

    def on_kill(self) -> None:
        """Kill the submission and, in cluster mode, the application; returns within 4 seconds."""
        self._killed = True
        kill = threading.Thread(target=self._kill, name="paimon-on-kill", daemon=True)
        kill.start()
        kill.join(_KILL_SECONDS)
        if kill.is_alive():
            self.log.warning("Killing the Spark application takes longer than %s s; going on without it", _KILL_SECONDS)

    def _kill(self) -> None:
        on_yarn = self._yarn_application_id if self._is_yarn and self.is_cluster else None
        if on_yarn is not None and self._kill_on_yarn(on_yarn):
            self._yarn_application_id = None
        try:
            super().on_kill()
        except OSError as error:
            self.log.error("%s may still run; the program yarn can't kill it: %s", on_yarn, error)
        if on_yarn is not None and self._yarn_application_id is None:
            self._kill_on_yarn(on_yarn)  # spark-submit, dead only now, may have been about to submit it
        if self._kubernetes_submission is not None:
            self._end_kubernetes_driver(self._kubernetes_submission)

    def _end_kubernetes_driver(self, job: _KubernetesSubmission) -> None:
        """Delete the driver, also one that spark-submit, killed now, has not named; and then what was uploaded."""
        pod = self._kubernetes_driver_pod
        try:
            if pod is None:
                found = self._pods().created(job.request_key, job.result_name)
                pod = found.id if found is not None else None
            if pod is not None:
                self._pods().delete(pod)
                self.log.info("Deleted pod %s", pod)
        except (RuntimeError, PaimonError) as error:
            self.log.error("Driver %s could not be deleted and may still run: %s", pod or "without a name", error)
            return
        job.delete_files()

    def _delete_driver_pod(self) -> None:
        """Leave that to :meth:`_kill`, which does it once, when spark-submit is dead, and deletes the uploads then."""

    def _pods(self) -> Pods:
        values = self._connection
        return Pods(values["master"], values["namespace"], self._conf.get(CONTEXT))

    def _kill_on_yarn(self, application: str) -> bool:
        """Kill an application without the program ``yarn``, by which Airflow's hook does it; say if that worked."""
        try:
            if (manager := self._resource_manager()) is None:
                return False
            manager.kill(application)
        except (RuntimeError, PaimonError) as error:
            self.log.warning("%s could not be killed: %s", application, error)
            return False
        return True


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
