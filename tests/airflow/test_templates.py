"""Templates in the operators' arguments: a form's values in text and native rendering, None, and the macros."""

import dataclasses
import itertools
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon._compat import AirflowFailException
from airflow_paimon.arguments import as_dict, as_list
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import argument_name
from airflow_paimon.forms.rules import rules_as_json
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.branch import (
    CorrectBranchOperator,
    CreateTagOperator,
    PlanCorrectionOperator,
    RollbackOperator,
)
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.correction import PublishApprovalOperator
from airflow_paimon.operators.pipeline import PublishTablesOperator, ReplayTablesOperator, UndoTablesOperator
from airflow_paimon.sensors.quiet import BucketsQuietSensor
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor
from airflow_paimon.sensors.table_set import TableSetSensor
from tests.airflow.conftest import RunDag
from tests.airflow.test_operators import OPERATORS
from tests.core.tables import append, make_table
from tests.randomness import every

pytestmark = pytest.mark.airflow

_NUMBERS = itertools.count()
START = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = pytest.mark.parametrize("native", [False, True], ids=["text", "native"])


def dag(native: bool, **params: Any) -> DAG:
    # An id of its own for each: Airflow 3.1 trips over versions of a DAG that differ within one process.
    name = f"test_templates_{next(_NUMBERS)}"
    made = DAG(name, schedule=None, start_date=START, render_template_as_native_obj=native)
    made.params.update(params)
    return made


def _value(spec: dataclasses.Field[Any]) -> Any:
    """A value as a form gives it."""
    if spec.metadata.get("repeat"):
        return ["dt=2026-11-18", "dt=2026-11-19"]
    if spec.metadata.get("choices"):
        return spec.metadata["choices"][-1]
    kinds = {"int": 7, "bool": True}
    return kinds.get(str(spec.type).split(" ")[0], "20261118" if spec.name == "approved_by" else f"a-{spec.name}")


def _context() -> Any:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, max_tries=0)
    return {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name=None)}


@BOTH
def test_every_argument_may_be_a_parameter_of_a_form(warehouse: Path, native: bool) -> None:
    for operation in every(3, OPERATIONS) if native else OPERATIONS:
        _each_argument_may_be_a_parameter(operation, native)


def _each_argument_may_be_a_parameter(operation: str, native: bool) -> None:
    cls = OPERATORS[operation]
    unlike = {"warehouse", "storage_options", "operation_id"}
    fields = {f.name: f for f in dataclasses.fields(OPERATIONS[operation].request) if f.name not in unlike}
    given = {name: _value(spec) for name, spec in fields.items()}
    given |= {"rules": None} if operation == "check_branch_data" else {}
    given |= {"function": None} if operation in ("correct_branch", "plan_correction", "replay_branch") else {}
    given |= {"diff": None} if "diff" in fields else {}  # the request names a file with the result that is given
    arguments = {argument_name(spec): f"{{{{ params.{name} }}}}" for name, spec in fields.items()}
    with dag(native):
        settings = {"spark_conf": "{{ params.conf }}", "spark_options": "{{ params.no_options }}"}
        operator = cls(task_id="t", spark_conn_id="{{ params.none }}", **settings, **arguments)
    more = {"conf": {"spark.executor.cores": 4}, "no_options": None, "none": None}
    operator.render_template_fields({"params": {**given, **more}})  # type: ignore[typeddict-item]
    request = operator._request(PaimonHook(), _context())
    for name, value in given.items():
        assert getattr(request, name) == (tuple(value) if isinstance(value, list) else value), (operation, name)
    assert as_dict("spark_conf", operator.spark_conf) == {"spark.executor.cores": 4}
    assert as_dict("spark_options", operator.spark_options) == {}
    assert PaimonHook().spark_settings(operator.spark_conn_id).conn_id == "spark_default"


@BOTH
def test_a_guard_that_renders_to_nothing_is_refused(warehouse: Path, run_dag: RunDag, native: bool) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "1", seq=1)
    guard: dict[str, Any] = {"table": "d.t", "snapshot": 1, "expected_main_snapshot": "{{ params.seen }}"}
    with dag(native, seen=None) as made:
        RollbackOperator(task_id="one", **guard)
        RollbackOperator.partial(task_id="mapped", **guard).expand(branch=["main"])
    run = run_dag(made)
    assert run.tasks == {"one": ("failed", 1), "mapped[0]": ("failed", 1)}
    assert "Leave it out" in run.xcom("one", "paimon_error")["message"]
    assert "Leave it out" in run.xcom("mapped", "paimon_error", map_index=0)["message"]
    assert main.latest_snapshot_id() == 2


@BOTH
def test_a_condition_that_renders_to_nothing_is_refused(native: bool) -> None:
    with dag(native):
        sensor = SnapshotCatchUpSensor(task_id="t", table="d.t", min_snapshot_id="{{ params.none }}")
    sensor.render_template_fields({"params": {"none": None}})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowFailException, match="min_snapshot_id rendered to 'None'"):
        sensor.poke({})  # type: ignore[typeddict-item]


@BOTH
def test_of_sql_and_function_one_may_be_empty(warehouse: Path, native: bool) -> None:
    with dag(native):
        operator = CorrectBranchOperator(
            task_id="t", table="d.t", branch="b", sql="{{ params.sql }}", function="{{ params.function }}"
        )
        neither = CorrectBranchOperator(task_id="n", table="d.t", branch="b", sql="{{ params.sql }}")
    operator.render_template_fields({"params": {"sql": None, "function": "rules:fix"}})  # type: ignore[typeddict-item]
    request = operator._request(PaimonHook(), _context())
    assert (request.sql, request.function) == (None, "rules:fix")  # type: ignore[attr-defined]
    neither.render_template_fields({"params": {"sql": None}})  # type: ignore[typeddict-item]
    with pytest.raises(InvalidInputError, match="one of the two"):
        neither._request(PaimonHook(), _context())


@BOTH
@pytest.mark.parametrize("name", ["2026_11_18", "1.10", "0x10", "007", "True", "None_", "[1]", "{}", "'q'", "1e5"])
def test_names_stay_texts(warehouse: Path, native: bool, name: str) -> None:
    given: Any = {"params": {"name": name, "now": START, "names": [name]}}
    with dag(native):
        tag = CreateTagOperator(task_id="t", table="d.t", tag="{{ params.name }}", now="{{ params.now }}")
        mark = OPERATORS["mark_partition_done"](task_id="m", table="d.t", partitions=["dt={{ params.name }}"])
        ask = PublishApprovalOperator(
            task_id="a", subject="{{ params.name }}", on_approve="x", on_reject="y", table="{{ params.name }}",
            approvers=["{{ params.name }}"],
        )  # fmt: skip
    for one in (tag, mark, ask):
        one.render_template_fields(given)
    request: Any = tag._request(PaimonHook(), _context())
    assert (request.tag, datetime.fromisoformat(request.now)) == (name, START)
    assert as_list("partitions", mark.partitions) == [f"dt={name}"]
    assert (ask.subject, ask.table, ask.approvers) == (name, name, [name])


def test_texts_are_wanted_where_names_are(warehouse: Path) -> None:
    number = CreateTagOperator(task_id="n", table="d.t", tag=1.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"tag \(--tag\) must be a string, got 1\.1: put it in quotes"):
        number._request(PaimonHook(), _context())
    assert as_list("partitions", 20261118) == ["20261118"]
    with pytest.raises(InvalidInputError, match="partitions must be a list of strings"):
        as_list("partitions", {"dt": 1})
    with pytest.raises(InvalidInputError, match="partitions must be a list of strings"):
        as_list("partitions", 1.5)


# -- files beside the DAG --------------------------------------------------------------------------------------------


def test_only_sql_and_rules_may_be_files() -> None:
    known = [*OPERATORS.values(), PublishApprovalOperator, BucketsQuietSensor, SnapshotCatchUpSensor, TableSetSensor]
    known += [PublishTablesOperator, ReplayTablesOperator, UndoTablesOperator, PlanCorrectionOperator]
    assert {cls.template_ext for cls in known} == {()}, "Airflow would open every text with such an end"
    assert {name for cls in known for name in cls.file_fields} == {"sql", "rules"}


@BOTH
def test_a_text_that_ends_as_a_file_does_is_a_text_and_a_file_is_read(
    warehouse: Path, tmp_path: Path, native: bool
) -> None:
    (tmp_path / "fix.sql").write_text("UPDATE branch SET v = '{{ params.v }}' WHERE k = 1 -- of logs.sql")
    (tmp_path / "rules.yaml").write_text("- accepted_values: {v: [a.json, '{{ params.v }}']}")
    made = dag(native)
    made.template_searchpath = [str(tmp_path)]
    insert = "INSERT INTO branch SELECT * FROM logs.sql"
    with made:
        fix = CorrectBranchOperator(task_id="f", table="logs.sql", branch="b.json", sql="fix.sql", view=["l=logs.sql"])
        text = CorrectBranchOperator(task_id="t", table="logs.sql", branch="b", sql=insert)
        accepted = {"accepted_values": {"v": ["a.json", "b.yaml"]}}
        check = CheckBranchOperator(task_id="c", table="db.yaml", branch="b.yml", rules=[accepted])
        other = CheckBranchOperator(task_id="o", table="db.json", branch="b", rules="rules.yaml")
    made.resolve_template_files()
    for operator in (fix, text, check, other):
        operator.render_template_fields({"params": {"v": "7"}})  # type: ignore[typeddict-item]
    assert fix.sql == "UPDATE branch SET v = '7' WHERE k = 1 -- of logs.sql"
    assert (fix.table, fix.branch, fix.view) == ("logs.sql", "b.json", ["l=logs.sql"])
    assert (text.sql, check.table, check.branch, check.rules) == (insert, "db.yaml", "b.yml", [accepted])
    assert other.rules == "- accepted_values: {v: [a.json, '7']}"


# -- the macros ------------------------------------------------------------------------------------------------------


@BOTH
def test_the_newest_snapshot_of_a_table_in_templates(warehouse: Path, run_dag: RunDag, native: bool) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    with dag(native, conn="paimon_default", table="d.t") as made:
        newest = "macros.paimon.latest_snapshot(params.conn, params.table)"
        committed = "macros.paimon.latest_commit_time(params.conn, params.table)"
        tag = CreateTagOperator(
            task_id="tag",
            table="d.t",
            tag=f"at_{{{{ {committed} | ds_nodash }}}}",
            snapshot=f"{{{{ {newest} - 1 }}}}",
            now=f"{{{{ {committed}.isoformat() }}}}",
        )
        branch = OPERATORS["create_branch"](task_id="branch", table="d.t", branch="fix", snapshot=1)
        of_branch = CreateTagOperator(
            task_id="of_branch",
            table="d.t",
            tag="of_branch",
            snapshot="{{ macros.paimon.latest_snapshot('paimon_default', 'd.t', branch='fix') }}",
        )
        tag >> branch >> of_branch
    run = run_dag(made)
    assert run.state == "success", run.tasks
    head = main.latest_snapshot()
    assert head is not None
    day = datetime.fromtimestamp(head.time_millis / 1000, UTC).strftime("%Y%m%d")
    assert {t.name: t.snapshot.id for t in main.tags() if not t.name.startswith("airflow-paimon")} == {
        f"at_{day}": 1,
        "of_branch": 1,
    }


def test_a_template_that_can_not_name_a_snapshot_fails_at_once(
    warehouse: Path, run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    make_table(warehouse)
    with dag(False) as made:
        for name, arguments in {
            "empty": "'paimon_default', 'd.t'",
            "missing": "'paimon_default', 'd.gone'",
            "connection": "'nowhere', 'd.t'",
        }.items():
            snapshot = f"{{{{ macros.paimon.latest_snapshot({arguments}) }}}}"
            CreateTagOperator(task_id=name, table="d.t", tag="x", snapshot=snapshot, retries=2, retry_delay=0)
    run = run_dag(made)
    assert run.tasks == dict.fromkeys(("empty", "missing", "connection"), ("failed", 1))
    logged = "".join(capfd.readouterr())
    for words in ("has no snapshot yet", "d.gone", "no Airflow connection 'nowhere'"):
        assert words in logged


def test_rules_take_no_aliases_and_no_depth() -> None:
    assert rules_as_json("- not_null: [a, b]", "rules") == '[{"not_null": ["a", "b"]}]'
    laughs = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"
    for text, why in ((laughs, "aliases"), ("- not_null: &x [a]\n- not_null: *x", "aliases"),
                      ("- " * 5000, "too deeply"), ("[" * 1200, "rules"), ("-" * 100_000, "rules")):  # fmt: skip
        with pytest.raises(InvalidInputError, match=why):
            rules_as_json(text, "rules")
