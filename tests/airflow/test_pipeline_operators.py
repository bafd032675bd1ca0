"""Publishing several tables: all of them or none, also when a try ends in between; no Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_paimon.core.branches.published import publishes
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.operators._base import PaimonOperator
from airflow_paimon.operators.pipeline import PublishTablesOperator, UndoTablesOperator
from tests.airflow.conftest import Run, RunDag
from tests.core.tables import append, files, make_table, rewrite, run

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

_NUMBERS = count()
TABLES = [{"table": name, "branch": "fix"} for name in ("d.up", "d.down")]


@pytest.fixture
def mains(warehouse: Path) -> tuple[Table, Table]:
    """Two tables of a partition each, which a branch ``fix`` of each has written again."""
    up, down = (make_table(warehouse, name) for name in ("d.up", "d.down"))
    for main in (up, down):
        append(main, "1")
        run(main, "create_branch", branch="fix", snapshot=1)
        rewrite(main.branch("fix"), "1")
    return up, down


def publish(run_dag: RunDag, *, undo: list[dict[str, Any]] | None = None) -> Run:
    with DAG(f"publish_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        retries: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}
        if undo is None:
            PublishTablesOperator(task_id="t", tables=TABLES, **retries)
        else:
            UndoTablesOperator(task_id="t", tables=undo, keep_later=True, **retries)
    return run_dag(dag)


def after_first(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, act: Callable[[], None]) -> None:
    """Act once, as soon as a method has done its work for ``d.up``."""
    original, acted = getattr(cls, name), []

    def patched(operator: Any, *arguments: Any) -> Any:
        result = original(operator, *arguments)
        if not acted and operator.table == "d.up":
            acted.append(True)
            act()
        return result

    monkeypatch.setattr(cls, name, patched)


def killed() -> None:
    raise RuntimeError("the worker was lost")


def operations(*tables: Table) -> list[list[str]]:
    return [[p.operation for p in publishes(table)] for table in tables]


def test_all_are_published_and_undone_the_last_one_first(mains: tuple[Table, Table], run_dag: RunDag) -> None:
    before, branches = [files(main) for main in mains], [files(main.branch("fix")) for main in mains]
    done = publish(run_dag)
    assert done.tasks == {"t": ("success", 1)}
    assert [files(main) for main in mains] == branches
    assert [uri.rpartition("/")[2] for uri, _ in done.asset_events] == ["up", "down"]
    results = done.xcom("t")
    undo = [{"table": one["table"], "tag": one["details"]["undo_tag"]} for one in reversed(results)]
    assert publish(run_dag, undo=undo).state == "success"
    assert [files(main) for main in mains] == before


def test_nothing_is_published_if_one_is_refused_from_the_start(mains: tuple[Table, Table], run_dag: RunDag) -> None:
    append(mains[1], "1")
    before = [files(main) for main in mains]
    assert publish(run_dag).state == "failed"
    assert [files(main) for main in mains] == before
    assert operations(*mains) == [[], []]


def test_a_retry_goes_on_where_a_killed_try_stopped(
    mains: tuple[Table, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_first(monkeypatch, PaimonOperator, "_perform", killed)
    assert publish(run_dag).tasks == {"t": ("success", 2)}
    assert operations(*mains) == [["merge_branch"], ["merge_branch"]]


def test_a_retry_takes_back_what_a_killed_try_has_published(
    mains: tuple[Table, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(mains[0])

    def meet() -> None:
        append(mains[1], "1")
        killed()

    after_first(monkeypatch, PaimonOperator, "_perform", meet)
    done = publish(run_dag)
    assert done.tasks == {"t": ("failed", 2)}
    assert files(mains[0]) == before
    assert operations(*mains) == [["merge_branch", "rollback_to"], []]
    said = done.xcom("t", "paimon_error")["message"]
    assert "d.down was not published" in said
    assert "d.up was published as snapshot 2 and undone by snapshot 3" in said


def test_the_undo_of_new_keys_takes_the_publishs_word_that_writers_are_stopped(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = create_dynamic(warehouse, "d.up")
    down = make_table(warehouse, "d.down")
    append(down, "1")
    run(down, "create_branch", branch="fix", snapshot=1)
    rewrite(down.branch("fix"), "1")
    after_first(monkeypatch, PaimonOperator, "_perform", lambda: append(down, "1") and None)
    with DAG(f"publish_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        PublishTablesOperator(task_id="t", tables=TABLES, writers_stopped="{{ 1 == 1 }}", retries=0)
    done = run_dag(dag)
    assert operations(up, down) == [["merge_branch", "rollback_to"], []]
    assert "d.up was published as snapshot 2 and undone by snapshot 3" in done.xcom("t", "paimon_error")["message"]


def create_dynamic(warehouse: Path, name: str) -> Table:
    """A table with dynamic buckets, whose branch ``fix`` has a key more."""
    table = create_table(str(warehouse), name, [("k", "BIGINT NOT NULL")], primary_keys=["k"], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": [1]}))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), pa.table({"k": [2]}))
    return table


def test_a_retry_publishes_nothing_after_an_undo_whose_try_was_killed(
    mains: tuple[Table, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first table would count as published, and the last one would be published alone."""
    before = files(mains[0])
    after_first(monkeypatch, PaimonOperator, "_perform", lambda: append(mains[1], "1") and None)
    after_first(monkeypatch, PublishTablesOperator, "_undo", killed)
    done = publish(run_dag)
    assert done.tasks == {"t": ("failed", 2)}
    assert "an earlier try of this task was undone" in done.xcom("t", "paimon_error")["message"]
    assert files(mains[0]) == before
    assert operations(*mains) == [["merge_branch", "rollback_to"], []]


def test_an_undo_that_is_refused_is_said(
    mains: tuple[Table, Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet() -> None:
        append(mains[0], "1")
        append(mains[1], "1")

    after_first(monkeypatch, PaimonOperator, "_perform", meet)
    done = publish(run_dag)
    assert done.tasks == {"t": ("failed", 1)}
    assert "d.up STAYS PUBLISHED as snapshot 2" in done.xcom("t", "paimon_error")["message"]
    assert operations(*mains) == [["merge_branch"], []]
