"""Jobs whose driver runs in a cluster: waited for by the worker, by a trigger, and killed."""

import asyncio
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.triggers.base import TriggerEvent

from airflow_paimon.core.errors import InvalidInputError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.hooks._drivers import GONE
from airflow_paimon.hooks._job_files import result_in
from airflow_paimon.hooks._yarn import ResourceManager
from airflow_paimon.hooks.cluster_job import JobWatch, Submission
from airflow_paimon.hooks.spark_job import SparkJobHook
from airflow_paimon.operators.branch import CorrectBranchOperator, CreateBranchOperator
from airflow_paimon.operators.maintenance import CheckTableOperator
from airflow_paimon.triggers.spark_job import SparkJobTrigger
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import running, wait_until
from tests.airflow.yarn_stand_in import YarnStandIn, yarn_stand_in
from tests.core.tables import append, make_table

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]


@pytest.fixture
def cluster(tmp_path: Path, java_home: Path) -> Iterator[YarnStandIn]:
    with yarn_stand_in(tmp_path) as started:
        yield started


@pytest.fixture
def submits(cluster: YarnStandIn, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Connection ``spark_default`` is that cluster; the arguments that make an operator run its driver in there."""
    set_connection(monkeypatch, "spark_default", "spark", **cluster.connection)
    return {"spark_options": cluster.submits}


RULES = """
def corrected(spark, views):
    def on_an_executor(rows):
        import airflow_paimon, rules
        for row in rows:
            yield row.k, f"{row.v} by {rules.__name__}", row.dt
    return spark.createDataFrame(views["branch"].rdd.mapPartitions(on_an_executor), views["branch"].schema)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("deferrable", [True, False])
def test_deferred_or_not_the_results_are_the_same(
    warehouse: Path,
    run_dag: RunDag,
    submits: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    deferrable: bool,
) -> None:
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "dt": ["1", "1"]}))
    (tmp_path / "rules.py").write_text(RULES)
    options = submits["spark_options"] | {"py_files": str(tmp_path / "rules.py")}
    correct: dict[str, Any] = {"table": "d.t", "function": "rules:corrected", "partitions": ["dt=1"], "branch": "one"}
    correct |= {**submits, "spark_options": options}
    missing: dict[str, Any] = {"table": "d.none", "run_on": "spark", "retries": 2}
    wait = {True: {"deferrable": True, "poll_interval": 0.3}, False: {}}
    with DAG(f"clustered_{deferrable}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        one = CreateBranchOperator(task_id="one", table="d.t", branch="one", snapshot=1)
        corrects = CorrectBranchOperator(task_id="corrects", **wait[deferrable], **correct)
        none = CheckTableOperator(task_id="none", **wait[not deferrable], **missing, **submits)
        one >> corrects >> none
    run = run_dag(dag)
    assert run.tasks == {"one": ("success", 1), "corrects": ("success", 1), "none": ("failed", 1)}
    result = run.xcom("corrects")
    assert (result["changed"], result["branch"], result["details"]["rows"]) == (True, "one", 2)
    assert result["operation"] == "correct_branch"
    rows = sorted(row["v"] for row in read_arrow(main.branch("one")).to_pylist())
    assert rows == ["a by rules", "b by rules"]
    assert run.xcom("none", "paimon_error")["kind"] == "not-found", "told by the result, and not retried"
    (event,) = [e for uri, e in run.asset_events if uri.endswith("/one") and e["operation"] == "correct_branch"]
    assert event["snapshot_after"] == result["snapshot_after"]
    assert not [p for p in (warehouse / "_airflow_paimon_results").rglob("*") if p.is_file()], "nothing stays behind"
    assert "".join(capfd.readouterr()).count("Pausing task as DEFERRED") == 1


def test_client_mode_says_why_not(warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    append(make_table(warehouse), "1")
    with DAG("client", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CheckTableOperator(task_id="t", table="d.t", run_on="spark", deferrable=True, retries=2)
    run = run_dag(dag)
    assert run.tasks == {"t": ("failed", 1)}
    error = run.xcom("t", "paimon_error")
    assert error["kind"] == "unsupported" and "deploy mode client" in error["message"], error
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    with DAG("client_default", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CheckTableOperator(task_id="t", table="d.t", run_on="spark")
    assert run_dag(dag).tasks == {"t": ("success", 1)}, "what an installation prefers is no error where it can't be"


def spark(submits: dict[str, Any]) -> SparkJobHook:
    return SparkJobHook(options=submits["spark_options"])


def stuck_request(warehouse: Path) -> Request:
    return build_request("check_table", {"warehouse": str(warehouse), "table": "stuck.t"})


def submit(warehouse: Path, submits: dict[str, Any]) -> Submission:
    request, folder = stuck_request(warehouse), f"{warehouse}/_airflow_paimon_results"
    # As each try of a task has: a job that is being killed may still leave the result that says so.
    name = f"{uuid.uuid4().hex}/b.json"
    job = spark(submits).submit_job(request, result_name=name, results_folder=folder)
    wait_until(lambda: running(f"--warehouse={warehouse}"), "the driver is at work", 120)
    return job


def trigger(job: Submission, **more: Any) -> SparkJobTrigger:
    """What the triggerer makes of what the database keeps."""
    made = SparkJobTrigger(
        job=asdict(job), paimon_conn_id="paimon_default", spark_conn_id="spark_default", poll_interval=0.2, **more
    )
    _, arguments = made.serialize()
    return SparkJobTrigger(**json.loads(json.dumps(arguments)))


async def first(made: SparkJobTrigger) -> TriggerEvent:
    return await anext(aiter(made.run()))


def until_killed(cluster: YarnStandIn, job: Submission) -> None:
    wait_until(lambda: cluster.state(job.driver_id) == "KILLED", "the cluster has killed it", 30)


# Whoever ends a driver that hangs; each of these starts one.
@pytest.mark.thorough
def test_a_driver_outlives_its_triggerer_and_dies_with_its_task(
    stuck: Path, cluster: YarnStandIn, submits: dict[str, Any]
) -> None:
    job = submit(stuck, submits)

    async def watch_and_be_killed() -> None:
        made = trigger(job)
        watching = asyncio.create_task(first(made))
        await asyncio.sleep(1)
        assert not watching.done(), "it watches a driver that runs"
        watching.cancel()  # as at the end of a triggerer: the driver lives on
        await asyncio.gather(watching, return_exceptions=True)
        assert cluster.state(job.driver_id) == "RUNNING"
        await trigger(job).on_kill()

    asyncio.run(watch_and_be_killed())
    until_killed(cluster, job)
    wait_until(lambda: not running(f"--warehouse={stuck}"), "nothing of it is left", 10)


def test_a_driver_dies_at_the_timeout_of_its_task(stuck: Path, cluster: YarnStandIn, submits: dict[str, Any]) -> None:
    job = submit(stuck, submits)
    kill = ResourceManager.kill

    def kill_and_lose_the_connection(manager: ResourceManager, driver: str) -> None:
        kill(manager, driver)
        lost.delenv("AIRFLOW_CONN_PAIMON_DEFAULT")

    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(ResourceManager, "kill", kill_and_lose_the_connection)
        payload = asyncio.run(first(trigger(job, deadline=time.time()))).payload
    assert payload.get("timed_out") is True, payload
    until_killed(cluster, job)


@pytest.mark.thorough
def test_a_driver_dies_with_the_worker_that_waits_for_it(stuck: Path, submits: dict[str, Any]) -> None:
    hook, failures = spark(submits), []

    def wait_for_it() -> None:
        try:
            hook.run_job(stuck_request(stuck), result_name="c.json", results_folder=f"{stuck}/_airflow_paimon_results")
        except PaimonError as error:
            failures.append(type(error))

    worker = threading.Thread(target=wait_for_it)
    worker.start()
    wait_until(lambda: hook.cluster and hook.cluster.driver, "the driver is at work", 120)
    hook.on_kill()
    worker.join(600)
    assert failures == [OutcomeUnknownError] and not worker.is_alive()


def test_yarn_is_asked_by_its_rest_interface_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"yarn_resourcemanager_webapp_address": "manager:8088"}
    set_connection(monkeypatch, "spark_default", "spark", host="yarn", extra={"deploy-mode": "cluster"})
    with pytest.raises(InvalidInputError, match="yarn_resourcemanager_webapp_address, such as http"):
        SparkJobHook()
    set_connection(monkeypatch, "spark_default", "spark", host="yarn", extra={"deploy-mode": "cluster"} | address)
    hook = SparkJobHook()
    assert hook.cluster is not None and hook.cluster.drivers == ResourceManager("http://manager:8088")
    with pytest.raises(InvalidInputError, match="requests-kerberos"):
        SparkJobHook(options={"keytab": "/keytab", "principal": "airflow@EXAMPLE"})


@pytest.mark.thorough
def test_a_driver_that_somebody_else_kills_may_have_done_its_work(stuck: Path, submits: dict[str, Any]) -> None:
    job = submit(stuck, submits)
    for pid in running(f"--warehouse={stuck}"):
        os.kill(pid, signal.SIGKILL)
    event = asyncio.run(asyncio.wait_for(first(trigger(job)), 60)).payload
    assert event["state"] == "FINISHED"
    result = result_in(f"{stuck}/_airflow_paimon_results", job.result_name, None)
    with pytest.raises(OutcomeUnknownError, match="may have succeeded"):
        job.collect(result, event["state"])


def test_a_driver_is_gone_when_the_cluster_knows_nothing_of_it_three_times_running(
    warehouse: Path, cluster: YarnStandIn
) -> None:
    unknown, silent = ResourceManager(cluster.url), ResourceManager("http://127.0.0.1:1")
    watch = JobWatch(unknown, "application_1_0", result_in(f"{warehouse}/_r", "r.json", None))
    found = []
    # A cluster that comes back may know its drivers only after a while: what it said before doesn't count.
    for watch.drivers in (unknown, unknown, silent, unknown, unknown, unknown):
        found.append(watch.poll())
    assert found == [None] * 5 + [GONE]
