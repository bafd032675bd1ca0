"""Jobs through Spark Connect: the job runs in a process beside the task, its queries on the server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from airflow_paimon._compat import AirflowNotFoundException, BaseHook
from airflow_paimon.bundled import package_archive
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.hooks._job_files import JobFolder
from airflow_paimon.hooks._job_process import JobProcess
from airflow_paimon.hooks.job_result import error_without_result, result_or_raise
from airflow_paimon.hooks.spark_job import SparkJobHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["SparkConnectJobHook", "open_job_hook"]

_SESSION_FILE = "AIRFLOW_PAIMON_CONNECT"


class SparkConnectJobHook(SparkConnectHook):
    """
    Run one bundled job as a client of a Spark Connect server and give its result.

    The job is a Python process beside the task and dies with it; reads and writes of rows run on the server, whose
    Python workers get the package with the session. The server brings its own resources.

    :param conn_id: an Airflow connection of type ``spark_connect``
    :param conf: settings of the session
    :param options: only ``py_files``
    """

    is_cluster = False

    def __init__(
        self, conn_id: str, *, conf: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(conn_id)
        check_connect_options(conn_id, options or {})
        self._conf = dict(conf or {})
        self._py_files = [name for name in str((options or {}).get("py_files") or "").split(",") if name]
        self._process = JobProcess(self.log)

    def run_job(
        self,
        request: Request,
        *,
        result_name: str,
        results_folder: str,
        texts: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run the request's job and give its result JSON, as :meth:`SparkJobHook.run_job` does."""
        with JobFolder() as folder:
            code, found = self._process.run_job(folder, request, texts or {}, env=self._environment(folder))
            if found is None:
                raise error_without_result(request, code, folder.result().uri)
            return result_or_raise(found)

    def require_cluster_driver(self) -> NoReturn:
        """Refuse to let a task be deferred."""
        raise UnsupportedFeatureError(
            "A task can be deferred only while its driver runs in a cluster. Through Spark Connect (connection "
            f"{self._conn_id!r}) it ends with the task. Leave deferrable=True out, or use a connection of type spark "
            "in deploy mode cluster"
        )

    def on_kill(self) -> None:
        """End the job and what it runs on the server; returns within 4 seconds."""
        self._process.end()  # it closes its session, and the server ends what that runs

    def _environment(self, folder: JobFolder) -> dict[str, str]:
        files = [str(package_archive(folder.path)), *self._py_files]
        session = folder.write("session.json", json.dumps({"conf": self._conf, "files": files}))
        places = [str(Path(name).parent) if name.endswith(".py") else name for name in self._py_files]
        path = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
        remote = {"SPARK_REMOTE": self.get_connection_url(), "SPARK_CONNECT_MODE_ENABLED": "1"}
        return {**remote, "PYTHONPATH": path, _SESSION_FILE: str(session)}


def check_connect_options(conn_id: str, options: Mapping[str, Any]) -> None:
    """Raise ``InvalidInputError`` unless a job through Spark Connect takes all of these options."""
    if unknown := sorted(set(options) - {"py_files"}):
        raise InvalidInputError(
            f"Connection {conn_id!r} is of type spark_connect: of spark_options it takes only py_files, not "
            f"{', '.join(unknown)}. What a Connect server runs with is set where the server is started"
        )


def open_job_hook(
    conn_id: str,
    *,
    conf: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    on_tracking_url: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> SparkJobHook | SparkConnectJobHook:
    """Return the hook for a connection: of type ``spark_connect``, or of type ``spark``."""
    connection: Connection | None = None
    with suppress(AirflowNotFoundException):  # then the other hook says what to do
        connection = BaseHook.get_connection(conn_id)
    if connection is not None and connection.conn_type == SparkConnectHook.conn_type:
        return SparkConnectJobHook(conn_id, conf=conf, options=options)
    return SparkJobHook(
        conn_id,
        conf=conf,
        options=options,
        on_tracking_url=on_tracking_url,
        on_progress=on_progress,
        connection=connection,
    )
