"""Publishing several tables: all of them or none, also when a try ends in between; no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.operators._base import PaimonOperator
from airflow_paimon.operators.branch import DiffBranchesOperator, MergeBranchOperator
from airflow_paimon.operators.pipeline import (
    COMMITTED_KEY,
    PublishTablesOperator,
    ReplayTablesOperator,
    UndoTablesOperator,
)
from tests.airflow.conftest import Run, RunDag, clear_and_run_again
from tests.core.tables import append, files, make_table, rewrite, run

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

_NUMBERS = count()
TABLES = [{"table": name, "branch": "fix"} for name in ("d.up", "d.down")]


BY_BUCKET = {"sequence.snapshot-ordering": "true", "write-only": "true"}
"""Tables that are not merged by key: a bucket that both sides changed is a conflict, as plans say already."""


@pytest.fixture
def mains(warehouse: Path) -> tuple[Table, Table]:
    """Two tables of a partition each, which a branch ``fix`` of each has written again."""
    up, down = (make_table(warehouse, name, **BY_BUCKET) for name in ("d.up", "d.down"))
    for main in (up, down):
        append(main, "1")
        run(main, "create_branch", branch="fix", snapshot=1)
        rewrite(main.branch("fix"), "1")
    return up, down


@pytest.mark.parametrize("cls", [PublishTablesOperator, ReplayTablesOperator, UndoTablesOperator])
def test_each_table_has_an_operator_of_its_own(cls: Any) -> None:
    """No argument of a table, and nothing that its run leaves in its operator, is there for the next one."""
    names = set(cls.template_fields) - {"tables"}
    given = {name: f"a-{name}" for name in names}
    whole = cls(task_id="t", tables=[given, {"table": "d.down"}, given])
    defaults = {name: getattr(whole, name) for name in names}
    assert all(defaults[name] != given[name] for name in names)
    before = dict(vars(whole))
    first, second, third = whole._each()
    for name in ("_result", "_error", "_spark_hook", "spark_url", *names):
        setattr(first, name, "left over")
    assert {name: getattr(second, name) for name in names} == defaults | {"table": "d.down"}
    assert {name: getattr(third, name) for name in names} == given
    for one in (second, third, whole):
        assert "left over" not in vars(one).values()
    assert vars(whole) == before
    assert {name: getattr(second._each()[1], name) for name in names} == defaults | {"table": "d.down"}


def publish(run_dag: RunDag, *, undo: list[dict[str, Any]] | None = None) -> Run:
    with DAG(f"publish_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        retries: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}
        if undo is None:
            PublishTablesOperator(task_id="t", tables=TABLES, **retries)
        else:
            UndoTablesOperator(task_id="t", tables=undo, keep_later=True, **retries)
    return run_dag(dag)


def around(
    monkeypatch: pytest.MonkeyPatch, cls: type, name: str, table: str, act: Callable[[], object], *, after: bool = False
) -> None:
    """Act once, before or after a method does its work for a table."""
    original, acted = getattr(cls, name), []

    def patched(operator: Any, *arguments: Any) -> Any:
        mine = operator.table == table and not acted
        acted.extend([True] * mine)
        if mine and not after:
            act()
        result = original(operator, *arguments)
        if mine and after:
            act()
        return result

    monkeypatch.setattr(cls, name, patched)


def after_first(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, act: Callable[[], object]) -> None:
    """Act once, as soon as a method has done its work for ``d.up``."""
    around(monkeypatch, cls, name, "d.up", act, after=True)


def killed() -> None:
    raise RuntimeError("the worker was lost")


def operations(*tables: Table) -> list[list[str]]:
    return [[p.operation for p in undoable_publishes(table)] for table in tables]


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


def test_a_conflict_that_a_retry_would_meet_again_fails_the_task_at_once(
    mains: tuple[Table, Table], run_dag: RunDag
) -> None:
    with DAG("outdated", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        MergeBranchOperator(task_id="t", table="d.up", branch="fix", expected_branch_snapshot=1, retries=3)
    assert run_dag(dag).tasks == {"t": ("failed", 1)}


class Compared(DiffBranchesOperator):
    """Returns what a comparison of placeholder files might have returned."""

    def execute(self, context: Any) -> Any:
        """Without Spark."""
        changed = {"d.up": 3, "d.down": 4}[self.table]
        total = {"added": 0, "changed": changed, "deleted": 0, "unchanged": 0, "unchanged_exact": True}
        details = {"branch": self.branch, "branch_snapshot": 2, "total": total, "partitions": []}
        return {"operation": "diff_branches", "table": self.table, "details": details}


def test_each_table_is_recorded_with_its_own_mapped_diff(mains: tuple[Table, Table], run_dag: RunDag) -> None:
    with DAG("published_with_diffs", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        other = Compared(task_id="of_another_branch", table="d.up", branch="other")
        mapped = Compared.partial(task_id="diff").expand_kwargs([dict(one) for one in TABLES])
        [other, mapped] >> PublishTablesOperator(task_id="t", tables=TABLES)
    assert run_dag(dag).state == "success"
    assert [read_audit(main)[0].diff["total"]["changed"] for main in mains] == [3, 4]


def test_a_diff_can_be_given_and_one_of_an_older_snapshot_stops_nothing(
    mains: tuple[Table, Table], run_dag: RunDag
) -> None:
    up, down = mains
    rewrite(down.branch("fix"), "1")
    with DAG("published_with_given", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        diff = Compared(task_id="compare", table="d.down", branch="fix")
        given = json.dumps(Compared(task_id="not_upstream", table="d.up", branch="fix").execute(None))
        diff >> MergeBranchOperator(task_id="down", table="d.down", branch="fix")
        MergeBranchOperator(task_id="up", table="d.up", branch="fix", diff=given)
    done = run_dag(dag)
    assert done.state == "success"
    assert read_audit(up)[0].diff["total"]["changed"] == 3
    assert read_audit(down)[0].diff == {}
    assert "it compared snapshot 2 of the branch, not 3" in str(done.xcom("down")["details"]["warnings"])


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


def test_what_landed_before_a_table_failed_is_reported(mains: tuple[Table, Table], run_dag: RunDag) -> None:
    results = publish(run_dag).xcom("t")
    undo = [{"table": one["table"], "tag": one["details"]["undo_tag"]} for one in reversed(results)]
    done = publish(run_dag, undo=[undo[0], undo[1] | {"tag": "nowhere"}])
    assert done.state == "failed"
    assert done.xcom("t", COMMITTED_KEY) == [{"table": undo[0]["table"], "snapshot": 3}]


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
    assert "an earlier attempt of this task was undone" in done.xcom("t", "paimon_error")["message"]
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


# -- three tables, of which the last one is refused: two undos

ABC = ("d.a", "d.b", "d.c")
UNDONE = ["merge_branch", "rollback_to"]


@pytest.fixture
def three(warehouse: Path) -> list[Table]:
    """As ``mains``, with three tables."""
    tables = [make_table(warehouse, name, **BY_BUCKET) for name in ABC]
    for main in tables:
        append(main, "1")
        run(main, "create_branch", branch="fix", snapshot=1)
        rewrite(main.branch("fix"), "1")
    return tables


def publish_three(retries: int = 1) -> DAG:
    """Publish what was approved, as the DAG does."""
    tables = [{"table": t, "branch": "fix", "expected_branch_snapshot": 2, "approved_main_snapshot": 1} for t in ABC]
    with DAG(f"publish_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        PublishTablesOperator(task_id="t", tables=tables, retries=retries, retry_delay=timedelta(0))
    return dag


def refuse_the_last(monkeypatch: pytest.MonkeyPatch, three: list[Table]) -> None:
    """Let main of the third table change as soon as the second one is published."""
    around(monkeypatch, PaimonOperator, "_perform", "d.b", lambda: append(three[2], "1"), after=True)


def unreachable() -> None:
    raise StorageError("the storage can't be reached")


def said(done: Run) -> str:
    return str(done.xcom("t", "paimon_error")["message"])


def test_a_retry_undoes_the_tables_that_the_first_try_did_not(
    three: list[Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(three[0])
    refuse_the_last(monkeypatch, three)
    around(monkeypatch, PublishTablesOperator, "_undo", "d.a", killed)
    done = run_dag(publish_three())
    assert done.tasks == {"t": ("failed", 2)}
    assert operations(*three) == [UNDONE, UNDONE, []]
    assert files(three[0]) == before
    assert "an earlier attempt of this task was undone" in said(done)
    assert "d.a was published as snapshot 2 and undone by snapshot 3" in said(done)


def test_an_undo_that_the_storage_failed_is_made_by_the_retry(
    three: list[Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the last table: the others are undone, and none of them is undone twice."""
    refuse_the_last(monkeypatch, three)
    around(monkeypatch, PublishTablesOperator, "_undo", "d.b", unreachable)
    done = run_dag(publish_three())
    assert done.tasks == {"t": ("failed", 2)}
    assert operations(*three) == [UNDONE, UNDONE, []]
    assert "STAYS PUBLISHED" not in said(done)


def test_clear_takes_back_what_the_last_try_left_published(
    three: list[Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_the_last(monkeypatch, three)
    around(monkeypatch, PublishTablesOperator, "_undo", "d.a", unreachable)
    dag = publish_three(retries=0)
    done = run_dag(dag)
    assert operations(*three) == [["merge_branch"], UNDONE, []]
    assert "d.a STAYS PUBLISHED as snapshot 2, as its undo failed: the storage can't be reached" in said(done)
    again = clear_and_run_again(dag, done)
    assert again.tasks["t"][0] == "failed"
    assert operations(*three) == [UNDONE, UNDONE, []]
    assert "d.c was not published" in said(again)
    assert "d.a was published as snapshot 2 and undone by snapshot 3" in said(again)


def test_a_refusal_after_clear_undoes_what_was_published_before_it_as_well(
    three: list[Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch, PaimonOperator, "_perform", "d.b", killed)
    dag = publish_three(retries=0)
    done = run_dag(dag)
    assert operations(*three) == [["merge_branch"], [], []]
    refuse_the_last(monkeypatch, three)
    assert clear_and_run_again(dag, done).tasks["t"][0] == "failed"
    assert operations(*three) == [UNDONE, UNDONE, []]

    run(three[2], "rollback_to", snapshot=1)
    assert clear_and_run_again(dag, done).tasks["t"][0] == "success"
    assert [files(main) for main in three] == [files(main.branch("fix")) for main in three]


def test_clear_publishes_the_rest_and_leaves_a_complete_publish_alone(
    three: list[Table], run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch, PaimonOperator, "_perform", "d.b", killed)
    dag = publish_three(retries=0)
    again = clear_and_run_again(dag, run_dag(dag))
    assert again.tasks["t"][0] == "success"
    assert operations(*three) == [["merge_branch"]] * 3

    rewrite(three[1].branch("fix"), "1")
    assert clear_and_run_again(dag, again).tasks["t"][0] == "failed", "the branch is not what was approved"
    run(three[1], "delete_branch", branch="fix")
    assert clear_and_run_again(dag, again).tasks["t"][0] == "failed"
    assert operations(*three) == [["merge_branch"]] * 3
