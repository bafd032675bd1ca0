"""The tab Corrections: what runs wait for, what became of them, and which of them are about the table."""

import html
import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_paimon.core.publish.undoable_publishes import last_publish
from airflow_paimon.core.table.table import Table
from airflow_paimon.dags import correction_dag, correction_undo_dag, erasure_dag, pipeline_dag
from airflow_paimon.plugin.tabs.corrections_plan import TableRun, outcome, overlap, waits_for
from airflow_paimon.runbooks.kinds import Kind
from tests.airflow.conftest import airflow_home, register
from tests.core.tables import append, make_table
from tests.core.tables import run as operate
from tests.plugin.conftest import Get
from tests.plugin.pictures import PATH, PICTURES, plain, shown_in_airflow
from tests.plugin.test_page import texts

pytestmark = pytest.mark.airflow
__all__ = ["airflow_home"]

OWN = "own_fix"
RUNNING: dict[str, Any] = {"state": "running", "conf": {"partitions": ["dt=1"]}}


def view(run_id: str = "r", state: str = "running", conf: dict[str, Any] | None = None, **tasks: str) -> TableRun:
    form = conf or {"partitions": ["dt=1"]}
    return TableRun(dag_id="d", kind=Kind.CORRECTION, run_id=run_id, state=state, tasks=tasks, conf=form)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (view(approve="awaiting_input"), "an approval"),
        (view(state="queued"), "its turn: the run is queued"),
        (view(wait="deferred", correct="success"), "its branch to catch up"),
        (view(correct="up_for_retry"), "the next try of correct"),
        (view(correct="running", diff="scheduled"), "task correct, which runs"),
        (view(correct="queued"), "a worker, for correct"),
        (view(state="success", approve="success"), ""),
    ],
)
def test_what_a_run_waits_for(run: TableRun, expected: str) -> None:
    assert waits_for(run, [run]) == expected


def test_corrections_of_the_same_partitions_are_named() -> None:
    mine, same = view("a", correct="running"), view("b", conf={"partitions": ["dt=2", "dt=1"]}, diff="running")
    assert waits_for(mine, [mine, same]).endswith(
        "corrects the same partitions as b: the one that publishes later is refused"
    )
    assert "same partitions" not in waits_for(mine, [mine, view("c", conf={"partitions": ["dt=2"]})])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (["dt=1/h=2"], ["h=2,dt=1"], True),
        (["dt=1"], ["dt=11"], False),
        (None, ["dt=1"], True),
        ([], None, True),
    ],
)
def test_overlap_goes_by_partitions_not_by_their_spelling(one: Any, other: Any, expected: bool) -> None:
    assert overlap({"partitions": one}, {"partitions": other}) is expected


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (view(state="running"), "running"),
        (view(state="success", merge="success"), "published"),
        (view(state="success", fast_forward="success"), "published"),
        (view(state="success", undo="success"), "undone"),
        (view(state="success", find="success", remove="success"), "cleaned up"),
        (view(state="success", find="success", remove="skipped"), "nothing removed"),
        (view(state="failed", approve="success", rejected="failed"), "rejected"),
        (view(state="failed", merge="success", verify="failed", report_failure="failed"),
         "failed after it was published: verify"),
        (view(state="failed", correct="failed", report_failure="failed"), "failed: correct"),
    ],
)  # fmt: skip
def test_what_became_of_a_run(run: TableRun, expected: str) -> None:
    assert outcome(run)[0] == expected


@pytest.fixture(scope="module")
def runs(server: Any, airflow_home: Path) -> Iterator[None]:
    """Rows as Airflow writes them: a published correction, one that waits for an approval, and foreign ones."""
    from airflow.models.dag import DagTag
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import delete, insert, select

    with create_session() as session:  # the page is to know no DAGs of other tests of this process
        session.execute(delete(DagTag))
    for dag in (
        correction_dag(OWN, tags=["mine"]),
        correction_dag("own_locked", locked={"table": "d.t", "paimon_conn_id": "lake"}),
        correction_undo_dag("own_undo"),
        erasure_dag("own_erasure"),
        pipeline_dag("own_pipeline"),
    ):
        register(dag)
    now = datetime.now(UTC)
    ours = {"table": "d.t", "paimon_conn_id": "lake"}
    made = [
        (
            "published",
            "success",
            {**ours, "branch": "done", "reason": "<b>why"},
            {"correct": "success", "merge": "success"},
        ),
        ("waiting", "running", {**ours, "partitions": ["dt=1"]}, {"approve": "awaiting_input"}),
        ("working", "running", {**ours, "table": "d.c"}, {"correct": "running"}),
        ("elsewhere", "running", {"table": "d.t"}, {}),
        ("other", "running", {**ours, "table": "d.other"}, {}),
        (
            "taken_back",
            "success",
            {**ours, "table": "undone.t", "branch": "fix"},
            {"merge": "success", "verify": "success"},
        ),
        ("wrong", "failed", {**ours, "table": "undone.t"}, {"correct": "failed", "report_failure": "failed"}),
    ]
    steps = [{"table": "d.raw", "correct": "..."}, {"table": "d.t", "replay": "..."}]
    others: list[tuple[str, str, dict[str, Any]]] = [
        ("own_locked", "by_itself", {}),
        ("own_pipeline", "of_a_pipeline", {"tables": steps, "paimon_conn_id": "lake"}),
    ]
    with create_session() as session:
        version = session.scalars(select(DagVersion.id).where(DagVersion.dag_id == OWN)).first()
        for dag_id, run_id, form in others:
            session.execute(
                insert(DagRun).values(dag_id=dag_id, run_id=run_id, state="success", conf=form, run_after=now,
                                      run_type="scheduled", start_date=now, log_template_id=1, clear_number=0)
            )  # fmt: skip
        for run_id, state, conf, tasks in made:
            session.execute(
                insert(DagRun).values(dag_id=OWN, run_id=run_id, state=state, conf=conf, run_after=now,
                                      run_type="manual", start_date=now, triggering_user_name="bob", log_template_id=1,
                                      clear_number=0)
            )  # fmt: skip
            for task_id, task_state in tasks.items():
                ti = uuid4()
                session.execute(
                    insert(TaskInstance).values(
                        id=ti, dag_id=OWN, run_id=run_id, task_id=task_id, map_index=-1, state=task_state,
                        try_number=1, max_tries=0, pool="default_pool", pool_slots=1, custom_operator_name="",
                        queue="default", dag_version_id=version, priority_weight=1,
                    )
                )  # fmt: skip
                if task_id == "approve":
                    session.execute(
                        insert(HITLDetail).values(ti_id=ti, options=["Approve"], subject="Publish?", params={},
                                                  params_input={}, created_at=now - timedelta(hours=3))
                    )  # fmt: skip
    yield
    with create_session() as session:
        session.execute(delete(HITLDetail).where(HITLDetail.subject == "Publish?"))
        session.execute(delete(TaskInstance).where(TaskInstance.dag_id == OWN))
        session.execute(delete(DagRun).where(DagRun.dag_id.in_([OWN, "own_locked", "own_pipeline"])))


@pytest.mark.usefixtures("runs")
def test_how_far_a_job_is_stands_beside_what_the_run_waits_for_and_where_it_ran_beside_the_outcome(get: Get) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, insert, select

    with create_session() as session:
        run = session.scalars(select(DagRun.id).where(DagRun.run_id == "working")).one()
        session.execute(
            insert(XComModel).values(dag_run_id=run, dag_id=OWN, run_id="working", task_id="correct",
                                     map_index=-1, key="paimon_progress", value='"42 % of step 1"')
        )  # fmt: skip
        done = session.scalars(select(DagRun.id).where(DagRun.run_id == "published")).one()
        session.execute(
            insert(XComModel).values(dag_run_id=done, dag_id=OWN, run_id="published", task_id="correct",
                                     map_index=-1, key="paimon_ran_on", value='"spark"')
        )  # fmt: skip
    try:
        assert "Ran in Spark. " in get("/paimon/lake/d/t?tab=corrections").text
        page = get("/paimon/lake/d/c?tab=corrections").text
        assert "task correct, which runs; correct: 42 % of step 1" in texts(page)
        assert "/runs/working/tasks/correct" in page
    finally:
        with create_session() as session:
            session.execute(delete(XComModel).where(XComModel.run_id.in_(["working", "published"])))


@pytest.mark.usefixtures("runs")
def test_the_runs_of_the_table_are_shown_and_no_others(get: Get) -> None:
    page = get("/paimon/lake/d/t?tab=corrections").text
    shown = texts(page)
    assert re.search(r"waiting correction \S+ \S+ bob running an approval waits, asked 3 h ago \S+ - - dt=1", shown)
    assert re.search(r"published correction .* published - - done back to snapshot 2 <b>why", shown)
    assert re.search(r"by_itself correction ", shown), "the DAG names the table, its form doesn't"
    assert re.search(r"of_a_pipeline pipeline ", shown)
    assert "elsewhere" not in shown and "by_itself" not in texts(get("/paimon/lake/d/c?tab=corrections").text)
    assert "runs/other" not in page
    assert 'href="/dags/own_fix/runs/waiting/tasks/approve/required_actions" data-airflow-link' in page


@pytest.mark.usefixtures("runs")
def test_the_forms_are_given_what_they_want(get: Get) -> None:
    forms = forms_of(get("/paimon/lake/d/t?tab=corrections").text)
    assert forms[:2] == [
        {"table": "d.t", "paimon_conn_id": "lake", "sql": "UPDATE branch SET v = ... WHERE dt = ..."},
        {"table": "d.t", "paimon_conn_id": "lake", "tag": "airflow-paimon-undo-publish-1"},
    ]
    assert {"table": "d.t", "paimon_conn_id": "lake", "where": "k = ..."} in forms, "the form of row_erasure"
    page = texts(get("/paimon/lake/d/t?tab=corrections").text)
    assert "Open own_fix Open own_locked" in page and "does not have the DAGs data_correction_cleanup. How" in page
    assert "own_locked" not in texts(get("/paimon/lake/d/c?tab=corrections").text)


@pytest.fixture
def undone(lake: Path) -> Iterator[Table]:
    """A table whose publish was undone."""
    table = make_table(lake, "undone.t")
    append(table, "1", rows=1200)
    operate(table, "create_tag", tag="before")
    operate(table, "create_branch", branch="fix", tag="before", owner="own_fix/taken_back")
    append(table.branch("fix"), "1", rows=7)
    operate(table, "merge_branch", branch="fix", operation_id="publish-1")
    operate(table, "rollback_to", tag=last_publish(table).undo_tag, keep_later=True, operation_id="undo-1")
    yield table
    shutil.rmtree(lake / "undone.db")


def forms_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(texts(f)) for f in re.findall(r'<pre id="form-\d+">(.*?)</pre>', page, re.DOTALL)]


@pytest.mark.usefixtures("runs")
def test_a_publish_that_was_undone_is_not_offered_to_be_undone_again(get: Get, undone: Table) -> None:
    page = get("/paimon/lake/undone/t?tab=corrections").text
    shown = texts(page)
    assert re.search(r"taken_back correction .* published, undone since fix undone by snapshot 3", shown)
    assert re.search(r"Undo this rollback own_undo .*Snapshot 3 went back to snapshot 1", shown)
    tags = [form.get("tag") for form in forms_of(page) if "tag" in form]
    assert tags == ["airflow-paimon-undo-undo-1"]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_show_the_tabs_and_columns_of_today(get: Get, name: str) -> None:
    tab = PICTURES[name].partition("?")[2]
    page = get(f"/paimon/lake/d/{'c' if tab in ('tab=grid', 'tab=health') else 't'}?{tab}").text
    page = re.sub(r'<table class="grid">.*?</table>', "", page, flags=re.DOTALL)
    tabs = re.findall(r"<a [^>]*>(.*?)</a>", page.partition('<nav class="tabs"')[2].partition("</nav>")[0])
    heads = re.findall(r'(?:<th\b[^>]*>|<p class="legend muted">)(.*?)</(?:th|p)>', page, re.DOTALL)
    meanings = re.findall(r"<li>(.*?)</li>", page.partition('<ul class="meanings">')[2].partition("</ul>")[0], re.S)
    shown = plain([html.unescape(re.sub("<[^>]+>", "", part)) for part in (*tabs, *heads, *meanings)])
    known = json.loads(PATH.read_text())[name]
    sometimes = {"Changed rows", "Grid"}
    assert set(shown) - sometimes == set(known) - sometimes, "make screenshots takes them again; look at them"


@pytest.mark.parametrize("name", ["form", "approval"])
def test_the_pictures_of_airflows_pages_show_the_fields_of_today(name: str) -> None:
    known = json.loads(PATH.read_text())[name]
    assert set(shown_in_airflow(name)) == set(known), "make screenshots takes them again; look at them"


@pytest.mark.usefixtures("runs", "undone")
def test_the_state_of_a_run_leads_to_the_log_that_explains_it(get: Get) -> None:
    page = get("/paimon/lake/undone/t?tab=corrections").text
    assert re.search(r'href="/dags/own_fix/runs/wrong/tasks/report_failure" data-airflow-link>failed: correct', page)
    assert re.search(r'href="/dags/own_fix/runs/taken_back/tasks/verify" data-airflow-link>published', page)


@pytest.mark.usefixtures("runs")
def test_runs_that_the_user_may_not_read_are_not_shown(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", lambda **asked: False)
    shown = texts(get("/paimon/lake/d/t?tab=corrections").text)
    assert "Runs of DAGs that you may not read are not shown" in shown
    assert "bob" not in shown
