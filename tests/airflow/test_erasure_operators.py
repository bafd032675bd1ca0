"""What the operators that find, erase and clean say in the task's log: counts and who holds what, no value of a row."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_paimon.operators._log_lines import log_lines
from airflow_paimon.operators.erasure import EraseRowsOperator, FindRowsOperator
from airflow_paimon.operators.maintenance import RemoveOrphanFilesOperator
from tests.airflow.conftest import RunDag
from tests.core.metadata_expiry.test_remove_orphan_files import plant
from tests.core.tables import append, make_table, run
from tests.data.erasure.tables import WHERE, plain
from tests.data.erasure.test_erase_rows import erase


def test_the_log_says_where_rows_are_and_what_was_erased(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    find = FindRowsOperator(task_id="find", table="d.t", where=WHERE)
    found = "\n".join(log_lines(find.operation, run(table, "find_rows", where=WHERE).to_json()))
    assert found.startswith("2 of 2 files hold 2 such rows") and "branch main: 2 files with 2 rows" in found
    assert "tag month of main keeps 2 files: delete_tag --tag month" in found

    operator = EraseRowsOperator(task_id="erase", table="d.t", where=WHERE)
    said = "\n".join(log_lines(operator.operation, erase(table).to_json()))
    assert said.startswith("branch main: 2 rows erased from 2 files by snapshot 3")
    assert said.endswith("Not complete: see what still keeps files") and "secret" not in found + said


def test_the_log_says_why_files_stay() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    run(table, "create_tag", tag="t")
    append(table, "b")
    plant(table)
    operator = RemoveOrphanFilesOperator(task_id="clean", table="d.t")
    lines = log_lines(operator.operation, run(table, "remove_orphan_files").to_json())
    assert lines[0] == "0 files with 0 bytes deleted"
    assert "  tags of main: 4 files, 0 of them by nothing else" in lines
    assert lines[-1].startswith("15 files are too young, the first until 20")


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
