"""Operators that submit: the same results as on the worker, and no secret on the way."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon.operators.branch import (
    CorrectBranchOperator,
    CreateBranchOperator,
    CreateTagOperator,
    DiffBranchesOperator,
)
from airflow_paimon.operators.check import CheckBranchOperator
from airflow_paimon.operators.maintenance import CheckTableOperator
from airflow_paimon.operators.replay import ReplayBranchOperator
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import COLUMNS, append, make_table
from tests.s3_server import KEY, REGION, SECRET, make_bucket, s3_server, storage_options

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("java_home")]


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def _stable(result: dict[str, Any]) -> dict[str, Any]:
    """The plan's id covers the record of who makes the branch, and that is each task for itself."""
    plan = {k: v for k, v in result["details"]["plan"].items() if k != "plan_id"}
    same = {k: v for k, v in result.items() if k not in ("duration_s", "plan_id", "ran_on")}
    return {**same, "details": {**result["details"], "plan": plan}}


@pytest.mark.landing
def test_a_submitted_operation_gives_what_the_worker_gives(
    warehouse: Path, run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    append(make_table(warehouse), "1")
    with DAG("test_submitted", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        plan: dict[str, Any] = {"table": "d.t", "branch": "fix", "snapshot": 1, "dry_run": True}
        here = CreateBranchOperator(task_id="here", run_on="worker", now="2026-11-21T00:00:00+00:00", **plan)
        there = CreateBranchOperator(task_id="there", run_on="spark", now="2026-11-21T00:00:00+00:00", **plan)
        wrong = CreateTagOperator(task_id="wrong", table="d.t", tag="1", run_on="spark", retries=2)
        here >> there >> wrong
    run = run_dag(dag)
    assert run.tasks == {"here": ("success", 1), "there": ("success", 1), "wrong": ("failed", 1)}
    assert _stable(run.xcom("there")) == _stable(run.xcom("here"))
    assert [run.xcom(task)["ran_on"] for task in ("here", "there")] == ["worker", "spark"]
    assert run.xcom("wrong", "paimon_error")["kind"] == "invalid-input"
    logged = "".join(capfd.readouterr())
    assert "spark-submit" in logged
    assert logged.count('{"operation": "create_branch", "table": ') == 2, "each result stands in the log once"


@pytest.mark.thorough
def test_on_s3_with_the_credentials_of_the_connection(
    s3_endpoint: str, airflow_home: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    from airflow_paimon.core.schema.tables import create_table

    warehouse = f"s3://{make_bucket(s3_endpoint)}/wh"
    extra = {"warehouse": warehouse, "endpoint": s3_endpoint, "region": REGION}
    set_connection(monkeypatch, "paimon_default", "paimon", login=KEY, password=SECRET, extra=extra)
    set_connection(monkeypatch, "spark_default", "spark", host="local[1]")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "wrong-on-purpose")
    options = storage_options(s3_endpoint)
    keys: dict[str, Any] = {"partition_keys": ["dt"], "primary_keys": ["dt", "k"], "options": {"bucket": "2"}}
    main = create_table(warehouse, "d.t", COLUMNS, storage_options=options, **keys)
    append(main, "1")
    with DAG("test_s3", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        new = CreateBranchOperator(task_id="new", table="d.t", branch="fix", snapshot=1, run_on="spark")
        new >> CheckTableOperator(task_id="check", table="d.t")
    run = run_dag(dag)
    assert run.state == "success"
    assert main.branch_names() == ["fix"]
    assert run.xcom("check")["details"]["ok"] is True
    printed = "".join(capfd.readouterr())
    assert "spark-submit" in printed
    assert KEY not in printed
    assert SECRET not in printed
    database = b"".join(file.read_bytes() for file in airflow_home.glob("airflow.db*"))  # with its write-ahead log
    assert b"test_s3" in database
    assert SECRET.encode() not in database
    assert KEY.encode() not in database


MODULE = """
import pandas

def double(spark, views):
    assert pandas.NA is not None
    print("a line on stdout that is no result")
    return views["branch"].where("dt = '1'").selectExpr("k", "concat(v, v) as v", "dt")

def short(spark, views):
    return pandas.DataFrame({"k": [1]}).query("k > 1").to_dict("records")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["compared", "replayed"])
def test_rows_are_corrected_by_a_function_and_compared_or_replayed(
    warehouse: Path,
    run_dag: RunDag,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    then: str,
) -> None:
    """With the Spark settings of the Paimon connection: these operators name none but ``py_files``."""
    import pyarrow as pa

    from airflow_paimon.data import read_arrow, write_arrow

    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"], "dt": ["1", "1", "2"]}))
    (tmp_path / "fixes.py").write_text(MODULE)
    spark = {"spark_conn_id": "own_spark", "spark_conf": QUICK, "spark_options": '{"name": "nightly corrections"}'}
    set_connection(
        monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(warehouse), "local_execution": "none", **spark}
    )
    set_connection(monkeypatch, "own_spark", "spark", host="local[1]")
    set_connection(monkeypatch, "spark_default", "spark", host="spark://127.0.0.1", port=9)
    common: dict[str, Any] = {"table": "d.t", "branch": "fix"}
    with DAG(f"test_rows_{then}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        new = CreateBranchOperator(task_id="new", snapshot=1, **common)
        shipped = {"py_files": str(tmp_path / "fixes.py")}
        correct = CorrectBranchOperator(
            task_id="correct", function="fixes:double", mode="upsert", spark_options=shipped, **common
        )
        if then == "compared":
            new >> correct >> DiffBranchesOperator(task_id="diff", sample="1", **common)
            correct >> CheckBranchOperator(
                task_id="check", rules=[{"function": "fixes:short"}], spark_options=shipped, **common
            )
        else:
            changes = "INSERT INTO branch SELECT k + 10, v, dt FROM up WHERE dt = '1'; DELETE FROM branch WHERE k = 12"
            new >> correct >> ReplayBranchOperator(task_id="replay", source=["up=d.t"], sql=changes, **common)
    run = run_dag(dag)
    assert run.state == "success", run.tasks
    logged = "".join(capfd.readouterr())
    assert (
        logged.count("--conf spark.ui.enabled=false")
        == logged.count("--name nightly corrections")
        == len(run.tasks) - 1
    )
    assert run.xcom("correct")["snapshot_after"] == 2
    rows = read_arrow(main.branch("fix"), 2).sort_by("k").to_pylist()
    assert [row["v"] for row in rows] == ["aa", "bb", "c"]
    assert [row["v"] for row in read_arrow(main).sort_by("k").to_pylist()] == ["a", "b", "c"]
    if then == "replayed":
        replayed = read_arrow(main.branch("fix")).sort_by("k").to_pylist()
        assert [(row["k"], row["v"]) for row in replayed] == [(1, "aa"), (2, "bb"), (3, "c"), (11, "a")]
        details = run.xcom("replay")["details"]
        assert details["sources"]["up"] == {"table": "d.t", "branch": "main", "start": 0, "caught_up_to": 1, "head": 1}
        assert (details["targets"]["t"]["batches"], details["targets"]["t"]["snapshot_after"]) == (2, 4)
        return
    compared = run.xcom("diff")
    assert compared["changed"] is False
    assert json.dumps(compared["details"]).count('"aa"') == 1


def test_sql_may_be_a_file_beside_the_dag(tmp_path: Path) -> None:
    (tmp_path / "fix.sql").write_text("select * from branch where dt = '{{ day }}'")
    with DAG("test_sql_file", schedule=None, template_searchpath=[str(tmp_path)]):
        task = CorrectBranchOperator(task_id="t", table="d.t", branch="fix", sql="fix.sql", partitions=["dt={{ day }}"])
    task.resolve_template_files()
    task.render_template_fields({"day": "2026-11-21"})
    assert task.sql == "select * from branch where dt = '2026-11-21'"
    assert task.partitions == ["dt=2026-11-21"]
