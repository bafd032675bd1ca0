"""The link *Spark* of a task, to a real application: its own pages while it runs, the history server's afterwards."""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.hooks.spark_job import SparkJobHook
from airflow_paimon.operators.branch import CorrectBranchOperator
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import wait_until
from tests.environment import QUICK_JVM
from tests.spark.cluster import _URL, _daemon, _wait_for
from tests.spark.jobs.operations import make_branch

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.thorough, pytest.mark.usefixtures("java_home")]

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.ui.port": "0",
    "spark.executor.memory": "512m",
}
SQL = "SELECT k, upper(v) AS v, dt FROM branch WHERE dt = 'a'"


@pytest.fixture(scope="module")
def servers(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """The addresses of a standalone master and of a history server, and the folder of the event logs."""
    folder = tmp_path_factory.mktemp("servers")
    events = folder / "events"
    events.mkdir()
    history = (
        f"-Dspark.history.fs.logDirectory={events} -Dspark.history.ui.port=0 -Dspark.history.fs.update.interval=1s"
    )
    local = {"JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
    environment = {**os.environ, **local, "SPARK_HISTORY_OPTS": history}
    environment.pop("SPARK_CONF_DIR", None)
    with ExitStack() as stack:
        logs = folder / "master.log", folder / "history.log"
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(_daemon("master.Master", arguments, environment, logs[0]))
        stack.enter_context(_daemon("history.HistoryServer", [], environment, logs[1]))
        master = _wait_for(logs[0], _URL)[1]
        worker = folder / "worker.log"
        arguments += ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / "work"), master]
        stack.enter_context(_daemon("worker.Worker", arguments, environment, worker))
        _wait_for(worker, re.compile("Successfully registered with master"))
        server = _wait_for(logs[1], re.compile(r"HistoryServer\b.*started at (http://\S+)"))[1]
        yield master, server, events


def page(url: str, or_none: bool = False) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=300) as answer:
            found: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code != 404 or not or_none:
            raise
        return ""
    return found


def connect(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    host, _, port = master.rpartition(":")
    set_connection(monkeypatch, "spark_default", "spark", host=host, port=int(port))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def test_while_it_runs_the_link_opens_the_application_s_own_pages(
    servers: tuple[str, str, Path], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for its line of log to be read, so the application is there when the link is reported."""
    make_branch(warehouse)
    connect(monkeypatch, servers[0])
    seen: list[str] = []

    def visit(url: str) -> None:
        seen.append(url)
        # The page lists the settings, spark.master among them. At first there is one that says Spark is starting up,
        # then for a moment none.
        wait_until(lambda: servers[0] in page(f"{url}/environment/", or_none=True), "its pages are there", 60, 0.1)

    hook = SparkJobHook(conf=SETTINGS, on_tracking_url=visit)
    asked = {"warehouse": str(warehouse), "table": "d.t", "branch": "fix", "partitions": ["dt=a"], "sql": "-"}
    texts = {"sql": SQL}
    hook.run_job(build_request("correct_branch", asked), result_name="r", results_folder=str(warehouse), texts=texts)
    assert [url.rpartition(":")[0] for url in seen] == ["http://127.0.0.1"]


def test_afterwards_the_link_of_the_task_opens_the_history_server(
    servers: tuple[str, str, Path], warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    master, server, events = servers
    make_branch(warehouse)
    connect(monkeypatch, master)
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.eventLog.compress": "false"}
    conf: dict[str, Any] = {**SETTINGS, **logged, "spark.yarn.historyServer.address": server}
    with DAG("spark_link", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CorrectBranchOperator(
            task_id="correct", table="d.t", branch="fix", sql=SQL, partitions=["dt=a"], spark_conf=conf
        )
    run = run_dag(dag)
    assert run.tasks == {"correct": ("success", 1)}
    with create_session() as session:
        stored = session.scalars(select(XComModel).where(XComModel.dag_id == "spark_link")).all()
        (link,) = [str(XComModel.deserialize_value(x)) for x in stored if server in str(x.value)]
    (application,) = [path.name for path in events.iterdir() if not path.name.startswith(".")]
    application = re.search(r"app-\d{14}-\d{4}", application)[0]  # type: ignore[index]
    assert link == f"{server}/history/{application}"
    wait_until(lambda: application in page(f"{server}/api/v1/applications"), "the history server has read it", 60, 0.5)
    assert master in page(f"{link}/environment/")
