"""Small work on rows that operators do in plain Python: a process beside the task, and no Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_paimon.core.errors import InvalidInputError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.local_execution import may_run_locally
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.hooks.local_job import LocalJobHook
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.branch import CreateBranchOperator, DiffBranchesOperator
from airflow_paimon.operators.maintenance import CompactOperator
from tests.airflow.conftest import RunDag, set_connection
from tests.airflow.processes import running, wait_until
from tests.core.tables import make_table

pytestmark = pytest.mark.airflow


def small_table(warehouse: Path) -> Table:
    """A table with three snapshots, whose files wait for a compaction."""
    main = make_table(warehouse)
    for k in range(3):
        write_arrow(main, pa.table({"k": pa.array([k], pa.int64()), "v": ["a"], "dt": ["1"]}))
    return main


def asked(warehouse: Path, operation: str = "diff_branches", **values: Any) -> Any:
    return build_request(operation, {"warehouse": str(warehouse), "table": "d.t", **values})


def test_operators_submit_nothing_that_is_small(
    warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    set_connection(monkeypatch, "spark_default", "spark", host="spark://127.0.0.1", port=9)
    main = small_table(warehouse)
    with DAG("plain", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        new = CreateBranchOperator(task_id="new", table="d.t", branch="fix", snapshot=1)
        diff = DiffBranchesOperator(task_id="diff", table="d.t", branch="fix")
        wrong = DiffBranchesOperator(task_id="wrong", table="d.t", branch="none", retries=2)
        compact = CompactOperator(task_id="compact", table="d.t", min_files=2, trigger_rule="all_done")
        new >> diff >> wrong >> compact
    run = run_dag(dag)
    assert run.tasks == {"new": ("success", 1), "diff": ("success", 1), "wrong": ("failed", 1),
                         "compact": ("success", 1)}  # fmt: skip
    assert run.xcom("diff")["details"]["different"] is False
    assert run.xcom("wrong", "paimon_error")["kind"] == "not-found"
    head = main.latest_snapshot()
    assert head is not None and "airflow-plain-compact-" in head.commit_user, "as a submitted job's: a retry finds it"
    assert run.xcom("compact")["snapshot_after"] == 4
    assert [run.xcom(task)["ran_on"] for task in ("new", "diff", "compact")] == ["worker"] * 3
    assert [event for event, _ in run.asset_events if event.endswith("/d/t")]
    assert "Spark-Submit cmd" not in "".join(capfd.readouterr())


def test_what_is_out_of_reach_is_left_to_spark(warehouse: Path) -> None:
    assert LocalJobHook().run_job(asked(warehouse / "elsewhere", branch="b")) is None


def test_which_requests_are_tried(warehouse: Path) -> None:
    def tried(operation: str, local: str = "all", **values: Any) -> bool:
        values |= {"branch": "b"} if operation not in ("compact", "rescale") else {}
        return may_run_locally(asked(warehouse, operation, **values), local)

    assert tried("diff_branches") and tried("compact") and tried("check_branch_data")
    for operation in ("diff_branches", "check_branch_data"):
        assert tried(operation, local="reads") and not tried(operation, local="none")
    for operation in ("compact", "rescale"):
        assert tried(operation, local="reads", dry_run=True) and not tried(operation, local="reads")
    assert not tried("compact", table="d.t, d.u"), "several tables share one Spark application"
    assert not tried("correct_branch", sql="fix.sql") and not tried("correct_branch", function="m:f")


@pytest.mark.parametrize(
    ("given", "found"), [({}, "reads"), ({"local_execution": ""}, "reads"), ({"local_execution": " All"}, "all")]
)
def test_the_connection_says_what_runs_beside_its_task(
    given: dict[str, Any], found: str, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": "/w", **given})
    assert PaimonHook().local_execution == found
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": "/w", "local_execution": "writes"})
    with pytest.raises(InvalidInputError, match="local_execution must be one of none, reads, all"):
        PaimonHook().check_settings()


def at_work(warehouse: Path) -> bool:
    return bool(running(f"--warehouse={warehouse}"))


def test_a_task_that_is_killed_leaves_no_process_and_submits_nothing(stuck: Path) -> None:
    hook, failures = LocalJobHook(), []

    def work() -> None:
        try:
            hook.run_job(asked(stuck, table="stuck.t", branch="b"))
        except PaimonError as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: at_work(stuck), "the job runs", 60)
    hook.on_kill()
    worker.join(500)
    assert not at_work(stuck)
    assert [type(f) for f in failures] == [OutcomeUnknownError]


WORKER = """
import sys
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.hooks.local_job import LocalJobHook
values = {"warehouse": sys.argv[1], "table": "stuck.t", "branch": "b"}
LocalJobHook().run_job(build_request("diff_branches", values))
"""


def test_a_worker_that_is_killed_leaves_no_process(stuck: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(stuck)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: at_work(stuck), "the job runs", 60)
    finally:
        worker.kill()
        worker.wait()
    wait_until(lambda: not at_work(stuck), "no process is left", 5)
