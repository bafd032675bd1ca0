"""The buttons of a task in the UI, as the REST API gives them, also of tasks that failed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from starlette.testclient import TestClient

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import SESSION_IS_READY
from airflow_paimon.get_provider_info import get_provider_info
from airflow_paimon.hooks.spark_connect_job import open_job_hook
from airflow_paimon.hooks.spark_job import SparkJobHook, tracking_url
from airflow_paimon.operators.branch import CreateTagOperator, RollbackOperator
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.operators.maintenance import CheckTableOperator
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor
from airflow_paimon.spark.progress import Counted, describe
from tests.airflow.conftest import Run, RunDag, set_connection
from tests.core.tables import append, make_table

pytestmark = pytest.mark.airflow

BASE = "http://airflow.example:8443/air"
PAGE = f"{BASE}/paimon/paimon_default/d/t"
ASSET = f"{BASE}/assets?name_pattern=paimon%3A%2F%2Fpaimon_default%2Fd%2Ft"


@pytest.fixture
def rest(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    from airflow.api_fastapi.app import create_app

    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests" * 5)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", BASE)
    with TestClient(create_app(apps="core")) as client:
        client.headers["Authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
        yield client


def links(rest: TestClient, run: Run, task_id: str) -> dict[str, Any]:
    answer = rest.get(f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/links")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["extra_links"]
    return found


def test_every_task_has_its_links_whether_it_succeeded_or_failed(
    warehouse: Path, run_dag: RunDag, rest: TestClient
) -> None:
    append(make_table(warehouse), "1")
    with DAG("links", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"table": "d.t"}) as dag:
        named = {"table": "{{ params.table }}"}
        done = CreateTagOperator(task_id="done", tag="x", **named)
        wait = SnapshotCatchUpSensor(task_id="wait", min_snapshot_id=1, deferrable=True, **named)
        ask = PublishApprovalOperator(
            task_id="ask",
            subject="Publish?",
            required="false",
            on_approve="failed",
            on_reject="other",
            paimon_conn_id="paimon_default",
            **named,
        )
        failed = RollbackOperator(task_id="failed", snapshot=77, **named)
        other = CheckTableOperator(task_id="other", **named)
        unnamed = CheckTableOperator(task_id="unnamed", table="{{ 'no database' }}")
        done >> wait >> ask >> [failed, other]
        assert unnamed
    run = run_dag(dag)
    assert {t: s for t, (s, _) in run.tasks.items()} == {
        "done": "success", "wait": "success", "ask": "success", "failed": "failed", "other": "skipped",
        "unnamed": "failed",
    }  # fmt: skip
    assert links(rest, run, "done") == {"Paimon table": PAGE, "Asset": ASSET, "Spark": None}
    assert links(rest, run, "wait") == {"Paimon table": PAGE, "Asset": ASSET}
    undo = f"{PAGE}?tab=corrections"
    assert links(rest, run, "failed") == {"Paimon table": PAGE, "Asset": ASSET, "Spark": None, "Undo": undo}
    assert links(rest, run, "unnamed") == {"Paimon table": None, "Asset": None, "Spark": None}
    question = links(rest, run, "ask")
    assert question["Paimon table"] == PAGE
    assert question["Approval"].startswith(f"{BASE}/dags/links/runs/manual__")
    assert question["Approval"].endswith("/tasks/ask/required_actions")


def test_links_are_registered_with_the_provider() -> None:
    from airflow_paimon import links as module

    assert get_provider_info()["extra-links"] == [
        f"airflow_paimon.links.{name}" for name in module.__all__ if name.endswith("Link")
    ]


@pytest.mark.parametrize(
    ("line", "settings", "url"),
    [
        ("INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://driver:4040", {}, "http://driver:4040"),
        (
            "INFO Utils: Successfully started service 'SparkUI' on port 4041.",
            {"spark.driver.host": "driver"},
            "http://driver:4041",
        ),
        ("\t tracking URL: http://rm:8088/proxy/application_17_0002/", {}, "http://rm:8088/proxy/application_17_0002/"),
        (
            "INFO Client: Submitted application application_17_0002",
            {"spark.yarn.historyServer.address": "history:18080"},
            "http://history:18080/history/application_17_0002",
        ),
        (
            "Connected to Spark cluster with app ID app-20261122010203-0007",
            {"spark.yarn.historyServer.address": "https://history/"},
            "https://history/history/app-20261122010203-0007",
        ),
        ("INFO SparkUI: started at http://driver:4040", {"spark.yarn.historyServer.address": "history:18080"}, None),
        ("INFO Client: Application report for application_17_0002 (state: RUNNING)", {}, None),
    ],
)
def test_where_an_application_is_looked_at(line: str, settings: dict[str, str], url: str | None) -> None:
    assert tracking_url(line, settings) == url


def test_the_address_is_reported_once_as_soon_as_the_log_names_it(warehouse: Path) -> None:
    found: list[str] = []
    hook = SparkJobHook(on_tracking_url=found.append)
    for address in ("http://a:4040", "http://a:4040", "http://b:4041"):
        hook._observe_line(f"SparkUI: started at {address}\n")
    assert found == ["http://a:4040", "http://b:4041"]
    printed = "tracking URL: http://elsewhere/\n"  # by the user's function, which runs when there is a session
    for line in (f"2026-11-25 INFO x: {SESSION_IS_READY}\n", printed, printed):
        hook._observe_line(line)
    assert found == ["http://a:4040", "http://b:4041"]


def test_progress_is_reported_as_the_log_says_it(warehouse: Path) -> None:
    found: list[str] = []
    said = describe(Counted(finished=0, tasks=2, rows=21, total=50), 190.0, 190.0)
    start = "2026-11-25 22:39:14,028 INFO airflow_paimon.spark.progress: "
    lines = [f"{start}correct_branch d.t: started", f"{start}{said} (correct_branch d.t$branch_fix: UPDATE)", "42 %"]
    hook = SparkJobHook(on_progress=found.append)
    for line in lines:
        hook._observe_line(f"{line}\n")
    assert found == [said] and said.startswith("42 % of step 1, 21 of 50 rows")


def test_a_connection_that_is_none_of_sparks_gets_no_job(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("http", "aws", "postgres", ""):
        set_connection(monkeypatch, "other", kind, host="internal.example", login="me", password="secret")
        with pytest.raises(InvalidInputError, match="'other' is not a Spark connection") as refused:
            open_job_hook("other")
        assert "internal" not in refused.value.message
    set_connection(monkeypatch, "other", "spark", host="local[1]")
    assert isinstance(open_job_hook("other"), SparkJobHook)
