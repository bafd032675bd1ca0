"""The tab Plan: what a correction will touch, who is downstream as far as the user may see it, and the forms."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from airflow_paimon.core.streaming.replays import ReplayRecord, record_replay
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.shown.urls import plan_page_url
from tests.airflow.processes import wait_until
from tests.core.tables import append, make_table
from tests.core.tables import run as operate
from tests.plugin.conftest import Get
from tests.plugin.test_page import texts

pytestmark = pytest.mark.airflow
DAGS = ("plan_report", "plan_alias", "plan_stale", "data_correction", "pipeline_correction")


def plan_url(**asked: str) -> str:
    return f"/paimon/lake/plans/t?{urlencode({'tab': 'plan', **asked})}"


@pytest.fixture(scope="module")
def table(lake: Path) -> Any:
    """Two partitions, a branch that changes one, and another table that was replayed from it."""
    table = make_table(lake, "plans.t")
    append(table, "1", rows=1200)
    append(table, "2")
    operate(table, "create_branch", branch="rival", snapshot=2)
    append(table.branch("rival"), "1")
    made = make_table(lake, "plans.made")
    base = table.snapshot(1)
    record = ReplayRecord(asked="", starts={"raw": 1}, identities={"raw": base.identity})
    record_replay(made, "plan", record)
    return table


@pytest.fixture
def dags(server: Any, get: Get) -> Iterator[None]:
    """Rows as Airflow writes them: a DAG on the asset that makes another table, one on an alias, one that is gone."""
    from airflow.models.asset import (
        AssetAliasModel,
        AssetModel,
        DagScheduleAssetAliasReference,
        DagScheduleAssetReference,
        TaskOutletAssetReference,
    )
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, insert, select, update

    with create_session() as session:
        session.execute(insert(DagBundleModel).values(name="plan"))
        known = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(DAGS))))
        # Other tests in this database may have left them as DAGs that no file has any more, with runs.
        session.execute(update(DagModel).where(DagModel.dag_id.in_(known)).values(is_stale=False))
        added = [name for name in DAGS if name not in known]
        for dag_id in added:
            session.execute(
                insert(DagModel).values(dag_id=dag_id, is_stale=dag_id == "plan_stale", bundle_name="plan",
                                        is_paused=dag_id == "plan_alias", max_active_tasks=1,
                                        max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False)
            )  # fmt: skip
        for kind in {Kind.CORRECTION, Kind.PIPELINE} & set(added):
            session.execute(insert(DagTag).values(dag_id=kind, name=kind.tag))
        uris = ("paimon://lake/plans/t", "paimon://lake/plans/daily", "paimon://other/plans/elsewhere")
        mine, daily, elsewhere = assets = [AssetModel(name=uri, uri=uri, group="asset") for uri in uris]
        alias = AssetAliasModel(name="plan_alias", group="asset")
        alias.assets.append(mine)
        session.add_all([*assets, alias])
        session.flush()
        session.add_all([
            DagScheduleAssetReference(asset_id=mine.id, dag_id="plan_report"),
            DagScheduleAssetReference(asset_id=mine.id, dag_id="plan_stale"),
            DagScheduleAssetAliasReference(alias_id=alias.id, dag_id="plan_alias"),
            TaskOutletAssetReference(asset_id=daily.id, dag_id="plan_report", task_id="make"),
            TaskOutletAssetReference(asset_id=elsewhere.id, dag_id="plan_report", task_id="make"),
        ])  # fmt: skip
    # For some seconds the page shows the DAGs that there were.
    wait_until(lambda: forms(get(plan_url()).text), "the forms of the DAGs", 30)
    yield
    with create_session() as session:
        session.execute(delete(TaskOutletAssetReference).where(TaskOutletAssetReference.dag_id == "plan_report"))
        session.execute(delete(DagScheduleAssetReference).where(DagScheduleAssetReference.dag_id.in_(DAGS)))
        session.execute(delete(DagScheduleAssetAliasReference).where(DagScheduleAssetAliasReference.dag_id.in_(DAGS)))
        found = session.scalars(select(AssetAliasModel).where(AssetAliasModel.name == "plan_alias")).one()
        found.assets.clear()
        session.flush()
        session.delete(found)
        session.execute(delete(AssetModel).where(AssetModel.uri.in_(uris)))
        session.execute(delete(DagModel).where(DagModel.dag_id.in_(added)))
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == "plan"))


def forms(page: str) -> list[dict[str, Any]]:
    return [json.loads(html.unescape(text)) for text in re.findall(r'<pre id="form-\d+">(.*?)</pre>', page, re.DOTALL)]


@pytest.mark.usefixtures("table", "dags")
def test_the_plan_names_what_is_touched_and_fills_the_forms(get: Get) -> None:
    sql = "UPDATE branch SET v = 1 WHERE dt = '1' AND k > 5"
    answer = get(plan_url(sql=sql))
    assert answer.status_code == 200
    shown = texts(answer.text)
    assert "Replaces at most 1 file" in shown and "1,200 stored rows, in dt=1" in shown
    assert "Conflict: branch rival changes dt=1" in shown
    assert '<li class="conflict">Conflict: branch rival' in answer.text
    assert "plan_report DAG scheduled on its asset plans.daily" in shown
    assert "plan_alias DAG scheduled on an alias of its asset; paused" in shown
    assert "plans.made table replayed as raw, from snapshot 1 on plans.made" in shown
    assert "plan_stale" not in shown and "elsewhere" not in shown
    correct, pipeline = forms(answer.text)
    assert correct == {"table": "plans.t", "paimon_conn_id": "lake", "sql": sql}
    assert [one["table"] for one in pipeline["tables"]] == ["plans.t", "plans.made", "plans.daily"]
    assert pipeline["tables"][0]["correct"] == sql and pipeline["tables"][1]["sources"] == ["t=plans.t"]
    assert pipeline["paimon_conn_id"] == "lake"
    (partitions, *_) = forms(get(plan_url(partitions="dt=1\ndt=O'Hara")).text)
    assert partitions["sql"] == "SELECT * FROM branch WHERE (`dt` = '1') OR (`dt` = 'O\\'Hara')"
    assert partitions["partitions"] == ["dt=1", "dt=O'Hara"], "an UPDATE would not take them"
    (statement, *_) = forms(get(plan_url(sql=sql, partitions="dt=1", mode="upsert")).text)
    assert statement == correct, "both are for a SELECT"


@pytest.mark.usefixtures("table", "dags")
def test_dags_that_the_user_may_not_read_are_not_named(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.plugin.auth.may_read_dag", lambda user, dag_id: dag_id != "plan_report")
    page = get(plan_url()).text
    assert "plan_alias" in page and "plan_report" not in page and "plans.daily" not in page
    assert [one["table"] for one in forms(page)[1]["tables"]] == ["plans.t", "plans.made"]


@pytest.mark.usefixtures("table", "dags")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"sql": "UPDATE branch SET v = 1 WHERE kk > 5"}, "branch has no column kk (did you mean k?)"),
        ({"sql": "DROP TABLE branch"}, "SQL starts with 'DROP'"),
        ({"sql": "SELECT * FROM branch"}, "name the partitions to overwrite in Partitions"),
        ({"partitions": "day=1"}, "'day' is not a partition column"),
        ({"sql": "<script>alert(1)</script>"}, "SQL starts with '<'"),
    ],
)
def test_what_can_not_be_planned_is_said_above_the_forms(get: Get, asked: dict[str, str], says: str) -> None:
    answer = get(plan_url(**asked))
    assert answer.status_code == 200 and says in texts(answer.text)
    assert "What it will touch" not in answer.text and "check_table" not in answer.text
    assert "<script>alert" not in answer.text
    assert len(forms(answer.text)) == 2


@pytest.mark.usefixtures("table")
def test_partitions_alone_mean_all_their_rows(get: Get) -> None:
    shown = texts(get(plan_url(partitions="dt=2\n")).text)
    assert "Replaces 1 file" in shown and "in dt=2" in shown


@pytest.mark.usefixtures("table")
def test_bounds_and_links(get: Get) -> None:
    assert get(plan_url(sql="x" * 10_001)).status_code == 422
    assert get(plan_url(mode="append")).status_code == 422
    page = get(plan_url(sql="DELETE FROM branch WHERE k = 1")).text
    assert 'href="?tab=history"' in page, "the other tabs don't carry the SQL along"
    address = plan_page_url("lake", "plans.t", {"sql": "a b", "mode": ""}, base_url="https://air/")
    assert address == "https://air/paimon/lake/plans/t?tab=plan&sql=a+b"


@pytest.mark.usefixtures("table")
def test_a_backend_of_lineage_that_does_not_answer_is_named(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.settings.LINEAGE_CONN_ID", "no_backend")
    address = plan_url().replace("/plans/t?", "/plans/made?")
    said = "OpenLineage at no_backend could not be asked: there is no Airflow connection 'no_backend'."
    wait_until(lambda: said in texts(get(address).text), "the page says it", 30)
