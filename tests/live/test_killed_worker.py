"""SIGKILL in a live Airflow, for the task and for its supervisor: no driver is left, and the work is done once."""

import os
import signal
from pathlib import Path

import pytest

from tests.airflow.processes import running, wait_until, writing_end
from tests.core.tables import append, make_table, names
from tests.live.live_airflow import LiveAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG_FILE = """
import os, signal
from datetime import UTC, datetime
from pathlib import Path
from airflow.sdk import DAG
from airflow_paimon.operators.branch import RollbackOperator

PIDS = "<pids>"

def note_the_worker(context):
    with open(PIDS, "a") as file:
        file.write(f"{context['ti'].task_id} {context['ti'].try_number} {os.getpid()}\\n")

def die_once(context, result):
    if context["ti"].try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

with DAG("killed", schedule="@once", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    arguments = {"table": "d.t", "paimon_conn_id": "killed", "retries": 1, "retry_delay": 1}
    arguments["pre_execute"] = note_the_worker
    during = RollbackOperator(task_id="during", snapshot=1, run_on="spark", **arguments)
    after = RollbackOperator(task_id="after", snapshot=2, post_execute=die_once, **arguments)
    orphaned = RollbackOperator(task_id="orphaned", snapshot=1, run_on="spark", **arguments)
    during >> after >> orphaned
"""


def test_no_driver_is_left_and_the_work_is_done_once(tmp_path: Path, airflow: LiveAirflow) -> None:
    warehouse = tmp_path / "warehouse"
    main = make_table(warehouse)
    append(main, "1")
    append(main, "1", seq=1)
    first = names(main)
    # The first try's job hangs where it reads the schema: a named pipe has taken the file's place.
    schema = warehouse / "d.db/t/schema/schema-0"
    content = schema.read_bytes()
    schema.unlink()
    os.mkfifo(schema)

    pids = tmp_path / "pids"
    airflow.connect("killed", "paimon", {"warehouse": str(warehouse)})
    airflow.add_dags("killed.py", DAG_FILE.replace("<pids>", str(pids)))
    held = wait_until(lambda: writing_end(schema), "the driver hangs in its work", 120)
    assert airflow.task("during") == ("running", 1)
    # Its buttons are there while it runs, so they are when it never ends by itself.
    links = airflow.rows("select key from xcom where task_id = 'during' and key like '_link_%' order by key")
    assert [key for (key,) in links] == ["_link_AssetLink", "_link_TableLink", "_link_UndoLink"]
    worker = int(pids.read_text().split()[2])
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not running(f"--warehouse={warehouse}"), "no driver is left", 5)
    os.close(held)
    schema.unlink()
    schema.write_bytes(content)
    assert main.latest_snapshot_id() == 2

    wait_until(lambda: airflow.task("during")[0] == "success", "the retry succeeds", 180)
    assert airflow.task("during") == ("success", 2)
    assert airflow.xcom("during")["snapshot_after"] == 3

    # Killed after it had landed: the retry finds the first try's snapshot.
    wait_until(lambda: airflow.task("after")[0] in ("success", "failed"), "the second task ends", 180)
    assert airflow.task("after") == ("success", 2)
    result = airflow.xcom("after")
    assert (result["changed"], result["snapshot_after"]) == (True, 4)
    assert [s.id for s in main.snapshots()] == [1, 2, 3, 4]
    assert names(main) == first

    # Killed is the supervisor now, and the task's process lives on.
    schema.unlink()
    os.mkfifo(schema)
    held = wait_until(lambda: writing_end(schema), "the driver hangs in its work", 120)
    task_process = int(pids.read_text().split()[-1])
    os.kill(_parent(task_process), signal.SIGKILL)
    wait_until(lambda: not running(f"--warehouse={warehouse}"), "no driver is left", 10)
    os.close(held)
    schema.unlink()
    schema.write_bytes(content)
    assert main.latest_snapshot_id() == 4
    tries = [line.split()[:2] for line in pids.read_text().splitlines()]
    assert tries == [["during", "1"], ["during", "2"], ["after", "1"], ["after", "2"], ["orphaned", "1"]]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
