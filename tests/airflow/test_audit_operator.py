"""ExportAuditOperator, run by a real Airflow: in the worker, of several tables, without an asset event."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.operators.audit import ExportAuditOperator
from tests.airflow.conftest import RunDag
from tests.core.tables import append, make_table, run

pytestmark = pytest.mark.airflow


def test_exports_a_warehouse_to_a_file_and_a_table(
    warehouse: Path, run_dag: RunDag, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = make_table(warehouse, primary=False)
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    append(table.branch("fix"), "b")
    run(table, "merge_branch", branch="fix", writers_stopped=True, requested_by="ann")
    with DAG("exports", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ExportAuditOperator(
            task_id="export", table="*", from_="{{ logical_date - macros.timedelta(days=9000) }}",
            uri=f"{tmp_path}/{{{{ dag.dag_id }}}}.json", to_table="audit.log",
        )  # fmt: skip
    done = run_dag(dag, logical_date=datetime(2026, 1, 1, tzinfo=UTC))
    assert (done.state, done.asset_events) == ("success", [])
    assert done.xcom("export")["details"]["rows_written"] == 1
    (record,) = json.loads((tmp_path / "exports.json").read_text())
    assert (record["table"], record["requested_by"]) == ("d.t", "ann")
    assert read_arrow(open_table(str(warehouse), "audit.log"))["requested_by"].to_pylist() == ["ann"]
    assert "rows_written: 1" in "".join(capfd.readouterr()), "the log has the details in lines"
