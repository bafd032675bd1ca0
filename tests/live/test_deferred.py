"""A deferred task in a whole Airflow: its slot is free, its job outlives the triggerer, and dies with the task."""

import json
import os
from pathlib import Path

import pytest

from tests.airflow.processes import running, wait_until, writing_end
from tests.airflow.yarn_stand_in import yarn_stand_in
from tests.core.tables import append, make_table
from tests.live.live_airflow import LiveAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.thorough]

DAG_FILE = '''
import json, os
from datetime import UTC, datetime
from airflow.sdk import DAG
from airflow_paimon.operators.branch import CreateTagOperator, RollbackOperator

with DAG("deferred", schedule="@once", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    common = {"table": "d.t", "run_on": "spark", "deferrable": True, "poll_interval": 0.5}
    common |= {"paimon_conn_id": "deferred", "spark_conn_id": "cluster", "pool": "one_slot"}
    common |= json.loads(r"""<submits>""")
    waits = RollbackOperator(task_id="waits", snapshot=1, priority_weight=9, **common)
    meanwhile = CreateTagOperator(
        task_id="meanwhile", table="d.other", tag="t", paimon_conn_id="deferred", pool="one_slot"
    )
    waits >> RollbackOperator(task_id="failed_by_hand", snapshot=1, **common)
'''


def test_a_deferred_task(tmp_path: Path, java_home: Path, airflow: LiveAirflow) -> None:
    warehouse = tmp_path / "warehouse"
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    append(make_table(warehouse, name="d.other"), "1")
    # The job hangs where it reads the schema: a named pipe has taken the file's place.
    schema = warehouse / "d.db/t/schema/schema-0"
    content = schema.read_bytes()
    schema.unlink()
    os.mkfifo(schema)
    (tmp_path / "cluster").mkdir()
    with yarn_stand_in(tmp_path / "cluster") as cluster:
        airflow.connect("deferred", "paimon", {"warehouse": str(warehouse)})
        airflow.connect("cluster", "spark", **cluster.connection)
        airflow.api.call("/api/v2/pools", {"name": "one_slot", "slots": 1})
        airflow.add_dags("deferred.py", DAG_FILE.replace("<submits>", json.dumps({"spark_options": cluster.submits})))
        held = wait_until(lambda: writing_end(schema), "the driver hangs in its work", 240)
        # The one slot of the pool was the first task's, and is free while its job runs.
        wait_until(lambda: airflow.task("meanwhile")[0] == "success", "another task has got the slot", 120)
        assert airflow.task("waits") == ("deferred", 1)
        assert driver_pids(warehouse), "its driver still runs"
        airflow.kill("triggerer")
        airflow.start("triggerer")
        schema.unlink()
        schema.write_bytes(content)
        os.write(held, content)
        os.close(held)
        wait_until(lambda: airflow.task("waits")[0] in ("success", "failed"), "the job ends", 240)
        assert airflow.task("waits") == ("success", 1)
        assert airflow.xcom("waits")["snapshot_after"] == 3 == main.latest_snapshot_id()

        schema.unlink()
        os.mkfifo(schema)
        held = wait_until(lambda: writing_end(schema), "the second driver hangs in its work", 240)
        wait_until(lambda: airflow.task("failed_by_hand")[0] == "deferred", "the task has left its worker", 60)
        mark_failed(airflow, "failed_by_hand")
        wait_until(lambda: not driver_pids(warehouse), "the driver died with its task", 60)
        os.close(held)
        assert airflow.task("failed_by_hand") == ("failed", 1)
        assert len(list((tmp_path / "cluster").glob("container-*"))) == 2, "each job was submitted once"
        assert len(cluster.killed) == 1
    schema.unlink()
    schema.write_bytes(content)
    assert main.latest_snapshot_id() == 3


def driver_pids(warehouse: Path) -> dict[int, str]:
    return running(f"--warehouse={warehouse}")


def mark_failed(airflow: LiveAirflow, task_id: str) -> None:
    """As the button does."""
    path = f"/api/v2/dags/deferred/dagRuns/{airflow.run_id('deferred')}/taskInstances/{task_id}"
    airflow.api.call(path, {"new_state": "failed"}, method="PATCH")
