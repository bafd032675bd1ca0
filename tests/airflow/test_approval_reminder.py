"""A reminder of an approval, in a whole Airflow: the triggerer waits for it, which `dag.test()` can't."""

import json
import textwrap
from pathlib import Path

import pytest

from tests.airflow.live_airflow import live_airflow
from tests.airflow.processes import wait_until
from tests.dags.conftest import load_program

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

NOTIFIER = """
    from airflow.sdk import BaseNotifier

    class FileNotifier(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, path, text):
            super().__init__()
            self.path, self.text = path, text

        def notify(self, context):
            with open(self.path, "a") as file:
                file.write(self.text + "\\n")
"""
DAG = """
    from datetime import datetime, timedelta

    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG

    from airflow_paimon.operators.correction import PublishApprovalOperator

    with DAG("asks", schedule="@once", start_date=datetime(2026, 1, 1)) as dag:
        PublishApprovalOperator(
            task_id="ask",
            subject="Publish?",
            paimon_conn_id="paimon_default",
            defaults="Reject",
            response_timeout=timedelta(hours=1),
            remind_before="3595 s",
            on_approve="yes",
            on_reject="no",
            retries=2,
            retry_delay=timedelta(seconds=1),
        ) >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
"""


def test_who_was_notified_hears_again_before_the_time_is_over(tmp_path: Path) -> None:
    dags, heard = tmp_path / "dags", tmp_path / "heard"
    dags.mkdir()
    (dags / "asks.py").write_text(textwrap.dedent(DAG))
    (dags / "heard_by.py").write_text(textwrap.dedent(NOTIFIER))
    text = "{{ paimon.event }} {{ paimon.until is not none }} {{ paimon.text }}"
    notify = {"file": {"class": "heard_by.FileNotifier", "path": str(heard), "text": text}}
    extra = {"warehouse": str(tmp_path), "notify": notify}
    env = {
        "AIRFLOW_CONN_PAIMON_DEFAULT": json.dumps({"conn_type": "paimon", "extra": extra}),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # the server's first answer takes long on a busy machine
    }

    with live_airflow(tmp_path / "home", dags, env, apps="all", triggerer=True) as airflow:

        def lines() -> list[str]:
            return heard.read_text().splitlines() if heard.exists() else []

        def reminded() -> bool:
            return airflow.task("ask")[0] == "deferred" and any(line.startswith("reminder") for line in lines())

        wait_until(reminded, "a reminder", 400, pause=0.5)
        api = load_program("demo_ui").Api(airflow.port)
        api.token = api.call("/auth/token")["access_token"]
        ((run_id,),) = airflow.rows("select run_id from dag_run")
        path = f"/api/v2/dags/asks/dagRuns/{run_id}/taskInstances/ask/-1/hitlDetails"
        assert api.call(path)["defaults"] == ["Reject"]
        api.call(path, {"chosen_options": ["Approve"], "params_input": {}}, method="PATCH")
        wait_until(lambda: airflow.task("yes")[0] == "success", "the answer counts", 240)
        assert [airflow.task(name)[0] for name in ("ask", "no")] == ["success", "skipped"]
        asked, again, answered = lines()[-3:]
        assert asked.startswith("waiting False Publish?: waits for an answer within 1:00:00. ")
        assert again.startswith("reminder True Publish?: still waits for an answer, until 20")
        assert answered.startswith("answered False Publish?: approved by Anonymous. ")
