"""Submission of the bundled jobs: one job, one result file, and no driver that outlives its worker."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_paimon._compat import AirflowException, AirflowNotFoundException
from airflow_paimon.bundled import job_path, package_archive
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import (
    RESULT_URI,
    STORAGE_OPTIONS,
    STORAGE_OPTIONS_ONCE,
    to_arguments,
)
from airflow_paimon.core.requests.base import Request, flag_name
from airflow_paimon.core.store.secrets import is_secret_name
from airflow_paimon.hooks._job_files import JobFolder
from airflow_paimon.hooks._job_result import error_without_result, result_or_raise
from airflow_paimon.hooks._supervisor_watch import supervised
from airflow_paimon.hooks._tracking import tracking_url
from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["SparkJobHook"]

_TIED_CHILD = Path(__file__).with_name("_tied_child.py")
_RESULT_LINE = '{"operation": "'
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
    """

    def __init__(
        self,
        spark_conn_id: str = "spark_default",
        *,
        conf: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on_tracking_url: Callable[[str], None] | None = None,
    ) -> None:
        check_options(options or {})
        super().__init__(conf=dict(conf or {}), conn_id=spark_conn_id, **dict(options or {}))
        self._secret_env: dict[str, str] = {}
        self._printed: list[str] = []
        self._on_tracking_url = on_tracking_url
        self._tracking_url: str | None = None
        if self._is_cluster and self._connection["master"].startswith(("spark://", "local")):
            raise UnsupportedFeatureError(
                f"Connection {spark_conn_id!r}: deploy mode cluster with master {self._connection['master']}: Spark "
                f"runs no Python drivers there; use deploy mode client"
            )

    @property
    def _is_cluster(self) -> bool:
        return bool(self._connection["deploy_mode"] == "cluster")

    def run_job(
        self, request: Request, *, result_name: str, results_folder: str, texts: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """
        Run the request's job and give its result JSON.

        :param request: what to do
        :param result_name: path of the result file within the results folder; unique per try
        :param results_folder: where a driver on another machine leaves the result
        :param texts: fields of the request that name a file (``sql``), with the file's content
        :raises PaimonError: the job's own failure, of its class
        """
        with JobFolder() as folder:
            shipped: dict[str, Any] = {
                name: self._shipped_name(folder.write(f"{name}.sql", text)) for name, text in (texts or {}).items()
            }
            request, self._printed = dataclasses.replace(request, **shipped), []
            result = folder.result(self._is_cluster, results_folder, result_name, request.storage_options)
            self._prepare(folder, request, result.uri)
            failure: AirflowException | None = None
            try:
                # Stdin is the task's line to its supervisor: the job must not hold it.
                with supervised(self._orphaned):
                    self.submit(str(job_path(request.operation)), stdin=subprocess.DEVNULL)
            except AirflowException as error:
                failure = error
            finally:
                self._end_submission()
            found = result.take()
            if found is not None:
                return result_or_raise(found, request.table)
            for line in self._printed:
                self.log.error("The job printed a result, but left no result file: %s", line)
            raise error_without_result(request, self._exit_code(), result.uri) from failure

    def _prepare(self, folder: JobFolder, request: Request, result_uri: str) -> None:
        arguments = [*to_arguments(request), f"{flag_name(RESULT_URI)}={result_uri}"]
        if request.storage_options:
            path = folder.write("storage-options.json", json.dumps(dict(request.storage_options)))
            # A driver beside us deletes it once read; elsewhere Spark's staging folder goes with the application.
            name = STORAGE_OPTIONS if self._is_cluster else STORAGE_OPTIONS_ONCE
            arguments.append(f"{flag_name(name)}={self._shipped_name(path)}")
        self._application_args = arguments
        self._py_files = ",".join(filter(None, [str(package_archive(folder.path)), self._py_files]))
        if self._is_cluster and folder.written:
            self._files = ",".join(filter(None, [*map(str, folder.written), self._files]))
        self._hide_secret_settings(folder)
        if self._name == "default-name":
            self._name = f"airflow-paimon {request.operation} {request.table}"

    def _shipped_name(self, path: Path) -> str:
        # ``--files`` puts a file into the working folder of a driver on another machine.
        return path.name if self._is_cluster else str(path)

    def _hide_secret_settings(self, folder: JobFolder) -> None:
        # By the whole name: Azure's keys end with the account's host.
        secret = {k: v for k, v in self._conf.items() if is_secret_name(k)}
        self._conf = {k: v for k, v in self._conf.items() if k not in secret}
        secret |= self._hide_secret_variables()
        if not secret:
            return
        # With --properties-file Spark doesn't read its defaults, so they have to stand in it, too.
        base = Path(self._properties_file) if self._properties_file else self._spark_defaults()
        lines = [base.read_text()] if base is not None and base.is_file() else []
        lines += [f"{key} {_escaped(value)}" for key, value in secret.items()]
        self._properties_file = str(folder.write("spark.properties", "\n".join(lines) + "\n"))
        folder.written.remove(Path(self._properties_file))

    def _hide_secret_variables(self) -> dict[str, Any]:
        """Return secret ``env_vars`` as settings that carry them to the cluster: Airflow's hook puts all into argv."""
        if not (self._is_yarn or self._is_kubernetes):
            return {}
        secret = {k: v for k, v in (self._env_vars or {}).items() if is_secret_name(k)}
        self._env_vars = {k: v for k, v in (self._env_vars or {}).items() if k not in secret}
        self._secret_env = {k: str(v) for k, v in secret.items()} if self._is_yarn else {}
        prefix = "spark.yarn.appMasterEnv." if self._is_yarn else "spark.kubernetes.driverEnv."
        return {prefix + name: value for name, value in secret.items()}

    def _spark_defaults(self) -> Path | None:
        if conf_dir := os.environ.get("SPARK_CONF_DIR"):
            return Path(conf_dir) / "spark-defaults.conf"
        home = os.environ.get("SPARK_HOME")
        return Path(home) / "conf" / "spark-defaults.conf" if home else None

    def _orphaned(self) -> None:
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

    def _resolve_connection(self) -> dict[str, Any]:
        try:
            found = self.get_connection(self._conn_id)
        except AirflowNotFoundException:
            # Airflow's own hook would go on with --master yarn.
            raise InvalidInputError(
                f"There is no Airflow connection {self._conn_id!r}; create one of type 'spark' (for this machine: "
                f"host local[*]), or run metadata-only operations with run_on='worker'"
            ) from None
        if found.conn_type == PaimonHook.conn_type:
            raise InvalidInputError(
                f"Connection {self._conn_id!r} is of type {found.conn_type!r}; for Spark it must be of type 'spark'"
            )
        resolved: dict[str, Any] = super()._resolve_connection()
        return resolved

    def _get_spark_binary_path(self) -> list[str]:
        binary = self._connection["spark_binary"] or "spark-submit"
        if os.sep not in binary and shutil.which(binary) is None:
            binary = _spark_submit_of_this_environment() or binary
        return [binary]

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._noticed(line) for line in itr if not self._is_result(line))

    def _noticed(self, line: str) -> str:
        url = tracking_url(line, self._conf)
        if url is not None and url != self._tracking_url and self._on_tracking_url is not None:
            self._tracking_url = url
            self._on_tracking_url(url)
        return line

    def _is_result(self, line: str) -> bool:
        """Keep the line by which a job prints its result out of the log: who runs the job logs the result."""
        if not line.startswith(_RESULT_LINE):
            return False
        self._printed.append(line.strip())
        return True

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        self._env = {**self._environment(), **self._secret_env, **(self._env or {})}
        return [sys.executable, "-I", "-S", str(_TIED_CHILD), str(os.getpid()), *command]

    def _environment(self) -> dict[str, str]:
        env: dict[str, str] = {}
        if not self._is_cluster and not _is_set("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
            env["PYSPARK_DRIVER_PYTHON"] = sys.executable
            if self._connection["master"].startswith("local"):
                env["PYSPARK_PYTHON"] = sys.executable
        if not _is_set("JAVA_HOME") and shutil.which("java") is None:
            from airflow_paimon.spark.java import find_java

            if (home := find_java(Path.cwd() / ".java")) is None:
                raise NotFoundError(
                    "spark-submit needs Java 17 or newer, and there is neither JAVA_HOME nor java on the PATH of this "
                    "worker; install one, or run metadata-only operations with run_on='worker'"
                )
            env["JAVA_HOME"] = str(home)
        return env

    def on_kill(self) -> None:
        """Kill the submission and, in cluster mode, the application; returns within 4 seconds."""
        kill = threading.Thread(target=super().on_kill, name="paimon-on-kill", daemon=True)
        kill.start()
        kill.join(_KILL_SECONDS)
        if kill.is_alive():
            self.log.warning("Killing the Spark application takes longer than %s s; going on without it", _KILL_SECONDS)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``InvalidInputError`` unless all are arguments of Airflow's ``SparkSubmitHook`` that may be named."""
    known = set(inspect.signature(SparkSubmitHook.__init__).parameters) - _OWN_OPTIONS - _NOT_AWAITED
    if unknown := sorted(set(options) - known):
        raise InvalidInputError(f"spark_options has no {', '.join(unknown)}; there are: {', '.join(sorted(known))}")


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def _spark_submit_of_this_environment() -> str | None:
    spec = importlib.util.find_spec("pyspark")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "bin" / "spark-submit"
    return str(path) if path.is_file() else None


def _escaped(value: Any) -> str:
    """Write a value for a Java properties file."""
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
