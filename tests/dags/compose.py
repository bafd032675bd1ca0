"""The services of docker/compose.yaml as plain processes on the loopback: their commands, their environment.

Host names become the loopback and ports free ones; PostgreSQL is the machine's own, or SQLite where there is none. What
is left to Docker is the image: AIRFLOW_PAIMON_IMAGE names an environment into which its steps were run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.airflow.processes import wait_until
from tests.conftest import REPO_ROOT
from tests.live.live_airflow import _answers, _end, _free_port

FOLDER = REPO_ROOT / "docker"
IMAGE = os.environ.get("AIRFLOW_PAIMON_IMAGE")
BIN = Path(IMAGE or sys.prefix) / "bin"
_PORTS = ("5000", "5432", "7077", "8080", "8081")
_PATIENCE_S = 120.0


def compose_file() -> dict[str, Any]:
    """Read the compose file, its variables at their defaults."""
    text = (FOLDER / "compose.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return found


@dataclass(frozen=True)
class Stack:
    """The services, running. ``run`` runs one to its end, or another program in the environment of one."""

    folder: Path
    services: Mapping[str, Any]
    ports: Mapping[str, str]
    extra: Mapping[str, str]

    def environment(self, name: str) -> dict[str, str]:
        foreign = ("AIRFLOW_", "SPARK_", "PYSPARK_", "AWS_", "PYTHON", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) or k.startswith("AIRFLOW_PAIMON_TEST")}
        own = {k: self._local(v) for k, v in self.services[name].get("environment", {}).items()}
        return {**kept, **own, **self.extra, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def command(self, name: str) -> list[str]:
        words = [self._local(w) for w in self.services[name]["command"]]
        if name.startswith("spark"):
            words = [re.sub(r"^spark-master$", "127.0.0.1", w) for w in words]
        return [str(BIN / words[0]), *words[1:]]

    def run(self, name: str, *command: str) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]] if command else self.command(name),
            env=self.environment(name),
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S * 2,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                self.command(name),
                env=self.environment(name),
                cwd=FOLDER,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def api(self, path: str) -> Any:
        """Ask Airflow's REST API, as the admin that everybody is."""
        base = f"http://127.0.0.1:{self.ports['8080']}"
        with urllib.request.urlopen(f"{base}/auth/token", timeout=30) as answer:
            token = json.load(answer)["access_token"]
        request = urllib.request.Request(f"{base}/api/v2/{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def _local(self, value: str) -> str:
        value = re.sub(rf"((?://|@))({'|'.join(self.services)})\b", r"\g<1>127.0.0.1", value)
        value = value.replace("0.0.0.0", "127.0.0.1")
        return re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda match: self.ports[match[1]], value)


@contextmanager
def running_stack(folder: Path, java_home: Path) -> Iterator[Stack]:
    """Start everything in the order of the compose file; whatever was started has ended afterwards."""
    ports = {p: str(_free_port()) for p in _PORTS}
    dags = _python("from airflow_paimon.bundled import dags_folder; print(dags_folder())")
    extra = {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": dags,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "JAVA_HOME": str(java_home),
        "TZ": "UTC",
        # What a container keeps to itself: its ports, and the name that Spark has for it.
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(_free_port()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "no_proxy": "127.0.0.1",
    }
    postgres = _postgres()
    if postgres is None:
        extra["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{folder}/airflow.db"
    stack = Stack(folder, compose_file()["services"], ports, extra)
    with ExitStack() as started:
        if postgres is not None:
            started.enter_context(_postgres_server(postgres, folder, ports["5432"]))
        for name in ("store", "spark-master"):
            started.callback(_end, stack.start(name))
            port = int(ports["5000" if name == "store" else "7077"])
            wait_until(lambda port=port: _answers(port), name, _PATIENCE_S)  # type: ignore[misc]
        for name in ("spark-worker-1", "spark-worker-2"):
            started.callback(_end, stack.start(name))
        stack.run("migrate")
        for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
            started.callback(_end, stack.start(name))
        wait_until(lambda: _answers(int(ports["8080"])), "the API server", _PATIENCE_S)
        yield stack


def _python(code: str) -> str:
    return subprocess.run([BIN / "python", "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _postgres() -> Path | None:
    """The machine's PostgreSQL, if the environment has the drivers for it."""
    drivers = subprocess.run([BIN / "python", "-c", "import asyncpg, psycopg2"], capture_output=True)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found and drivers.returncode == 0 else None


@contextmanager
def _postgres_server(programs: Path, folder: Path, port: str) -> Iterator[None]:
    """A server with the user and the database of the compose file; PostgreSQL does not run as root."""
    user = "postgres" if os.getuid() == 0 else None
    data = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True, user=user).stdout.strip())

    def do(*command: str) -> None:
        subprocess.run([programs / command[0], *command[1:]], check=True, capture_output=True, user=user, cwd="/")

    try:
        do("initdb", "-D", str(data), "-U", "airflow", "--auth=trust")
        with (folder / "postgres.log").open("wb") as log:
            options = ["-D", str(data), "-p", port, "-h", "127.0.0.1", "-k", str(data)]
            server = subprocess.Popen([programs / "postgres", *options], stdout=log, stderr=log, user=user, cwd="/")
        try:
            wait_until(lambda: _answers(int(port)), "PostgreSQL", _PATIENCE_S)
            do("createdb", "-h", "127.0.0.1", "-p", port, "-U", "airflow", "airflow")
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def wait_for_run(stack: Stack, dag_id: str, run_id: str) -> str:
    """Wait until a DAG run has ended, and give its state."""
    deadline = time.monotonic() + 6 * _PATIENCE_S
    while True:
        state = str(stack.api(f"dags/{dag_id}/dagRuns/{run_id}")["state"])
        if state in ("success", "failed"):
            return state
        assert time.monotonic() < deadline, _states(stack, dag_id, run_id)
        time.sleep(0.5)


def _states(stack: Stack, dag_id: str, run_id: str) -> dict[str, str]:
    found = stack.api(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return {task["task_id"]: task["state"] for task in found}
