"""Operators as DAG authors write them, run by a real Airflow on real tables, here in the worker."""

import inspect
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator

from airflow_paimon.arguments import as_list
from airflow_paimon.assets import paimon_asset
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.table.table import open_table
from airflow_paimon.operators import _dry_run, audit, check, erasure, maintenance, replay, table_set
from airflow_paimon.operators import branch as branch_operators
from airflow_paimon.operators import chain as chain_operators
from airflow_paimon.operators._base import PaimonOperator
from airflow_paimon.operators._dry_run import shortened
from airflow_paimon.operators.branch import (
    CorrectBranchOperator,
    CreateBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    DeleteTagOperator,
    DiffBranchesOperator,
    FastForwardOperator,
    MergeBranchOperator,
    RenameBranchOperator,
    ReplaceMainOperator,
    RollbackOperator,
)
from airflow_paimon.operators.chain import (
    AlterChainTableOperator,
    CheckChainTableOperator,
    CreateChainTableOperator,
)
from airflow_paimon.operators.maintenance import CheckTableOperator, RepairTableOperator
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import append, make_table, message, names, rewrite, run

pytestmark = pytest.mark.airflow

OPERATORS: dict[str, type[PaimonOperator]] = {
    cls.operation: cls
    for module in (audit, branch_operators, chain_operators, check, erasure, maintenance, replay, table_set)
    for cls in (getattr(module, name) for name in module.__all__)
}


def dag(name: str, build: Callable[[], Any], **defaults: Any) -> DAG:
    arguments = {"table": "d.t", **defaults}
    with DAG(
        f"test_{name}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), default_args=arguments
    ) as made:
        build()
    return made


# -- the signatures, without running anything ----------------------------------------------------------------------


def test_every_operation_has_an_operator() -> None:
    assert set(OPERATORS) == set(OPERATIONS)


def _arguments(cls: type[PaimonOperator]) -> dict[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if base is BaseOperator:
            break
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(name, parameter)
    return found


def test_arguments_are_kept_as_they_are_given() -> None:
    named: dict[str, Any] = {"branch": "b", "against": "main", "sample": "{{ params.rows }}"}
    operator = DiffBranchesOperator(task_id="t", table="d.t", dry_run=True, **named)
    kept = {**named, "partitions": (), "mask": (), "dry_run": True, "table": "d.t"}
    assert {name: getattr(operator, name) for name in kept} == kept


def test_every_argument_is_templated_and_shadows_nothing_of_airflows() -> None:
    for cls in OPERATORS.values():
        assert set(cls.template_fields) == set(_arguments(cls)) - HOW_IT_WAITS - TASK_IDS, cls
        shadowed = {name for name in cls.template_fields if hasattr(BaseOperator, name)}
        assert shadowed == {"dry_run"}, cls  # a method that Airflow 3 never calls


HOW_IT_WAITS = {"deferrable", "poll_interval"}
"""Not templated, as with every operator of Airflow's."""
TASK_IDS = {"approval_task_id"}
"""Names of tasks upstream, which a DAG spells out."""


def test_unknown_and_impossible_arguments_are_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(TypeError, match="brunch"):
        CreateBranchOperator(task_id="t", table="d.t", branch="b", brunch="c")
    with pytest.raises(TypeError, match="tags"):  # main gets them in any case
        ReplaceMainOperator(task_id="t", table="d.t", branch="b", tags=True)
    with pytest.raises(InvalidInputError, match="run_on"):
        CreateBranchOperator(task_id="t", table="d.t", branch="b", run_on="cluster")
    with pytest.raises(InvalidInputError, match="needs Spark"):
        DiffBranchesOperator(task_id="t", table="d.t", branch="b", run_on="worker")
    with pytest.raises(InvalidInputError, match="one of the two"):
        CorrectBranchOperator(task_id="t", table="d.t", branch="b")


def test_only_what_may_touch_rows_is_submitted(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    without_spark: dict[str, Any] = {"table": "d.t", "branch": "fix", "spark_conn_id": "there_is_none"}
    with DAG("test_run_on", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        branch = CreateBranchOperator(task_id="branch", snapshot=1, **without_spark)
        diff = DiffBranchesOperator(task_id="diff", **without_spark)

        asked = MergeBranchOperator(task_id="asked", run_on="spark", **without_spark)
        merge = MergeBranchOperator(task_id="merge", run_on="{{ '' }}", **without_spark)
        branch >> [diff, asked, merge]
    run = run_dag(dag)
    assert {name for name, (state, _) in run.tasks.items() if state == "success"} == {"branch", "merge"}
    for name in ("diff", "asked"):
        assert "There is no Airflow connection 'there_is_none'" in run.xcom(name, "paimon_error")["message"]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (None, []),
        ("", []),
        ("dt=1", ["dt=1"]),
        (["dt=1", "dt=2"], ["dt=1", "dt=2"]),
        ("['dt=1', 'dt=2']", ["dt=1", "dt=2"]),
        ('["dt=1"]', ["dt=1"]),
    ],
)
def test_a_list_may_come_as_a_rendered_text(value: Any, meant: list[str]) -> None:
    assert as_list("partitions", value) == meant


@pytest.mark.parametrize("value", [True, [False], "[true]", [["dt=1"]], [{"dt": 1}], {"dt": 1}, 1.5])
def test_what_is_no_list_of_texts_is_no_argument(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="partitions must be a list of strings"):
        as_list("partitions", value)


# -- run ---------------------------------------------------------------------------------------------------------


def publish_undo_and_delete() -> None:
    plan = MergeBranchOperator(task_id="plan", branch="mend", dry_run="{{ 1 == 1 }}")
    merge = MergeBranchOperator(
        task_id="merge",
        branch="mend",
        expected_main_snapshot="{{ ti.xcom_pull('plan')['snapshot_before'] }}",
        approved_by="ada",
        outlets=[Asset("paimon://paimon_default/d/t"), AssetAlias("what-changed")],
    )
    undo = RollbackOperator(
        task_id="undo", tag="{{ ti.xcom_pull('merge')['details']['undo_tag'] }}", expected_main_snapshot="3"
    )
    again = FastForwardOperator(task_id="again", branch="mend", discard_main=True)
    check = CheckTableOperator(task_id="check")
    repair = RepairTableOperator(task_id="repair")
    delete = DeleteBranchOperator(task_id="delete", branch="mend")
    gone = DeleteBranchOperator(task_id="gone", branch="mend", if_missing="skip")
    untag = DeleteTagOperator(task_id="untag", tag="before")
    plan >> merge >> undo >> again >> check >> repair >> delete >> gone >> untag


def test_the_life_of_a_branch(warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")

    def first() -> None:
        tag = CreateTagOperator(task_id="tag", tag="before", time_retained="1 d")
        new = CreateBranchOperator(
            task_id="new", branch="{{ params.branch }}", tag="before", branch_owner="me", reason="{{ dag.dag_id }}"
        )
        twice = CreateBranchOperator(task_id="twice", branch="fix", tag="before", if_exists="skip")
        tag >> new >> twice >> RenameBranchOperator(task_id="rename", branch="fix", to_branch="mend")

    made = dag("life_1", first)
    made.params["branch"] = "fix"
    run = run_dag(made)
    assert run.state == "success"
    assert run.xcom("tag")["details"]["snapshot"] == 2
    created = run.xcom("new")
    assert (created["changed"], created["snapshot_after"], created["details"]["reason"]) == (True, 2, "test_life_1")
    assert created["details"]["owner"] == "me"
    assert run.xcom("twice")["changed"] is False
    assert main.branch_names() == ["mend"]

    rewrite(main.branch("mend"), "1")

    before = names(main)
    monkeypatch.setattr(_dry_run, "MOST", 2)
    run = run_dag(dag("life_2", publish_undo_and_delete))
    assert run.state == "success", run.tasks
    plan, merge, undo = run.xcom("plan"), run.xcom("merge"), run.xcom("undo")
    assert plan["dry_run"] is True
    assert plan["changed"] is True
    assert [a["action"] for a in plan["details"]["plan"]["actions"]] == ["SetTag", "ReplaceBucket"]
    assert plan["details"]["left_out"] == {"plan.actions": 1}
    assert (merge["changed"], merge["snapshot_before"], merge["snapshot_after"]) == (True, 2, 3)
    assert undo["snapshot_after"] == 4
    assert run.xcom("again")["snapshot_after"] == 5
    assert run.xcom("check")["details"]["ok"] is True
    assert run.xcom("delete")["changed"] is True
    assert run.xcom("gone")["changed"] is False
    assert names(main) != before
    assert [snapshot.id for snapshot in main.snapshots()] == [1, 2, 3, 4, 5]
    assert [event[0] for event in run.asset_events] == ["paimon://paimon_default/d/t"] * 3
    assert run.asset_events[0][1]["snapshot_after"] == 3


def test_a_dry_run_of_very_many_partitions_fits_into_xcom(warehouse: Path) -> None:
    main = make_table(warehouse)
    for number in range(3):
        commit_append(main, [message(main, f"{number}-{i:03}") for i in range(150)], planned_on=main.latest_snapshot())
    result = run(main, "rollback_to", snapshot=1, dry_run=True).to_json()
    shown = shortened(result)
    assert len(result["details"]["plan"]["actions"]) == 302
    assert len(shown["details"]["plan"]["actions"]) == 100
    assert shown["details"]["left_out"] == {"plan.actions": 202}
    assert {k: v for k, v in shown["details"].items() if k not in ("plan", "left_out")} == {
        k: v for k, v in result["details"].items() if k != "plan"
    }
    assert len(json.dumps(shown)) < 20_000
    done = run(main, "rollback_to", snapshot=1).to_json()
    assert shortened(done) == done


def test_the_life_of_a_chain_table(warehouse: Path, run_dag: RunDag) -> None:
    def build() -> None:
        create = CreateChainTableOperator(
            task_id="create",
            column=["k BIGINT", "s BIGINT", "v STRING 'what it is'", "dt STRING"],
            primary_key="['dt', 'k']",
            partition_key="dt",
            timestamp_pattern="$dt",
            timestamp_formatter="{{ params.form }}",
            sequence_field="s",
            option=["bucket=2"],
            outlets=[AssetAlias("what-changed")],
        )
        alter = AlterChainTableOperator(task_id="alter", change=["add column {{ params.new }} INT", "reset x"])
        check = CheckChainTableOperator(task_id="check")
        again = CreateChainTableOperator(
            task_id="again", timestamp_pattern="$dt", timestamp_formatter="yyyyMMdd", table="d.t"
        )
        create >> alter >> check >> again

    made = dag("chain", build)
    made.params.update({"form": "yyyyMMdd", "new": "w"})
    run = run_dag(made)
    assert run.state == "success", run.tasks
    assert run.xcom("create")["changed"] is True
    assert run.xcom("alter")["details"]["branches"] == ["snapshot", "delta", "main"]
    assert run.xcom("check")["details"]["ok"] is True
    assert run.xcom("again")["changed"] is False
    table = open_table(str(warehouse), "d.t")
    assert [table.branch(b).schema().field_names[-1] for b in ("main", "snapshot", "delta")] == ["w"] * 3
    assert [event[1]["operation"] for event in run.asset_events] == ["create_chain_table"] + ["alter_chain_table"] * 3


def test_what_fails_at_once_and_what_is_retried(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = make_table(warehouse)
    append(main, "1")
    set_connection(monkeypatch, "no_uri", "paimon", extra={"warehouse": str(warehouse), "catalog_type": "jdbc"})

    def build() -> None:
        again = {"retries": 1, "retry_delay": 0}
        CreateTagOperator(task_id="not_found", tag="x", snapshot=77, **again)
        CreateTagOperator(task_id="bad_name", tag="1", **again)
        CreateTagOperator(task_id="bad_number", tag="x", snapshot="{{ 'seven' }}", **again)
        CreateTagOperator(task_id="empty", tag="x", snapshot="{{ dag_run.conf.get('nothing') or '' }}", **again)
        CreateTagOperator(task_id="none", tag="x", snapshot="{{ none }}", **again)
        CreateTagOperator(task_id="no_connection", tag="x", paimon_conn_id="nowhere", **again)
        CreateTagOperator(task_id="catalog", tag="x", paimon_conn_id="no_uri", **again)
        DeleteBranchOperator(task_id="unsafe", branch="main", **again)
        RollbackOperator(task_id="conflict", snapshot=1, expected_main_snapshot=7, **again)

    run = run_dag(dag("failures", build))
    assert run.state == "failed"
    assert run.tasks.pop("conflict") == ("failed", 2)
    assert set(run.tasks.values()) == {("failed", 1)}
    kinds = {task: run.xcom(task, "paimon_error")["kind"] for task in (*run.tasks, "conflict")}
    assert kinds.pop("not_found") == "not-found"
    assert kinds.pop("conflict") == "conflict"
    assert set(kinds.values()) <= {"invalid-input", "unsafe"}
    assert main.tag_names() == []


def test_a_guard_that_renders_to_nothing_is_refused(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "1", seq=1)
    made = dag("guard", lambda: RollbackOperator(task_id="t", snapshot=1, expected_main_snapshot="{{ params.seen }}"))
    made.params["seen"] = None
    assert run_dag(made).state == "failed"
    assert main.latest_snapshot_id() == 2


def test_partitions_that_render_to_none_do_not_publish_the_whole_branch(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    rewrite(main.branch("fix"), "1")

    def native(context: Any, jinja_env: Any) -> list[str]:
        return []

    ways: dict[str, Any] = {"text": "{{ params.days or '' }}", "list": "{{ params.days or [] }}", "native": native}

    def build() -> None:
        for name, days in ways.items():
            MergeBranchOperator(task_id=name, branch="fix", partitions=days)

    made = dag("no_partition", build)
    made.params["days"] = None
    done = run_dag(made)
    assert {name: done.tasks[name][0] for name in ways} == dict.fromkeys(ways, "failed")
    assert main.latest_snapshot_id() == 1


def test_mapped_tasks_are_operations_of_their_own(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    run = run_dag(dag("mapped", lambda: CreateTagOperator.partial(task_id="t").expand(tag=["a", "b", "c"])))
    assert run.state == "success"
    assert main.tag_names() == ["a", "b", "c"]
    assert [run.xcom("t", map_index=i)["details"]["tag"] for i in range(3)] == ["a", "b", "c"]


def test_the_asset_of_an_alias_is_only_emitted_for_a_change(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    main.branch("main")

    def build() -> None:
        CreateBranchOperator(task_id="a", branch="fix", snapshot=1, outlets=[AssetAlias("changes")]) >> (
            CreateBranchOperator(
                task_id="b", branch="fix", snapshot=1, if_exists="skip", outlets=[AssetAlias("changes")]
            )
        )

    run = run_dag(dag("alias", build))
    assert run.state == "success"
    assert [event[0] for event in run.asset_events] == [paimon_asset("paimon_default", "d.t", "fix").uri]


WRONG_LITERALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a choice": ("create_branch", {"branch": "b", "if_exists": "skp"}, "must be one of fail, skip, replace"),
    "a number": ("create_tag", {"tag": "t", "snapshot": "ten"}, "must be a whole number, got 'ten'"),
    "a switch": ("merge_branch", {"branch": "b", "writers_stopped": "yes"}, "must be true or false, got 'yes'"),
    "too small": ("diff_branches", {"branch": "b", "sample": -1}, "must be at least 0"),
    "a type": ("create_tag", {"tag": True}, "must be a string, got True"),
    "a table": ("delete_tag", {"tag": "t", "table": "orders"}, "'orders'"),
}


@pytest.mark.parametrize("case", WRONG_LITERALS)
def test_a_wrong_literal_is_an_error_of_the_dags_file(case: str) -> None:
    operation, arguments, message = WRONG_LITERALS[case]
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        OPERATORS[operation](task_id="t", **{"table": "d.t", **arguments})
    templates = {name: f"{{{{ params.{name} }}}}" for name in arguments}
    OPERATORS[operation](task_id="t", **{"table": "d.t", **templates})
