"""`make demo-ui` as people use it: a browser without a login, the trigger form, the diff, reject, clear, approve."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import open_table
from airflow_paimon.core.branches.published import publishes
from tests.conftest import REPO_ROOT, require
from tests.dags.browser import Page, browser, find_chromium
from tests.dags.conftest import load_program

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = "data_correction"
_PATIENCE_SECONDS = 400.0


@dataclass(frozen=True)
class Demo:
    """A running demo: its API, its first run, its warehouse, and where screenshots go."""

    api: Any
    run_id: str
    folder: Path

    @property
    def address(self) -> str:
        return str(self.api.address)

    def tasks(self, run_id: str | None = None) -> dict[str, str]:
        found = self.api.call(f"/api/v2/dags/{DAG}/dagRuns/{run_id or self.run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def until(self, condition: Callable[[dict[str, str]], object], run_id: str | None = None) -> dict[str, str]:
        """Wait until the run's tasks are in these states."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition(states := self.tasks(run_id)):
            assert time.monotonic() < deadline, states
            time.sleep(0.5)
        return states


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[Demo]:
    """Start the program; at the end SIGTERM ends it and all that it started."""
    require(find_chromium(), "no browser: chromium is not installed")
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [sys.executable, str(REPO_ROOT / "dags" / "demo_ui.py")],
        env={**os.environ, "AIRFLOW_PAIMON_DEMO": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    try:
        while "Ctrl-C ends it all" not in said:
            line = process.stdout.readline()
            assert line, f"the demo ended: {said}"
            said += line
        found = re.search(r"http://127\.0\.0\.1:(\d+)/dags/data_correction/runs/(\w+)/tasks/approve", said)
        assert found is not None
        api = load_program("demo_ui").Api(int(found[1]))
        api.token = api.call("/auth/token")["access_token"]
        yield Demo(api, found[2], folder)
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "nothing is left running" in rest


@pytest.fixture
def page(demo: Demo, tmp_path: Path) -> Iterator[Page]:
    chromium = find_chromium()
    assert chromium is not None
    with browser(chromium, tmp_path / "profile") as opened:
        yield opened


def runs(demo: Demo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.api.call(f"/api/v2/dags/{DAG}/dagRuns")["dag_runs"]
    return found


def shots() -> Path:
    return Path(os.environ.get("AIRFLOW_PAIMON_SCREENSHOTS") or os.environ["AIRFLOW_HOME"]) / "screenshots"


def wait_until_parked(demo: Demo, times: int) -> None:
    """Wait until the scheduler has taken note that the task waits.

    An answer that is quicker than that (some five seconds) makes Airflow 3.3 take the task for lost and ask again.
    """
    log = demo.folder / "ui" / "airflow.log"
    demo.until(lambda tasks: tasks["approve"] == "awaiting_input")
    demo.until(lambda _: log.read_text(errors="replace").count("final_state=awaiting_input") >= times)


def read_log(demo: Demo, page: Page, task_id: str, until: str, run_id: str | None = None) -> list[str]:
    """Give the records that somebody sees who opens a task's log and unfolds nothing."""
    page.open(f"{demo.address}/dags/{DAG}/runs/{run_id or demo.run_id}/tasks/{task_id}")
    said = page.wait_for("Pre Execute", "Post Execute", until)
    page.screenshot(shots() / f"log_{task_id}.png")
    assert "Traceback" not in said
    _, between = said.split("Pre Execute", 1)
    return re.findall(r"(?:INFO|WARNING|ERROR) - (.*)", between.split("Post Execute", 1)[0])


def _flights() -> Any:
    return load_program("_flights")


def test_the_connection_form_opens_on_the_warehouse_and_requires_it(demo: Demo, page: Page) -> None:
    page.open(f"{demo.address}/connections")
    page.click("Add Connection")
    page.wait_for("Select Connection Type")
    page.choose("Apache Paimon")
    said = page.wait_for("Warehouse", "This field is required", "Access key")
    page.screenshot(shots() / "connection.png")
    assert "Results folder" not in said, "what few need is closed"


def test_the_form_says_what_it_wants(demo: Demo, page: Page) -> None:
    page.open(f"{demo.address}/dags/{DAG}")
    page.wait_for(DAG, "Trigger")
    page.screenshot(shots() / "dag.png")
    page.click("Trigger")
    said = page.wait_for("Table", "SQL", "Partitions", "Ask for approval", "More:")
    page.screenshot(shots() / "form.png")
    assert "One SELECT that gives the corrected rows" in said
    assert "Spark settings" not in said, "what few need is closed"

    page.fill("element_table", "demo.fligths")
    page.fill("element_sql", "SELECT * FROM branch")
    page.click("Trigger")
    page.until(lambda: len(runs(demo)) == 2, "run that the form triggered")
    (triggered,) = [run for run in runs(demo) if run["dag_run_id"] != demo.run_id]
    assert triggered["conf"]["table"] == "demo.fligths"
    assert triggered["conf"]["partitions"] is None
    states = demo.until(lambda tasks: tasks["how_to_go_on"] == "failed", run_id=triggered["dag_run_id"])
    assert states["check_params"] == "failed"
    lines = read_log(demo, page, "how_to_go_on", "What helps: ", run_id=triggered["dag_run_id"])
    assert "check_params failed. Nothing was made, nothing was changed" in lines[0]
    assert "There is no table demo.fligths" in lines[1]


def test_reject_then_clear_then_approve(demo: Demo, page: Page) -> None:
    table = open_table(str(demo.folder / "ui" / "warehouse"), "demo.flights")
    wait_until_parked(demo, 1)
    approval = f"{demo.address}/dags/{DAG}/runs/{demo.run_id}/tasks/approve/required_actions"
    page.open(approval)
    said = page.wait_for("Publish the correction of demo.flights (3 partitions)?", "Approve", "Reject")
    assert all(f"2013-07-{day}" in said for day in ("08", "09", "10"))
    assert f"Reason: {_flights().REASON}" in said
    assert "Asked for by: " in said
    assert all(line.strip() in said for line in _flights().CORRECTION.splitlines()), "the approver sees no SQL"
    assert page.run("document.querySelectorAll('table').length") > 0, "the diff is no table"
    page.screenshot(shots() / "approval.png")
    page.click("Reject")
    demo.until(lambda tasks: tasks["rejected"] == "failed" and tasks["delete_tag"] == "skipped")
    assert table.snapshot_ids() == [1]
    lines = read_log(demo, page, "rejected", "To correct it differently: ")
    assert re.search(r"Rejected \(.+\): main of demo.flights is untouched", lines[0])
    assert any("Cleaned up: branch fix_" in line for line in lines)
    assert table.branch_names() == table.tag_names() == []

    demo.api.call(
        f"/api/v2/dags/{DAG}/clearTaskInstances",
        {"dry_run": False, "dag_run_id": demo.run_id, "task_ids": ["check_params"], "include_downstream": True,
         "only_failed": False, "reset_dag_runs": True},
    )  # fmt: skip
    wait_until_parked(demo, 2)
    page.open(approval)
    page.wait_for("Publish the correction of demo.flights", "Approve")
    page.click("Approve")
    demo.until(lambda tasks: tasks["delete_tag"] == "success")
    (publish,) = publishes(table)
    assert publish.snapshot.properties["airflow-paimon.approved-by"]
    assert table.branch_names() == []
    lines = read_log(demo, page, "verify", "2013-07-10: ")
    assert f"Verified: snapshot {publish.snapshot.id} of demo.flights holds the branch's files" in lines[0]
    assert "To undo within 7 d: trigger data_correction_undo with" in lines
    assert json.dumps({"table": "demo.flights", "tag": publish.undo_tag}) in lines
    assert sum("replace" in line for line in lines) == 3, "one line for each partition"
    # A long log: Airflow renders only the records in sight, so neither its first nor its last one need be there.
    page.open(f"{demo.address}/dags/{DAG}/runs/{demo.run_id}/tasks/report")
    said = page.wait_for("INFO - | Partition | Added | Changed | Deleted | Unchanged |")
    assert "Traceback" not in said
    page.open(f"{demo.address}/dags/{DAG}/runs/{demo.run_id}")
    page.wait_for(demo.run_id, "how_to_go_on")
    page.screenshot(shots() / "run.png")
