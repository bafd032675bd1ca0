"""Jobs on Kubernetes: its real API server, scheduler, controllers and rights, and a stand-in for its nodes.

Drivers and executors are real Spark in pods of ``tests/kubernetes_node.py``; tables and uploads lie on a real HDFS.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from airflow.sdk import DAG

from airflow_paimon._compat import AirflowTaskTimeout
from airflow_paimon.core.errors import InvalidInputError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.hooks import _kubernetes
from airflow_paimon.hooks._drivers import GONE
from airflow_paimon.hooks._environment import spark_submit_of_this_environment
from airflow_paimon.hooks._job_files import result_in
from airflow_paimon.hooks._kubernetes import Pods
from airflow_paimon.hooks.cluster_job import JobWatch
from airflow_paimon.hooks.spark_job import SparkJobHook, _request_key
from airflow_paimon.operators.branch import CorrectBranchOperator, CreateBranchOperator
from airflow_paimon.triggers.spark_job import SparkJobTrigger
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import running, wait_until
from tests.core.tables import make_table, run
from tests.environment import QUICK_JVM, REPO_ROOT
from tests.hdfs_server import hdfs_server
from tests.kubernetes_cluster import IMAGE, KubernetesCluster, apply, kubernetes_cluster
from tests.reach.lost_workers import lose_worker
from tests.spark.cluster import bare_python

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]

NAMESPACE = "spark-jobs"
OPTIONS = {"driver_memory": "512m", "executor_memory": "512m", "num_executors": 1}
RULES = """
import os, time
from pathlib import Path

def corrected(spark, views):
    print("PRINTED BY THE DRIVER in", os.environ["SPARK_APPLICATION_ID"][:6])
    def on_an_executor(rows):
        import socket
        import airflow_paimon, rules
        for row in rows:
            yield row.k, f"{row.v} on {socket.gethostname()[-6:]}", row.dt
    return spark.createDataFrame(views["branch"].rdd.mapPartitions(on_an_executor), views["branch"].schema)

def corrected_from_here(spark, views):
    def on_an_executor(rows):
        import socket
        for row in rows:
            yield row.k, f"{row.v} on {socket.gethostname()[-6:]} from here", row.dt
    return spark.createDataFrame(views["branch"].rdd.mapPartitions(on_an_executor), views["branch"].schema)

def fails(spark, views):
    raise ValueError("the rates of May are missing")

def waits(spark, views):
    here = Path("<here>")
    (here / "started").touch()
    for _ in range(6000):
        if (here / "go").exists():
            return views["branch"]
        time.sleep(0.1)
"""


@dataclass(frozen=True)
class Place:
    """A cluster, an HDFS, and who may do what in the cluster, as the documentation says."""

    cluster: KubernetesCluster
    files: str
    worker: Path
    triggerer: Path
    rights: str
    of_drivers_in_workers: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kubernetes")
    files = folder / "hdfs"
    files.mkdir()
    python = bare_python(folder / "env", "hdfs_native", "typing_extensions")
    rights, of_drivers_in_workers = (
        (REPO_ROOT / "docs" / "kubernetes" / f"{name}.yaml").read_text() for name in ("rights", "client-mode")
    )
    with kubernetes_cluster(folder, python) as cluster, hdfs_server(files) as uri:
        for name in ("airflow", NAMESPACE):
            cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        apply(cluster, rights)
        worker, triggerer = (cluster.login_account("airflow", f"airflow-{name}") for name in ("worker", "triggerer"))
        yield Place(cluster, uri, worker, triggerer, rights, of_drivers_in_workers)


@pytest.fixture
def warehouse(place: Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """A warehouse on HDFS behind ``paimon_default``, and that Kubernetes behind ``client`` and ``cluster``."""
    uri = f"{place.files}/{uuid.uuid4().hex}"
    monkeypatch.setenv("KUBECONFIG", str(place.worker))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name)
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": uri, "local_execution": "none"})
    for mode in ("client", "cluster"):
        extra = {"deploy-mode": mode, "namespace": NAMESPACE}
        set_connection(monkeypatch, mode, "spark", host=place.cluster.master, extra=extra)
    return uri


def conf(place: Place, **more: str) -> dict[str, str]:
    return {
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.file.upload.path": f"{place.files}/uploads",
        "spark.kubernetes.driver.master": place.cluster.url,  # there is no name server, nor an address for services
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.kubernetes.executor.request.cores": "100m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "1",
    } | more


def table_with_branches(warehouse: str, *branches: str) -> Table:
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": ["1", "1"]}))
    for name in branches:
        run(main, "create_branch", branch=name, snapshot=1)
    return main


def drivers(place: Place) -> dict[str, dict[str, Any]]:
    return place.cluster.pods(NAMESPACE)


def uploads(place: Place) -> list[str]:
    return list(result_in(f"{place.files}/uploads", "none", None).store.walk(""))


def test_a_worker_that_waits_and_one_that_leaves_get_the_same(
    place: Place, warehouse: str, run_dag: RunDag, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    main = table_with_branches(warehouse)
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    common: dict[str, Any] = {
        "table": "d.t", "partitions": ["dt=1"], "spark_conf": conf(place), "spark_conn_id": "cluster",
        "spark_options": OPTIONS | {"py_files": str(rules)},
    }  # fmt: skip
    with DAG("on_kubernetes", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        branches = [
            CreateBranchOperator(task_id=f"branch_{name}", table="d.t", branch=name, snapshot=1)
            for name in ("two", "three", "four")
        ]
        tasks = [
            CorrectBranchOperator(task_id="in_cluster", branch="two", function="rules:corrected", **common),
            CorrectBranchOperator(
                task_id="deferred", branch="three", function="rules:corrected", deferrable=True, poll_interval=0.5,
                **common,
            ),
            CorrectBranchOperator(task_id="fails", branch="four", function="rules:fails", retries=2, **common),
        ]  # fmt: skip
        in_order = [*branches, *tasks]
        for before, after in pairwise(in_order):
            before >> after
    done = run_dag(dag)
    names = ("in_cluster", "deferred", "fails")
    assert {name: done.tasks[name] for name in names} == dict.fromkeys(names, ("success", 1)) | {"fails": ("failed", 1)}
    results = [done.xcom(name) for name in names[:2]]
    assert [(r["branch"], r["changed"], r["details"]["rows"]) for r in results] == [
        ("two", True, 2), ("three", True, 2)
    ]  # fmt: skip
    rows = [sorted(row["v"] for row in read_arrow(main.branch(name)).to_pylist()) for name in ("two", "three")]
    assert rows == [["a on exec-1", "b on exec-1"]] * 2
    failed = done.xcom("fails", "paimon_error")
    assert failed["kind"] == "invalid-input" and "the rates of May are missing" in failed["message"]
    assert "".join(capfd.readouterr()).count("Pausing task as DEFERRED") == 1
    assert caplog.text.count("PRINTED BY THE DRIVER in spark-") == 2, "the driver's log is in the task's"
    phases = [pod["status"]["phase"] for pod in drivers(place).values()]
    assert sorted(phases) == ["Failed", "Succeeded", "Succeeded"]
    assert list(result_in(f"{warehouse}/_airflow_paimon_results", "none", None).store.walk("")) == []
    assert uploads(place) == [], "Spark left its uploads there"
    wait_until(lambda: not place.cluster.pods(NAMESPACE, "executor"), "executors end with their driver", 30, 0.5)


@pytest.fixture
def waits(place: Place, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Arguments of a hook whose job's function waits for the file ``go``."""
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.replace("<here>", str(tmp_path)))
    volume = "spark.kubernetes.driver.volumes.hostPath.signals"
    settings = {f"{volume}.mount.path": str(tmp_path), f"{volume}.options.path": str(tmp_path)}
    yield {"conf": conf(place, **settings), "options": OPTIONS | {"py_files": str(rules)}}
    (tmp_path / "go").touch()


def waiting_request(warehouse: str) -> Request:
    values = {"warehouse": warehouse, "table": "d.t", "branch": "b", "function": "rules:waits", "partitions": ["dt=1"]}
    return build_request("correct_branch", values | {"operation_id": uuid.uuid4().hex})


@contextmanager
def at_work(hook: SparkJobHook, request: Request, result_name: str, results_folder: str) -> Iterator[list[PaimonError]]:
    """Run a job in a thread, whose end is waited for; its failure gets into the list."""
    failures: list[PaimonError] = []

    def work() -> None:
        try:
            hook.run_job(request, result_name=result_name, results_folder=results_folder)
        except PaimonError as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    yield failures
    worker.join(600)
    assert not worker.is_alive()


def test_a_killed_task_deletes_its_driver(place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path) -> None:
    main = table_with_branches(warehouse, "b")
    hook, before = SparkJobHook("cluster", **waits), set(drivers(place))
    with at_work(hook, waiting_request(warehouse), "k/try1.json", f"{warehouse}/_r") as failures:
        wait_until((tmp_path / "started").exists, "the job is at work", 120)
        (pod,) = set(drivers(place)) - before
        assert uploads(place)
        hook.on_kill()
    assert [type(error) for error in failures] == [OutcomeUnknownError]
    assert uploads(place) == []
    wait_until(lambda: pod not in drivers(place), "Kubernetes has deleted it", 30, 0.5)
    wait_until(lambda: not running(str(tmp_path / "rules.py")), "nothing of it is left", 30, 0.5)
    assert main.branch("b").latest_snapshot_id() == 1


@contextmanager
def timed_out_when(probe: Callable[[], object]) -> Iterator[None]:
    """Raise in this thread, as soon as the probe gives something true, what Airflow raises at ``execution_timeout``."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if probe():
                os.kill(os.getpid(), signal.SIGUSR1)
                return

    def raise_it(*_: object) -> None:
        raise AirflowTaskTimeout("over")

    kept = signal.signal(signal.SIGUSR1, raise_it)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, kept)


@pytest.mark.parametrize("during", ["the submission", "the wait"])
def test_a_task_that_is_timed_out_leaves_nothing(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path, during: str
) -> None:
    table_with_branches(warehouse, "b")
    probe = (lambda: uploads(place)) if during == "the submission" else (tmp_path / "started").exists
    hook, request, before = SparkJobHook("cluster", **waits), waiting_request(warehouse), set(drivers(place))
    with pytest.raises(AirflowTaskTimeout), timed_out_when(probe):
        hook.run_job(request, result_name="k/try1.json", results_folder=f"{warehouse}/_r")
    assert uploads(place)
    hook.on_kill()  # as Airflow does then
    wait_until(lambda: uploads(place) == [], "it has deleted them", 10, 0.2)
    wait_until(lambda: set(drivers(place)) == before, "Kubernetes has deleted the driver, if there was one", 30, 0.5)


def lose_worker_at_work(place: Place, warehouse: str, hook: dict[str, Any], request: Request, tmp_path: Path) -> str:
    """Lose a worker when its job is at work; the driver's pod, which runs on."""
    before = set(drivers(place))
    lose_worker(warehouse, hook, request, tmp_path)
    (pod,) = set(drivers(place)) - before
    assert drivers(place)[pod]["status"]["phase"] == "Running", "Kubernetes knows nothing of the worker"
    return pod


def test_a_retry_takes_the_driver_of_the_lost_worker(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse)
    before = set(drivers(place))
    pod = lose_worker_at_work(place, warehouse, waits, request, tmp_path)
    again: dict[str, Any] = {"result_name": "k/try2.json", "results_folder": f"{warehouse}/_r"}
    left = SparkJobHook("cluster", **waits).submit_job(request, **again)
    assert (left.driver_id, left.result_name, left.namespace) == (pod, "k/try1.json", NAMESPACE)
    (tmp_path / "go").touch()
    wait_until(lambda: drivers(place)[pod]["status"]["phase"] == "Succeeded", "it ends by itself", 120, 0.5)
    result = SparkJobHook("cluster", **waits).run_job(request, **again)
    assert (result["changed"], result["snapshot_after"]) == (True, 2)
    assert main.branch("b").latest_snapshot_id() == 2
    assert set(drivers(place)) == before | {pod}, "nothing was submitted twice"
    assert uploads(place) == list(result_in(f"{warehouse}/_r", "none", None).store.walk("")) == []
    # Its result is taken: the same request, which has the same id again, is a new job, that finds its work done.
    result = SparkJobHook("cluster", **waits).run_job(request, **again)
    assert len(drivers(place)) == len(before) + 2 and main.branch("b").latest_snapshot_id() == 2


def test_a_retry_submits_again_when_the_first_try_is_deleted(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse)
    before = set(drivers(place))
    pod = lose_worker_at_work(place, warehouse, waits, request, tmp_path)

    def delete_it() -> None:
        place.cluster.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}", {"gracePeriodSeconds": 0})
        wait_until(lambda: set(drivers(place)) - before - {pod}, "there is a second driver", 120, 0.5)
        (tmp_path / "go").touch()

    threading.Timer(3, delete_it).start()
    hook = SparkJobHook("cluster", **waits)
    result = hook.run_job(request, result_name="k/try2.json", results_folder=f"{warehouse}/_r")
    assert (result["changed"], result["snapshot_after"]) == (True, 2)
    assert main.branch("b").latest_snapshot_id() == 2
    assert len(set(drivers(place)) - before) == 1
    assert f"driver {pod} ended ({GONE})" in "".join(capfd.readouterr())


def test_a_killed_retry_submits_no_other_driver(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main, request = table_with_branches(warehouse, "b"), waiting_request(warehouse)
    pod = lose_worker_at_work(place, warehouse, waits, request, tmp_path)
    others, hook = set(drivers(place)) - {pod}, SparkJobHook("cluster", **waits)
    with at_work(hook, request, "k/try2.json", f"{warehouse}/_r") as failures:
        wait_until(lambda: hook.cluster is not None and hook.cluster.driver == pod, "it has taken the driver", 60)
        hook.on_kill()
    assert [type(error) for error in failures] == [OutcomeUnknownError] and pod in failures[0].message
    assert set(drivers(place)) == others and uploads(place) == []
    assert main.branch("b").latest_snapshot_id() == 1


def test_only_what_this_task_has_written_is_read_and_deleted(
    place: Place, warehouse: str, waits: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A pod's annotations are whatever its creator says."""
    request, results = waiting_request(warehouse), result_in(f"{warehouse}/_r", "none", None).store
    precious = result_in(f"{warehouse}/precious/airflow-paimon-{'0' * 32}", "none", None).store
    precious.create("data", b"1")

    def left_pod(name: str, result_name: str) -> None:
        settings = _kubernetes.settings_of(str(_request_key(request, {})), result_name, precious.uri)
        driver = "spark.kubernetes.driver."
        labels, annotations = (
            {k.removeprefix(kind): v for k, v in settings.items() if k.startswith(kind)}
            for kind in (f"{driver}label.", f"{driver}annotation.")
        )
        container = {"name": "driver", "image": IMAGE, "args": ["sh", "-c", "true"]}
        place.cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {
            "metadata": {"name": name, "labels": labels | {"spark-role": "driver"}, "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [container], "serviceAccountName": "spark"},
        })  # fmt: skip
        wait_until(lambda: drivers(place)[name]["status"]["phase"] == "Succeeded", "it ends", 60, 0.5)
        results.create(result_name, b'{"changed": true}')

    where: dict[str, Any] = {"result_name": "k/try2.json", "results_folder": f"{warehouse}/_r"}
    left_pod("of-another-task", "other/try1.json")
    assert SparkJobHook("cluster", **waits)._find_earlier_attempt(request, **where, texts={}) is None
    left_pod("of-this-task", "k/try1.json")
    assert SparkJobHook("cluster", **waits).run_job(request, **where) == {"changed": True}
    assert results.walk("") == ["other/try1.json"] and precious.walk("") == ["data"]
    assert f"{precious.uri} is not below {place.files}/uploads, and stays" in "".join(capfd.readouterr())


LOG_AT_WARN = """
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n
"""


def test_a_driver_that_sparks_log_does_not_name(
    place: Place, warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, before = table_with_branches(warehouse, "b"), set(drivers(place))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(LOG_AT_WARN)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "rules.py").write_text(RULES)
    hook = SparkJobHook("cluster", conf=conf(place), options=OPTIONS | {"py_files": str(tmp_path / "rules.py")})
    values = {"warehouse": warehouse, "table": "d.t", "branch": "b", "partitions": ["dt=1"]}
    request = build_request("correct_branch", values | {"function": "rules:corrected"})
    result = hook.run_job(request, result_name="r.json", results_folder=f"{warehouse}/_r")
    assert (result["changed"], main.branch("b").latest_snapshot_id()) == (True, 2)
    assert len(set(drivers(place)) - before) == 1 and uploads(place) == []


def failing_submit(folder: Path, then: str) -> str:
    """A ``spark-submit`` that creates a driver and fails all the same, as when the answer gets lost."""
    path = folder / "spark-submit"
    path.write_text(f'#!/bin/bash\n{spark_submit_of_this_environment()} "$@" > /dev/null 2>&1\n{then}\nexit 1\n')
    path.chmod(0o755)
    return str(path)


def test_a_driver_of_a_submission_that_failed(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path
) -> None:
    main, before = table_with_branches(warehouse, "b"), set(drivers(place))
    where: dict[str, Any] = {"result_name": "r.json", "results_folder": f"{warehouse}/_r"}
    binary = failing_submit(tmp_path, "")
    other = waits["conf"] | {"spark.kubernetes.container.image": "stand-in.invalid/other"}
    hook = SparkJobHook("cluster", conf=other, options=waits["options"] | {"spark_binary": binary})
    with pytest.raises(PaimonError, match="spark-submit ended with exit code 1 and without a result"):
        hook.run_job(waiting_request(warehouse), **where)
    wait_until(lambda: set(drivers(place)) == before, "what can't have begun was deleted", 30, 0.5)
    assert uploads(place) == []

    started = tmp_path / "started"
    failing_submit(
        tmp_path, f"for i in {{1..6000}}; do [ -e {started} ] && break; sleep 0.1; done; touch {tmp_path}/go"
    )
    hook = SparkJobHook("cluster", conf=waits["conf"], options=waits["options"] | {"spark_binary": binary})
    result = hook.run_job(waiting_request(warehouse), **where)
    assert (result["changed"], main.branch("b").latest_snapshot_id()) == (True, 2)
    assert len(set(drivers(place)) - before) == 1 and uploads(place) == []


def test_a_driver_of_which_kubernetes_does_not_tell_keeps_its_files(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_with_branches(warehouse, "b")
    binary, before = failing_submit(tmp_path, f"rm {tmp_path}/kubeconfig"), set(drivers(place))
    (tmp_path / "kubeconfig").write_bytes(place.worker.read_bytes())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(_kubernetes, "_KEPT_SECONDS", 1)
    hook = SparkJobHook("cluster", conf=waits["conf"], options=waits["options"] | {"spark_binary": binary})
    request, where = waiting_request(warehouse), {"result_name": "k/try1.json", "results_folder": f"{warehouse}/_r"}
    with pytest.raises(OutcomeUnknownError, match="Kubernetes doesn't report whether one exists"):
        hook.run_job(request, **where)
    assert uploads(place)
    monkeypatch.setenv("KUBECONFIG", str(place.worker))
    (tmp_path / "go").touch()
    result = SparkJobHook("cluster", **waits).run_job(request, **where | {"result_name": "k/try2.json"})
    assert result["changed"] and len(set(drivers(place)) - before) == 1, "the retry takes it"
    assert uploads(place) == []


def test_a_login_is_kept_and_asks_only_the_master(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program that gives the token, and a kubeconfig that leads elsewhere."""
    login = yaml.safe_load(place.cluster.login("admin").read_text())
    token = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
             "status": {"token": place.cluster.tokens["admin"]}}  # fmt: skip
    script = f"echo run >> {tmp_path}/runs; echo '{json.dumps(token)}'"
    login["users"][0]["user"] = {"exec": {
        "apiVersion": token["apiVersion"], "command": "/bin/sh", "args": ["-c", script], "interactiveMode": "Never",
    }}  # fmt: skip
    login["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(login))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(_kubernetes, "_KEPT_SECONDS", 10**9)
    pods = Pods(place.cluster.master, NAMESPACE)
    assert [pods.state("none") for _ in range(5)] == [GONE] * 5
    assert (tmp_path / "runs").read_text() == "run\n"
    monkeypatch.setenv("KUBECONFIG", str(place.cluster.login("nobody")))
    with pytest.raises(PaimonError, match="refuses to get pods"):
        pods.state("none")


def test_an_api_server_that_does_not_answer_is_asked_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(place.worker))
    monkeypatch.setattr(_kubernetes, "_TIMEOUT", (0.3, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as taken:
        pods, began = Pods(f"k8s://http://127.0.0.1:{silent.getsockname()[1]}", NAMESPACE), time.monotonic()
        for ask in (pods.state, pods.log, pods.kill, pods.drivers_of):
            with pytest.raises(RuntimeError, match="gives no answer"):
                ask("driver")
            silent.settimeout(5)
            for _ in range(2):
                taken.enter_context(silent.accept()[0])
            silent.settimeout(0)
            with pytest.raises(BlockingIOError):
                silent.accept()
        assert time.monotonic() - began < 30


def two_contexts(place: Place, path: Path) -> Path:
    """A kubeconfig of a triggerer whose current context is nobody's; ``tests`` is the triggerer's."""
    login = yaml.safe_load(place.triggerer.read_text())
    nobody = yaml.safe_load(place.cluster.login("nobody").read_text())
    context = {"name": "elsewhere", "context": {"cluster": "tests", "user": "nobody"}}
    login |= {
        "users": [*login["users"], *nobody["users"]],
        "contexts": [*login["contexts"], context],
        "current-context": "elsewhere",
    }
    path.write_text(yaml.safe_dump(login))
    return path


def test_a_trigger_kills_with_the_rights_of_the_triggerer(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = table_with_branches(warehouse, "b")
    waits["conf"]["spark.kubernetes.context"] = "tests"
    job = SparkJobHook("cluster", **waits).submit_job(
        waiting_request(warehouse), result_name="r.json", results_folder=f"{warehouse}/_airflow_paimon_results"
    )
    wait_until((tmp_path / "started").exists, "the job is at work", 120)
    values: dict[str, Any] = {"paimon_conn_id": "paimon_default", "spark_conn_id": "cluster", "poll_interval": 0.2}
    trigger = SparkJobTrigger(job=asdict(job), **values)

    monkeypatch.setenv("KUBECONFIG", str(place.cluster.login("nobody")))
    event = asyncio.run(asyncio.wait_for(anext(aiter(trigger.run())), 120)).payload
    assert f"refuses to get pods in namespace {NAMESPACE} (403 Forbidden)" in event["error"]["message"]
    assert event["error"]["class"] == "PaimonError", "which a retry helps against"

    monkeypatch.setenv("KUBECONFIG", str(two_contexts(place, tmp_path / "kubeconfig")))
    assert uploads(place)
    asyncio.run(trigger.on_kill())
    assert uploads(place) == []
    event = asyncio.run(asyncio.wait_for(anext(aiter(trigger.run())), 120)).payload
    assert event["state"] == GONE or event["state"].startswith("Failed"), event
    with pytest.raises(OutcomeUnknownError, match=f"driver {job.driver_id} ended"):
        job.collect(job.result_file(f"{warehouse}/_airflow_paimon_results", None), event["state"])
    assert main.branch("b").latest_snapshot_id() == 1


def test_who_may_not_submit_is_told_what_and_where(
    place: Place, warehouse: str, waits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table_with_branches(warehouse, "b")
    monkeypatch.setenv("KUBECONFIG", str(place.cluster.login("nobody")))
    before = set(drivers(place))
    with pytest.raises(PaimonError) as raised:
        SparkJobHook("cluster", **waits).run_job(
            waiting_request(warehouse), result_name="r.json", results_folder=f"{warehouse}/_r"
        )
    assert re.search(f'"nobody" cannot create resource "pods" .*in the namespace "{NAMESPACE}"', str(raised.value))
    assert set(drivers(place)) == before


def worker_without(place: Place, *missing: tuple[str, str]) -> Path:
    """A login with the rights that the page gives a worker, but for some verbs on some resources."""
    role = next(each for each in yaml.safe_load_all(place.rights) if each["metadata"]["name"] == "paimon-worker")
    name = "without-" + "-".join(f"{verb}-{resource.replace('/', '-')}" for verb, resource in missing)
    rules = [
        {"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": verbs}
        for rule in role["rules"]
        for resource in rule["resources"]
        if (verbs := [verb for verb in rule["verbs"] if (verb, resource) not in missing])
    ]
    place_of_all = {"namespace": NAMESPACE, "name": name}
    group, account = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "namespace": "airflow", "name": name}
    binding = {"roleRef": {"apiGroup": group, "kind": "Role", "name": name}, "subjects": [account]}
    common = {"apiVersion": f"{group}/v1", "metadata": place_of_all}
    apply(
        place.cluster,
        yaml.safe_dump_all(
            [
                {**common, "kind": "Role", "rules": rules},
                {**common, "kind": "RoleBinding", **binding},
            ]
        ),
    )
    return place.cluster.login_account("airflow", name)


def test_what_happens_without_a_right(
    place: Place, warehouse: str, waits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """As the page's table says."""
    main, before, results = table_with_branches(warehouse, "b"), set(drivers(place)), f"{warehouse}/_r"
    monkeypatch.setenv("KUBECONFIG", str(worker_without(place, ("patch", "configmaps"))))
    with pytest.raises(PaimonError, match=f'cannot patch resource "configmaps" .*in the namespace "{NAMESPACE}"'):
        SparkJobHook("cluster", **waits).run_job(
            waiting_request(warehouse), result_name="r.json", results_folder=results
        )
    assert set(drivers(place)) == before and uploads(place) == []

    monkeypatch.setenv("KUBECONFIG", str(worker_without(place, ("delete", "pods"))))
    hook = SparkJobHook("cluster", **waits)
    with at_work(hook, waiting_request(warehouse), "r.json", results) as failures:
        wait_until((tmp_path / "started").exists, "the job is at work", 120)
        hook.on_kill()
        assert "could not be deleted and may still run: Kubernetes at" in "".join(capfd.readouterr())
        assert uploads(place), "a driver that runs on may need them"
        (tmp_path / "go").touch()
    assert failures == [] and main.branch("b").latest_snapshot_id() == 2

    monkeypatch.setenv("KUBECONFIG", str(worker_without(place, ("list", "pods"), ("get", "pods/log"))))
    SparkJobHook("cluster", **waits).run_job(waiting_request(warehouse), result_name="r.json", results_folder=results)
    assert main.branch("b").latest_snapshot_id() == 3 and uploads(place) == []
    told = "".join(capfd.readouterr())
    assert "Cannot determine whether an earlier attempt still runs: Kubernetes at" in told
    assert "can't be read: Kubernetes at" in caplog.text and "refuses to get pods/log" in caplog.text


def test_how_a_driver_ended_that_left_no_result(
    place: Place, warehouse: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(place.cluster.master, NAMESPACE)

    def start(name: str, image: str, *arguments: str) -> str:
        container = {"name": "spark-kubernetes-driver", "image": image, "args": list(arguments)}
        spec = {"restartPolicy": "Never", "containers": [container], "serviceAccountName": "spark"}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        place.cluster.ask("POST", path, {"metadata": {"name": name}, "spec": spec})
        return name

    nothing = result_in(f"{warehouse}/_r", "none.json", None)
    ended = JobWatch(pods, start("ended", IMAGE, "sh", "-c", "echo no more memory; exit 52"), nothing)
    assert wait_until(ended.poll, "it ends", 60, 0.2) == "Failed: Error, exit code 52"
    assert "no more memory" in caplog.text

    never = JobWatch(pods, start("never", "stand-in.invalid/other"), nothing)

    def is_told() -> bool:
        assert never.poll() is None
        return f"pod never in namespace {NAMESPACE} can't start: ImagePullBackOff: Back-off pulling" in caplog.text

    wait_until(is_told, "why it doesn't start", 60, 0.2)
    gone = JobWatch(pods, "gone", nothing)
    assert [gone.poll() for _ in range(3)] == [None, None, GONE]
    silent = JobWatch(Pods("k8s://https://127.0.0.1:1", NAMESPACE), "ended", nothing)
    assert [silent.poll() for _ in range(4)] == [None] * 4, "no answer says nothing about drivers"

    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(InvalidInputError, match="no login for Kubernetes at k8s://https"):
        pods.state("ended")


def test_a_driver_in_the_worker_has_executors_in_pods(place: Place, warehouse: str, tmp_path: Path) -> None:
    apply(place.cluster, place.of_drivers_in_workers)
    main, before = table_with_branches(warehouse, "b"), set(drivers(place))
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    python = {"spark.pyspark.python": "/opt/env/bin/python", "spark.pyspark.driver.python": sys.executable}
    settings = conf(place) | python | {"spark.driver.host": "127.0.0.1"}
    hook = SparkJobHook("client", conf=settings, options=OPTIONS | {"py_files": str(rules)})
    values = {"warehouse": warehouse, "table": "d.t", "branch": "b", "partitions": ["dt=1"]}
    request = build_request("correct_branch", values | {"function": "rules:corrected_from_here"})
    result = hook.run_job(request, result_name="r.json", results_folder=f"{warehouse}/_r")
    assert result["changed"] and set(drivers(place)) == before
    rows = sorted(row["v"] for row in read_arrow(main.branch("b")).to_pylist())
    assert rows == ["a on exec-1 from here", "b on exec-1 from here"]
    wait_until(lambda: not place.cluster.pods(NAMESPACE, "executor"), "executors end with their driver", 30, 0.5)
