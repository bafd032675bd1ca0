"""Who hears of an approval, and who may answer it: asked and answered in a real Airflow."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from airflow.sdk import DAG, BaseNotifier, task

from airflow_paimon._compat import TaskDeferred
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.notify import choose_approvers, choose_notifiers, reminder_lead
from airflow_paimon.operators.branch import (
    CorrectBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    FastForwardOperator,
    MergeBranchOperator,
    RollbackOperator,
)
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.runbooks.form import check_approval
from tests.airflow.conftest import RunDag, set_connection
from tests.core.chain.tables import make_chain
from tests.core.tables import append, make_table, rewrite
from tests.core.tables import run as run_core
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


@pytest.mark.every(2)
@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_the_approver_reads_the_diff_and_the_publish_takes_the_answer(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Without a subject, a table or a connection in the DAG; main goes on elsewhere meanwhile."""
    main, rows = corrected(warehouse)
    connect(monkeypatch, warehouse)
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests" * 5)
    with DAG("asks_about_a_diff", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task(task_id="diff")
        def compare() -> Any:
            return before_spark(warehouse, "diff_branches", branch="fix")

        @task(task_id="check")
        def check() -> Any:
            return before_spark(warehouse, "check_branch_data", branch="fix", rules=limits(warehouse))

        ask = PublishApprovalOperator(
            task_id="ask", diff_task_id="diff", check_task_id="check", on_approve="publish", on_reject="drop"
        )
        publish = MergeBranchOperator(task_id="publish", table="d.t", branch="fix", approval_task_id="ask")
        drop = DeleteBranchOperator(task_id="drop", table="d.t", branch="fix")
        compare() >> check() >> ask >> [publish, drop]
    with answering(answer, dag_id="asks_about_a_diff") as seen:
        run = run_dag(dag)
    assert seen[0]["subject"] == "Publish branch fix of d.t?"
    assert "- Requested by: " in seen[0]["body"]
    assert "**0 rows added, 1 changed, 0 deleted**" in seen[0]["body"] and "1 check of the branch" in seen[0]["body"]
    said = run.xcom("ask")
    assert {name: said[name] for name in ("table", "branch", "branch_snapshot", "main_snapshot")} == {
        "table": "d.t", "branch": "fix", "branch_snapshot": 2, "main_snapshot": 1,
    }  # fmt: skip
    head = main.latest_snapshot()
    assert head is not None
    if answer == "Reject":
        assert (head.id, main.branch_names()) == (1, [])
        return
    assert (head.id, head.properties["airflow-paimon.approved-by"]) == (2, "Anonymous")
    assert read_arrow(main).to_pylist() == rows
    (record,) = read_audit(main)
    assert record.approved_at == said["answered_at"]
    assert record.diff["total"]["changed"] == 1, "without wiring"


def test_a_publish_takes_no_answer_to_another_question(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch, or a branch that went on after its diff."""
    main, _ = corrected(warehouse)
    diff = before_spark(warehouse, "diff_branches", branch="fix")
    run_core(main, "create_branch", branch="other", snapshot=1)
    write_arrow(main.branch("fix"), pa.table({"k": pa.array([5], pa.int64()), "v": ["later"], "dt": ["1"]}))
    connect(monkeypatch, warehouse)
    with DAG("asks_about_another", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task(task_id="diff")
        def compare() -> Any:
            return diff

        @task(task_id="nothing")
        def nothing() -> Any:
            return {"operation": "create_tag"}

        ask = PublishApprovalOperator(
            task_id="ask", diff_task_id="diff", required=False, on_approve="yes", on_reject="no"
        )
        publishes = [
            MergeBranchOperator(task_id=f"publish_{branch}", table="d.t", branch=branch, approval_task_id="ask")
            for branch in ("fix", "other")
        ]
        wrong = PublishApprovalOperator(
            task_id="wrong", diff_task_id="nothing", on_approve="publish_fix", on_reject="no"
        )
        yes, no = (CreateTagOperator(task_id=name, tag=name, table="d.t") for name in ("yes", "no"))
        compare() >> ask >> [yes, no]
        yes >> publishes
        nothing() >> wrong >> no
        wrong >> publishes[0]
        publishes[0].trigger_rule = "one_success"
    run = run_dag(dag)
    assert run.tasks["publish_fix"][0] == run.tasks["publish_other"][0] == run.tasks["wrong"][0] == "failed"
    assert (run.xcom("publish_fix", "paimon_error")["kind"], run.xcom("publish_other", "paimon_error")["kind"]) == (
        "conflict", "unsafe",
    )  # fmt: skip
    assert main.latest_snapshot_id() == 1
    with pytest.raises(InvalidInputError, match="diff_task_id"):
        PublishApprovalOperator(task_id="ask", on_approve="yes", on_reject="no")


def corrected(warehouse: Path) -> tuple[Table, list[dict[str, Any]]]:
    """A table of two rows, and its branch ``fix`` with one of them corrected; and the rows as they should be."""
    main = make_table(warehouse)
    rows = [{"k": k, "v": v, "dt": "1"} for k, v in ((1, "a"), (2, "b"))]
    write_arrow(main, pa.Table.from_pylist(rows))
    run_core(main, "create_branch", branch="fix", snapshot=1)
    fixed = rows[0] | {"v": "fixed"}
    write_arrow(main.branch("fix"), pa.Table.from_pylist([fixed]))
    return main, [fixed, rows[1]]


def before_spark(warehouse: Path, operation: str, **values: Any) -> dict[str, Any]:
    """Run a small operation on rows as its job does, without a session."""
    from airflow_paimon.spark.jobs.before_spark import run_before_spark

    found = run_before_spark(build_request(operation, {"warehouse": str(warehouse), "table": "d.t", **values}))
    assert found is not None
    return json.loads(json.dumps(found.to_json()))


def limits(warehouse: Path) -> str:
    path = warehouse.with_suffix(".json")
    path.write_text('[{"row_limits": {"deleted": 0}}]')
    return str(path)


def test_whoever_triggered_the_run_can_reject_it_and_not_approve_it(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(make_table(warehouse), "1")
    connect(monkeypatch, warehouse, four_eyes="true")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests" * 5)
    with DAG("asks_others", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ask = PublishApprovalOperator(
            task_id="ask", subject="?", paimon_conn_id="paimon_default", on_approve="yes", on_reject="no"
        )
        ask >> [CreateTagOperator(task_id=name, tag=name, table="d.t") for name in ("yes", "no")]
    with answering("Approve", dag_id="asks_others", at_last="Reject", user="dag_test") as seen:
        run = run_dag(dag)
    assert len(seen) == 2 and "dag\\_test triggered this run, so a second person" in seen[0]["body"]
    assert {name: state for name, (state, _) in run.tasks.items()} == {
        "ask": "success",
        "yes": "skipped",
        "no": "success",
    }


@pytest.mark.parametrize(
    ("answered", "is_own"),
    [
        ({"id": "ann", "name": "Ann Smith"}, True),  # as an auth manager has it whose users have both
        ({"id": "17", "name": "ANN"}, True),
        ({"id": "ann"}, True),
        ({"id": "bob", "name": "Bob"}, False),
        ({"id": None, "name": None}, False),
    ],
)
def test_an_own_request_is_known_by_id_and_by_name(answered: dict[str, Any], is_own: bool) -> None:
    answers = {"on_approve": "yes", "on_reject": "no"}
    ask = PublishApprovalOperator(task_id="ask", subject="?", four_eyes=True, **answers)
    context: Any = {"dag_run": SimpleNamespace(triggering_user_name="Ann")}
    assert ask._is_own_request(context, answered) is is_own
    ask = PublishApprovalOperator(task_id="ask", subject="?", **answers)
    assert not ask._is_own_request(context, answered), "nobody asked for four eyes"


@pytest.mark.parametrize("operator", [MergeBranchOperator, FastForwardOperator])
def test_a_publish_takes_the_requester_from_the_run_and_four_eyes_from_the_connection(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, operator: type[MergeBranchOperator]
) -> None:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="publish", map_index=-1, max_tries=0)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name="ann")}
    publish = operator(task_id="publish", table="d.t", branch="fix", approved_by="ann", requested_by="bob")
    connect(monkeypatch, warehouse)
    request: Any = publish._request(PaimonHook(), context)
    assert (request.requested_by, request.approved_by, request.four_eyes) == ("ann", "ann", False)
    connect(monkeypatch, warehouse, four_eyes=True)
    request = publish._request(PaimonHook(), context)
    assert request.four_eyes
    main = make_table(warehouse)
    append(main, "1")
    run_core(main, "create_branch", branch="fix", snapshot=1)
    rewrite(main.branch("fix"), "1")
    with pytest.raises(UnsafeOperationError, match="'ann' asked for it and approved it"):
        run_operation(request)


def test_a_rollback_of_main_takes_four_eyes_from_the_connection(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="undo", map_index=-1, max_tries=0)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name="ann")}
    connect(monkeypatch, warehouse, four_eyes=True)
    make_chain(warehouse)
    found = {}
    for branch in ("main", "fix", "delta", "snapshot"):
        undo = RollbackOperator(task_id=f"undo_{branch}", table="d.t", branch=branch, tag="x")
        request: Any = undo._request(PaimonHook(), context)
        found[branch] = request.four_eyes
    seen_by_readers = {"main": True, "delta": True, "snapshot": True}
    assert found == {"fix": False, **seen_by_readers}


def test_four_eyes_refuse_what_no_approval_precedes(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of a chain table see a correction of its branches at once."""
    make_chain(warehouse)
    append(make_table(warehouse, name="d.plain"), "1")
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="fix", map_index=-1, max_tries=0)
    context: Any = {"ti": ti}
    asked: Any = {"table": "d.t", "branch": "delta", "sql": "DELETE FROM branch WHERE k = 1"}
    fix, look = (CorrectBranchOperator(task_id="fix", **asked, dry_run=dry) for dry in (False, True))
    connect(monkeypatch, warehouse)
    fix._request(PaimonHook(), context)
    connect(monkeypatch, warehouse, four_eyes=True)
    look._request(PaimonHook(), context)
    with pytest.raises(UnsafeOperationError, match="so readers see a correction immediately"):
        fix._request(PaimonHook(), context)
    fix.table, fix.branch = "d.plain", "main"  # refused by the job
    fix._request(PaimonHook(), context)


def test_four_eyes_without_an_approval_or_a_requester_are_refused_at_once(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, warehouse, four_eyes=True)
    form = {"paimon_conn_id": "paimon_default", "notify": None, "approvers": None, "remind_before": None}
    asked, day = {**form, "four_eyes": False, "approval": True}, timedelta(hours=24)
    check_approval(asked, day, "ann")
    check_approval({**form, "approval": False}, day, "ann"), "the undo's form: it is asked all the same"
    with pytest.raises(UnsafeOperationError, match="doesn't report who triggered"):
        check_approval({**form, "approval": False}, day, None)
    with pytest.raises(InvalidInputError, match="needs an approval"):
        check_approval({**asked, "approval": False}, day, "ann")
    with pytest.raises(UnsafeOperationError, match="doesn't report who triggered"):
        check_approval(asked, day, None)


def test_a_form_that_the_approval_would_refuse_is_refused_at_once(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, warehouse, approvers=["ada"], notify={"file": {"class": CLASS, "path": "p", "text": "t"}})
    form = {"paimon_conn_id": "paimon_default", "notify": None, "approvers": None, "remind_before": None}
    day = timedelta(hours=24)
    check_approval(form, day)
    for name, value, message in (
        ("notify", ["pager"], "it has: file"),
        ("approvers", ["bob"], "it lets: ada"),
        ("remind_before", "soon", "is not a duration"),
        ("remind_before", "24 h", "shorter than the 1 day"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            check_approval({**form, name: value}, day)


def test_after_the_reminder_the_rest_of_the_time_counts_and_then_the_default() -> None:
    answers = {"on_approve": "yes", "on_reject": "no", "defaults": "Reject"}
    ask = PublishApprovalOperator(task_id="ask", subject="Publish?", **answers)
    ti = SimpleNamespace(id=uuid4(), dag_id="d", run_id="r", task_id="ask", map_index=-1)
    until = datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(TaskDeferred) as waits:
        ask.remind({"ti": ti}, {"error": "no answer", "error_type": "timeout"}, until.isoformat())
    _, trigger = waits.value.trigger.serialize()
    assert (trigger["ti_id"], trigger["defaults"], trigger["timeout_datetime"]) == (ti.id, ["Reject"], until)
    assert waits.value.method_name == "execute_complete"


@pytest.mark.parametrize(
    ("configured", "asked", "hours"),
    [
        (None, None, 6),
        ("2 h", None, 2),
        ("2 h", "3 h", 3),
        ("2 h", "Never", None),
        ("never", None, None),
        ("never", "3 h", 3),
        ("2 d", None, 6),  # of a connection whose other approvals wait longer
    ],
)
def test_when_they_hear_again(configured: str | None, asked: str | None, hours: int | None) -> None:
    lead = None if hours is None else timedelta(hours=hours)
    assert reminder_lead(configured, asked, timedelta(hours=24)) == lead
    assert reminder_lead(configured, asked, None) is None


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
    [
        ({"notify": "x"}, "notify"),
        ({"notify": {"a": 1}}, "notify"),
        ({"approvers": 3}, "approvers"),
        ({"remind_before": "soon"}, "remind_before"),
        ({"four_eyes": "maybe"}, "four_eyes"),
    ],
)
def test_malformed_extras_are_refused(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], message: str
) -> None:
    connect(monkeypatch, warehouse, **extra)
    hook = PaimonHook()
    with pytest.raises(InvalidInputError, match=message):
        assert not (hook.notify, hook.approvers, hook.remind_before, hook.four_eyes)
