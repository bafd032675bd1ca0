"""dags/nightly_chain_maintenance.py in a live Airflow: cleared, twice at the same time, killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.chain.check import find_chain_problems
from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.requests.findings import INFO
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.properties import DETAILS_PROPERTY
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.airflow.processes import running, wait_until, writing_end
from tests.data.chain.tables import Row, chain_table, day_is, seen
from tests.live.live_airflow import LiveAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = "nightly_chain_maintenance"
GROUPS = ("AA", "UA")
LAST = 7
"""Days 2 to 7 of July 2013 are deltas, the first one is full."""
CONF = {"table": "d.t", "max_chain_length": 2}
SOON = """
from datetime import timedelta
from airflow_paimon.dags import chain_dag

chain_dag(default_args={"retry_delay": timedelta(seconds=1)})
"""


def rows_of(group: str, number: int) -> list[Row]:
    """The first day has twenty keys; each later one changes two of them, and adds one and deletes one."""
    if number == 1:
        return [(k, 1, f"{group}1") for k in range(20)]
    return [
        *((k, number, f"{group}{number}") for k in (number, number + 5, 100 + number)),
        (10 + number, number, None, "-D"),
    ]


def expected(group: str, number: int) -> list[Row]:
    """What the rule of chains says of a day, without any code of ours."""
    found: dict[int, Row] = {}
    for one in range(1, number + 1):
        for key, sequence, value, *kind in rows_of(group, one):
            found[key] = (key, sequence, value, group, day(number))
            if kind:
                del found[key]
    return [(*row[:4], day(number)) for row in found.values()]


def day(number: int) -> str:
    return f"201307{number:02d}"


@dataclass(frozen=True)
class Nights:
    """Airflow with the DAG, and a warehouse for the test."""

    airflow: LiveAirflow
    folder: Path

    @property
    def api(self) -> Any:
        return self.airflow.api

    def table(self, name: str) -> Table:
        (self.folder / name).mkdir()
        self.airflow.connect(f"night_{name}", "paimon", {"warehouse": str(self.folder / name)})
        writes = [
            ("snapshot" if number == 1 else "delta", f"{group}/{day(number)}", rows_of(group, number))
            for group in GROUPS
            for number in range(1, LAST + 1)
        ]
        return chain_table(
            self.folder / name, writes, partitions={"carrier": "STRING", "dt": "STRING"}, chain_keys="dt", buckets=1
        )

    def trigger(self, name: str, run_id: str, **conf: Any) -> None:
        self.api.call(
            f"/api/v2/dags/{DAG}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None,
             "conf": {**CONF, "paimon_conn_id": f"night_{name}", **conf}},
        )  # fmt: skip

    def know_assets(self, uri: str) -> None:
        """Let Airflow know a table's assets, and their aliases: two tasks that both make one, or tie one to an alias,
        at the same moment fail in its database.
        """
        uris = [uri, f"{uri}/snapshot", f"{uri}/delta"]
        ties = [(DAG, uri), *((each, each) for each in uris)]
        self.airflow.add_dags(
            "their_assets.py",
            "from airflow.sdk import DAG, Asset, AssetAlias, task\n"
            f"TIES = {ties!r}\n"
            "with DAG('their_assets', schedule='@once', is_paused_upon_creation=False):\n"
            "    @task(outlets=[AssetAlias(alias) for alias, _ in TIES])\n"
            "    def tie(*, outlet_events):\n"
            "        for alias, uri in TIES:\n"
            "            outlet_events[AssetAlias(alias)].add(Asset(uri))\n"
            "    tie()\n",
        )
        tied = (
            "select 1 from asset_alias_asset t join asset_alias l on l.id = t.alias_id "
            "join asset a on a.id = t.asset_id "
            "join asset_active n on n.uri = a.uri where l.name = ? and a.uri = ?"
        )
        wait_until(lambda: all(self.airflow.rows(tied, *pair) for pair in ties), "the assets are known", 240)

    def clear(self, run_id: str, *tasks: Any) -> None:
        """Clear some tasks with what follows, or the whole run."""
        chosen = {"task_ids": list(tasks), "include_downstream": True} if tasks else {}
        self.api.call(
            f"/api/v2/dags/{DAG}/clearTaskInstances",
            {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True, **chosen},
        )

    def tasks(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = self.api.call(f"/api/v2/dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {t["task_id"] + (f"[{t['map_index']}]" if t["map_index"] >= 0 else ""): t for t in found}

    def states(self, run_id: str) -> dict[str, str]:
        return {name: task["state"] for name, task in self.tasks(run_id).items()}

    def until_over(self, run_id: str) -> None:
        def state() -> bool:
            return self.api.call(f"/api/v2/dags/{DAG}/dagRuns/{run_id}")["state"] in ("success", "failed")

        wait_until(state, f"{run_id} is over", 480, pause=1)

    def xcom(self, run_id: str, task_id: str, map_index: int = -1) -> Any:
        path = f"/api/v2/dags/{DAG}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.api.call(f"{path}?map_index={map_index}&deserialize=true")["value"]

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Give the figures that a run left, the first ones first."""
        found = self.api.call(f"/api/v2/assets/events?source_run_id={run_id}&order_by=timestamp")["asset_events"]
        return [event["extra"] for event in found if "operation" not in event["extra"]]


@pytest.fixture
def nights(tmp_path: Path, airflow: LiveAirflow) -> Nights:
    airflow.add_dags(f"{DAG}.py", SOON)
    wait_until(lambda: airflow.rows("select 1 from dag where dag_id = ?", DAG), "the DAG is parsed", 240)
    airflow.api.call(f"/api/v2/dags/{DAG}", {"is_paused": False}, method="PATCH")
    return Nights(airflow, tmp_path)


def heads(table: Table) -> dict[str, int | None]:
    return {b: table.branch(b).latest_snapshot_id() for b in ("snapshot", "delta")}


def full(table: Table) -> list[str]:
    """The full partitions, one text for each file in them."""
    return sorted(
        h.text.replace("carrier=", "").replace("/dt=201307", "")
        for h in partition_contents(plan_scan(table.branch("snapshot")))
    )


def compacted_by_commit(table: Table) -> list[str]:
    """The partitions that compactions have committed, in order: once for each commit."""
    found = [s.properties.get(DETAILS_PROPERTY) for s in table.branch("snapshot").snapshots()]
    return [json.loads(text)["partition"] for text in found if text]


def stray_files(table: Table, folder: Path) -> set[str]:
    """Data files that no snapshot of any branch names; a killed driver leaves some, nothing else may."""
    named = {
        entry.file.file_name
        for branch in ("snapshot", "delta")
        for snapshot in table.branch(branch).snapshots()
        for entry in live_entries(table.branch(branch), snapshot).values()
    }
    return {path.name for path in folder.rglob("data-*.parquet")} - named


def check(table: Table) -> None:
    """The newest day is full and right, full partitions are one file each, nothing is stale."""
    assert set(full(table)) >= {f"{group}{LAST:02d}" for group in GROUPS}
    assert len(full(table)) == len(set(full(table)))
    newest = sorted((row for group in GROUPS for row in expected(group, LAST)), key=repr)
    assert seen(table, where=day_is(day(LAST))) == newest
    assert [f for f in find_chain_problems(table).findings if f.severity != INFO] == []
    assert len(compacted_by_commit(table)) == len(set(compacted_by_commit(table)))


@pytest.mark.thorough
def test_cleared_it_repeats_nothing(nights: Nights) -> None:
    table = nights.table("cleared")
    nights.trigger("cleared", "cleared", expiration_time="30 d")
    nights.until_over("cleared")
    check(table)
    labels = {name: t["rendered_map_index"] for name, t in nights.tasks("cleared").items()}
    assert (labels["compact[0]"], labels["compact[1]"]) == ("carrier=AA", "carrier=UA")
    assert nights.xcom("cleared", "metrics")["compacted"] == {"compacted": 4}
    before = heads(table)

    nights.clear("cleared", ["compact", 1])
    nights.until_over("cleared")
    assert set(nights.states("cleared").values()) == {"success"}
    assert heads(table) == before
    assert nights.xcom("cleared", "metrics")["compacted"] == {"compacted": 2}, "the group that was not cleared"

    nights.clear("cleared")
    nights.until_over("cleared")
    assert set(nights.states("cleared").values()) == {"success", "removed"}
    assert heads(table) == before
    figures = nights.xcom("cleared", "metrics")
    assert (figures["compacted"], figures["rows_written"], figures["expired_segments"]) == ({}, 0, 0)
    assert [event["compacted"] for event in nights.events("cleared")] == [{"compacted": 4}, {"compacted": 2}, {}]


@pytest.mark.thorough
def test_two_at_the_same_time_do_no_work_twice(nights: Nights) -> None:
    """One makes long chains full, the other a date; each of them expires what the other may be reading."""
    table = nights.table("twice")
    nights.know_assets("paimon://night_twice/d/t")
    runs: dict[str, dict[str, Any]] = {"pending": {}, "dated": {"date": "2013-07-07"}}
    for run_id, conf in runs.items():
        nights.trigger("twice", run_id, max_jobs=1, expiration_time="30 d", **conf)
    for run_id in runs:
        nights.until_over(run_id)
    assert [set(nights.states(run_id).values()) for run_id in runs] == [{"success"}] * 2
    spans = [(task["start_date"], task["end_date"]) for task in (nights.tasks(r)["compact[0]"] for r in runs)]
    assert max(start for start, _ in spans) < min(end for _, end in spans), "they did not meet"

    check(table)
    assert stray_files(table, nights.folder / "twice") == set()
    told = [nights.xcom(run_id, "metrics") for run_id in runs]
    done = [one["compacted"].get("compacted", 0) + one["compacted"].get("stale-rebuilt", 0) for one in told]
    assert sum(done) == len(compacted_by_commit(table))
    assert sum(one["expired_partitions"] for one in told) == len(GROUPS) * LAST + sum(done) - 2 * len(GROUPS)


@pytest.mark.thorough
def test_killed_in_the_middle_the_retry_goes_on(nights: Nights) -> None:
    """Half is committed, and a delta of the rest is a pipe that hangs: there the worker dies, then the next driver."""
    table = nights.table("killed")
    (delta,) = (nights.folder / "killed").glob(f"**/carrier=UA/dt={day(5)}/bucket-0/data-*")
    content = delta.read_bytes()
    delta.unlink()
    os.mkfifo(delta)
    marked = f"--warehouse={nights.folder / 'killed'}"
    nights.trigger("killed", "killed", max_jobs=1)
    for number, victim in (1, "worker"), (2, "driver"):
        held = wait_until(lambda: writing_end(delta), f"try {number} is in the middle", 180)
        task = nights.tasks("killed")["compact[0]"]
        jvms = [pid for pid, command in running(marked).items() if " org.apache.spark.deploy.SparkSubmit " in command]
        os.kill(task["pid"] if victim == "worker" else min(jvms), signal.SIGKILL)
        assert (task["state"], task["try_number"]) == ("running", number)
        os.close(held)
        wait_until(lambda: not running(marked), "no driver is left", 10)
        assert compacted_by_commit(table) == [f"carrier={group}/dt={day(4)}" for group in GROUPS]
    delta.unlink()
    delta.write_bytes(content)
    nights.until_over("killed")
    assert set(nights.states("killed").values()) == {"success", "skipped"}, "no expiry was asked for"
    assert nights.tasks("killed")["compact[0]"]["try_number"] == 3
    check(table)
    assert nights.xcom("killed", "metrics")["compacted"] == {"compacted": 4}, "the first try's count, too"
