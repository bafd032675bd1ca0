"""dags/row_erasure.py on a real table, by a real Airflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.runbooks import erasure as runbook
from tests.core.tables import run as operate
from tests.dags.conftest import TABLE, form_of, load_dag, make_orders, run_dag
from tests.data.erasure.tables import holding

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

DAG = "row_erasure"
CONF = {
    "table": TABLE, "where": "note = 'order 9'", "reason": "ticket 17", "expire_tags": True, "expire_history": True,
    "approval": False, "grace": "0 s", "writers_stopped": True,
}  # fmt: skip


def form(**conf: Any) -> dict[str, Any]:
    return form_of(DAG) | CONF | conf


def rows(table: Table) -> list[Any]:
    return sorted(read_arrow(table).to_pylist(), key=str)


def test_rows_are_erased_and_the_certificate_proves_it(warehouse: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = make_orders(str(warehouse))
    operate(table, "create_tag", tag="month")
    kept = [row for row in rows(table) if row["note"] != "order 9"]
    run = run_dag(DAG, CONF)
    assert run.state == "success", run.tasks
    assert rows(table) == kept and holding(table, "note", "order 9") == {} and table.tag_names() == []
    made = run.xcom("certificate")
    assert made["complete"] and made["subject"] == f"4 rows of {TABLE} erased: no stored file contains them any more"
    assert (made["record"]["proven"], made["record"]["reason"]) == (True, "ticket 17")
    assert "**No stored file has such a row.**" in made["markdown"] and "## Not checked" in made["markdown"]
    said = json.dumps([run.xcom(task) for task in run.tasks], default=str)
    private = "".join(table.store.read(p).decode() for p in table.store.walk("_airflow_paimon"))
    assert "order 9" not in said + private, "the condition's value is said somewhere"
    assert any(p.startswith("_airflow_paimon/erasures/") for p in table.store.walk("_airflow_paimon"))


def test_a_legal_hold_is_named_to_whoever_asks(warehouse: Path) -> None:
    table = make_orders(str(warehouse))
    operate(table, "create_tag", tag="case", hold="case 17", held_by="legal")
    planned, checked = runbook.plan_erasure(form()), runbook.check_erasure(form())
    with pytest.raises(UnsafeOperationError, match="tag case of main: case 17, set by legal"):
        runbook.describe_plan(form(), checked, planned, "ann")


def test_the_approver_sees_what_ends_what_stays_and_what_will_conflict(warehouse: Path) -> None:
    table = make_orders(str(warehouse))
    operate(table, "create_tag", tag="month")
    operate(table, "create_branch", branch="fix", tag="month")
    params = form(expire_history=False)
    said = runbook.describe_plan(params, runbook.check_erasure(params), runbook.plan_erasure(params), "ann")
    text = said["markdown"].replace("\\", "")
    assert said["subject"] == f"Erase 4 stored rows of {TABLE} for good?"
    parts = ("Requested by: ann", "tag month of main", "protective tag", "merge_branch --branch fix", "values: note = ")
    for part in parts:
        assert part in text, part
    assert "order 9" not in text


def test_what_was_not_approved_is_not_ended(warehouse: Path) -> None:
    table = make_orders(str(warehouse))
    planned = runbook.plan_erasure(form())
    runbook.check_approved(form(), planned)
    operate(table, "create_tag", tag="later")
    with pytest.raises(ConflictError, match=r"since it was approved, tags have come .*: later of main"):
        runbook.check_approved(form(), planned)


@pytest.mark.parametrize(
    ("kinds", "unreached", "minutes"),
    [([], 0, None), (["tag"], 0, None), (["trash"], 0, 61), (["trash"], 2, 1441), ([], 2, 1441)],
)
def test_it_waits_for_what_waiting_helps(kinds: list[str], unreached: int, minutes: int | None) -> None:
    result = {
        "duration_s": 0,
        "details": {
            "time": "2026-01-01T00:00:00+00:00",
            "references": [{"kind": kind} for kind in kinds],
            "files": {"unreached": unreached},
        },
    }
    until = runbook.due({"grace": "1 h", "orphans_older_than": "1 d"}, result)
    assert (until and (until.timestamp() - 1_767_225_600) / 60) == minutes


def test_a_table_with_four_eyes_and_required_checks_is_not_erased_from_unasked(warehouse: Path) -> None:
    """The form says to ask nobody, the table says otherwise: it is refused before anything is changed."""
    table = make_orders(str(warehouse))
    kept = rows(table)
    operate(table, "alter_table", change=['set airflow-paimon.required-checks=[{"not_null": "note"}]'])
    with pytest.raises(UnsafeOperationError, match=r"requires checks .*nothing was erased"):
        runbook.check_erasure(form())
    params = form(skip_checks=True)
    told = runbook.describe_plan(params, runbook.check_erasure(params), runbook.plan_erasure(params), "ann")
    assert "**Required checks are skipped**" in told["markdown"]
    operate(table, "alter_table", change=["set airflow-paimon.four-eyes=true"])
    run = run_dag(DAG, {**CONF, "skip_checks": True})
    assert run.state == "failed" and rows(table) == kept
    assert "The four-eyes rule needs an approval" in str(run.xcom("check_params", "paimon_error"))


def test_nothing_is_erased_before_the_approval() -> None:
    dag = load_dag(DAG)
    assert dag.get_task("check_plan").upstream_task_ids == {"approve"}
    assert dag.get_task("erase").upstream_task_ids == {"check_plan"}
    assert dag.get_task("approve").downstream_task_ids >= {"check_plan", "rejected"}
