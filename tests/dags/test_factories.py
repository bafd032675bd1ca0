"""DAGs of a user's own, made by the factories: their forms, their own tasks, and what counts as the DAG's code."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.file import might_contain_dag

from airflow_paimon import dags as package
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.dags import (
    chain_dag,
    choice,
    correction_cleanup_dag,
    correction_dag,
    correction_undo_dag,
    maintenance_dag,
    number,
    pipeline_dag,
    pipeline_undo_dag,
    switch,
    text,
    texts,
)
from airflow_paimon.forms.locked import lock, locked_names
from airflow_paimon.forms.origin import from_outside
from airflow_paimon.operators.branch import CreateTagOperator
from airflow_paimon.runbooks import correction
from airflow_paimon.runbooks.form import check_policy, form_value
from tests.airflow.conftest import register, result_of, set_connection
from tests.core.tables import append, make_table
from tests.dags.conftest import TABLE, make_orders
from tests.dags.test_imports import DAGS
from tests.environment import REPO_ROOT

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

FACTORIES = [
    *(correction_dag, correction_undo_dag, correction_cleanup_dag, pipeline_dag, pipeline_undo_dag),
    *(maintenance_dag, chain_dag),
]
SHELL = {"post_submit_commands": ["touch /tmp/from-a-form"]}
_NUMBERS = count()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(tmp_path)})
    set_connection(monkeypatch, "spark_default", "spark", host="local[1]")
    return tmp_path


@task
def own_task() -> None:
    """Of the DAG's author."""


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "default": (
        {"defaults": {"tabel": "sales.orders"}},
        r"no field tabel \(did you mean table\?\)\. It has: table, sql",
    ),
    "locked": ({"locked": {"aproval": False}}, r"no field aproval \(did you mean approval\?\)"),
    "argument": ({"lockd": {}}, r"no argument lockd \(did you mean locked\?\)"),
    "a field that is there": ({"fields": {"sql": text("SQL", "Mine.")}}, "has a field sql already"),
    "a field of a pipeline": (
        {"fields": {"tables": text("Tables", "Mine.")}},
        "tables has the name of a field of other",
    ),
    "no field": ({"fields": {"ticket": "OPS-1"}}, "field ticket must be a Param"),
    "both": ({"defaults": {"reason": "a"}, "locked": {"reason": "b"}}, "reason can't be in defaults and locked"),
    "a default of another type": ({"defaults": {"approval": "maybe"}}, "field approval: 'maybe' is not of type"),
    "a locked one of another type": ({"locked": {"publish": "now"}}, "field publish: 'now' is not one of"),
    "a table by the way": ({"default_args": {"table": "a.b"}}, "can't have table, a field of the form"),
    "another way to main": ({"default_args": {"trigger_rule": "all_done"}}, "it decides what is published"),
    "a schedule without a table": ({"schedule": "@daily"}, "has a schedule: give table a value"),
    "a field that no template can name": (
        {"fields": {"my ticket": text("Ticket", "")}},
        "field 'my ticket' needs a name",
    ),
    "a tag that is no list": ({"tags": "paimon"}, r"tags must be a list, such as \['paimon'\]"),
    "an argument in two places": ({"dag_arguments": {"schedule": "@daily"}}, "dag_arguments can't have schedule"),
    "no task": ({"before_approval": lambda: None}, "before_approval made no task"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_change_is_an_import_error_that_says_what_was_meant(case: str) -> None:
    changes, says = WRONG[case]
    with pytest.raises(InvalidInputError, match=says):
        correction_dag("own", **changes)


def test_the_ids_of_dags_that_correct_are_a_list() -> None:
    """The letters of a text are the ids of no DAG, and a running correction's tag would be taken for a leftover."""
    with pytest.raises(InvalidInputError, match=r"corrections must be a list of ids, such as \['correct_orders'\]"):
        correction_cleanup_dag("own", corrections="correct_orders")
    with pytest.raises(InvalidInputError, match="needs at least one option"):
        choice("Colour", "Which.", [])


def test_hooks_are_of_dags_that_publish() -> None:
    with pytest.raises(InvalidInputError, match="no argument before_approval"):
        maintenance_dag("own", before_approval=own_task)  # type: ignore[call-arg]


def test_the_form_has_own_fields_defaults_and_no_locked_ones() -> None:
    made = correction_dag(
        "own",
        fields={"ticket": text("Ticket", "Its number."), "note": text("Note", "For later.", section="Mine")},
        defaults={"reason": "cents", "sample_rows": 9},
        locked={"table": "sales.orders", "approval": False, "function": None, "notify": []},
        spark_conn_id="big",
    )
    bundled = correction_dag("bundled")
    assert [n for n in made.params if n not in ("ticket", "note")] == list(bundled.params)
    opened = [n for n in made.params if "section" not in made.params.get_param(n).schema]
    assert opened[-1] == "ticket" and list(made.params)[: len(opened)] == opened
    assert made.params["reason"] == "cents" and made.params["sample_rows"] == 9
    assert made.params.get_param("sample_rows").schema == bundled.params.get_param("sample_rows").schema
    assert locked_names(made.params) == {"table", "approval", "function", "notify", "spark_conn_id"}
    assert {n: made.params[n] for n in locked_names(made.params)} == {
        "table": "sales.orders", "approval": False, "function": None, "notify": [], "spark_conn_id": "big",
    }  # fmt: skip
    for name in locked_names(made.params):
        assert made.params.get_param(name).schema["const"], "Airflow's form hides a field by a const that is true"
    assert not locked_names(bundled.params)
    # An own field may use what only a newer draft knows.
    assert ["$schema" in made.params.get_param(n).schema for n in ("table", "reason", "ticket")] == [True, True, False]


@pytest.mark.parametrize("value", [False, True, 0, None, "", "text", [], ["a"], {"a": 1}])
def test_a_run_says_nothing_else_than_a_locked_field(value: Any) -> None:
    kinds = ["boolean", "integer", "null", "string", "array", "object"]
    param = lock(Param(None, "About it.", type=kinds, title="It"), value)
    assert param.resolve(value) == value
    for other in (False, True, 0, 1, None, "", "locked", ["b"], {}):
        if type(other) is not type(value) or other != value:
            with pytest.raises(ParamValidationError):
                param.resolve(other)


def test_what_is_locked_is_code_and_what_a_form_fills_in_is_not(lake: Path) -> None:
    """Options that a form may not have: of an added, a preset and a locked field, by every way into a task."""
    main = make_table(lake)
    append(main, "1")
    common: dict[str, Any] = {"table": "d.t", "snapshot": 1}
    locked = lock(Param({}, type="object"), SHELL)
    with DAG(f"origin_{next(_NUMBERS)}", schedule=None, params={"preset": Param(SHELL), "fixed": locked}) as made:
        CreateTagOperator(task_id="preset", tag="a", spark_options=form_value("preset"), **common)
        CreateTagOperator(task_id="preset_template", tag="a", spark_options="{{ params.preset }}", **common)
        CreateTagOperator(task_id="more", tag="a", spark_options="{{ params.fixed }} ", **common)
        CreateTagOperator(task_id="fixed", tag="one", spark_options=form_value("fixed"), **common)
        CreateTagOperator(task_id="fixed_template", tag="two", spark_options="{{ params.fixed }}", **common)
        CreateTagOperator.partial(task_id="part", spark_options=form_value("fixed"), **common).expand(tag=["three"])
    register(made)
    done = result_of(made.test())
    passed = {name for name, (state, _) in done.tasks.items() if state == "success"}
    assert passed == {"fixed", "fixed_template", "part[0]"}
    for name in ("preset", "preset_template", "more"):
        assert done.xcom(name, "paimon_error")["kind"] == "unsafe", name
    assert {t.name for t in main.tags()} == {"one", "two", "three"}


def test_a_locked_correction_is_code_in_the_check_of_the_form_and_in_its_task(lake: Path) -> None:
    make_orders(str(lake))
    asked = {"table": TABLE, "function": "os:system", "partitions": ["dt=2026-11-17"], "spark_options": SHELL}
    for preset, locked in (({}, asked), (asked, {})):
        made = correction_dag("own", defaults=preset, locked=locked)
        params, task_ = made.params.dump(), made.get_task("correct")
        context: Any = {"dag": made, "ti": type("Ti", (), {"task_id": "correct"})}
        outside = from_outside(task_, ["function", "sql", "spark_options", "spark_conf", "engine"], context)
        if locked:
            correction.check_settings(params, locked_names(made.params))
            assert outside == {"sql", "spark_conf", "engine"}
        with pytest.raises(UnsafeOperationError, match="post_submit_commands"):
            check_policy(params, () if locked else locked_names(made.params))
    assert "function" in outside and "spark_options" in outside


def test_own_tasks_stand_between_those_of_the_runbook() -> None:
    for make in (correction_dag, pipeline_dag):
        made = make("own", before_approval=lambda: own_task() >> own_task(), after_publish=own_task)
        bundled = make("bundled")
        first, second, after = "own_task", "own_task__1", "own_task__2"
        joins = {"before_approval_done", "after_publish_done"}
        assert set(made.task_ids) - set(bundled.task_ids) == {first, second, after, *joins}
        upstream = {t.task_id: set(t.upstream_task_ids) for t in made.tasks}
        before = {t.task_id: set(t.upstream_task_ids) for t in bundled.tasks}
        assert upstream[first] == {"report"} and upstream[second] == {first} and upstream[after] == {"verify"}
        assert upstream["before_approval_done"] == {"report", second}
        assert upstream["after_publish_done"] == {"verify", after}
        added = {n: upstream[n] - before[n] for n in before if upstream[n] != before[n]}
        assert added == {"approve": {"before_approval_done"}, "delete_branch": {"after_publish_done"},
                         "report_failure": joins}  # fmt: skip
        for name in bundled.task_ids:
            assert made.get_task(name).trigger_rule == bundled.get_task(name).trigger_rule


@pytest.mark.parametrize("make", FACTORIES, ids=lambda make: make.__name__)
@pytest.mark.every(3)
def test_a_dag_is_the_same_in_each_parse(make: Any) -> None:
    def parsed(dag_id: str) -> dict[str, Any]:
        made = make(
            dag_id,
            fields={"a": switch("A", "A."), "b": texts("B", "B."), "c": choice("C", "C.", ["x", "y"])},
            locked={"paimon_conn_id": "lake"},
            default_args={"retry_delay": timedelta(seconds=1)},
            dag_arguments={"max_active_runs": 1},
        )
        found: dict[str, Any] = DagSerialization.to_dict(made)
        return found

    one, other, again = parsed("own"), parsed("other"), parsed("own")
    assert SerializedDagModel.hash(one) == SerializedDagModel.hash(again)
    assert one["dag"]["max_active_runs"] == 1
    assert [t["__var"]["task_id"] for t in one["dag"]["tasks"]] == [
        t["__var"]["task_id"] for t in other["dag"]["tasks"]
    ]


def test_a_cleanup_knows_further_dags_that_correct() -> None:
    made = correction_cleanup_dag("own", corrections=["correct_orders"])
    assert [made.get_task(n).op_kwargs for n in ("find", "remove")] == [{"corrections": ["correct_orders"]}] * 2


def test_airflow_finds_the_files_and_shows_them_as_the_dags_code(tmp_path: Path) -> None:
    for name in DAGS - {"on_new_snapshot"}:
        path = REPO_ROOT / "dags" / f"{name}.py"
        assert might_contain_dag(str(path), safe_mode=True)
        assert len(path.read_text().splitlines()) <= 10
    own = tmp_path / "own.py"
    own.write_text(
        'from airflow_paimon.dags import chain_dag, number\n\nchain_dag("own", fields={"n": number("N", "N.")})\n'
    )
    bag = BundleDagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="own")
    assert bag.import_errors == {}
    assert bag.dags["own"].fileloc == str(own)
    assert chain_dag("own").fileloc == __file__


def test_the_package_has_the_names_that_it_lists() -> None:
    assert all(callable(getattr(package, name)) for name in package.__all__)
    assert number is package.number
    with pytest.raises(AttributeError, match="no attribute 'correct_dag'"):
        _ = package.correct_dag  # type: ignore[attr-defined]
