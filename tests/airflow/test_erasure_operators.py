"""What Airflow shows of the condition of operators that find and erase rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_paimon.operators.erasure import EraseRowsOperator, FindRowsOperator
from tests.airflow.conftest import RunDag


@pytest.mark.airflow
def test_airflow_hides_the_condition_of_a_mapped_task(warehouse: Path, run_dag: RunDag) -> None:
    from airflow.sdk import DAG
    from airflow.sdk._shared.secrets_masker import redact

    with DAG("mapped_erasure", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        FindRowsOperator.partial(task_id="find", table="d.none").expand(where=["v = 'Ada Byron'"])
    run_dag(dag)  # which finds no such table
    assert redact("--where v = 'Ada Byron'") == "--where ***"


def test_airflow_hides_the_condition() -> None:
    from airflow.sdk._shared.secrets_masker import redact

    operator = EraseRowsOperator(task_id="erase", table="d.t", where="{{ who }} = 'a person'")
    operator.render_template_fields({"who": "name"})  # type: ignore[typeddict-unknown-key]
    assert operator.where == "name = 'a person'"
    assert redact({"where": operator.where, "log": f"--where {operator.where}"}) == {
        "where": "***",
        "log": "--where ***",
    }
