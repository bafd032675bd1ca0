"""Who hears of an approval, and who may answer it: asked and answered in a real Airflow."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseNotifier

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.branch import CreateTagOperator
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.runbooks.notify import check_form, choose_approvers, choose_notifiers
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import append, make_table
from tests.dags.conftest import answering

pytestmark = pytest.mark.airflow


class FileNotifier(BaseNotifier):
    """Appends its text to a file."""

    template_fields = ("text",)

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path = path
        self.text = text

    def notify(self, context: Any) -> None:
        with open(self.path, "a") as file:
            file.write(self.text + "\n")


CLASS = f"{__name__}.FileNotifier"


def connect(monkeypatch: pytest.MonkeyPatch, warehouse: Path, **extra: Any) -> None:
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(warehouse), **extra})


def test_the_notifiers_hear_of_the_question_and_of_the_answer(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append(make_table(warehouse), "1")
    heard = tmp_path / "heard"
    text = "{{ paimon.event }} {{ paimon.table }} {{ paimon.approved }} {{ paimon.approved_by }}: {{ paimon.text }}"
    notifiers = {
        "broken": {"class": CLASS, "path": str(tmp_path), "text": "{{ paimon.text.no.such }}"},
        "file": {"class": CLASS, "path": str(heard), "text": text},
        "other": {"class": CLASS, "path": str(heard), "text": "not chosen"},
    }
    connect(monkeypatch, warehouse, notify=json.dumps(notifiers), approvers="ada, Anonymous")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests" * 5)
    with DAG("asks_people", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ask = PublishApprovalOperator(
            task_id="ask",
            subject="Publish {{ 'd.t' }}?",
            table="d.t",
            paimon_conn_id="paimon_default",
            notify="{{ ['broken', 'file'] }}",
            approvers=["Anonymous"],
            on_approve="yes",
            on_reject="no",
        )
        ask >> [CreateTagOperator(task_id=name, tag=name, table="d.t") for name in ("yes", "no")]
    with answering("Approve", dag_id="asks_people") as seen:
        run = run_dag(dag)
    assert {name: state for name, (state, _) in run.tasks.items()} == {
        "ask": "success",
        "yes": "success",
        "no": "skipped",
    }
    assert [user["id"] for user in seen[0]["assigned_users"]] == ["Anonymous"]
    waiting, answered = heard.read_text().splitlines()
    assert waiting.startswith("waiting d.t None None: Publish d.t?: waits for an answer. ")
    assert waiting.endswith("/tasks/ask/required_actions")
    assert answered.startswith("answered d.t True Anonymous: Publish d.t?: approved by Anonymous. ")


def test_a_form_that_the_approval_would_refuse_is_refused_at_once(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, warehouse, approvers=["ada"], notify={"file": {"class": CLASS, "path": "p", "text": "t"}})
    form: dict[str, Any] = {"paimon_conn_id": "paimon_default", "notify": None, "approvers": None}
    check_form(form)
    for wrong, message in (({"notify": ["pager"]}, "it has: file"), ({"approvers": ["bob"]}, "it lets: ada")):
        with pytest.raises(InvalidInputError, match=message):
            check_form({**form, **wrong})


@pytest.mark.parametrize(
    ("configured", "asked", "may"),
    [
        ((), None, None),
        ((), ["ada"], ["ada"]),
        (("ada", "bob"), None, ["ada", "bob"]),
        (("ada", "bob"), [], ["ada", "bob"]),
        (("ada", "bob"), ["bob", " "], ["bob"]),
    ],
)
def test_a_form_narrows_who_may_answer(
    configured: Sequence[str], asked: Sequence[str] | None, may: Sequence[str] | None
) -> None:
    assert choose_approvers(configured, asked, "lake") == may
    with pytest.raises(InvalidInputError, match="'eve'"):
        choose_approvers(["ada"], ["ada", "eve"], "lake")


@pytest.mark.parametrize(
    ("notifier", "message"),
    [
        ({"class": "no.such.Thing"}, "can't be imported"),
        ({"class": ""}, "can't be imported"),
        ({"class": "os.system", "command": "true"}, "not a notifier"),
        ({"class": "airflow.sdk.DAG", "dag_id": "x"}, "not a notifier"),
        ({"class": CLASS, "path": "p"}, "text"),
    ],
)
def test_what_is_not_a_notifier_is_refused(notifier: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        choose_notifiers({"it": notifier}, None, "lake")


def test_all_notifiers_of_the_connection_hear_unless_some_are_chosen() -> None:
    configured = {name: {"class": CLASS, "path": "p", "text": name} for name in ("a", "b")}

    def chosen(names: list[str] | None) -> list[str]:
        return [n.text for n in choose_notifiers(configured, names, "lake") if isinstance(n, FileNotifier)]

    assert (chosen(None), chosen(["b"]), chosen([])) == (["a", "b"], ["b"], [])


@pytest.mark.parametrize(
    ("extra", "message"),
    [({"notify": "x"}, "notify"), ({"notify": {"a": 1}}, "notify"), ({"approvers": 3}, "approvers")],
)
def test_malformed_extras_are_refused(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], message: str
) -> None:
    connect(monkeypatch, warehouse, **extra)
    hook = PaimonHook()
    with pytest.raises(InvalidInputError, match=message):
        assert not (hook.notify, hook.approvers)
