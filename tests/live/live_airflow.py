"""Airflow with each component as a process of its own, for what `dag.test()` can't show."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.airflow.processes import wait_until
from tests.dags.conftest import load_program
from tests.loopback import free_port

_COMPONENTS: dict[str, list[str]] = {
    "api-server": ["api-server", "--host", "127.0.0.1", "--workers", "1"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}


@dataclass(frozen=True)
class LiveAirflow:
    """Reads the metadata database, which is what the UI would show; ``api`` is its REST API, ``dags`` its folder."""

    home: Path
    dags: Path
    api: Any
    environment: dict[str, str] = field(repr=False)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a component."""
        with open(self.home / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "airflow", *_COMPONENTS[name]]
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, process_group=0
            )

    def kill(self, name: str) -> None:
        """Kill a component and what it started, as a lost machine would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def connect(self, name: str, conn_type: str, extra: Mapping[str, Any], **fields: Any) -> None:
        """Define a connection."""
        body = {"connection_id": name, "conn_type": conn_type, "extra": json.dumps(extra), **fields}
        self.api.call("/api/v2/connections", body)

    def add_dags(self, name: str, text: str) -> None:
        """Write a file of DAGs, which start by their schedules."""
        made = self.home / name
        made.write_text(textwrap.dedent(text))
        made.replace(self.dags / name)

    def pause_all(self) -> None:
        self.api.call("/api/v2/dags?dag_id_pattern=%25", {"is_paused": True}, method="PATCH")

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def run_id(self, dag_id: str) -> str:
        """The only run of a DAG."""
        ((found,),) = self.rows("select run_id from dag_run where dag_id = ?", dag_id)
        return str(found)

    def task(self, task_id: str) -> tuple[str | None, int]:
        """State and try number. No two DAGs of this folder have a task of the same name."""
        found = self.rows("select state, try_number from task_instance where task_id = ?", task_id)
        return found[0] if found else (None, 0)

    def xcom(self, task_id: str) -> Any:
        found = self.rows("select value from xcom where task_id = ? and key = 'return_value'", task_id)
        value = json.loads(found[0][0])
        return json.loads(value) if isinstance(value, str) else value

    def ended_tries(self, dag_id: str, task_id: str) -> int:
        """How often the scheduler has heard from its executor that this task's process ended."""
        text = f"TaskInstance Finished: dag_id={dag_id}, task_id={task_id},"
        return (self.home / "scheduler.log").read_text(errors="replace").count(text)

    def what_went_wrong(self) -> list[tuple[str, str]]:
        """The ends of the logs of tasks that didn't succeed, and what the components complained of."""
        found = []
        for dag_id, run_id, task_id, index, state in self.rows(
            "select dag_id, run_id, task_id, map_index, state from task_instance where state not in "
            "('success', 'skipped', 'removed', 'upstream_failed') order by start_date"
        ):
            folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
            for path in sorted((folder / f"map_index={index}" if index >= 0 else folder).glob("attempt=*")):
                found.append((f"{state}: {path.relative_to(self.home / 'logs')}", _end_of(path)))
        for name in _COMPONENTS:
            found.append((f"complaints of the {name}", _end_of(self.home / f"{name}.log", ("[error", "[critical"))))
        return found


def _end_of(log: Path, marks: tuple[str, ...] = ("",), lines: int = 40) -> str:
    chosen = [x[:2000] for x in log.read_text(errors="replace").splitlines() if any(mark in x for mark in marks)]
    return "\n".join(chosen[-lines:])


@contextmanager
def live_airflow(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[LiveAirflow]:
    """Run Airflow, with its API and UI, on a SQLite database in ``home``; everybody is an admin.

    What it looks for, it looks for often: a new file of DAGs, a triggerer that is gone.

    Args:
        settings: More variables of its processes.
    """
    port, dags = free_port(), home / "dags"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API_AUTH__JWT_SECRET": os.urandom(16).hex(),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",  # a busy machine may keep one silent for long
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",  # the server's first answer takes long on a busy machine
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    environment.pop("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", None)
    environment |= settings or {}
    dags.mkdir(parents=True)
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], env=environment, check=True, capture_output=True, timeout=900)
    live = LiveAirflow(home, dags, load_program("demo_ui").Api(port), environment)
    try:
        for name in _COMPONENTS:
            live.start(name)
        wait_until(lambda: _answers(port), "the API server answers", 240)
        live.api.token = live.api.call("/auth/token")["access_token"]
        yield live
    finally:
        _end(live.processes.values())


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """End components and what they started: each is the leader of a process group of its own."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
