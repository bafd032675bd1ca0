"""The DAGs of ``dags/`` run by a real Airflow, with a real Spark for their jobs, on small real tables."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.airflow.conftest import Run, airflow_home, register, result_of, set_connection
from tests.environment import REPO_ROOT

if TYPE_CHECKING:
    from airflow.sdk import DAG

__all__ = ["airflow_home"]

TABLE = "sales.orders"
WRONG = ("2026-11-17", "2026-11-18")
RIGHT = ("2026-11-16", "2026-11-19")
LIVE = "2026-11-21"
"""The partition that the writer of ``tests.dags.writer`` goes on writing."""
# On the wrong days cents came instead of euros.
CONF = {
    "table": TABLE,
    "sql": f"SELECT dt, id, amount / 100 AS amount, note FROM branch WHERE dt IN {WRONG}",
    "partitions": [f"dt={day}" for day in WRONG],
}


def orders(days: tuple[str, ...], *, factor: int = 1) -> pa.Table:
    """Twenty orders a day; order n of a day is n euros."""
    return pa.table(
        {
            "dt": [day for day in days for _ in range(20)],
            "id": pa.array([n for _ in days for n in range(20)], pa.int64()),
            "amount": pa.array([float(n * factor) for _ in days for n in range(20)], pa.float64()),
            "note": [None if n % 3 else f"order {n}" for _ in days for n in range(20)],
        }
    )


def make_orders(warehouse: str) -> Table:
    """A table with two right and two wrong days."""
    return fill_orders(partial(create_table, warehouse, TABLE))


def fill_orders(create: Callable[..., Table]) -> Table:
    """Make such a table by ``create``, which knows its name."""
    table = create(
        [("dt", "STRING NOT NULL"), ("id", "BIGINT NOT NULL"), ("amount", "DOUBLE"), ("note", "STRING")],
        partition_keys=["dt"],
        primary_keys=["dt", "id"],
        options={"bucket": "2"},
    )
    write_arrow(table, orders(RIGHT))
    write_arrow(table, orders(WRONG, factor=100))
    return table


def amounts(table: Table, *days: str) -> list[tuple[str, int, float]]:
    """What the table says of these days."""
    rows = read_arrow(table).to_pylist()
    return sorted((r["dt"], r["id"], r["amount"]) for r in rows if r["dt"] in days)


def expected(*days: str, factor: int = 1) -> list[tuple[str, int, float]]:
    return sorted((day, n, float(n * factor)) for day in days for n in range(20))


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_home: Path) -> Path:
    """A local warehouse behind ``paimon_default``, and a small local Spark behind ``spark_default``."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(folder), "local_execution": "all"})
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests" * 5)
    set_connection(monkeypatch, "spark_default", "spark", host="local[2]")
    return folder


def load_dag(name: str) -> "DAG":
    """Execute a DAG file, as Airflow does. Retries are off: no test here is about them, and they wait."""
    spec = importlib.util.spec_from_file_location(f"dags_under_test_{name}", REPO_ROOT / "dags" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dag: DAG = module.dag
    for task in dag.tasks:
        task.retries = 0
    return dag


@cache
def form_of(name: str) -> dict[str, Any]:
    """The form of a DAG as it comes: to make the DAG takes 0.1 s each time."""
    params = load_dag(name).params
    return {key: params.get_param(key).value for key in params}


def run_dag(name: str, conf: dict[str, Any]) -> Run:
    """Run a DAG to its end in this process."""
    return run_made(load_dag(name), conf)


def run_made(dag: "DAG", conf: dict[str, Any]) -> Run:
    """Run a DAG object to its end in this process.

    It is registered in the tests' bundle, which is empty: ``dag.test()`` parses and writes all of a DAG's bundle anew.
    """
    register(dag)
    return result_of(dag.test(run_conf=conf))


def clear_and_run(run: Run, task_id: str) -> Run:
    """Clear one task of a finished run, and run it again, as Airflow does."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session
    from sqlalchemy import select

    task = load_dag(run.dag_id).get_task(task_id)
    with create_session() as session:
        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id))
        assert dag_run is not None
        ti = dag_run.get_task_instance(task_id, session=session)
        assert ti is not None
        clear_task_instances([ti], session)
        session.flush()
        ti = dag_run.get_task_instance(task_id, session=session)
        assert ti is not None
        ti.task = task
        assert dag_run.schedule_tis([ti], session=session) == 1
        session.commit()
        _run_task(ti=ti, task=task)
        session.expire_all()
        return result_of(dag_run)


def set_state(run: Run, state: str) -> None:
    """Write the state of a run into the database."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        this = (DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id)
        session.execute(update(DagRun).where(*this).values(state=state))


def states(run: Run) -> dict[str, str]:
    return {name: state for name, (state, _) in run.tasks.items()}


@contextmanager
def answering(
    option: str, dag_id: str = "data_correction", *, at_last: str | None = None, user: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Answer the approvals that come up meanwhile, through Airflow's REST API; gives the questions.

    ``at_last``: the answer to all but the first question. ``user``: who answers, else nobody in particular.
    """
    seen: list[dict[str, Any]] = []
    errors: list[Exception] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            try:
                for ti in _waiting(dag_id):
                    if errors:  # dag.test() would wait for an answer for ever
                        _fail(dag_id)
                    elif question := _answer(ti, at_last if seen and at_last else option, user):
                        seen.append(question)
            except OperationalError:  # another process holds SQLite's lock: ask again
                continue
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=watch, name="approver")
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
    assert not errors, errors


def _fail(dag_id: str) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        waiting = (TaskInstance.dag_id == dag_id, TaskInstance.state == "awaiting_input")
        session.execute(update(TaskInstance).where(*waiting).values(state="failed"))


def _waiting(dag_id: str) -> list[tuple[str, str, str]]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.state == "awaiting_input")
        return [(t.dag_id, t.run_id, t.task_id) for t in session.scalars(query)]


@cache
def _api() -> Any:
    """Airflow's API: to make it takes a second each time."""
    from airflow.api_fastapi.app import create_app

    return create_app(apps="core")


def _resume(dag_id: str, run_id: str, task_id: str) -> None:
    """Let a task go on, as its answer did: dag.test() writes that it waits when its process has ended, and has taken
    the effect of an answer back that came between.
    """
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        this = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
        ti = session.scalars(select(TaskInstance).where(*this)).one()
        answer = session.get_one(HITLDetail, ti.id).as_resume_event_payload()
        handle_event_submit(TriggerEvent(answer), task_instance=ti, session=session)


def _answer(ti: tuple[str, str, str], option: str, user: str | None) -> dict[str, Any] | None:
    """Answer a question, and return it; None: it has been answered."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    dag_id, run_id, task_id = ti
    path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
    with TestClient(_api()) as client:
        token = client.get("/auth/token").json()["access_token"]
        if user is not None:
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role="ADMIN"))
        client.headers["Authorization"] = f"Bearer {token}"
        question: dict[str, Any] = client.get(path).json()
        if question["response_received"]:
            _resume(dag_id, run_id, task_id)
            return None
        answer = client.patch(path, json={"chosen_options": [option], "params_input": {}})
    assert answer.status_code == 200, answer.text
    return question


def load_program(name: str) -> Any:
    """Import a program of ``dags/``; it finds what it shares with others beside it."""
    folder = str(REPO_ROOT / "dags")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
