"""Airflow tasks that stop Flink jobs and start them, against a real Flink."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task

from airflow_paimon import open_table
from airflow_paimon.core.streaming.catch_up import check, parse_catch_up
from airflow_paimon.dags import FlinkJob, correction_dag, pipeline_undo_dag
from airflow_paimon.dags.flink_jobs import (
    ResumeFlinkJobOperator,
    StopFlinkJobOperator,
    add_flink_jobs,
    of_publishes,
    with_field,
)
from airflow_paimon.hooks.flink import FlinkHook, FlinkPoll
from airflow_paimon.operators.branch import MergeBranchOperator
from airflow_paimon.operators.flink import FlinkSqlOperator, FlinkStopOperator, split_flink_sql
from tests.airflow.conftest import Run, RunDag, airflow_home, clear_and_run_again, run_dag, set_connection
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
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(name, schedule=None, start_date=start, default_args={"poll_interval": 0.1}, **arguments) as dag:
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
    passed, table = parse_catch_up(consumer="copies"), open_table(str(flink.warehouse), "ops_round.t")
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
    look = FlinkPoll.__call__
    lost: list[FlinkPoll[str]] = []

    def lose_the_first(self: FlinkPoll[str]) -> str | None:
        if not lost:
            lost.append(self)
            raise ConnectionAbortedError("The worker was deleted")
        return look(self)

    monkeypatch.setattr(FlinkPoll, "__call__", lose_the_first)

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
    test_a_job_runs_again_whatever_becomes_of_the_run_that_stopped_it(cluster, run_dag, monkeypatch)


def test_bad_input_names_the_way_out(connected: Flink, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    flink, script = connected, prepared(connected, "ops_bad")
    insert = f"{script}; INSERT INTO ops_bad.t SELECT * FROM src"
    sql = {"bad": insert, "outside": "{{ params.said }}", "query": "SELECT 1", "two": f"{insert}; {insert}"}
    refused: dict[str, tuple[Any, dict[str, Any], str]] = {
        "twins": (FlinkStopOperator, {"job": "ops_bad"}, "2 Flink jobs are named 'ops_bad': name one by its id"),
        "nobody": (
            FlinkStopOperator,
            {"job": "ops_nobody"},
            "There is no Flink job 'ops_nobody' .*run there: .*ops_ba",
        ),
        "syntax": (FlinkSqlOperator, {"sql": "INSERT INTO", "retries": 1}, "SQL parse failed|Encountered"),
        "unknown": (FlinkSqlOperator, {"sql": "INSERT INTO nothing SELECT 1", "retries": 1}, "nothing"),
        "slots": (
            FlinkSqlOperator,
            {"sql": insert, "job_name": "ops_slots", "settings": {"parallelism.default": 50}, "timeout": 1},
            "Not all of Flink job [0-9a-f]{32} runs .*slots",
        ),
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
        assert run.tasks[name] == ("failed", 1), name
        assert_matches(run, name, said)
    assert set(FlinkHook().running("ops_bad")) == before
    flink.cancel(*before, *FlinkHook().running("ops_slots"))

    def after_the_end() -> None:
        FlinkStopOperator(task_id="ended", job=jobs.xcom("start_0"))
        FlinkStopOperator(task_id="gone", job="x", flink_conn_id="flink_gone")
        FlinkSqlOperator(task_id="again", sql=insert, flink_conn_id="flink_gone", retries=1, retry_delay=0.1)

    set_connection(monkeypatch, "flink_gone", "paimon_flink", host="127.0.0.1", port=free_port())

    def after_a_restart_of_flink() -> None:
        stopped = PythonOperator(task_id="stopped", python_callable=lambda: "file:/nowhere")
        stopped >> ResumeFlinkJobOperator(task_id="resume", stopped_by="stopped", job_name="ops_no_job", sql=insert)

    unknown = dag_of("ops_unknown", after_a_restart_of_flink)
    command = "give Flink's SQL client SET 'pipeline.name' = 'ops_no_job'; .* = 'file:/nowhere'"
    tried = run_dag(unknown)
    assert_matches(tried, "resume", f"file:/nowhere.* clear task resume; or {command}")
    assert_matches(
        clear_and_run_again(unknown, tried, "resume"), "resume", f"it can't determine .* If it did not: {command}"
    )
    run = run_dag(dag_of("ops_ended", after_the_end))
    assert_matches(run, "ended", "doesn't run: [0-9a-f]{32} was cancelled")
    monkeypatch.setattr("airflow_paimon.hooks.flink._MOST_MISSES", 1)
    assert run.tasks["again"] == ("failed", 2)
    assert_matches(run, "gone", "JobManager doesn't answer at http://127.0.0.1:.* connection 'flink_gone'")
    assert FlinkHook().test_connection()[0]
    assert "doesn't answer" in FlinkHook("flink_gone").test_connection()[1]


def test_a_correction_stops_jobs_for_its_publish_and_starts_them_after_it(
    connected: Flink, run_dag: RunDag, java_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its publish is refused; then it replaces what the job has open, and so does its undo. A second job can't be
    started again."""
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
    jobs = [
        FlinkJob(name="ops dag", sql=sql, tables=["ops_dag.k"]),
        FlinkJob(name="ops other", sql=sums, tables=["ops_dag.k", "ops_dag.sums"]),
        FlinkJob(name="ops elsewhere", sql=other, tables=["ops_dag.t"]),
    ]
    tries = {"retries": 1, "retry_delay": timedelta(seconds=0.1), "poll_interval": 0.1}
    dag = correction_dag("ops_correction", flink_jobs=jobs, defaults={"approval": False}, default_args=tries)
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
    done_by = MergeBranchOperator._done

    def be_lost(self: MergeBranchOperator, context: Any, result: dict[str, Any]) -> dict[str, Any]:
        """After the publish a person starts the job, and the worker is lost. The second try returns the result."""
        if context["ti"].try_number > 1:
            return done_by(self, context, result)
        from_savepoint = context["ti"].xcom_pull(task_ids="stop_ops_dag")
        *before, last = split_flink_sql(sql)
        flink.sql(before[-1])
        flink.insert(last, {"pipeline.name": "ops dag", "execution.state-recovery.path": from_savepoint})
        raise ConnectionAbortedError("The worker was deleted")

    monkeypatch.setattr(MergeBranchOperator, "_done", be_lost)
    done = run_dag(dag, run_conf={**conf, "publish": "merge", "flink_jobs": names, "writers_stopped": False})
    states = {name: state for name, (state, _) in done.tasks.items()}
    assert (states["merge"], states["verify"], states["resume_ops_dag"]) == ("success", "success", "success")
    assert (states["resume_ops_other"], states["report_failure"]) == ("failed", "failed")
    assert (states["stop_ops_elsewhere"], states["resume_ops_elsewhere"]) == ("skipped", "skipped")
    left = done.xcom("stop_ops_other")
    path = f"'execution.state-recovery.path' = '{left}'"
    assert_matches(done, "resume_ops_other", f"Cannot map .* clear task resume_ops_other; .*{path}")
    assert done.tasks["merge"] == ("success", 2)
    (resumed,) = hook.running("ops dag")
    assert resumed == done.xcom("resume_ops_dag")
    rows = {n: n for n in range(1, 2001)}
    assert flink.query("SELECT id, v FROM ops_dag.k") == sorted(rows.items(), key=repr)

    undo = pipeline_undo_dag("ops_undo", flink_jobs=jobs[:1], defaults={"approval": False}, default_args=tries)
    undone = run_dag(undo, run_conf={"tables": ["ops_dag.k"], "branch": done.xcom("check_params")["branch"]})
    states = {name: state for name, (state, _) in undone.tasks.items()}
    expected = dict.fromkeys(states, "success") | dict.fromkeys(("diff[0]", "rejected", "report_failure"), "skipped")
    assert states == expected and {"stop_ops_dag", "wait_for_quiet[0]", "undo"} < set(states)
    (resumed,) = hook.running("ops dag")
    assert resumed == undone.xcom("resume_ops_dag")
    flink.feed("ops_dag", [(1, 55)], resumed)
    flink.stop(resumed)
    rows = {n: n * 100 for n in range(1, 2001)} | {7: 777, 1: 55}
    assert flink.query("SELECT id, v FROM ops_dag.k") == sorted(rows.items(), key=repr)


def guarded(job: FlinkJob, publish: Callable[..., object]) -> DAG:
    """The tasks around a publish, as a correction has them."""
    publishing = {**with_field({}, [job]), "publish": "publish_task", "table": "ops_guard.t"}
    with DAG("ops_guard", schedule=None, params=publishing, default_args={"poll_interval": 0.1}) as dag:
        wait_for_quiet = EmptyOperator(task_id="wait_for_quiet")
        publish_task = PythonOperator(task_id="publish_task", python_callable=publish, **of_publishes([job]))

        @task
        def report_failure(**context: Any) -> None:
            states = context["ti"].get_task_states(dag_id=dag.dag_id, run_ids=[context["run_id"]])
            assert "failed" not in states[context["run_id"]].values()

        wait_for_quiet >> publish_task >> (last := report_failure())
        add_flink_jobs([job], wait_for_quiet, [publish_task], last)
    return dag


def mark_failed(run_id: str) -> None:
    """What *Mark run as failed* does. The worker of the task that runs then is killed, at its next heartbeat."""
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        serialized = SerializedDagModel.get("ops_guard", session=session)
        assert serialized is not None
        set_dag_run_state_to_failed(dag=serialized.dag, run_id=run_id, commit=True, session=session)


def test_a_job_runs_again_whatever_becomes_of_the_run_that_stopped_it(
    connected: Flink, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is marked as failed, or cleared while the job is down or much later, or its worker is lost."""
    flink, sql = connected, f"{prepared(connected, 'ops_guard')}; INSERT INTO ops_guard.t SELECT * FROM src"
    monkeypatch.setattr("airflow_paimon.dags.flink_jobs._SECONDS_TO_END", 0)
    hook, job, resume = FlinkHook(), FlinkJob(name="ops_guard", sql=sql, tables=["ops_guard.t"]), "resume_ops_guard"

    def start(**arguments: Any) -> DAG:
        return dag_of(
            "ops_guard_start", lambda: FlinkSqlOperator(task_id="start", sql=sql, job_name=job.name, **arguments)
        )

    flink.feed("ops_guard", [(1, 1)], run_dag(start()).xcom("start"))

    def marked(run_id: str) -> None:
        mark_failed(run_id)
        raise ConnectionAbortedError("The worker is killed")

    run = run_dag(guarded(job, marked))
    assert {name: state for name, (state, _) in run.tasks.items()} == {
        "wait_for_quiet": "success",
        "stop_ops_guard": "success",
        "publish_task": "failed",
        resume: "success",
        "report_failure": "failed",
    }
    assert run.state == "failed"
    assert hook.running(job.name) == [run.xcom(resume)]

    dag = guarded(job, lambda: "published")
    down = run_dag(dag, mark_success_pattern=resume)
    savepoint = down.xcom("stop_ops_guard")
    assert not hook.running(job.name)
    up = clear_and_run_again(dag, down, "stop_ops_guard", "publish_task", resume)
    assert up.xcom("stop_ops_guard") == savepoint
    second = up.xcom(resume)
    assert hook.running(job.name) == [second]
    assert clear_and_run_again(dag, up, resume).xcom(resume) == second
    flink.cancel(second)  # before its first checkpoint
    third = clear_and_run_again(dag, up, resume).xcom(resume)
    assert third != second
    assert hook.running(job.name) == [third]
    flink.feed("ops_guard", [(2, 2)], third)
    left = flink.stop(third)
    late = clear_and_run_again(dag, up, resume)
    assert late.tasks[resume][0] == "failed"
    assert_matches(late, resume, f"this run has not stopped it last: {third} has finished and left {left}.*'{left}'")
    assert savepoint not in late.xcom(resume, key="paimon_error")["message"]
    assert not hook.running(job.name)

    by_hand = start(savepoint=left)
    started = run_dag(by_hand)
    fourth = started.xcom("start")
    assert clear_and_run_again(by_hand, started).xcom("start") == fourth
    with monkeypatch.context() as forgotten:
        forgotten.setattr(FlinkHook, "state", lambda self, job_id: None)
        for _ in range(2):
            cleared = clear_and_run_again(by_hand, started)
            assert cleared.tasks["start"][0] == "failed"
            assert_matches(cleared, "start", f"{fourth}, which Flink has forgotten")
    assert hook.running(job.name) == [fourth]
    stop = FlinkHook.stop

    def ask_and_be_lost(self: FlinkHook, *args: Any, **kwargs: Any) -> None:
        flink.processes["tasks"].send_signal(signal.SIGSTOP)
        asked = stop(self, *args, **kwargs)
        threading.Timer(2, flink.processes["tasks"].send_signal, [signal.SIGCONT]).start()
        raise ConnectionAbortedError(f"The worker is lost, and the job goes on stopping: {asked}")

    monkeypatch.setattr(FlinkHook, "stop", ask_and_be_lost)
    lost = run_dag(dag)
    assert (lost.tasks["stop_ops_guard"][0], lost.tasks[resume][0]) == ("failed", "success")
    assert flink.state(fourth) == "FINISHED"
    assert hook.running(job.name) == [lost.xcom(resume)]
    flink.stop(lost.xcom(resume))
    assert flink.query("SELECT * FROM ops_guard.t") == [(1, 1), (2, 2)]


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
