"""`make demo-ui` as people use it: a browser without a login, the trigger form, the diff, approve; thoroughly also a
rejection before that, and Clear.
"""

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
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.table.table import Table
from tests.conftest import require
from tests.core.tables import append, make_table, overwrite
from tests.core.tables import run as operate
from tests.dags.browser import Page, browser, find_chromium
from tests.dags.conftest import load_program
from tests.environment import REPO_ROOT
from tests.randomness import thorough

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = "data_correction"
APPROVER = "ben"
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
        rest, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    assert "nothing is left running" in rest


def token_of(demo: Demo, user: str) -> str:
    """Sign a token by the demo's own configuration, in a process of its own."""
    code = f"import demo_ui; print(demo_ui.token_of({user!r}))"
    home = {"AIRFLOW_HOME": str(demo.folder / "ui" / "airflow"), "PYTHONPATH": str(REPO_ROOT / "dags")}
    made = subprocess.run([sys.executable, "-c", code], env={**os.environ, **home}, capture_output=True, check=True)
    return made.stdout.decode().split()[-1]


@pytest.fixture(scope="module")  # a new one would fetch and compile all of the user interface anew
def page(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    chromium = find_chromium()
    assert chromium is not None
    with browser(chromium, tmp_path_factory.mktemp("browser") / "profile") as opened:
        opened.call("Network.enable")
        headers = {"Authorization": f"Bearer {token_of(demo, APPROVER)}"}
        opened.call("Network.setExtraHTTPHeaders", headers=headers)
        yield opened


def runs(demo: Demo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.api.call(f"/api/v2/dags/{DAG}/dagRuns")["dag_runs"]
    return found


def shots() -> Path:
    return Path(os.environ.get("AIRFLOW_PAIMON_SCREENSHOTS") or os.environ["AIRFLOW_HOME"]) / "screenshots"


def keep_picture(page: Page, name: str) -> None:
    """Keep a picture for whoever asks for it: to draw a whole page once more is much work for the browser."""
    if os.environ.get("AIRFLOW_PAIMON_SCREENSHOTS") or thorough():
        page.screenshot(shots() / f"{name}.png")


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
    keep_picture(page, f"log_{task_id}")
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
    keep_picture(page, "connection")
    assert "Results folder" not in said, "what few need is closed"


def in_frame(page: Page, *texts: str) -> str:
    """Wait until Airflow's frame of the page Paimon has loaded and shows all of these; gives all that it shows."""
    frame = "document.querySelector('iframe')?.contentDocument"
    script = f"{frame}?.readyState === 'complete' ? {frame}.body.innerText : ''"
    page.until(lambda: all(t in str(page.run(script)) for t in texts), f"{texts} in the frame")
    return str(page.run(script))


def click_in_frame(page: Page, text: str) -> None:
    script = f"""(() => {{
        const all = [...(document.querySelector('iframe')?.contentDocument?.querySelectorAll('a') || [])];
        const hit = all.filter(e => e.textContent.trim() === {json.dumps(text)});
        if (hit.length) hit[0].click();
        return hit.length;
    }})()"""
    page.until(lambda: page.run(script), f"link {text!r} in the frame")


def test_the_page_shows_the_correction_that_waits(demo: Demo, page: Page) -> None:
    """From the navigation to the table, what waits for whom, and from there to the approval, out of the frame."""
    page.open("about:blank")
    wait_until_parked(demo, 1)
    page.open(f"{demo.address}/plugin/paimon")
    in_frame(page, "paimon_default")
    for link in ("paimon_default", "demo"):
        click_in_frame(page, link)
        in_frame(page, "Search")
    click_in_frame(page, "flights")
    in_frame(page, "demo.flights", "primary-key table", "Commits")
    click_in_frame(page, "Corrections")
    said = in_frame(page, demo.run_id, "an approval", "waits, asked", "Correct this table")
    assert _flights().REASON in said
    keep_picture(page, "page_corrections")
    click_in_frame(page, demo.run_id)
    page.until(
        lambda: page.run("location.pathname").endswith(f"/runs/{demo.run_id}"), "the run's page, without a frame"
    )


def test_the_approver_reads_what_will_change_and_approves(demo: Demo, page: Page) -> None:
    table = open_table(str(demo.folder / "ui" / "warehouse"), "demo.flights")
    wait_until_parked(demo, 1)
    approval = f"{demo.address}/dags/{DAG}/runs/{demo.run_id}/tasks/approve/required_actions"
    page.open(approval)
    said = page.wait_for("Publish the correction of demo.flights (3 partitions)?", "Approve", "Reject")
    assert all(f"2013-07-{day}" in said for day in ("08", "09", "10"))
    assert f"Reason: {_flights().REASON}" in said
    assert "Requested by: ann" in said
    assert all(line.strip() in said for line in _flights().CORRECTION.splitlines()), "the approver sees no SQL"
    assert page.run("document.querySelectorAll('table').length") > 0, "the diff is no table"
    if thorough():
        reject_then_clear(demo, page, table)
        page.open(approval)
        page.wait_for("Publish the correction of demo.flights", "Approve")
    page.click("Approve")
    demo.until(lambda tasks: tasks["approve"] == "success")
    page.open("about:blank")
    demo.until(lambda tasks: tasks["delete_tag"] == "success")
    (publish,) = undoable_publishes(table)
    who = ("airflow-paimon.requested-by", "airflow-paimon.approved-by")
    assert [publish.snapshot.properties[name] for name in who] == ["ann", APPROVER]
    assert table.branch_names() == []
    lines = read_log(demo, page, "verify", "2013-07-10: ")
    assert f"Verified: snapshot {publish.snapshot.id} of demo.flights has the branch's files" in lines[0]
    assert any(line.startswith("To undo within 7 d: trigger data_correction_undo ") for line in lines)
    assert json.dumps({"table": "demo.flights", "tag": publish.undo_tag}) in lines
    assert sum("replace" in line for line in lines) == 3, "one line for each partition"
    # A long log: Airflow renders only the records in sight, so neither its first nor its last one need be there.
    page.open(f"{demo.address}/dags/{DAG}/runs/{demo.run_id}/tasks/report")
    tables = ("| Partition | Added | Changed | Deleted | Unchanged |", "| Key | Column | Before | After |")
    page.until(lambda: any(f"INFO - {header}" in page.text() for header in tables), "table in the log of report")
    assert "Traceback" not in page.text()
    page.open(f"{demo.address}/dags/{DAG}/runs/{demo.run_id}")
    page.wait_for(demo.run_id, "report_failure")
    keep_picture(page, "run")
    page.open(f"{demo.address}/paimon/paimon_default/demo/flights?tab=corrections")
    page.wait_for(demo.run_id, f"approved by {APPROVER}", "ann")


def reject_then_clear(demo: Demo, page: Page, table: Table) -> None:
    """Reject by the page that is open; Clear the run, so that it asks once more."""
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


@pytest.mark.thorough
def test_the_form_says_what_it_wants(demo: Demo, page: Page) -> None:
    before = [run["dag_run_id"] for run in runs(demo)]
    page.open(f"{demo.address}/dags/{DAG}")
    page.wait_for(DAG, "Trigger")
    keep_picture(page, "dag")
    page.click("Trigger")
    said = page.wait_for("Table", "SQL", "Reason", "Ask for approval", "Rows: partitions", "Publish and undo")
    keep_picture(page, "form")
    assert "UPDATE, DELETE, MERGE or INSERT on" in said
    assert "Spark settings" not in said, "what few need is closed"

    page.fill("element_table", "demo.fligths")
    page.fill("element_sql", "SELECT * FROM branch")
    page.click("Trigger")
    page.until(lambda: len(runs(demo)) > len(before), "run that the form triggered")
    (triggered,) = [run for run in runs(demo) if run["dag_run_id"] not in before]
    assert triggered["conf"]["table"] == "demo.fligths"
    assert triggered["conf"]["partitions"] is None
    page.open("about:blank")  # a page of Airflow's is drawn and asked for anew all the time
    states = demo.until(lambda tasks: tasks["report_failure"] == "failed", run_id=triggered["dag_run_id"])
    assert states["check_params"] == "failed"
    lines = read_log(demo, page, "report_failure", "What helps: ", run_id=triggered["dag_run_id"])
    assert "check_params failed. Nothing was made, nothing was changed" in lines[0]
    assert "There is no table demo.fligths" in lines[1]


def make_history(warehouse: Path) -> None:
    """A table with what the picture of a history can show: loads, a tag, a published branch and an open one."""
    table = make_table(warehouse, "demo.orders")
    for day in range(11, 16):
        append(table, f"2026-11-{day}", rows=1000 + day)
    operate(table, "create_tag", tag="week_46", time_retained="30 d")
    operate(table, "create_branch", branch="fix_amounts", tag="week_46", owner="ann", reason="amounts in cents")
    append(table, "2026-11-16", rows=1100)
    overwrite(table.branch("fix_amounts"), "2026-11-12", rows=1012)
    overwrite(table.branch("fix_amounts"), "2026-11-13", rows=1013)
    append(table, "2026-11-17", rows=1200)
    operate(
        table,
        "merge_branch",
        branch="fix_amounts",
        requested_by="ann",
        approved_by="ben",
        operation_id="correct_orders-1",
    )
    operate(table, "create_branch", branch="next_fix", snapshot=8, owner="bob", reason="wrong currency")
    append(table, "2026-11-18", rows=1300)
    overwrite(table.branch("next_fix"), "2026-11-16", rows=1100)


@pytest.mark.thorough
def test_the_page_of_a_table_in_each_theme_and_on_a_narrow_screen(demo: Demo, page: Page) -> None:
    """After the approval: the publish is in the picture, every tab opens, and a keyboard is enough."""
    page.open(f"{demo.address}/plugin/paimon/paimon/paimon_default/demo/flights")
    in_frame(page, "publish of fix_", "primary-key table")
    keep_picture(page, "page_history")
    titles = str(page.run("document.querySelector('iframe').contentDocument.querySelector('svg').textContent"))
    assert "approved by: " in titles
    assert "undo tag" in titles
    make_history(demo.folder / "ui" / "warehouse")
    framed = f"{demo.address}/plugin/paimon/paimon/paimon_default/demo/orders"
    page.open(framed)
    in_frame(page, "publish of fix_amounts", "next_fix")
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    for tab in ("history", "branches", "audit"):
        page.open(f"{demo.address}/paimon/paimon_default/demo/orders?tab={tab}")
        page.wait_for("demo.orders", "fix_amounts")
        wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert page.run(wide) == 0, f"{tab} doesn't fit"
    page.call("Emulation.clearDeviceMetricsOverride")
    table = f"{demo.address}/paimon/paimon_default/demo/flights"
    themes = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 19, 21)"}
    for theme, colour in themes.items():
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.open(f"{table}?tab=partitions&q=2013-07")
        page.wait_for("2013-07-10", "Average file")
        assert page.run("getComputedStyle(document.body).backgroundColor") == colour
        keep_picture(page, f"page_partitions_{theme}")
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=True)
    for tab in ("history", "branches", "tags", "schemas", "files", "options", "corrections", "check"):
        page.open(f"{table}?tab={tab}")
        page.wait_for("demo.flights", tab.capitalize())
        page.until(
            lambda: not page.run("document.querySelector('meta[http-equiv=refresh]') !== null"), "an end of reading"
        )
        width = page.run("document.documentElement.scrollWidth")
        assert width <= 400, f"{tab} is {width} pixels wide"
        keep_picture(page, f"page_{tab}_narrow")
    page.open(f"{table}?tab=files")
    page.wait_for("Search")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="/", code="Slash", text="/")
    assert page.run("document.activeElement.name") == "q"
    assert page.run("document.activeElement.value") == ""
