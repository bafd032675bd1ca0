"""A reminder of an approval, in a whole Airflow: the triggerer waits for it, which `dag.test()` can't."""

from pathlib import Path

import pytest

from tests.airflow.processes import wait_until
from tests.live.live_airflow import LiveAirflow

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
            paimon_conn_id="reminds",
            defaults="Reject",
            response_timeout=timedelta(hours=1),
            remind_before="3580 s",
            on_approve="yes",
            on_reject="no",
            retries=2,
            retry_delay=timedelta(seconds=1),
        ) >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
"""


@pytest.mark.thorough
def test_who_was_notified_hears_again_before_the_time_is_over(tmp_path: Path, airflow: LiveAirflow) -> None:
    heard = tmp_path / "heard"
    text = "{{ paimon.event }} {{ paimon.until is not none }} {{ paimon.text }}"
    notify = {"file": {"class": "heard_by.FileNotifier", "path": str(heard), "text": text}}
    airflow.connect("reminds", "paimon", {"warehouse": str(tmp_path), "notify": notify})
    airflow.add_dags("heard_by.py", NOTIFIER)
    airflow.add_dags("asks.py", DAG)

    def lines() -> list[str]:
        return heard.read_text().splitlines() if heard.exists() else []

    def reminded() -> bool:
        """The task waits, and the scheduler knows that both of its processes ended.

        If it hears of that when the task is queued again, Airflow 3.3 tries the task again, which asks anew.
        """
        told = lines()
        last = told[-1] if told else ""
        waits = last.startswith("reminder") and airflow.task("ask")[0] == "deferred"
        return waits and airflow.ended_tries("asks", "ask") >= len(told)

    wait_until(reminded, "a reminder", 400, pause=0.5)
    path = f"/api/v2/dags/asks/dagRuns/{airflow.run_id('asks')}/taskInstances/ask/-1/hitlDetails"
    assert airflow.api.call(path)["defaults"] == ["Reject"]
    airflow.api.call(path, {"chosen_options": ["Approve"], "params_input": {}}, method="PATCH")
    wait_until(lambda: airflow.task("yes")[0] == "success", "the answer counts", 240)
    assert [airflow.task(name)[0] for name in ("ask", "no")] == ["success", "skipped"]
    asked, again, answered = lines()[-3:]
    assert asked.startswith("waiting False Publish?: waits for an answer within 1:00:00. ")
    assert again.startswith("reminder True Publish?: still waits for an answer, until 20")
    assert answered.startswith("answered False Publish?: approved by Anonymous. ")
