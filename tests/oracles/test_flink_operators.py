"""Airflow tasks that stop Flink jobs and start them, against a real Flink."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon import open_table
from airflow_paimon.core.branches.catch_up import check, parse_condition
from airflow_paimon.dags import FlinkJob, correction_dag
from airflow_paimon.dags.flink_jobs import StopFlinkJobOperator
from airflow_paimon.hooks.flink import FlinkHook, PatientLook
from airflow_paimon.operators.flink import FlinkSqlOperator, FlinkStopOperator, split_flink_sql
from tests.airflow.conftest import Run, RunDag, airflow_home, run_dag, set_connection
from tests.flink_cluster import Flink
from tests.loopback import free_port

__all__ = ["airflow_home", "run_dag"]

pytestmark = [pytest.mark.oracle, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture
def connected(flink: Flink, monkeypatch: pytest.MonkeyPatch) -> Flink:
    """The cluster behind ``flink_default``."""
    return connect(flink, monkeypatch)


def connect(flink: Flink, monkeypatch: pytest.MonkeyPatch) -> Flink:
    host, port = flink.manager.rpartition(":")[::2]
    gateway = {"gateway": flink.gateway.removesuffix("/v3")}
    set_connection(monkeypatch, "flink_default", "paimon_flink", host=host, port=int(port), extra=gateway)
    return flink


def dag_of(name: str, make: Callable[[], object], **arguments: Any) -> DAG:
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), **arguments) as dag:
        make()
    return dag


def prepared(flink: Flink, database: str) -> str:
    """The statements before each job's, and the table that it writes."""
    folder = flink.folder / "sources" / database
    folder.mkdir(parents=True)
    flink.sql(f"CREATE DATABASE {database}")
    flink.sql(f"CREATE TABLE {database}.t (id BIGINT, v BIGINT) WITH ('bucket'='-1')")
    return f"""
        CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='file://{flink.warehouse}'); -- Paimon's; no job
        USE CATALOG p;
        CREATE TEMPORARY TABLE src (id BIGINT, v BIGINT) WITH ('connector'='filesystem', 'path'='file://{folder}',
            'format'='csv', 'source.monitor-interval'='100ms');
    """


def test_a_job_is_started_stopped_and_started_from_its_savepoint(connected: Flink, run_dag: RunDag) -> None:
    """Batch SQL replaces the rows while it is stopped; the job goes on behind those that it had read."""
    flink, script = connected, prepared(connected, "ops_round")
    insert = "INSERT INTO ops_round.t SELECT * FROM src WHERE DATE '{{ ds }}' > DATE '2000-01-01'"

    def start() -> None:
        FlinkSqlOperator(task_id="start", sql=f"{script}; {insert}", job_name="ops; round", deferrable=True)

    job = run_dag(dag_of("ops_start", start), logical_date=datetime(2026, 1, 2, tzinfo=UTC)).xcom("start")
    flink.feed("ops_round", [(1, 100), (2, 200)], job)

    def go_on() -> None:
        stop = FlinkStopOperator(task_id="stop", job="ops; round", deferrable=True)
        correct = FlinkSqlOperator(
            task_id="correct",
            sql=f"{script}; INSERT OVERWRITE ops_round.t SELECT id, v / 100 FROM ops_round.t",
            runtime_mode="batch",
            settings={"parallelism.default": 1},
        )
        resume = FlinkSqlOperator(
            task_id="resume", sql=f"{script}; {insert}", job_name="ops; round", savepoint=stop.output
        )
        stop >> correct >> resume

    run = run_dag(dag_of("ops_go_on", go_on), logical_date=datetime(2026, 1, 2, tzinfo=UTC))
    assert run.state == "success"
    assert flink.state(job) == "FINISHED"
    assert run.xcom("stop").startswith(f"file:{flink.folder}/savepoints/airflow-ops_go_on-stop-")
    assert flink.query("SELECT * FROM ops_round.t") == [(1, 1), (2, 2)]
    resumed = run.xcom("resume")
    assert run.xcom("resume", key="_link_FlinkLink") == f"{flink.manager}/#/job/running/{resumed}/overview"
    flink.feed("ops_round", [(3, 3)], resumed)
    flink.stop(resumed)
    assert flink.query("SELECT * FROM ops_round.t") == [(1, 1), (2, 2), (3, 3)]
    passed, table = parse_condition(consumer="copies"), open_table(str(flink.warehouse), "ops_round.t")
    assert not check(table, passed).caught_up
    flink.sql("CREATE TABLE ops_round.copy (id BIGINT, v BIGINT)")
    options = "'consumer-id' = 'copies', 'consumer.expiration-time' = '1 d'"
    copies = flink.insert(f"INSERT INTO ops_round.copy SELECT * FROM ops_round.t /*+ OPTIONS({options}) */")
    flink.committed(open_table(str(flink.warehouse), "ops_round.copy"), flink.checkpoint(copies)[copies])
    flink.checkpoint(copies)
    assert check(table, passed).caught_up
    flink.cancel(copies)


def test_a_retry_finds_what_a_lost_worker_has_begun(
    connected: Flink, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is lost once Flink was asked: for a job, then for its savepoint. Each is there once."""
    script = prepared(connected, "ops_lost")
    look = PatientLook.__call__
    lost: list[PatientLook] = []

    def lose_the_first(self: PatientLook) -> str | None:
        if not lost:
            lost.append(self)
            raise ConnectionAbortedError("The worker is gone")
        return look(self)

    monkeypatch.setattr(PatientLook, "__call__", lose_the_first)

    def start() -> None:
        sql = f"{script}; INSERT INTO ops_lost.t SELECT * FROM src"
        FlinkSqlOperator(task_id="start", sql=sql, job_name="ops_lost", retries=1, retry_delay=0.1)

    def stop() -> None:
        FlinkStopOperator(task_id="stop", job="ops_lost", retries=1, retry_delay=0.1)

    started = run_dag(dag_of("ops_lost_start", start))
    assert started.tasks["start"] == ("success", 2)
    hook = FlinkHook()
    assert [one["jid"] for one in hook.jobs("ops_lost")] == [started.xcom("start")]
    lost.clear()
    stopped = run_dag(dag_of("ops_lost_stop", stop))
    assert stopped.tasks["stop"] == ("success", 2)
    assert hook.savepoint_in(started.xcom("start")) == stopped.xcom("stop")
    savepoints = Path(stopped.xcom("stop").removeprefix("file:")).parent
    assert len(list(savepoints.iterdir())) == 1


@pytest.mark.thorough
def test_the_same_with_flink_1_20(flink120: Flink, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = connect(flink120, monkeypatch)
    with monkeypatch.context() as lost:
        test_a_retry_finds_what_a_lost_worker_has_begun(cluster, run_dag, lost)
    test_a_job_is_started_stopped_and_started_from_its_savepoint(cluster, run_dag)


def test_bad_input_names_the_way_out(connected: Flink, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    flink, script = connected, prepared(connected, "ops_bad")
    insert = f"{script}; INSERT INTO ops_bad.t SELECT * FROM src"
    sql = {"bad": insert, "outside": "{{ params.said }}", "query": "SELECT 1", "two": f"{insert}; {insert}"}
    refused = {
        "twins": (FlinkStopOperator, {"job": "ops_bad"}, "2 Flink jobs are named 'ops_bad': name one by its id"),
        "nobody": (
            FlinkStopOperator,
            {"job": "ops_nobody"},
            "There is no Flink job 'ops_nobody' .*run there: .*ops_ba",
        ),
        "syntax": (FlinkSqlOperator, {"sql": "INSERT INTO"}, "SQL parse failed|Encountered"),
        "unknown": (FlinkSqlOperator, {"sql": "INSERT INTO nothing SELECT 1"}, "nothing"),
        "outside": (FlinkSqlOperator, {"sql": sql["outside"]}, "sql is not the DAG's own code .*any_sql"),
        "query": (FlinkSqlOperator, {"sql": sql["query"]}, "INSERT them INTO a table"),
        "two": (FlinkSqlOperator, {"sql": sql["two"]}, "Only the last statement may start a job"),
        "before": (
            StopFlinkJobOperator,
            {"job": "ops_bad", "sql": f"{script}; INSERT INTO nothing SELECT 1"},
            "nothing",
        ),
        "savepoint": (FlinkSqlOperator, {"sql": insert, "savepoint": "file:///nowhere"}, "savepoint|/nowhere"),
    }

    def start() -> None:
        for number in range(2):
            FlinkSqlOperator(task_id=f"start_{number}", sql=insert, job_name="ops_bad")

    def run_all() -> None:
        for name, (operator, arguments, _) in refused.items():
            operator(task_id=name, **arguments)

    jobs = run_dag(dag_of("ops_bad_start", start))
    before = {one["jid"] for one in FlinkHook().jobs("ops_bad")}
    assert before == {jobs.xcom("start_0"), jobs.xcom("start_1")}
    run = run_dag(dag_of("ops_bad", run_all, params={"said": "CREATE CATALOG x"}))
    for name, (_, _, said) in refused.items():
        assert run.tasks[name][0] == "failed", name
        assert_matches(run, name, said)
    assert set(FlinkHook().running("ops_bad")) == before
    flink.cancel(*before)

    def after_the_end() -> None:
        FlinkStopOperator(task_id="ended", job=jobs.xcom("start_0"))
        FlinkStopOperator(task_id="gone", job="x", flink_conn_id="flink_gone")

    set_connection(monkeypatch, "flink_gone", "paimon_flink", host="127.0.0.1", port=free_port())
    run = run_dag(dag_of("ops_ended", after_the_end))
    assert_matches(run, "ended", "doesn't run: [0-9a-f]{32} was cancelled")
    monkeypatch.setattr("airflow_paimon.hooks.flink._MOST_MISSES", 1)
    assert_matches(run, "gone", "JobManager doesn't answer at http://127.0.0.1:.* connection 'flink_gone'")
    assert FlinkHook().test_connection()[0]
    assert "doesn't answer" in FlinkHook("flink_gone").test_connection()[1]


def test_a_correction_stops_jobs_for_its_publish_and_starts_them_after_it(
    connected: Flink, run_dag: RunDag, java_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its publish is refused; then it replaces what the job has open. A second job can't be started again."""
    flink = connected
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(flink.warehouse)})
    set_connection(monkeypatch, "spark_default", "spark", host="local[2]")
    catalog = prepared(flink, "ops_dag")
    flink.sql(
        "CREATE TABLE ops_dag.k (id BIGINT, v BIGINT, w BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket'='1', "
        "'merge-engine'='partial-update', 'changelog-producer'='lookup')"
    )
    sql = f"{catalog}; INSERT INTO ops_dag.k SELECT id, v, CAST(NULL AS BIGINT) FROM src"
    flink.sql("CREATE TABLE ops_dag.sums (id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    other = f"{catalog}; INSERT INTO ops_dag.t SELECT * FROM src"

    def start() -> None:
        FlinkSqlOperator(task_id="start", sql=sql, job_name="ops dag")
        FlinkSqlOperator(task_id="other", sql=other, job_name="ops other")

    started = run_dag(dag_of("ops_dag_start", start))
    job, table, hook = started.xcom("start"), open_table(str(flink.warehouse), "ops_dag.k"), FlinkHook()
    flink.feed("ops_dag", [(n, n * 100) for n in range(1, 2001)], job)
    flink.committed(table, flink.checkpoint(job)[job])
    flink.feed("ops_dag", [(7, 777)], job)
    sums = f"{catalog}; INSERT INTO ops_dag.sums SELECT id, MAX(v) FROM src GROUP BY id"
    jobs = [FlinkJob(name="ops dag", sql=sql), FlinkJob(name="ops other", sql=sums)]
    dag = correction_dag("ops_correction", flink_jobs=jobs, defaults={"approval": False}, default_args={"retries": 0})
    conf = {"table": "ops_dag.k", "sql": "UPDATE branch SET v = v / 100 WHERE v >= 100", "in_spark": False}

    refused = run_dag(
        dag, run_conf={**conf, "publish": "fast_forward", "flink_jobs": ["ops dag"], "writers_stopped": True}
    )
    states = {name: state for name, (state, _) in refused.tasks.items()}
    assert (states["stop_ops_dag"], states["fast_forward"], states["merge"]) == ("success", "failed", "skipped")
    assert (states["stop_ops_other"], states["resume_ops_other"]) == ("skipped", "skipped")
    assert states["resume_ops_dag"] == "success"
    assert hook.running("ops dag") == [refused.xcom("resume_ops_dag")]
    assert flink.state(started.xcom("other")) == "RUNNING"

    names = [one.name for one in jobs]
    done = run_dag(dag, run_conf={**conf, "publish": "merge", "flink_jobs": names, "writers_stopped": False})
    states = {name: state for name, (state, _) in done.tasks.items()}
    assert (states["merge"], states["verify"], states["resume_ops_dag"]) == ("success", "success", "success")
    assert (states["resume_ops_other"], states["how_to_go_on"]) == ("failed", "failed")
    left = done.xcom("stop_ops_other")
    path = f"'execution.state-recovery.path' = '{left}'"
    assert_matches(done, "resume_ops_other", f"Cannot map .* clear task resume_ops_other; .*{path}")
    (resumed,) = hook.running("ops dag")
    flink.feed("ops_dag", [(1, 55)], resumed)
    flink.stop(resumed)
    rows = {n: n for n in range(1, 2001)} | {7: 7, 1: 55}
    assert flink.query("SELECT id, v FROM ops_dag.k") == sorted(rows.items(), key=repr)


def assert_matches(run: Run, task_id: str, said: str) -> None:
    message = run.xcom(task_id, key="paimon_error")["message"]
    assert re.search(said, message, re.DOTALL), (task_id, message)


def test_a_script_is_split_at_its_own_semicolons() -> None:
    together = "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; END"
    script = f"SET 'a' = ';'; -- x; y\nUSE `a;b`;; {together};"
    assert [one.split("\n")[-1] for one in split_flink_sql(script)] == [
        "SET 'a' = ';'",
        "USE `a;b`",
        together,
    ]
