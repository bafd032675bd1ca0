"""Scheduler, DAG processor and API server as processes of their own, for what `dag.test()` can't show."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.airflow.processes import wait_until

_COMPONENTS: dict[str, list[str]] = {
    "api-server": ["api-server", "--host", "127.0.0.1", "--workers", "1"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
}
_TRIGGERER = {"triggerer": ["triggerer", "--skip-serve-logs"]}


@dataclass(frozen=True)
class LiveAirflow:
    """Reads the metadata database, which is what the UI would show."""

    home: Path
    port: int
    environment: dict[str, str] = field(repr=False)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Start a component."""
        with open(self.home / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "airflow", *(_COMPONENTS | _TRIGGERER)[name], *arguments]
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """Kill a component and what it started, as a lost machine would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def task(self, task_id: str) -> tuple[str | None, int]:
        """State and try number."""
        found = self.rows("select state, try_number from task_instance where task_id = ?", task_id)
        return found[0] if found else (None, 0)

    def xcom(self, task_id: str) -> Any:
        found = self.rows("select value from xcom where task_id = ? and key = 'return_value'", task_id)
        value = json.loads(found[0][0])
        return json.loads(value) if isinstance(value, str) else value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def live_airflow(
    home: Path, dags: Path, env: Mapping[str, str], apps: str = "execution", triggerer: bool = False
) -> Iterator[LiveAirflow]:
    """Run Airflow on a SQLite database in ``home`` with the DAGs of a folder; a DAG starts by its schedule.

    With ``apps="all"`` the REST API and the UI are there, too, at ``port``, and everybody is an admin. ``triggerer``:
    run one as well.
    """
    port = _free_port()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": os.urandom(16).hex(),
        **env,
    }
    environment.pop("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", None)
    home.mkdir(parents=True)
    airflow = [sys.executable, "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], env=environment, check=True, capture_output=True, timeout=300)
    live = LiveAirflow(home, port, environment)
    try:
        for name in (*_COMPONENTS, *(_TRIGGERER if triggerer else ())):
            live.start(name, *(("--apps", apps) if name == "api-server" else ()))
        wait_until(lambda: _answers(port), "the API server answers", 240)
        yield live
    finally:
        for process in live.processes.values():
            _end(process)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a component and what it started: each is the leader of a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=15)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
