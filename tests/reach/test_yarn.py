"""Jobs on a real YARN with tables on its HDFS: both deploy modes, deferral, what is killed, and lost workers."""

from __future__ import annotations

import asyncio
import tarfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_paimon.core.errors import OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.hooks._drivers import GONE
from airflow_paimon.hooks._job_files import result_in
from airflow_paimon.hooks._yarn import ResourceManager
from airflow_paimon.hooks.cluster_job import JobWatch
from airflow_paimon.hooks.spark_job import SparkJobHook
from airflow_paimon.operators.branch import CorrectBranchOperator, CreateBranchOperator
from airflow_paimon.operators.maintenance import CheckTableOperator
from airflow_paimon.triggers.spark_job import SparkJobTrigger
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import running, wait_until
from tests.core.tables import make_table, run
from tests.environment import QUICK_JVM
from tests.reach.lost_workers import lose_worker
from tests.spark.cluster import bare_python
from tests.yarn_cluster import YarnCluster, yarn_cluster

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]

RULES = """
import time
from pathlib import Path

def corrected(spark, views):
    def on_an_executor(rows):
        import airflow_paimon, rules
        for row in rows:
            yield row.k, f"{row.v} by {rules.__name__}", row.dt
    return spark.createDataFrame(views["branch"].rdd.mapPartitions(on_an_executor), views["branch"].schema)

def waits(spark, views):
    here = Path("<here>")
    (here / "started").touch()
    for _ in range(6000):
        if (here / "go").exists():
            return views["branch"]
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[YarnCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as started:
        yield started


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what jobs need, and without this package."""
    return bare_python(tmp_path_factory.mktemp("python") / "env", "hdfs_native", "typing_extensions")


@pytest.fixture
def warehouse(cluster: YarnCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """A warehouse on the HDFS behind ``paimon_default``, and that YARN behind ``client`` and ``cluster``."""
    uri = f"{cluster.files}/{uuid.uuid4().hex}"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name)
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": uri, "local_execution": "none"})
    address = {"yarn_resourcemanager_webapp_address": cluster.pages}
    set_connection(monkeypatch, "client", "spark", host="yarn", extra={"deploy-mode": "client"})
    set_connection(monkeypatch, "cluster", "spark", host="yarn", extra={"deploy-mode": "cluster"} | address)
    return uri


def conf(python: str | Path) -> dict[str, str]:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return {
        "spark.yarn.jars": f"local:{jars}/*",  # else all of Spark is uploaded for each job
        "spark.pyspark.python": str(python),
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.yarn.am.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "1",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }


OPTIONS = {"driver_memory": "512m", "executor_memory": "512m", "num_executors": 1}


def table_with_branches(warehouse: str, *branches: str) -> Table:
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": ["1", "1"]}))
    for branch in branches:
        run(main, "create_branch", branch=branch, snapshot=1)
    return main


def leftovers(cluster: YarnCluster, warehouse: str) -> list[str]:
    store = result_in(f"{warehouse}/_airflow_paimon_results", "none", None).store
    return list(store.walk(""))


def test_client_cluster_and_deferred_give_the_same(
    cluster: YarnCluster, warehouse: str, python: Path, run_dag: RunDag, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    main = table_with_branches(warehouse)
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(python.parent.parent, ".")
    options = OPTIONS | {"py_files": str(rules)}
    correct: dict[str, Any] = {"table": "d.t", "function": "rules:corrected", "partitions": ["dt=1"]}
    shipped: dict[str, Any] = {
        "spark_conf": conf("./env/bin/python"),
        "spark_options": options | {"archives": f"{archive}#env"},
        "spark_conn_id": "cluster",
    }
    missing: dict[str, Any] = {"table": "d.none", "run_on": "spark", "spark_conf": conf(python), "retries": 2}
    with DAG("on_yarn", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        one, two, three = (
            CreateBranchOperator(task_id=f"branch_{name}", table="d.t", branch=name, snapshot=1)
            for name in ("one", "two", "three")
        )
        in_client = CorrectBranchOperator(
            task_id="in_client", branch="one", spark_conn_id="client", spark_options=options,
            spark_conf=conf(python) | {"spark.driver.host": "127.0.0.1"}, **correct,
        )  # fmt: skip
        in_cluster = CorrectBranchOperator(task_id="in_cluster", branch="two", **correct, **shipped)
        deferred = CorrectBranchOperator(
            task_id="deferred", branch="three", deferrable=True, poll_interval=0.5, **correct, **shipped
        )
        none = CheckTableOperator(task_id="none", spark_conn_id="cluster", spark_options=OPTIONS, **missing)
        one >> two >> three >> in_client >> in_cluster >> deferred >> none
    done = run_dag(dag)
    tasks = {name: done.tasks[name] for name in ("in_client", "in_cluster", "deferred", "none")}
    assert tasks == dict.fromkeys(tasks, ("success", 1)) | {"none": ("failed", 1)}
    results = [done.xcom(name) for name in ("in_client", "in_cluster", "deferred")]
    assert [(r["branch"], r["changed"], r["details"]["rows"]) for r in results] == [
        ("one", True, 2), ("two", True, 2), ("three", True, 2)
    ]  # fmt: skip
    rows = [sorted(row["v"] for row in read_arrow(main.branch(name)).to_pylist()) for name in ("one", "two", "three")]
    assert rows == [["a by rules", "b by rules"]] * 3
    assert "".join(capfd.readouterr()).count("Pausing task as DEFERRED") == 1
    assert done.xcom("none", "paimon_error")["kind"] == "not-found", "told by the result, and not retried"
    ended = "YARN has ended what has left its result"
    wait_until(lambda: {each["state"] for each in cluster.applications().values()} == {"FINISHED"}, ended, 60, 0.5)
    applications = sorted(cluster.applications().values(), key=lambda each: each["id"])
    assert [(each["state"], each["finalStatus"]) for each in applications] == [
        ("FINISHED", "SUCCEEDED"), ("FINISHED", "SUCCEEDED"), ("FINISHED", "SUCCEEDED"), ("FINISHED", "FAILED")
    ]  # fmt: skip
    failed = applications[-1]["id"]
    assert cluster.attempts(failed) == 1, "YARN didn't run a job again whose failure the task had reported"
    assert "There is no table d.none" in cluster.driver_log(failed)
    assert done.xcom("none", "_link_SparkLink") == f"{_pages(cluster)}/proxy/{failed}/"
    assert leftovers(cluster, warehouse) == []


def _pages(cluster: YarnCluster) -> str:
    """The address by which YARN names its pages: by the machine's name."""
    return cluster.pages.replace("127.0.0.1", "localhost")


@pytest.fixture
def waits(tmp_path: Path, python: Path) -> Iterator[dict[str, Any]]:
    """Arguments of a hook whose job's function waits for the file ``go``."""
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.replace("<here>", str(tmp_path)))
    yield {"conf": conf(python), "options": OPTIONS | {"py_files": str(rules)}}
    (tmp_path / "go").touch()


def waiting_request(warehouse: str, operation_id: str) -> Request:
    values = {"warehouse": warehouse, "table": "d.t", "branch": "b", "function": "rules:waits", "partitions": ["dt=1"]}
    return build_request("correct_branch", values | {"operation_id": operation_id})


def test_a_killed_task_ends_its_application(
    cluster: YarnCluster, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main = table_with_branches(warehouse, "b")
    hook, failures, before = SparkJobHook("cluster", **waits), [], set(cluster.applications())

    def work() -> None:
        try:
            hook.run_job(waiting_request(warehouse, "o"), result_name="k/try1.json", results_folder=f"{warehouse}/_r")
        except PaimonError as error:
            failures.append(type(error))

    worker = threading.Thread(target=work)
    worker.start()
    wait_until((tmp_path / "started").exists, "the job is at work", 120)
    (application,) = set(cluster.applications()) - before
    hook.on_kill()
    worker.join(600)
    assert not worker.is_alive() and failures == [OutcomeUnknownError]
    wait_until(lambda: cluster.applications()[application]["state"] == "KILLED", "YARN has killed it", 30, 0.5)
    wait_until(lambda: not running(application), "nothing of it is left", 30, 0.5)
    assert main.branch("b").latest_snapshot_id() == 1


def lose_worker_at_work(
    cluster: YarnCluster, warehouse: str, hook: dict[str, Any], request: Request, tmp_path: Path
) -> str:
    """Lose a worker when its job is at work; the id of the application, which runs on."""
    before = set(cluster.applications())
    lose_worker(warehouse, hook, request, tmp_path)
    (application,) = set(cluster.applications()) - before
    assert cluster.applications()[application]["state"] == "RUNNING", "YARN knows nothing of the worker"
    return application


def test_a_retry_waits_for_what_the_lost_worker_has_submitted(
    cluster: YarnCluster, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse, "o")
    before = set(cluster.applications())
    application = lose_worker_at_work(cluster, warehouse, waits, request, tmp_path)

    again: dict[str, Any] = {"result_name": "k/try2.json", "results_folder": f"{warehouse}/_r"}
    deferred = SparkJobHook("cluster", **waits).submit_job(request, **again)
    assert (deferred.driver_id, deferred.result_name) == (application, "k/try1.json")
    assert deferred.spark_url == f"{_pages(cluster)}/proxy/{application}/"
    threading.Timer(3, (tmp_path / "go").touch).start()
    result = SparkJobHook("cluster", **waits).run_job(request, **again)
    assert (result["changed"], result["snapshot_after"]) == (True, 2)
    assert main.branch("b").latest_snapshot_id() == 2
    assert set(cluster.applications()) == before | {application}, "nothing was submitted twice"
    assert list(result_in(f"{warehouse}/_r", "none", None).store.walk("")) == []


def test_a_retry_submits_again_when_the_first_try_ends_without_a_result(
    cluster: YarnCluster, warehouse: str, waits: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse, "o")
    before = set(cluster.applications())
    application = lose_worker_at_work(cluster, warehouse, waits, request, tmp_path)

    def end_it() -> None:
        ResourceManager(cluster.pages).kill(application)
        (tmp_path / "go").touch()

    threading.Timer(3, end_it).start()
    hook = SparkJobHook("cluster", **waits)
    result = hook.run_job(request, result_name="k/try2.json", results_folder=f"{warehouse}/_r")
    assert (result["changed"], result["snapshot_after"]) == (True, 2)
    assert main.branch("b").latest_snapshot_id() == 2
    states = {each: cluster.applications()[each]["state"] for each in set(cluster.applications()) - before}
    assert states.pop(application) == "KILLED" and len(states) == 1
    assert f"driver {application} ended (KILLED)" in "".join(capfd.readouterr())


def test_a_killed_retry_submits_no_other_application(
    cluster: YarnCluster, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse, "o")
    before = set(cluster.applications())
    application = lose_worker_at_work(cluster, warehouse, waits, request, tmp_path)
    hook, failures = SparkJobHook("cluster", **waits), []

    def work() -> None:
        try:
            hook.run_job(request, result_name="k/try2.json", results_folder=f"{warehouse}/_r")
        except PaimonError as error:
            failures.append(type(error))

    retry = threading.Thread(target=work)
    retry.start()
    wait_until(
        lambda: hook.cluster is not None and hook.cluster.driver == application, "it has taken the application", 60
    )
    hook.on_kill()
    retry.join(600)
    assert not retry.is_alive() and failures == [OutcomeUnknownError]
    assert set(cluster.applications()) == before | {application}
    assert cluster.applications()[application]["state"] == "KILLED"
    assert main.branch("b").latest_snapshot_id() == 1


def test_a_trigger_kills_and_finds_out(
    cluster: YarnCluster, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    table_with_branches(warehouse, "b")
    job = SparkJobHook("cluster", **waits).submit_job(
        waiting_request(warehouse, "o"), result_name="r.json", results_folder=f"{warehouse}/_airflow_paimon_results"
    )
    wait_until((tmp_path / "started").exists, "the job is at work", 120)
    made = SparkJobTrigger(job=asdict(job), paimon_conn_id="paimon_default", spark_conn_id="cluster", poll_interval=0.2)
    asyncio.run(made.on_kill())
    event = asyncio.run(asyncio.wait_for(anext(aiter(made.run())), 120)).payload
    assert event["state"] == "KILLED"

    # What a resource manager knows nothing of, as after a start without its old state.
    manager = ResourceManager(cluster.pages)
    watch = JobWatch(manager, "application_1_0001", result_in(f"{warehouse}/_r", "none.json", None))
    assert [watch.poll() for _ in range(3)] == [None, None, GONE]
    manager.kill("application_1_0001")
    other = ResourceManager(cluster.files.replace("hdfs", "http"))
    silent = JobWatch(other, "application_1_0001", result_in(f"{warehouse}/_r", "none.json", None))
    assert [silent.poll() for _ in range(4)] == [None] * 4, "what is no resource manager says nothing about drivers"
