"""A deferred task in a whole Airflow: its slot is free, its job outlives the triggerer, and dies with the task."""

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

from tests.airflow.live_airflow import LiveAirflow, live_airflow
from tests.airflow.processes import running, wait_until, writing_end
from tests.airflow.test_cluster_jobs import CONF, OPTIONS, connection, driver_state
from tests.core.tables import append, make_table
from tests.spark.cluster import start_cluster

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG_FILE = """
import json, os
from datetime import UTC, datetime
from airflow.sdk import DAG
from airflow_paimon.operators.branch import CreateTagOperator, RollbackOperator

with DAG("deferred", schedule="@once", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    common = {"table": "d.t", "run_on": "spark", "deferrable": True, "poll_interval": 0.5}
    common |= json.loads(os.environ["TEST_SUBMITS"])
    waits = RollbackOperator(task_id="waits", snapshot=1, priority_weight=9, **common)
    meanwhile = CreateTagOperator(task_id="meanwhile", table="d.other", tag="t")
    waits >> RollbackOperator(task_id="killed", snapshot=1, **common)
"""


def test_a_deferred_task(tmp_path: Path, warehouse: Path, java_home: Path) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    append(make_table(warehouse, name="d.other"), "1")
    # The job hangs where it reads the schema: a named pipe has taken the file's place.
    schema = warehouse / "d.db/t/schema/schema-0"
    content = schema.read_bytes()
    schema.unlink()
    os.mkfifo(schema)
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "deferred.py").write_text(DAG_FILE)
    (tmp_path / "cluster").mkdir()
    with start_cluster(tmp_path / "cluster", java_home) as cluster:
        env = {
            "AIRFLOW_CONN_PAIMON_DEFAULT": os.environ["AIRFLOW_CONN_PAIMON_DEFAULT"],
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", **connection(cluster)}),
            "TEST_SUBMITS": json.dumps(
                {"spark_conf": CONF | {"spark.pyspark.python": str(cluster.python)}, "spark_options": OPTIONS}
            ),
            "AIRFLOW__CORE__DEFAULT_POOL_TASK_SLOT_COUNT": "1",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        log = tmp_path / "cluster/master.log"

        with live_airflow(tmp_path / "home", dags, env, apps="all", triggerer=True) as airflow:
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
            wait_until(lambda: airflow.task("killed")[0] == "deferred", "the task has left its worker", 60)
            mark_failed(airflow, "killed")
            wait_until(lambda: not driver_pids(warehouse), "the driver died with its task", 60)
            os.close(held)
            assert airflow.task("killed") == ("failed", 1)
        submitted = sorted(set(re.findall(r"driver-\d+-\d+", log.read_text())))
        assert len(submitted) == 2, "each job was submitted once"
        wait_until(lambda: driver_state(cluster, submitted[1]) == "KILLED", "the cluster says so", 30, 0.5)
        assert driver_state(cluster, submitted[0]) == "FINISHED"
    schema.unlink()
    schema.write_bytes(content)
    assert main.latest_snapshot_id() == 3


def driver_pids(warehouse: Path) -> dict[int, str]:
    return running(f"--warehouse={warehouse}")


def mark_failed(airflow: LiveAirflow, task_id: str) -> None:
    """As the button does."""
    run_id = airflow.rows("select run_id from dag_run")[0][0]
    base = f"http://127.0.0.1:{airflow.port}"
    token = json.load(urllib.request.urlopen(f"{base}/auth/token"))["access_token"]
    request = urllib.request.Request(
        f"{base}/api/v2/dags/deferred/dagRuns/{run_id}/taskInstances/{task_id}",
        data=json.dumps({"new_state": "failed"}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(request).read()
