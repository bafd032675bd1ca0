"""The operators and sensors of the provider common-sql on a connection of type paimon."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.providers.common.sql.operators.sql import (
    BranchSQLOperator,
    SQLCheckOperator,
    SQLColumnCheckOperator,
    SQLExecuteQueryOperator,
    SQLInsertRowsOperator,
    SQLIntervalCheckOperator,
    SQLTableCheckOperator,
    SQLThresholdCheckOperator,
    SQLValueCheckOperator,
)
from airflow.providers.common.sql.sensors.sql import SqlSensor
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseHook, Connection

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.data import write_arrow
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.hooks.sql import PaimonSqlHook
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import run
from tests.data.tables import make_table, rows_of

pytestmark = pytest.mark.airflow

COLUMNS = {"dt": "STRING NOT NULL", "id": "BIGINT NOT NULL", "amount": "DECIMAL(8, 2)"}


@pytest.fixture
def orders(warehouse: Path) -> None:
    made = make_table(
        warehouse, COLUMNS, name="sales.orders", primary_keys=["dt", "id"], partition_keys=["dt"], bucket="1"
    )
    rows = [{"dt": day, "id": i, "amount": i} for day in ("2026-11-17", "2026-11-18") for i in (1, 2, 3)]
    write_arrow(made, rows_of(COLUMNS, rows))
    run(made, "create_branch", branch="fix", snapshot=1)
    write_arrow(made.branch("fix"), rows_of(COLUMNS, [{"dt": "2026-11-18", "id": 4}]))


def test_operators_checks_and_sensors_of_common_sql_run(orders: None, run_dag: RunDag) -> None:
    lake: dict[str, Any] = {"conn_id": "paimon_default"}
    start = datetime(2026, 11, 18, tzinfo=UTC)
    with DAG("test_common_sql", schedule=None, start_date=start, default_args=lake) as dag:
        SqlSensor(task_id="sensor", sql="SELECT count(*) FROM sales.orders WHERE dt = '{{ ds }}'", poke_interval=0.1)
        SqlSensor(
            task_id="never", sql="SELECT 1 FROM sales.orders WHERE id > 99", poke_interval=0.1, timeout=0.5,
            soft_fail=True,
        )  # fmt: skip
        SQLExecuteQueryOperator(
            task_id="query",
            sql="SELECT dt, sum(amount) AS total FROM orders WHERE id > ? GROUP BY dt ORDER BY dt",
            parameters=[1],
            database="sales",
            hook_params={"memory_limit": "500MB"},
        )
        SQLExecuteQueryOperator(
            task_id="several", sql="SELECT 1; SELECT count(*) FROM sales.orders$branch_fix", split_statements=True
        )
        SQLCheckOperator(task_id="check", sql="SELECT count(*), min(amount) > 0 FROM sales.orders")
        SQLCheckOperator(task_id="check_fails", sql="SELECT count(*) > 99 FROM sales.orders")
        SQLValueCheckOperator(task_id="value", sql="SELECT sum(amount) FROM sales.orders", pass_value=12)
        SQLThresholdCheckOperator(
            task_id="threshold", sql="SELECT max(amount) FROM sales.orders", min_threshold=1,
            max_threshold="SELECT count(*) FROM sales.orders",
        )  # fmt: skip
        SQLIntervalCheckOperator(
            task_id="interval", table="sales.orders", date_filter_column="dt", days_back=-1,
            metrics_thresholds={"count(*)": 1.1},
        )  # fmt: skip
        SQLColumnCheckOperator(
            task_id="columns", table="sales.orders$branch_fix",
            column_mapping={"id": {"null_check": {"equal_to": 0}, "max": {"equal_to": 4}},
                            "amount": {"null_check": {"equal_to": 1}}},
        )  # fmt: skip
        SQLTableCheckOperator(
            task_id="table", table='sales."orders@1"', partition_clause="dt = '2026-11-18'",
            checks={"rows": {"check_statement": "count(*) = 3"}, "sum": {"check_statement": "sum(amount) = 6"}},
        )  # fmt: skip
        BranchSQLOperator(
            task_id="branch", sql="SELECT count(*) = 6 FROM sales.orders", follow_task_ids_if_true="yes",
            follow_task_ids_if_false="no",
        ) >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]  # fmt: skip
        SQLExecuteQueryOperator(task_id="changes", sql="DELETE FROM sales.orders WHERE id = 1")
        SQLInsertRowsOperator(task_id="inserts", table_name="sales.orders", columns=["id"], rows=[[1]])
    done = run_dag(dag, logical_date=start)
    wrong = {"never": "skipped", "check_fails": "failed", "changes": "failed", "inserts": "failed", "no": "skipped"}
    assert {task: state for task, (state, _) in done.tasks.items()} == dict.fromkeys(done.tasks, "success") | wrong
    # Airflow before 3.3 has its deserializer elsewhere, so a look at what is stored.
    assert str(done.xcom("query")).count("2026-11-1") == 2 and "7" in str(done.xcom("several"))


def test_the_hook_of_a_connection_reads_rows_and_frames(orders: None, airflow_home: Path) -> None:
    hook = BaseHook.get_hook("paimon_default")
    assert isinstance(hook, PaimonSqlHook) and isinstance(hook, DbApiHook) and isinstance(hook, PaimonHook)
    assert hook.get_first("SELECT count(*) FROM sales.orders") == (6,)
    assert hook.get_records("SELECT id FROM sales.orders WHERE dt = $day ORDER BY id", {"day": "2026-11-17"}) == [
        (1,), (2,), (3,),
    ]  # fmt: skip
    assert [column[0] for column in hook.last_description or ()] == ["id"]
    statement = "SELECT id, amount FROM sales.orders WHERE id > ? ORDER BY dt, id"
    frame = hook.get_df(statement, [1])
    assert isinstance(frame, pandas.DataFrame) and frame["id"].tolist() == [2, 3, 2, 3]
    other = hook.get_df(statement, [1], df_type="polars")
    assert isinstance(other, polars.DataFrame) and other["id"].to_list() == [2, 3, 2, 3]
    assert [len(part) for part in hook.get_df_by_chunks(statement, [1], chunksize=3)] == [3, 1]
    assert [len(part) for part in hook.get_df_by_chunks(statement, [1], chunksize=3, df_type="polars")] == [3, 1]
    assert hook.get_table("sales.orders").latest_snapshot_id() == 1
    assert hook.get_catalog().databases() == ["sales"]
    with pytest.raises(InvalidInputError, match="no index_col"):
        hook.get_df(statement, [1], index_col="id")


def test_what_operators_pass_besides_is_no_mistake_and_anything_else_is(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> None:
    extra = {"warehouse": str(warehouse), "secret": "x", "storage_options": {"a": 1}}
    set_connection(monkeypatch, "lake", "paimon", extra=extra)
    hook = SQLExecuteQueryOperator(task_id="a", sql="SELECT 1", conn_id="lake").get_db_hook()
    assert isinstance(hook, PaimonSqlHook) and hook.warehouse == str(warehouse)
    with pytest.raises(InvalidInputError, match="memory_limt is unknown"):
        Connection.get("lake").get_hook(hook_params={"memory_limt": "1GB"})


def test_the_test_button_asks_the_hook_for_sql(orders: None, airflow_home: Path) -> None:
    good, message = Connection.get("paimon_default").get_hook().test_connection()
    assert good, message


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize(
    ("missing", "said"),
    [("airflow.providers.common.sql.hooks", "the provider common-sql"), ("duckdb", "DuckDB")],
)
def test_without_the_extra_the_connection_works_and_sql_says_what_to_install(
    orders: None, missing: str, said: str
) -> None:
    code = f"""
        import sys
        sys.modules[{missing!r}] = None
        from airflow_paimon.core.errors import UnsupportedError
        from airflow_paimon.hooks.sql import PaimonSqlHook
        hook = PaimonSqlHook()
        print(hook.test_connection()[0], hook.get_catalog().databases())
        for call in (hook.get_first, hook.get_records, hook.get_df):
            try:
                call("SELECT 1")
            except UnsupportedError as error:
                print(error.message)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    logged = ("{", "20")  # lines of Airflow's own log
    first, *errors = [line for line in done.stdout.splitlines() if not line.startswith(logged)]
    assert first == "True ['sales']"
    assert len(errors) == 3 and all(said in e and "pip install 'airflow-paimon[sql]'" in e for e in errors), errors
