"""Jobs through a real Spark Connect server, a process of its own whose Python has no airflow_paimon."""

import json
import os
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_paimon.core.errors import OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.hooks.spark_connect_job import SparkConnectJobHook, open_job_hook
from airflow_paimon.operators.branch import CorrectBranchOperator, CreateBranchOperator, DiffBranchesOperator
from airflow_paimon.operators.check import CheckBranchOperator
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import wait_until
from tests.core.tables import make_table
from tests.core.tables import run as operate
from tests.environment import QUICK_JVM
from tests.loopback import end, free_port
from tests.spark.cluster import _package, bare_python

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[tuple[int, int]]:
    """Ports of the server and of its UI."""
    folder = tmp_path_factory.mktemp("connect")
    port, ui = free_port(), free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.port": str(ui),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "WARN",
    }
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK", "AIRFLOW"))}
    env |= {
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(bare_python(folder / "python")),
    }
    command = [str(_package("pyspark") / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, "spark-internal"], env=env, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), "the server answers", 90, 0.2)
        yield port, ui
    finally:
        end(process)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def connected(warehouse: Path, server: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Path:
    set_connection(monkeypatch, "connect", "spark_connect", host="127.0.0.1", port=server[0], login="tester")
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"], "dt": ["1", "1", "2"]}))
    return warehouse


RULES = """
import pyarrow

def on_a_worker(batches):
    import airflow_paimon
    for batch in batches:
        values = [f"{value} by {__name__}" for value in batch.column("v").to_pylist()]
        yield batch.set_column(batch.schema.get_field_index("v"), "v", pyarrow.array(values, pyarrow.string()))

def corrected(spark, views):
    return views["branch"].where("dt = '1'").mapInArrow(on_a_worker, views["branch"].schema)
"""


def test_rows_through_a_connect_server(connected: Path, run_dag: RunDag, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    common: dict[str, Any] = {"table": "d.t", "branch": "fix", "spark_conn_id": "connect"}
    correct: dict[str, Any] = {"mode": "upsert", "spark_options": {"py_files": str(tmp_path / "rules.py")}, **common}
    with DAG("connect", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        new = CreateBranchOperator(task_id="new", snapshot=1, **common)
        function = CorrectBranchOperator(task_id="function", function="rules:corrected", **correct)
        query = "SELECT k, concat(v, '!') AS v, dt FROM branch WHERE k = 3"
        sql = CorrectBranchOperator(task_id="sql", sql=query, spark_conf={"spark.sql.ansi.enabled": "true"}, **correct)
        diff = DiffBranchesOperator(task_id="diff", **common)
        wrong = CorrectBranchOperator(task_id="wrong", sql="SELECT nothing FROM branch", retries=2, **correct)
        later = CorrectBranchOperator(task_id="later", sql=query, deferrable=True, retries=2, **correct)
        update = "UPDATE branch SET v = 'x' WHERE k = 3"
        engine = CorrectBranchOperator(task_id="engine", sql=update, engine="connector", retries=2, **common)
        new >> function >> sql >> diff >> [wrong, later, engine]
    run = run_dag(dag)
    states = {name: state for name, (state, tries) in run.tasks.items() if tries == 1}
    assert states == {**dict.fromkeys(["new", "function", "sql", "diff"], "success"),
                      **dict.fromkeys(["wrong", "later", "engine"], "failed")}  # fmt: skip
    fix = make_view(connected)
    assert [r["v"] for r in fix.sort_by("k").to_pylist()] == ["a by rules", "b by rules", "c!"]
    assert [run.xcom(name)["snapshot_after"] for name in ("function", "sql")] == [2, 3]
    assert run.xcom("diff")["details"]["total"]["changed"] == 3
    kinds = {name: run.xcom(name, "paimon_error") for name in ("wrong", "later", "engine")}
    assert [error["kind"] for error in kinds.values()] == ["invalid-input", "unsupported", "unsupported"]
    assert "nothing" in kinds["wrong"]["message"] and "deferrable=True out" in kinds["later"]["message"]
    assert "engine=connector can't run through Spark Connect" in kinds["engine"]["message"]


@pytest.mark.thorough
def test_checks_through_a_connect_server(connected: Path, run_dag: RunDag) -> None:
    other = make_table(connected, "d.r")
    write_arrow(other, pa.table({"k": pa.array([1], pa.int64()), "v": ["a"], "dt": ["1"]}))
    required = 'required-checks=[{"name": "own", "sql": "SELECT * FROM branch WHERE k > 7"}]'
    for main, option in ((open_table(str(connected), "d.t"), "masked-columns=v"), (other, required)):
        operate(main, "create_branch", branch="fix", snapshot=1)
        write_arrow(main.branch("fix"), pa.table({"k": pa.array([1], pa.int64()), "v": ["secret"], "dt": ["1"]}))
        operate(main, "alter_table", change=[f"set airflow-paimon.{option}"])
    common: dict[str, Any] = {"branch": "fix", "spark_conn_id": "connect"}
    rules = [{"sql": "SELECT k, v AS seen FROM diff", "severity": "warn"}, {"not_null": ["k"]}]
    with DAG("connected_checks", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CheckBranchOperator(task_id="own", table="d.t", rules=rules, **common)
        CheckBranchOperator(task_id="required", table="d.r", **common)
    run = run_dag(dag)
    first, second = run.xcom("own")["details"]["rules"]
    assert (first["outcome"], first["rows"]) == ("warned", [{"k": "***", "seen": "***"}])
    assert second["outcome"] == "passed"
    error = run.xcom("required", "paimon_error")
    assert (
        error["kind"] == "unsupported" and "with a connection of type spark, or with spark-submit" in error["message"]
    )
    assert "forms" not in error["message"] and "--restricted-sql" not in error["message"]


def make_view(warehouse: Path) -> pa.Table:
    return read_arrow(open_table(str(warehouse), "d.t", branch="fix"))


def test_killing_the_task_ends_what_runs_on_the_server(connected: Path, server: tuple[int, int]) -> None:
    sleeps = (
        "SELECT k, v, dt FROM branch WHERE dt = '1' AND java_method('java.lang.Thread', 'sleep', 100000L + k) IS NULL"
    )
    hook = open_job_hook("connect")
    assert isinstance(hook, SparkConnectJobHook)
    common = {"warehouse": str(connected), "table": "d.t", "branch": "fix"}
    run_operation(build_request("create_branch", {**common, "snapshot": 1}))
    request = build_request("correct_branch", {**common, "sql": "sql", "mode": "upsert"})
    failures: list[type[PaimonError]] = []

    def work() -> None:
        try:
            hook.run_job(request, result_name="r.json", results_folder="/nowhere", texts={"sql": sleeps})
        except PaimonError as error:
            failures.append(type(error))

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: _running_jobs(server[1]), "the query runs on the server", 180, 0.3)
    hook.on_kill()
    worker.join(500)
    wait_until(lambda: not _running_jobs(server[1]), "the server has ended it", 30, 0.3)
    assert failures == [OutcomeUnknownError]


def _running_jobs(ui: int) -> list[Any]:
    base = f"http://127.0.0.1:{ui}/api/v1/applications"
    application = json.load(urllib.request.urlopen(base))[0]["id"]
    found: list[Any] = json.load(urllib.request.urlopen(f"{base}/{application}/jobs?status=running"))
    return found
