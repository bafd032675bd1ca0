"""Table sets as DAGs make and await them: by an operator, by the publish and the undo of a pipeline; no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from airflow_paimon import open_table_set
from airflow_paimon.core.table.table import Table
from airflow_paimon.operators._base import PaimonOperator
from airflow_paimon.operators.pipeline import PublishTablesOperator, UndoTablesOperator
from airflow_paimon.operators.table_set import CreateTableSetOperator
from airflow_paimon.sensors.table_set import TableSetSensor
from tests.airflow.conftest import Run, RunDag, clear_and_run_again
from tests.airflow.processes import later
from tests.core.tables import append, make_table, rewrite, run

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

_NUMBERS = count()
NAMES = ("d.up", "d.down", "d.other")
TABLES = [{"table": name, "branch": "fix"} for name in NAMES[:2]]
RETRY: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


@pytest.fixture
def mains(warehouse: Path) -> dict[str, Table]:
    """Three tables in version 1 of set ``nightly``, two of which have a branch ``fix`` with other rows."""
    tables = {name: make_table(warehouse, name) for name in NAMES}
    for name, main in tables.items():
        append(main, "1")
        if name != "d.other":
            run(main, "create_branch", branch="fix", snapshot=1)
            rewrite(main.branch("fix"), "1")
    run(tables["d.up"], "create_table_set", table_set="nightly", member=list(NAMES[1:]))
    return tables


def dag_of(operator: Any, **arguments: Any) -> DAG:
    with DAG(f"sets_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        operator(task_id="t", **arguments)
    return dag


def publish(run_dag: RunDag, **more: Any) -> Run:
    arguments = {"tables": TABLES, "table_set": "{{ 'nightly' }}", **RETRY, **more}
    return run_dag(dag_of(PublishTablesOperator, **arguments))


def pins(warehouse: Path, version: int | None = None) -> dict[str, int]:
    found = open_table_set(str(warehouse), "nightly", version)
    return {name: found[name].snapshot_id for name in found}


FIRST = dict.fromkeys(NAMES, 1)
PUBLISHED = {"d.up": 2, "d.down": 2, "d.other": 1}


def test_an_operator_makes_a_version(warehouse: Path, mains: dict[str, Table], run_dag: RunDag) -> None:
    append(mains["d.up"], "2")
    done = run_dag(
        dag_of(
            CreateTableSetOperator,
            table_set="nightly",
            tables="{{ ['d.up', 'd.down@1'] }}",
            retention="{{ '1 d' }}",
            outlets=[Asset("paimon-sets://nightly")],
        )
    )
    assert done.state == "success"
    made = done.xcom("t")["details"]
    assert (made["version"], made["tables"]) == ("set:nightly@2", {"d.up": 2, "d.down": 1})
    assert [extra["details"]["number"] for _, extra in done.asset_events] == [2], "downstream DAGs get the version"
    assert pins(warehouse) == made["tables"]
    assert run_dag(dag_of(CreateTableSetOperator, table_set="nightly", tables=[])).state == "failed"


def test_a_publish_and_its_undo_are_versions_of_the_set(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag
) -> None:
    append(mains["d.other"], "2")
    done = publish(run_dag)
    assert done.state == "success"
    results = done.xcom("t")
    assert results[0]["details"]["table_set"]["version"] == "set:nightly@2"
    assert pins(warehouse) == PUBLISHED, "a table that was not published stays as the version before has it"
    append(mains["d.up"], "2")
    undo = [{"table": one["table"], "tag": one["details"]["undo_tag"]} for one in reversed(results)]
    undone = run_dag(dag_of(UndoTablesOperator, tables=undo, keep_later=True, **RETRY))
    assert undone.state == "success"
    assert undone.xcom("t")[0]["details"]["table_set"]["version"] == "set:nightly@3"
    assert pins(warehouse) == {"d.up": 4, "d.down": 3, "d.other": 1}
    assert pins(warehouse, 2) == PUBLISHED


def test_an_undo_that_began_goes_on_though_its_set_has_lost_a_snapshot(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_and_die() -> None:
        lose_a_snapshot(mains["d.other"])
        killed()

    undo = [{"table": one["table"], "tag": one["details"]["undo_tag"]} for one in reversed(publish(run_dag).xcom("t"))]
    before_each(monkeypatch, "d.up", lose_and_die)
    run_dag(dag_of(UndoTablesOperator, tables=undo, keep_later=True, **RETRY))
    assert [mains[name].latest_snapshot_id() for name in NAMES[:2]] == [3, 3]


def test_a_publish_without_a_set_makes_no_version(warehouse: Path, mains: dict[str, Table], run_dag: RunDag) -> None:
    done = publish(run_dag, table_set=None)
    undo = [{"table": one["table"], "tag": one["details"]["undo_tag"]} for one in reversed(done.xcom("t"))]
    assert run_dag(dag_of(UndoTablesOperator, tables=undo, keep_later=True)).state == "success"
    assert pins(warehouse) == FIRST
    assert "table_set" not in done.xcom("t")[0]["details"]


def before_each(monkeypatch: pytest.MonkeyPatch, table: str, act: Any) -> None:
    """Act before the first publish of a table."""
    original, acted = PaimonOperator._perform, []

    def patched(operator: PaimonOperator, context: Any) -> dict[str, Any]:
        if operator.table == table and not acted:
            acted.append(True)
            act()
        return original(operator, context)

    monkeypatch.setattr(PaimonOperator, "_perform", patched)


def lose_a_snapshot(table: Table) -> None:
    """Lose the snapshot 1 that the versions of the set have."""
    append(table, "1")
    for tag in table.tag_names():
        run(table, "delete_tag", tag=tag)
    table.store.delete(table.paths.snapshot(1))


def killed() -> None:
    raise RuntimeError("the worker was lost")


def test_a_killed_publish_is_finished_by_its_retry(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look_and_die() -> None:
        seen.append(pins(warehouse))
        killed()

    before_each(monkeypatch, "d.down", look_and_die)
    assert publish(run_dag).tasks == {"t": ("success", 2)}
    assert seen == [FIRST], "the first table was published, and the set had none of it"
    assert pins(warehouse) == PUBLISHED
    assert open_table_set(str(warehouse), "nightly").number == 2


def test_a_publish_that_is_taken_back_leaves_the_set(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_each(monkeypatch, "d.down", lambda: append(mains["d.down"], "1"))
    assert publish(run_dag).tasks == {"t": ("failed", 1)}
    assert pins(warehouse) == FIRST


def test_a_publish_that_was_killed_for_good_ends_when_it_is_cleared(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_each(monkeypatch, "d.down", killed)
    dag = dag_of(PublishTablesOperator, tables=TABLES, table_set="nightly", retries=0)
    done = run_dag(dag)
    assert done.state == "failed"
    assert clear_and_run_again(dag, done).tasks["t"][0] == "success"
    assert {name: at for name, at in pins(warehouse).items() if name != "d.other"} == {"d.up": 2, "d.down": 2}


def test_nothing_is_published_if_the_set_has_lost_a_snapshot(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag
) -> None:
    lose_a_snapshot(mains["d.other"])
    done = publish(run_dag)
    assert done.tasks == {"t": ("failed", 1)}
    assert "Nothing was published" in done.xcom("t", "paimon_error")["message"]
    assert mains["d.up"].latest_snapshot_id() == 1


@pytest.mark.every(2)
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_waits_for_a_later_version(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, deferrable: bool
) -> None:
    dag = dag_of(TableSetSensor, table_set="{{ 'nightly' }}", after="set:nightly@1", tables=["d.down"],
                 poke_interval=0.2, timeout=600, deferrable=deferrable)  # fmt: skip
    action = lambda: run(mains["d.up"], "create_table_set", table_set="nightly", member=["d.down"])  # noqa: E731
    with later(2, action):
        done = run_dag(dag)
    assert done.state == "success"
    assert (done.xcom("t")["version"], done.xcom("t")["tables"]) == ("set:nightly@2", {"d.up": 1, "d.down": 1})


@pytest.mark.every(3)
@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    "wrong", [{"after": "x"}, {"after": "{{ '' }}"}, {"table_set": "a/b"}, {"since": "2026-01-01T00:00:00"}]
)
def test_what_will_never_come_true_fails_at_once(
    warehouse: Path, mains: dict[str, Table], run_dag: RunDag, wrong: dict[str, Any], deferrable: bool
) -> None:
    arguments = {"table_set": "nightly", "poke_interval": 0.2, "timeout": 600, "deferrable": deferrable, **wrong}
    assert run_dag(dag_of(TableSetSensor, **arguments)).tasks == {"t": ("failed", 1)}
