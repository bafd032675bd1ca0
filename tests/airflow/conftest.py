"""A real Airflow for these tests: its own home, a migrated SQLite database, DAGs run by ``dag.test()``."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.processes import running
from tests.core.tables import without_rows

if TYPE_CHECKING:
    from airflow.sdk import DAG

BUNDLE = "tests"


@pytest.fixture(autouse=True)
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the tables here have placeholders for files."""
    without_rows(monkeypatch)


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate the metadata database of the run's AIRFLOW_HOME, and give the tests' DAGs an (empty) bundle."""
    from airflow.utils import db

    db.initdb()
    folder = tmp_path_factory.mktemp("bundle")
    bundles = [(BUNDLE, folder), ("dags-folder", os.environ["AIRFLOW__CORE__DAGS_FOLDER"])]
    os.environ["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"] = json.dumps(
        [
            {
                "name": name,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(path)},
            }
            for name, path in bundles
        ]
    )
    return Path(os.environ["AIRFLOW_HOME"])


@dataclass(frozen=True)
class Run:
    """A finished DAG run, as the metadata database has it."""

    dag_id: str
    run_id: str
    state: str
    tasks: dict[str, tuple[str, int]]
    """Task id (with ``[map index]``) -> state, try number."""
    asset_events: list[tuple[str, Any]]

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.scalars(
                XComModel.get_many(
                    run_id=self.run_id, dag_ids=self.dag_id, task_ids=task_id, key=key, map_indexes=map_index
                )
            ).first()
            return None if found is None else XComModel.deserialize_value(found)


RunDag = Callable[..., Run]


@pytest.fixture
def run_dag(airflow_home: Path) -> RunDag:
    """Register a DAG object and run it to its end in this process."""

    def run(dag: "DAG", **options: Any) -> Run:
        register(dag)
        return result_of(dag.test(**options))

    return run


def register(dag: "DAG") -> None:
    """Write a DAG to the metadata database, as the DAG processor would."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    try:
        from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db

        def BundleDagBag(*, dag_folder: str, bundle_path: Path, bundle_name: str) -> DagBag:
            return DagBag(dag_folder=dag_folder, bundle_path=bundle_path, include_examples=False)

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    folder = next(b.path for b in manager.get_all_dag_bundles() if b.name == BUNDLE)
    bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name=BUNDLE)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None)


def result_of(dag_run: Any) -> Run:
    """Read what became of a run."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        instances = session.scalars(
            select(TaskInstance).where(TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id)
        ).all()
        events = session.execute(
            select(AssetModel.uri, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetEvent.source_dag_id == dag_run.dag_id, AssetEvent.source_run_id == dag_run.run_id)
            .order_by(AssetEvent.id)
        ).all()
        tasks = {
            t.task_id + (f"[{t.map_index}]" if t.map_index >= 0 else ""): (str(t.state), t.try_number)
            for t in instances
        }
        return Run(dag_run.dag_id, dag_run.run_id, str(dag_run.state), tasks, [(uri, extra) for uri, extra in events])


def clear_and_run_again(dag: "DAG", run: Run, *task_ids: str) -> Run:
    """Clear tasks of a finished run, or else its only one, and run one try of each, as Airflow does."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id))
        assert dag_run is not None
        names = task_ids or [one.task_id for one in dag.tasks]
        found = [ti for ti in dag_run.get_task_instances(session=session) if ti.task_id in names]
        clear_task_instances(found, session)
        session.flush()
        for name in names:
            ti = dag_run.get_task_instance(name, session=session)
            ti.task = dag.get_task(name)
            assert dag_run.schedule_tis([ti], session=session) == 1
            session.commit()
            _run_task(ti=ti, task=ti.task)
        session.expire_all()
        return result_of(dag_run)


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local warehouse behind connection ``paimon_default``, and a one-core local Spark behind ``spark_default``."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(folder), "local_execution": "all"})
    set_connection(monkeypatch, "spark_default", "spark", host="local[1]")
    return folder


@pytest.fixture
def stuck(warehouse: Path) -> Iterator[Path]:
    """A table whose schema is a named pipe: whoever reads it hangs in the middle of its work."""
    schema = warehouse / "stuck.db" / "t" / "schema"
    schema.mkdir(parents=True)
    os.mkfifo(schema / "schema-0")
    yield warehouse
    for pid in running(f"--warehouse={warehouse}"):
        os.kill(pid, signal.SIGKILL)


def set_connection(monkeypatch: pytest.MonkeyPatch, name: str, conn_type: str, **fields: Any) -> None:
    """Define an Airflow connection by its environment variable."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": conn_type, **fields}))
