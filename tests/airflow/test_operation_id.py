"""A retry is the same operation, Clear is a new one: held on Airflow's own retry and Clear."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon.operators.branch import RollbackOperator
from tests.airflow.conftest import RunDag, clear_and_run_again
from tests.core.tables import append, make_table

pytestmark = pytest.mark.airflow


def _fail_the_first_try(context: Any, result: Any) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("the worker lost its network after the operation had landed")


def test_a_retry_gets_the_first_trys_result_and_clear_runs_again(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "1", seq=1)
    with DAG("test_operation_id", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        RollbackOperator(
            task_id="back",
            table="d.t",
            snapshot=1,
            run_on="worker",
            retries=2,
            retry_delay=0,
            post_execute=_fail_the_first_try,
        )
    run = run_dag(dag)
    assert run.tasks == {"back": ("success", 2)}
    assert run.xcom("back")["snapshot_after"] == 3
    assert main.snapshot_ids() == [1, 2, 3], "the second try did the work again"

    append(main, "1", seq=2)
    again = clear_and_run_again(dag, run)
    assert again.tasks == {"back": ("success", 3)}
    assert again.xcom("back")["snapshot_after"] == 5, "Clear gave the old result instead of running"
    users = [main.snapshot(i).commit_user for i in (3, 5)]
    assert users[0] != users[1]
    assert all(user.startswith("airflow-test_operation_id-back-") for user in users)
