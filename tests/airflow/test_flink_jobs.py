"""Stops and starts of Flink jobs in a correction that are refused or left out before any Flink is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, task

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.dags import FlinkJob, correction_dag, correction_undo_dag, pipeline_dag, pipeline_undo_dag
from airflow_paimon.dags.flink_jobs import ResumeFlinkJobOperator, StopFlinkJobOperator, need_not_wait, with_stopped
from airflow_paimon.runbooks.form import form_of_table
from airflow_paimon.sensors.quiet import BucketsQuietSensor
from tests.airflow.conftest import RunDag, set_connection
from tests.loopback import free_port

pytestmark = [pytest.mark.airflow]

INSERT = "INSERT INTO t SELECT * FROM src"


def test_no_job_is_planned_or_started_without_a_reason(run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers where Flink should be: what would ask it says so."""
    set_connection(monkeypatch, "flink_default", "paimon_flink", host="127.0.0.1", port=free_port())
    monkeypatch.setattr("airflow_paimon.hooks.flink._MOST_MISSES", 1)
    with DAG("flink_jobs", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"said": INSERT}) as dag:

        @task
        def left_out() -> None:
            raise AirflowSkipException("This run leaves the job alone")

        resume = {"job_name": "orders", "sql": INSERT, "trigger_rule": "all_done"}
        StopFlinkJobOperator(task_id="from_form", job="orders", sql="{{ params.said }}")
        stop = StopFlinkJobOperator(task_id="stop", job="orders", sql=INSERT)
        stop >> ResumeFlinkJobOperator(task_id="resume", stopped_by="stop", **resume)
        left_out() >> ResumeFlinkJobOperator(task_id="not_stopped", stopped_by="left_out", **resume)
    run = run_dag(dag)
    said = {name: (run.xcom(name, key="paimon_error") or {}).get("message", "") for name in run.tasks}
    assert "sql is not the DAG's own code alone" in said["from_form"]
    assert "doesn't answer" in said["stop"]
    assert "doesn't answer" in said["resume"]
    assert said["resume"].endswith("To start the job: clear task resume")
    assert (run.tasks["resume"][0], run.tasks["not_stopped"][0]) == ("failed", "skipped")


def test_a_dag_that_could_leave_jobs_stopped_or_running_is_refused() -> None:
    jobs = [FlinkJob(name="orders", sql=INSERT)]
    with pytest.raises(InvalidInputError, match="give Flink job 'orders' the tables that it writes, or lock"):
        correction_dag("any_table", flink_jobs=jobs)
    for make in (pipeline_dag, pipeline_undo_dag):
        with pytest.raises(InvalidInputError, match="or lock the field tables"):
            make("any_tables", flink_jobs=jobs)
    with pytest.raises(InvalidInputError, match="'s' is not of the form"):
        correction_dag("no_list", flink_jobs=[FlinkJob(name="orders", sql=INSERT, tables="sales.orders")])
    for make in (correction_undo_dag, pipeline_dag):
        locked = {"tables": [{"table": "a.b"}]} if make is pipeline_dag else {"table": "a.b"}
        tasks = make("all_their_tables", flink_jobs=jobs, locked=locked).task_dict
        assert tasks["stop_orders"].upstream_task_ids == {"wait_for_quiet"}
        assert tasks["report_failure"].is_teardown and tasks["resume_orders"].is_teardown
    limit = {"dagrun_timeout": timedelta(hours=2)}
    with pytest.raises(InvalidInputError, match="dagrun_timeout would leave the Flink jobs stopped"):
        correction_dag("limited", flink_jobs=jobs, locked={"table": "sales.orders"}, dag_arguments=limit)


def test_of_a_pipeline_the_tables_count_as_left_alone_whose_own_jobs_are_all_stopped() -> None:
    jobs = [FlinkJob(name="raw", sql=INSERT, tables=["d.a"]), FlinkJob(name="sums", sql=INSERT, tables=["d.b", "d.c"])]
    made = pipeline_undo_dag("undo_some", flink_jobs=jobs)
    for chosen, closed in (({"raw", "sums"}, ["d.a", "d.b"]), ({"raw"}, ["d.a"]), ({"sums"}, ["d.b"]), (set(), [])):
        names = ["d.a", "d.b", "d.other"]
        params: dict[str, Any] = {"tables": names, "writers_stopped": False, "flink_jobs": sorted(chosen)}
        context: Any = {"dag": made, "params": params}
        form = with_stopped(context, params)
        tables = [name for name in names if form_of_table(form, {"table": name})["writers_stopped"]]
        assert tables == closed
        for name in names:
            context["task"] = BucketsQuietSensor(task_id=f"quiet_{name[2:]}", table=name)
            need_not_wait(context)
            assert context["task"].writers_stopped is (name in closed)
