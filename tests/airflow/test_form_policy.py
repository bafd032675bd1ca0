"""What comes with a trigger form can't run commands, whatever way it takes; the DAG's own code may ask for anything."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Param, task

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.forms.origin import from_outside
from airflow_paimon.forms.policy import FormPolicy, parse_policy
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.branch import (
    CorrectBranchOperator,
    CreateBranchOperator,
    CreateTagOperator,
    DiffBranchesOperator,
)
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.pipeline import PublishTablesOperator, ReplayTablesOperator
from airflow_paimon.operators.replay import ReplayBranchOperator
from airflow_paimon.runbooks.form import form_value, xcom_value
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import alter_table, append, make_table, rewrite, run

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

_NUMBERS = count()
SAFE = FormPolicy(connection="c", warehouse="s3://lake/w")
SHELL = {"post_submit_commands": ["touch /tmp/from-a-form"]}


def dag(**params: Any) -> DAG:
    made = DAG(f"forms_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
    made.params.update(params)
    return made


REFUSED: list[dict[str, Any]] = [
    {"spark_options": SHELL},
    *({"spark_options": {name: "x"}} for name in ("py_files", "jars", "packages", "files", "archives", "java_class",
      "driver_class_path", "env_vars", "proxy_user", "keytab", "principal", "properties_file", "deploy_mode", "conf",
      "spark_binary", "yarn_queue", "use_krb5ccache", "repositories", "exclude_packages", "name", "Driver_Memory",
      "POST_SUBMIT_COMMANDS", "driver-memory", "_conn_id", "conn_id", "application_args")),
    *({"spark_options": {"driver_memory": value}} for value in
      ("4g --class x", "--conf", ["4g"], {"conf": 1}, "${env:HOME}", None, "4g\n", True, "-1")),
    *({"spark_conf": {name: "x"}} for name in ("spark.submit.pyFiles", "spark.jars", "spark.jars.packages",
      "spark.files", "spark.archives", "spark.pyspark.python", "spark.driver.extraJavaOptions", "spark.executorEnv.A",
      "spark.driver.defaultJavaOptions", "spark.executor.extraClassPath", "spark.sql.extensions", "spark.plugins",
      "spark.hadoop.fs.s3a.endpoint", "spark.yarn.dist.files", "spark.kubernetes.driverEnv.A", "SPARK.EXECUTOR.MEMORY",
      "spark.master", "spark.submit.deployMode", "spark.sql.catalog.x", "spark.executor.memory ", "executor.memory")),
    *({"spark_conf": {"spark.executor.memory": value}} for value in
      ("4g\nspark.jars x", "${env:HOME}", "$(id)", {"a": 1}, ["4g"], None, "x" * 40)),
    *({"function": name} for name in ("os:system", "rules:fix", "rules.sub:fix", "..rules:x", "rules/../os:x")),
    *({"checkpoint": name} for name in ("/etc/cron.d", "file:///root", "s3://lake/w2", "s3://lake/w/../x")),
]  # fmt: skip


@pytest.mark.parametrize("values", REFUSED, ids=json.dumps)
def test_what_could_do_harm_is_refused_in_a_form(values: dict[str, Any]) -> None:
    with pytest.raises(UnsafeOperationError, match="form"):
        SAFE.check(values)


def test_what_only_says_how_much_is_taken() -> None:
    SAFE.check({"spark_options": {"driver_memory": "4g", "executor_memory": "512m", "num_executors": 8}})
    SAFE.check({"spark_conf": {"spark.sql.shuffle.partitions": 8, "spark.executor.cores": "4",
                               "spark.dynamicAllocation.enabled": True, "spark.memory.fraction": 0.5,
                               "spark.sql.autoBroadcastJoinThreshold": "-1"}})  # fmt: skip
    SAFE.check({"checkpoint": "s3://lake/w/_checkpoints/1", "engine": "connector", "sql": "SELECT 1", "function": None})


def test_the_connection_opens_more_and_locks_fields() -> None:
    policy = parse_policy("c", "/w", {"spark_options": ["py_files"], "spark_conf": ["spark.sql.catalog.*"],
                                      "functions": ["rules", "jobs.*"], "folders": ["/checkpoints"],
                                      "locked": ["engine", "spark_conn_id"], "sql": "any"})  # fmt: skip
    assert policy.any_sql
    policy.check({"spark_options": {"py_files": "a.py"}, "spark_conf": {"spark.sql.catalog.x": "y"},
                  "function": "jobs.daily:again", "checkpoint": "/checkpoints/1", "engine": "embedded"})  # fmt: skip
    policy.check({"function": "rules:fix", "spark_conn_id": "None"})
    for wrong in ({"function": "rules.more:fix"}, {"function": "jobsx:fix"}, {"spark_conf": {"spark.sql.catalo": 1}},
                  {"engine": "connector"}, {"spark_conn_id": "other"}, {"spark_options": SHELL}):  # fmt: skip
        with pytest.raises(UnsafeOperationError):
            policy.check(wrong)
    for mistake in ({"lock": []}, {"locked": ["sqll"]}, {"functions": "rules"}, {"sql": "all"}, {"spark_conf": [1]}):
        with pytest.raises(InvalidInputError, match="forms"):
            parse_policy("c", "/w", mistake)


def test_an_operator_checks_what_its_dag_does_not_spell_out(warehouse: Path, run_dag: RunDag) -> None:
    """The same options by every way into a task; only the literals of the DAG's code pass."""
    main = make_table(warehouse)
    append(main, "1")
    common: dict[str, Any] = {"table": "d.t", "snapshot": 1}
    replay = {"table": "d.t", "branch": "b", "function": "os:system"}
    with dag(options=Param(SHELL, type="object"), text=json.dumps(SHELL), tables=[replay]) as made:

        @task
        def options() -> dict[str, Any]:
            return SHELL

        @task
        def kwargs() -> list[dict[str, Any]]:
            return [{"tag": "mapped", "spark_options": SHELL}]

        CreateTagOperator(task_id="template", tag="a", spark_options="{{ params.options }}", **common)
        CreateTagOperator(task_id="json", tag="a", spark_options="{{ params.text }}", **common)
        CreateTagOperator(task_id="given", tag="a", spark_options=form_value("options"), **common)
        CreateTagOperator(task_id="xcom", tag="a", spark_options=options(), **common)
        CreateTagOperator(task_id="conf", tag="a", spark_conf="{{ {'spark.jars': 'x'} }}", **common)
        CreateTagOperator.partial(task_id="mapped", **common).expand_kwargs(kwargs())
        CreateTagOperator.partial(task_id="part", spark_options=form_value("options"), **common).expand(tag=["a"])
        ReplayTablesOperator(task_id="tables", tables=form_value("tables"))
        CreateTagOperator(task_id="literal", tag="own", spark_options=SHELL, **common)
        CreateTagOperator.partial(task_id="own_map", spark_options=SHELL, **common).expand(tag=["own2"])
    done = run_dag(made)
    passed = {name for name, (state, _) in done.tasks.items() if state == "success"}
    assert passed == {"options", "kwargs", "literal", "own_map[0]"}
    for name in ("template", "json", "given", "xcom", "conf", "tables"):
        assert done.xcom(name, "paimon_error")["kind"] == "unsafe", name
    assert {t.name for t in main.tags()} == {"own", "own2"}


def test_sql_that_is_no_literal_of_the_dag_is_restricted(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT 1"
    correct: dict[str, Any] = {"table": "d.t", "branch": "fix"}
    with dag(sql=query) as made:
        CorrectBranchOperator(task_id="literal", sql=query, **correct)
        CorrectBranchOperator(task_id="given", sql=form_value("sql"), **correct)
        CorrectBranchOperator(task_id="template", sql="{{ params.sql }}", **correct)
        CorrectBranchOperator(task_id="inside", sql="SELECT {{ params.sql }}", **correct)
        CorrectBranchOperator(task_id="decided", sql="{{ params.sql }}", restricted_sql=False, **correct)
        CorrectBranchOperator(task_id="asked", sql=query, restricted_sql=True, **correct)
        ReplayBranchOperator(task_id="replay", sql=form_value("sql"), **correct)

    def restricted() -> set[str]:
        found = set()
        for name in made.task_ids:
            ti = SimpleNamespace(dag_id="d", run_id="r", task_id=name, map_index=-1, max_tries=0)
            context: Any = {"dag": made, "ti": ti, "params": {"sql": query}}
            task: Any = made.get_task(name).prepare_for_execution()
            task.render_template_fields(context)
            if task._restricted_request(PaimonHook(), context).restricted_sql:
                found.add(name)
        return found

    assert restricted() == {"given", "template", "inside", "asked", "replay"}
    rows = [{**correct, "sql": query, "restricted_sql": False}]
    with dag(tables=rows) as pipeline:
        ReplayTablesOperator(task_id="form", tables=form_value("tables"))
        ReplayTablesOperator(task_id="code", tables=rows)
    for name in ("form", "code"):
        ti = SimpleNamespace(dag_id="d", run_id="r", task_id=name, map_index=-1, max_tries=0)
        context: Any = {"dag": pipeline, "ti": ti, "params": {"tables": rows}}
        task: Any = pipeline.get_task(name).prepare_for_execution()
        task.render_template_fields(context)
        (one,) = task._each()
        assert one._restricted_request(PaimonHook(), context).restricted_sql is (name == "form")
    extra = {"warehouse": str(warehouse), "forms": {"sql": "any"}}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    assert restricted() == {"asked"}


FORM = {"text": "- sql: SELECT 1", "where": "k > 1", "rules": [{"sql": "SELECT 1"}], "f": "rules:suite",
        "module": "rules"}  # fmt: skip


def checked(made: DAG, name: str) -> Any:
    """The request of a check, of arguments rendered with the values of ``FORM``."""
    context: Any = {**_context(made, name), "params": FORM}
    task: Any = made.get_task(name).prepare_for_execution()
    task.render_template_fields(context)
    return task._restricted_request(PaimonHook(), context)


RULES: dict[str, tuple[Any, bool]] = {
    "own": ([{"sql": "SELECT 1"}, {"accepted_values": {"column": "k", "values": [1, 2.5]}}], False),
    "own_text": ("- sql: SELECT 1", False),
    "none": (None, False),
    "form": (form_value("rules"), True),
    "text": ("{{ params.text }}", True),
    "inside": ([{"not_null": "k"}, {"sql": "SELECT * FROM diff WHERE {{ params.where }}"}], True),
    "values": ([{"accepted_values": {"column": "k", "values": ["{{ params.where }}"]}}], True),
    "function": ([{"function": "{{ params.f }}"}], True),
}


def test_rules_with_a_template_anywhere_in_them_are_restricted(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dag(**{name: Param(value) for name, value in FORM.items()}) as made:
        for name, (rules, _) in RULES.items():
            CheckBranchOperator(task_id=name, table="d.t", branch="fix", rules=rules)
        CheckBranchOperator(
            task_id="decided", table="d.t", branch="fix", rules=form_value("rules"), restricted_sql=False
        )
        CheckBranchOperator(task_id="allows", table="d.t", branch="fix", allow_module=["{{ params.module }}"])
        CheckBranchOperator(task_id="own_function", table="d.t", branch="fix", rules=[{"function": "os:system"}])
    restricted = {name: checked(made, name).restricted_sql for name in RULES if name != "function"}
    assert restricted == {name: outside for name, (_, outside) in RULES.items() if name != "function"}
    assert not checked(made, "decided").restricted_sql
    assert checked(made, "own_function").allow_module == ()
    for name in ("function", "allows"):
        with pytest.raises(UnsafeOperationError, match="can't come from a form"):
            checked(made, name)
    extra = {"warehouse": str(warehouse), "forms": {"functions": ["rules"], "sql": "any"}}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    assert not any(checked(made, name).restricted_sql for name in RULES)
    assert checked(made, "allows").allow_module == ("rules", "rules") and checked(made, "own").allow_module == (
        "rules",
    )
    set_connection(monkeypatch, "paimon_default", "paimon", extra={**extra, "forms": {"locked": ["sql"]}})
    assert checked(made, "own").rules is not None
    with pytest.raises(UnsafeOperationError, match="locks this field"):
        checked(made, "text")


def test_mapped_tasks_are_looked_into_as_well(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    common: dict[str, Any] = {"table": "d.t"}
    hidden: list[dict[str, Any]] = [{"function": "{{ params.f }}"}]
    with dag(f="os:system") as made:
        CheckBranchOperator.partial(task_id="partial", rules=hidden, **common).expand(branch=["fix"])
        CheckBranchOperator.partial(task_id="expand", branch="fix", **common).expand(rules=[hidden])
        one = {"branch": "fix", "rules": hidden}
        CheckBranchOperator.partial(task_id="kwargs", **common).expand_kwargs([one])
    done = run_dag(made)
    assert done.state == "failed"
    for name in ("partial", "expand", "kwargs"):
        error = done.xcom(name, "paimon_error", 0)
        assert (error["kind"], "can't come from a form" in error["message"]) == ("unsafe", True), name
    with dag(v="1") as other:
        correct = {"branch": "fix", **common}
        CorrectBranchOperator.partial(task_id="sql", **correct).expand(sql=["UPDATE branch SET v = '{{ params.v }}'"])
        CorrectBranchOperator.partial(task_id="own", **correct).expand(sql=["UPDATE branch SET v = 1"])
    for name in ("sql", "own"):
        outside = from_outside(SimpleNamespace(sql="UPDATE"), ["sql"], cast(Any, _context(other, name)))
        assert outside == ({"sql"} if name == "sql" else set())


def test_templates_of_other_characters_are_templates(warehouse: Path) -> None:
    chosen = {"variable_start_string": "<<", "variable_end_string": ">>", "line_statement_prefix": "%%"}
    made = DAG(f"forms_{next(_NUMBERS)}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC),
               jinja_environment_kwargs=chosen)  # fmt: skip
    texts = {"template": "<< params.sql >>", "lines": "%% if true\nSELECT 1\n%% endif",
             "block": "{% if 1 %}{% endif %}",
             "literal": "SELECT '{{ params.sql }}'"}  # fmt: skip
    with made:
        for name, sql in texts.items():
            CorrectBranchOperator(task_id=name, table="d.t", branch="fix", sql=sql)
    found = {name for name in texts if "sql" in made.get_task(name)._from_outside(cast(Any, _context(made, name)))}
    assert found == {"template", "lines", "block"}


def _context(made: DAG, name: str) -> dict[str, Any]:
    return {"dag": made, "ti": SimpleNamespace(dag_id="d", run_id="r", task_id=name, map_index=-1, max_tries=0)}


def test_text_of_a_form_is_not_rendered_again(warehouse: Path, run_dag: RunDag) -> None:
    main, secret = make_table(warehouse), "{{ conn.paimon_default.extra }}"
    append(main, "1")
    with dag(reason=secret, conn="paimon_default") as made:
        made.default_args["paimon_conn_id"] = "{{ params.conn }}"  # a default is still a template

        @task
        def kwargs() -> list[dict[str, Any]]:
            return [{"branch": "mapped", "reason": secret}]

        CreateBranchOperator(task_id="given", table="d.t", branch="given", snapshot=1, reason=form_value("reason"))
        CreateBranchOperator(task_id="text", table="d.t", branch="text", snapshot=1, reason="{{ params.reason }}")
        CreateBranchOperator.partial(task_id="mapped", table="d.t", snapshot=1).expand_kwargs(kwargs())
    assert run_dag(made).state == "success"
    lineages = [matching_branch_record(main, name) for name in ("given", "text", "mapped")]
    assert [one and one.reason for one in lineages] == [secret] * 3


def test_no_argument_of_a_table_is_left_for_the_next_one(warehouse: Path, run_dag: RunDag) -> None:
    """``force`` of the first table published the protected branch of the second one."""
    mains = [make_table(warehouse, name) for name in ("d.up", "d.down")]
    for main in mains:
        append(main, "1")
        run(main, "create_branch", branch="fix", snapshot=1, protected=True)
        rewrite(main.branch("fix"), "1")
    tables = [{"table": "d.up", "branch": "fix", "force": True}, {"table": "d.down", "branch": "fix"}]
    with dag() as made:
        PublishTablesOperator(task_id="t", tables=tables)
    done = run_dag(made)
    assert done.state == "failed" and "protected" in done.xcom("t", "paimon_error")["message"]
    assert [main.latest_snapshot_id() for main in mains] == [1, 1]
    with dag() as made:

        @task
        def found() -> list[dict[str, Any]]:
            return [{"table": "d.up", "branch": "fix", "retries": 9}]

        PublishTablesOperator(task_id="t", tables=xcom_value("found")) << found()
    assert "no argument retries" in run_dag(made).xcom("t", "paimon_error")["message"]


def test_no_table_is_published_where_one_lacks_a_required_check(warehouse: Path, run_dag: RunDag) -> None:
    """Its dry run told nothing, so the first table was published, and undone."""
    mains = [make_table(warehouse, name) for name in ("d.up", "d.down")]
    for main in mains:
        append(main, "1")
        run(main, "create_branch", branch="fix", snapshot=1)
        rewrite(main.branch("fix"), "1")
    alter_table(mains[1], [SetOption(key="airflow-paimon.required-checks", value='[{"not_null": "v"}]')])
    tables = [{"table": "d.up", "branch": "fix"}, {"table": "d.down", "branch": "fix", "force": True}]
    with dag() as made:
        PublishTablesOperator(task_id="t", tables=tables)
    done = run_dag(made)
    error = done.xcom("t", "paimon_error")
    assert (error["kind"], error["missing_checks"]) == ("unsafe", ["not_null v"])
    assert [main.latest_snapshot_id() for main in mains] == [1, 1]
    tables[1] |= {"skip_checks": True}
    with dag() as made:
        PublishTablesOperator(task_id="t", tables=tables)
    assert run_dag(made).state == "success"
    assert [main.latest_snapshot_id() for main in mains] == [2, 2]


def test_the_connection_of_a_warehouse_says_what_its_forms_may(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = make_table(warehouse)
    append(main, "1")
    forms = {"spark_options": ["post_submit_commands"], "locked": ["spark_conn_id"]}
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(warehouse), "forms": forms})
    with dag(options=Param(SHELL, type="object"), place="other") as made:
        CreateTagOperator(task_id="open", table="d.t", tag="a", snapshot=1, spark_options=form_value("options"))
        CreateTagOperator(task_id="locked", table="d.t", tag="b", snapshot=1, spark_conn_id="{{ params.place }}")
        CreateTagOperator(task_id="own", table="d.t", tag="c", snapshot=1, spark_conn_id="other")
    done = run_dag(made)
    assert done.tasks["open"][0] == "success"
    assert "locks this field" in done.xcom("locked", "paimon_error")["message"]
    assert "locks" not in str(done.xcom("own", "paimon_error"))


def test_a_diff_hides_what_the_connection_lists_for_the_table(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"hr.*": ["name"], "hr.people": ["phone"], "sales.*": ["email"]}
    extra = {"warehouse": str(warehouse), "masked_columns": json.dumps(hidden)}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, max_tries=0)
    operator = DiffBranchesOperator(task_id="t", table="hr.people", branch="fix", mask=["mail"])
    request: Any = operator._request(PaimonHook(), {"ti": ti})  # type: ignore[typeddict-item]
    assert request.mask == ("mail", "hr.*:name", "hr.people:phone", "sales.*:email")
    set_connection(monkeypatch, "paimon_default", "paimon", extra={**extra, "masked_columns": {"hr.*": "name"}})
    with pytest.raises(InvalidInputError, match="masked_columns must be"):
        PaimonHook().check_settings()


def test_a_check_hands_on_what_the_connection_lists(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"hr.*": ["name"], "sales.*": ["email"]}
    set_connection(
        monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(warehouse), "masked_columns": hidden}
    )
    with dag() as made:
        CheckBranchOperator(task_id="t", table="d.t", branch="fix", rules=[{"sql": "SELECT * FROM hr/**/.people"}])
    assert checked(made, "t").mask == ("hr.*:name", "sales.*:email")
