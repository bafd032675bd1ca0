"""Every snippet of the pages that show how to use the package runs, page by page, in the order of the page.

Operators run as what they submit: the request is built from the operator's arguments and performed, with the suite's
Spark session where it reads or writes rows. Shell lines run in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon import create_table, open_table
from airflow_paimon.cli.main import run
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.requests.arguments import build_request, parse_arguments
from airflow_paimon.core.requests.local_execution import NONE
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.forms.rules import rules_as_json
from airflow_paimon.plugin import macros
from tests.environment import REPO_ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOCS = REPO_ROOT / "docs"
PAGES = sorted(
    page
    for page in (
        *_DOCS.glob("*.md"),
        *(p for d in ("tutorials", "howto", "operators", "reference") for p in (_DOCS / d).glob("*.md")),
    )
    if re.search(r"^```(python|bash)$", page.read_text(), re.MULTILINE)
)
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SQL_FILE = re.compile(r"^```sql\n-- (\w+\.sql)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CHAIN_NIGHTS = (_DOCS / "tutorials" / "chain-nights.md").read_text()
_WAREHOUSE = re.compile(r"(?:/data|s3://lake)/warehouse")


@dataclass
class Page:
    """What the snippets of one page share."""

    spark: SparkSession
    warehouse: Path
    names: dict[str, Any] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    dag_ids: set[str] = field(default_factory=set)

    def python(self, text: str) -> None:
        from airflow.sdk import DAG

        with DAG("snippets", schedule=None) as dag:
            name = f"<snippet {len(self.ran)} of {self.warehouse}>"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for inspect.getsource
            exec(compile(text, name, "exec"), self.names)
        # Runbooks, which have this tag, run in tests/dags.
        made = (value for value in self.names.values() if isinstance(value, DAG) and "paimon" not in value.tags)
        dags = [dag, *made]
        for made in dags:
            for task in made.topological_sort() if hasattr(made, "topological_sort") else made.tasks:
                self.operator(task)
        self.dag_ids |= set(re.findall(r'\bDAG\("(\w+)"', text))
        self.names = {name: value for name, value in self.names.items() if not isinstance(value, DAG)}
        self.ran.append("python")

    def operator(self, task: Any) -> None:
        from airflow_paimon.operators._base import PaimonOperator, _argument_fields

        if not isinstance(task, PaimonOperator):
            self.of_common_sql(task)
            return
        self.decorated(task)
        arguments = str([getattr(task, field) for field in task.template_fields])
        if any(word in arguments for word in ("params.", "macros.", "given.", "{{ ds")):
            context: Any = {"params": task.dag.params.dump(), "macros": SimpleNamespace(paimon=macros)}
            context |= {"ds": "2026-11-18", "ds_nodash": "20261118"}
            task.render_template_fields(context)
        if "ti.xcom_pull" in arguments:  # what an earlier task of a run gave
            self.ran.append(task.operation)
            return
        values = {name: task._value(spec) for name, spec in _argument_fields(task.operation).items()}
        if values.get("sql"):  # the operator hands the statement over as a file
            values["sql"] = str(self.warehouse.with_suffix(".sql"))
            Path(values["sql"]).write_text(task.sql)
        if values.get("rules"):
            values["rules"] = str(self.warehouse.with_suffix(".json"))
            Path(values["rules"]).write_text(rules_as_json(task.rules, "rules") or "[]")
        each = [one for one in getattr(task, "tables", [{}]) if isinstance(one, dict)] or [{}]
        for one in each:  # an operator of several tables has their arguments in a list
            self.request(build_request(task.operation, {**values, **one, "warehouse": str(self.warehouse)}))

    def of_common_sql(self, task: Any) -> None:
        from airflow.providers.common.sql.operators.sql import BaseSQLOperator
        from airflow.providers.common.sql.sensors.sql import SqlSensor

        if isinstance(task, BaseSQLOperator | SqlSensor):
            task.render_template_fields({"ds": "2026-11-18"})
            assert task.poke({}) if isinstance(task, SqlSensor) else task.execute({}) is not False
            self.ran.append("sql")

    def decorated(self, task: Any) -> None:
        """Do what a task that is made of a function does before it submits."""
        from airflow_paimon.decorators import _PaimonCorrectOperator, _PaimonSqlOperator

        if isinstance(task, _PaimonSqlOperator):
            task.sql = task.python_callable(*task.op_args, **task.op_kwargs)
        if isinstance(task, _PaimonCorrectOperator):
            name, text = task._as_module()
            sys.modules[name] = module = ModuleType(name)
            exec(text, vars(module))
            task.function = f"{name}:corrected"

    def request(self, request: Any) -> Any:
        from airflow_paimon.spark.jobs import run_spark_operation
        from airflow_paimon.spark.jobs.before_spark import run_before_spark

        if OPERATIONS[request.operation].needs_spark:  # as a job does, but for what plain Python could do
            result = run_before_spark(request, NONE) or run_spark_operation(self.spark, request)
        else:
            result = run_operation(request)
        assert result.operation == request.operation
        self.ran.append(request.operation)
        return result

    def shell(self, text: str) -> None:
        for line in re.sub(r"\\\n", " ", text).splitlines() if "'{\n" not in text else [text]:
            words = shlex.split(line, comments=True)
            if words:
                self.command(words)

    def command(self, words: list[str]) -> None:
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (REPO_ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[:3] == ["airflow", "connections", "add"]:
            self.connection(words[3:])
        elif words[:3] == ["airflow", "dags", "test"]:
            assert words[3] in self.dag_ids, "its tasks ran where the page defines it"
        elif words[0] == "spark-submit":
            assert (REPO_ROOT / words[1]).is_file() and words[2:] == ["--help"], words
        elif words[:4] == ["python", "-m", "airflow_paimon", "job"]:
            if "--help" not in words:
                asked = parse_arguments(words[4], words[5:])
                result = self.request(asked.request)
                if asked.result_uri and "://" not in asked.result_uri:
                    Path(asked.result_uri).write_text(json.dumps(result.to_json()))
            assert words[4] in OPERATIONS, words
        elif words[:3] == ["python", "-m", "airflow_paimon"]:
            if "--storage-options" not in words:
                assert run(words[3:]) == 0, words
        else:
            assert words[0] in ("pip", "python"), words
        self.ran.append(words[0])

    def connection(self, words: list[str]) -> None:
        from airflow.sdk import Connection

        from airflow_paimon.hooks.paimon import PaimonHook

        options = dict(zip(words[1::2], words[2::2], strict=True))
        extra = json.loads(options.get("--conn-extra", "{}"))
        if options["--conn-type"] == "paimon":
            hook = PaimonHook(connection=Connection(conn_id=words[0], conn_type="paimon", extra=json.dumps(extra)))
            assert (hook.warehouse and hook.storage_options is None) or isinstance(hook.storage_options, dict)
        else:
            spark = {"deploy-mode", "queue", "namespace", "yarn_resourcemanager_webapp_address"}
            known = {"spark": spark, "spark_connect": set()}
            assert set(extra) <= known[options["--conn-type"]]


@pytest.fixture
def page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    rules = ModuleType("my_rules.units")
    rules.cents_to_euros = lambda spark, views: views["branch"].where("dt = '2026-11-18'")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_rules", ModuleType("my_rules"))
    monkeypatch.setitem(sys.modules, "my_rules.units", rules)
    connection = json.dumps({"conn_type": "paimon", "extra": {"warehouse": str(tmp_path / "warehouse")}})
    monkeypatch.setenv("AIRFLOW_CONN_PAIMON_DEFAULT", connection)
    monkeypatch.chdir(tmp_path)  # where relative paths lead, those of files that a page writes too
    names = {"spark": spark, "warehouse": str(tmp_path / "warehouse"), "__name__": "snippets"}
    yield Page(spark, tmp_path / "warehouse", names)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    """Make the tables of a page in a folder. Pages that want the same ones get copies."""
    made: dict[tuple[Any, ...], Path] = {}

    def copy(text: str, folder: Path) -> None:
        orders = None if "create_table(" in text else "CreateBranchOperator" not in text
        # The tutorial makes the table itself.
        days = None if text == _CHAIN_NIGHTS else "db.flights" if "db.flights" in text else "sales.days"
        flights = "create_tag" not in text if "flights.daily" in text else None
        if (asked := (orders, days, flights)) not in made:
            made[asked] = warehouse = tmp_path_factory.mktemp("tables") / "warehouse"
            if orders is not None:
                make_orders(warehouse, with_branch=orders)
            if days is not None:
                make_days(warehouse, days)
            if flights is not None:
                make_flights(warehouse, with_branches=flights)
        if made[asked].exists():
            shutil.copytree(made[asked], folder)

    return copy


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(_DOCS)))
@pytest.mark.every(2)
def test_the_snippets_of_a_page_run(page: Page, path: Path, tables: Callable[[str, Path], None]) -> None:
    text = path.read_text()
    tables(text, page.warehouse)
    rules = (
        re.findall(r"--rules (\w+\.json)", text),
        re.findall(r"^```json\n(\[.*?)^```", text, re.MULTILINE | re.DOTALL),
    )
    for name, statement in (*_SQL_FILE.findall(text), *zip(*rules, strict=True)):  # read from where the job runs
        Path(name).write_text(statement)
    for language, block in _BLOCK.findall(text):
        here = _WAREHOUSE.sub(str(page.warehouse), block)
        page.python(here) if language == "python" else page.shell(here)
    assert page.ran


def test_the_statement_of_readme_and_quick_start_corrects_its_table_once(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run of it changes nothing more."""
    text = (_DOCS / "quickstart.md").read_text()
    (_, script), *_ = _BLOCK.findall(text)
    exec(script.replace("/data/warehouse", str(page.warehouse)), {})
    assert "{'id': 2, 'dt': '2026-11-17', 'amount': 200000.0}" in capsys.readouterr().out
    (given,) = re.findall(r"--conf '(\{.*?\})'", (REPO_ROOT / "README.md").read_text(), re.DOTALL)
    assert given in text
    form = json.loads(given)
    fix = {"warehouse": str(page.warehouse), "table": form["table"], "branch": "fix"}
    page.request(build_request("create_branch", {**fix, "snapshot": 1}))
    Path("fix.sql").write_text(f"{form['sql']};\n{form['sql']}")
    page.request(build_request("correct_branch", {**fix, "sql": "fix.sql"}))
    orders = open_table(str(page.warehouse), form["table"], branch="fix")
    assert sorted(read_arrow(orders).column("amount").to_pylist()) == [45.0, 125.0, 2000.0, 9900.0]


def test_the_pipeline_does_what_its_tutorial_says(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of its tasks, one after the other; the form that the second DAG fills in is the correction's."""
    from tests.dags.conftest import load_dag

    make_orders(page.warehouse, with_branch=True)
    settings = {"conn_type": "paimon", "extra": {"warehouse": str(page.warehouse)}}
    monkeypatch.setenv("AIRFLOW_CONN_PAIMON_DEFAULT", json.dumps(settings))
    for language, block in _BLOCK.findall((_DOCS / "tutorials" / "pipeline.md").read_text()):
        assert language == "python"
        exec(compile(block, "pipeline", "exec"), page.names)
    load, look, report = (page.names[name].function for name in ("load", "find_wrong_days", "report"))
    assert look() == []
    assert load("2026-11-19")["changed"]
    assert report() == pytest.approx(92022.5)
    (asked,) = look()
    assert asked["trigger_run_id"] == "cents_2026-11-19"
    conf = asked["conf"]
    assert set(conf) <= set(load_dag("data_correction").params)
    values = {"warehouse": str(page.warehouse), "table": conf["table"], "branch": "correction"}
    run_operation(build_request("create_branch", {**values, "snapshot": 2}))
    page.warehouse.with_suffix(".sql").write_text(conf["sql"])
    query = {"sql": str(page.warehouse.with_suffix(".sql"))}
    page.request(build_request("correct_branch", {**values, **query}))
    page.request(build_request("merge_branch", values))
    assert report() == pytest.approx(2922.5)
    assert look() == []
    head = open_table(str(page.warehouse), conf["table"]).latest_snapshot()
    assert head is not None
    assert head.commit_kind not in page.names["trigger"].filter.kinds, "a publish would start the second DAG again"


def test_the_undo_row_by_row_keeps_what_changed_since(page: Page) -> None:
    """On Monday amounts are multiplied by mistake, a row is deleted and one added; on Thursday order 1 is corrected."""
    make_orders(page.warehouse, with_branch=False)
    orders = open_table(str(page.warehouse), "sales.orders")
    day = "2026-11-18"
    write_arrow(orders, pa.table({"id": [1, 2, 3], "dt": [day] * 3, "amount": [10.0, 20.0, 30.0]}), "overwrite")
    wrong = f"""UPDATE branch SET amount = amount * 100 WHERE id IN (1, 2); DELETE FROM branch WHERE id = 3;
        INSERT INTO branch (id, dt, amount) VALUES (9, '{day}', 900)"""
    monday = {"warehouse": str(page.warehouse), "table": "sales.orders", "branch": "monday"}
    page.request(build_request("create_branch", {**monday, "snapshot": 2}))
    page.warehouse.with_suffix(".sql").write_text(wrong)
    page.request(build_request("correct_branch", {**monday, "sql": str(page.warehouse.with_suffix(".sql"))}))
    published = page.request(build_request("merge_branch", {**monday, "operation_id": "monday"}))
    write_arrow(orders, pa.table({"id": [1, 4], "dt": [day] * 2, "amount": [11.0, 40.0]}))
    undo = {"warehouse": str(page.warehouse), "table": "sales.orders", "tag": published.details["undo_tag"]}
    with pytest.raises(ConflictError, match="changed again after the publish"):
        run_operation(build_request("rollback_to", {**undo, "keep_later": True}))
    text = (_DOCS / "howto" / "undo-later.md").read_text()
    statement, *blocks = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(re.findall(r"-c '(.*?)'", statement, re.DOTALL)[0].replace('"W"', repr(str(page.warehouse))), {})
    Path("undo.sql").write_text(printed.getvalue())
    commands = "".join(blocks)
    assert "--snapshot 3" in commands
    commands = commands.replace("--snapshot 3", "--snapshot 4")
    page.shell(commands.replace("--warehouse W", f"--warehouse {page.warehouse}"))
    rows = {row["id"]: row["amount"] for row in read_arrow(orders).to_pylist()}
    assert rows == {1: 11.0, 2: 20.0, 3: 30.0, 4: 40.0}  # 2 and 3 are restored, 9 is removed; the later 1 and 4 stay


def test_the_undo_of_a_table_without_keys_keeps_what_came_since(page: Page) -> None:
    """The publish multiplies orders 1 and 2; since then 3 was deleted and 4 added, in the same file."""
    columns = [("id", "BIGINT"), ("dt", "STRING"), ("amount", "DOUBLE")]
    orders = create_table(str(page.warehouse), "sales.orders", columns, partition_keys=["dt"])
    write_arrow(orders, pa.table({"id": [1, 2, 3], "dt": ["2026-11-18"] * 3, "amount": [10.0, 20.0, 30.0]}))
    reach = {"warehouse": str(page.warehouse), "table": "sales.orders"}
    later = "DELETE FROM branch WHERE id = 3; INSERT INTO branch (id, dt, amount) VALUES (4, '2026-11-18', 40)"
    undo = re.findall(r"^```sql\n(.*?)^```", (_DOCS / "howto" / "undo-later.md").read_text(), re.MULTILINE | re.DOTALL)[
        0
    ]
    before = {"view": ("before=sales.orders@airflow-paimon-undo-wrong", "published=sales.orders@2")}
    wrong = "UPDATE branch SET amount = amount * 100 WHERE id IN (1, 2)"
    for at, (name, statement) in enumerate((("wrong", wrong), ("later", later), ("undo", undo)), 1):
        if name == "undo":
            with pytest.raises(ConflictError, match="changed again after the publish"):
                tag = {"tag": "airflow-paimon-undo-wrong", "keep_later": True}
                run_operation(build_request("rollback_to", {**reach, **tag}))
        Path("fix.sql").write_text(statement)
        page.request(build_request("create_branch", {**reach, "branch": name, "snapshot": at}))
        rest = {**before, "partitions": ("dt=2026-11-18",)} if name == "undo" else {}
        page.request(build_request("correct_branch", {**reach, "branch": name, "sql": "fix.sql", **rest}))
        page.request(build_request("merge_branch", {**reach, "branch": name, "operation_id": name}))
    assert {(row["id"], row["amount"]) for row in read_arrow(orders).to_pylist()} == {(1, 10.0), (2, 20.0), (4, 40.0)}


def make_orders(warehouse: Path, with_branch: bool) -> None:
    """Make what the pages call ``sales.orders``: two days of orders, the tag and the branch of its correction."""
    columns = [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("amount", "DOUBLE")]
    table = create_table(
        str(warehouse),
        "sales.orders",
        columns,
        partition_keys=["dt"],
        primary_keys=["dt", "id"],
        options={"bucket": "2"},
    )
    write_arrow(table, pa.table({"id": [1, 2], "dt": ["2026-11-17", "2026-11-18"], "amount": [10.0, 2000.0]}))
    if with_branch:
        for name in ("fix", "replay"):
            values = {"warehouse": str(warehouse), "table": "sales.orders", "branch": name, "snapshot": 1}
            run_operation(build_request("create_branch", values))


def make_flights(warehouse: Path, with_branches: bool) -> None:
    """Make the raw flights and their daily delays of the page on replays; for other pages also tags and branches."""
    days, carriers, delays = ["2026-11-17", "2026-11-18"], ["AA", "UA"], [5, 420]
    columns = {
        "raw": [("id", "BIGINT NOT NULL"), ("carrier", "STRING"), ("delay", "BIGINT"), ("dt", "STRING NOT NULL")],
        "daily": [("dt", "STRING NOT NULL"), ("carrier", "STRING NOT NULL"), ("delay", "BIGINT")],
    }
    for name, key in (("raw", "id"), ("daily", "carrier")):
        table = create_table(
            str(warehouse),
            f"flights.{name}",
            columns[name],
            partition_keys=["dt"],
            primary_keys=["dt", key],
            options={"bucket": "1"},
        )
        rows = {"id": [1, 2], "dt": days, "carrier": carriers, "delay": delays}
        write_arrow(table, pa.table({column: rows[column] for column, _ in columns[name]}))
        if with_branches:
            values = {"warehouse": str(warehouse), "table": f"flights.{name}", "tag": "before_fix"}
            run_operation(build_request("create_tag", values))
            run_operation(build_request("create_branch", {**values, "branch": "fix"}))


def make_days(warehouse: Path, table: str) -> None:
    """Make the chain table of the tutorial, with a full day and a day of changes."""
    command = next(block for language, block in _BLOCK.findall(_CHAIN_NIGHTS) if language == "bash")
    words = shlex.split(_WAREHOUSE.sub(str(warehouse), command.replace("\\\n", " ")).replace("sales.days", table))
    run_operation(parse_arguments(words[4], words[5:]).request)
    rows = next(block for language, block in _BLOCK.findall(_CHAIN_NIGHTS) if language == "python")
    exec(compile(_WAREHOUSE.sub(str(warehouse), rows).replace("sales.days", table), "tutorial", "exec"), {})
