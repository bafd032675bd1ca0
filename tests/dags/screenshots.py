"""``make screenshots``: the pictures of the documentation, of one story, in light and dark. Needs chromium.

A month of flights arrives, one commit a day. Ann corrects air times, Ben approves, and Ann reverts it. She corrects
three days of delays, which Ben approves. A third correction waits. Another table is a chain table with a stale day.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.execution import run_operation
from tests.dags.browser import Page, browser, find_chromium
from tests.dags.conftest import load_program
from tests.dags.pictures import save_small
from tests.environment import REPO_ROOT
from tests.plugin.pictures import PICTURES, SELECTOR, record_picture, shown_in_airflow

FLIGHTS, LAST_FLIGHTS = "demo.flights", "demo.last_flights"
LAST_COLUMNS = (
    "flight INT",
    "origin STRING",
    "dest STRING",
    "tailnum STRING",
    "arr_delay INT",
    "scheduled_hour TIMESTAMP(3) WITH LOCAL TIME ZONE",
    "carrier STRING",
    "dt STRING",
)
DAYS = 31
BOSTON = {
    "table": FLIGHTS,
    "sql": "UPDATE branch SET air_time = NULL WHERE flight_date = DATE '2013-07-12' AND dest = 'BOS'",
    "reason": "Air times to Boston are estimates",
}
NOT_FLOWN = {
    "table": FLIGHTS,
    "sql": "DELETE FROM branch WHERE flight_date = DATE '2013-07-20' AND carrier = 'FL'",
    "reason": "AirTran flew none of its flights of 20 July",
}
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Story:
    """Airflow with the tables of the story, as Ann and Ben use it."""

    program: Any
    api: Any
    folder: Path

    def trigger(self, conf: dict[str, Any], dag_id: str = "data_correction") -> str:
        """Trigger a DAG as Ann; returns the run once it waits for its approval."""
        self.api.token = self.program.token_of("ann")
        run_id: str = self.api.trigger(conf, dag_id)
        self.until(dag_id, run_id, "approve", "awaiting_input")
        time.sleep(8)  # until the scheduler knows it
        return run_id

    def approve(self, run_id: str, last: str, dag_id: str = "data_correction") -> None:
        """Approve as Ben, and wait for the run's last task."""
        self.api.token = self.program.token_of("ben")
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
        self.api.call(path, {"chosen_options": ["Approve"], "params_input": {}}, method="PATCH")
        self.until(dag_id, run_id, last, "success")

    def until(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        while True:
            found = {t["task_id"]: t["state"] for t in self.api.call(path)["task_instances"]}
            if found[task_id] == state:
                return
            assert (
                not {"failed", "skipped"} & {found.get("report"), found.get(task_id)} and time.monotonic() < deadline
            ), found
            time.sleep(1)


def at(moment: datetime) -> Any:
    """Let commits have this time: what a month brings is written in a second."""
    return mock.patch("time.time", lambda: moment.timestamp())


def load_month(warehouse: Path, today: datetime) -> Table:
    """Write July 2013, a commit a day, the last one today; three days have wrong delays."""
    flights = load_program("_flights")
    rows = flights.with_wrong_days(flights.read_flights())
    with at(today - timedelta(days=DAYS)):
        table: Table = flights.create_flights(warehouse)
    for day in range(1, DAYS + 1):
        moment = today - timedelta(days=DAYS - day)
        wanted = pa.scalar(datetime(2013, 7, day).date(), pa.date32())
        with at(moment):
            write_arrow(table, rows.filter(pc.equal(rows["flight_date"], wanted)), operation_id=f"load_flights-{day}")
            if day % 7 == 0:
                tag = {"tag": f"week_{day // 7}", "time_retained": "90 d"}
                run_operation(build_request("create_tag", {**table_of(warehouse, FLIGHTS), **tag}))
    return table


def load_chain(warehouse: Path) -> None:
    """Write ten days as a chain table: one night made chains full, then a delta was corrected."""
    arguments = {
        "column": LAST_COLUMNS,
        "primary_key": ["carrier", "dt", "flight", "origin"],
        "partition_key": ["carrier", "dt"],
        "chain_partition_key": ["dt"],
        "timestamp_pattern": "$dt",
        "timestamp_formatter": "yyyyMMdd",
        "sequence_field": ["scheduled_hour"],
        "option": ["bucket=1"],
    }
    run_operation(build_request("create_chain_table", {**table_of(warehouse, LAST_FLIGHTS), **arguments}))
    table = open_table(str(warehouse), LAST_FLIGHTS)
    write_arrow(table.branch("snapshot"), flights_of([1]))
    write_arrow(table.branch("delta"), flights_of(range(2, 11)))
    job = ["-m", "airflow_paimon", "job", "compact_chain_table", "--warehouse", str(warehouse), "--table", LAST_FLIGHTS]
    night = ["--partition", "dt=20130705", "--local-execution", "all"]
    subprocess.run([sys.executable, *job, *night], check=True, stdout=subprocess.DEVNULL)
    write_arrow(table.branch("delta"), flights_of([4]).slice(0, 40))


def flights_of(days: Iterable[int]) -> pa.Table:
    """The real flights of these days of July 2013, as the chain table has them."""
    flights = load_program("_flights").read_flights()
    wanted = pa.array([date(2013, 7, day) for day in days], pa.date32())
    flights = flights.filter(pc.is_in(flights["flight_date"], value_set=wanted))
    flights = flights.append_column("dt", pc.strftime(flights["flight_date"], format="%Y%m%d"))
    return flights.select([column.split()[0] for column in LAST_COLUMNS])


def table_of(warehouse: Path, table: str) -> dict[str, Any]:
    return {"warehouse": str(warehouse), "table": table}


@contextmanager
def told(folder: Path) -> Iterator[Story]:
    """Load the tables, start Airflow."""
    demo, program = load_program("_demo"), load_program("demo_ui")
    port, warehouse = program.free_port(), folder / "warehouse"
    demo.own_environment(folder, warehouse, program.settings(port))
    demo.require_java()
    today = datetime.now(UTC).replace(hour=6, minute=0, second=0, microsecond=0)
    load_month(warehouse, today - timedelta(days=1))
    load_chain(warehouse)
    with program.standalone(folder) as process:
        api = program.Api(port)
        api.wait(process, folder / "airflow.log")
        yield Story(program, api, folder)


class Camera:
    """Takes each picture twice, for a light and a dark theme."""

    def __init__(self, page: Page, address: str, target: Path) -> None:
        self.page, self.address, self.target = page, address, target

    def take(self, name: str, path: str, *texts: str, size: tuple[int, int], act: Any = None) -> None:
        """Take a picture of a page that shows these texts. ``act`` brings it into the state to show."""
        width, height = size
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            self.page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            self.page.call("Emulation.setScrollbarsHidden", hidden=True)
            self.page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            self.page.open(f"{self.address}{path}")
            self.page.wait_for(*texts)
            self.page.run(f"localStorage.setItem('theme', '{theme}')")
            self.page.open("about:blank")
            self.page.until(lambda: self.page.run("location.href") == "about:blank", "empty page")
            self.page.open(f"{self.address}{path}")
            self.page.wait_for(*texts)
            if act is not None:
                act()
            if name in PICTURES and not suffix:
                shown = self.page.run(f"[...document.querySelectorAll({SELECTOR!r})].map(e => e.textContent)")
                record_picture(name, [str(text) for text in shown])
            elif name not in PICTURES and not suffix:
                record_picture(name, shown_in_airflow(name))
            save_small(self.page, self.page.settled(), size, self.target / f"{name}{suffix}.png")


def photograph(story: Story, page: Page, target: Path) -> None:
    """Tell the story, and take the pictures where they are due."""
    camera = Camera(page, str(story.api.address), target)
    flights, last = "/paimon/paimon_default/demo/flights", "/paimon/paimon_default/demo/last_flights"
    corrected = load_program("_flights")
    delays = {"table": FLIGHTS, "sql": corrected.CORRECTION, "partitions": corrected.PARTITIONS,
              "reason": corrected.REASON}  # fmt: skip

    def fill_in() -> None:
        page.click("Trigger")
        page.wait_for("Table", "SQL", "Reason", "Ask for approval", "Publish and undo")
        for name in ("table", "sql", "reason"):
            page.fill(f"element_{name}", str(BOSTON[name]))

    camera.take("form", "/dags/data_correction", "data_correction", size=(1100, 1330), act=fill_in)
    story.approve(story.trigger(BOSTON), "delete_tag")
    undone = "data_correction_undo"
    story.approve(story.trigger({"table": FLIGHTS, "reason": "Boston confirmed them"}, undone), "verify", undone)
    run_id = story.trigger({**delays, "keep_branch": True})

    cells = f"document.querySelectorAll('a[href*=\"/runs/{run_id}/tasks/\"]').length"
    approval = f"/dags/data_correction/runs/{run_id}/tasks/approve/required_actions"
    camera.take(
        "approval",
        approval,
        "Publish the correction of demo.flights",
        "Approve",
        size=(1280, 1000),
        act=lambda: page.until(lambda: page.run(cells) > 9, "the states of the tasks"),
    )
    story.approve(run_id, "verify")
    story.trigger(NOT_FLOWN)
    camera.take("page", f"{flights}?tab=history", "publish of fix_", size=(1280, 760))
    camera.take("page-corrections", f"{flights}?tab=corrections", "waits, asked", "approved by ben", size=(1280, 560))
    camera.take("page-health", f"{flights}?tab=health", "Points", size=(1100, 340))
    camera.take("page-storage", f"{flights}?tab=storage", "Storage", size=(1100, 520))
    camera.take("page-grid", f"{last}?tab=grid", "Findings", size=(1100, 1010))


def main(target: Path) -> int:
    """Take all pictures into a folder."""
    chromium = find_chromium()
    if chromium is None:
        print("make screenshots: no browser: chromium is not installed", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="screenshots-") as name,
        told(folder := Path(name)) as story,
        browser(chromium, folder / "profile") as page,
    ):
        page.call("Network.enable")
        headers = {"Authorization": f"Bearer {story.program.token_of('ben')}"}
        page.call("Network.setExtraHTTPHeaders", headers=headers)
        photograph(story, page, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPO_ROOT / "docs" / "_static"))
