"""The sensor in a worker and in the triggerer, on a table that moves meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_paimon import create_branch, open_table
from airflow_paimon.core.streaming.catch_up import parse_catch_up
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.sensors.quiet import BucketsQuietSensor
from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor
from airflow_paimon.triggers.snapshot import SnapshotCatchUpTrigger
from airflow_paimon.triggers.waits import SensorTrigger
from tests.airflow.conftest import RunDag
from tests.airflow.processes import later
from tests.core.tables import append, make_table
from tests.core.tables import run as operate
from tests.data.test_compact_keyed import keyed, upsert
from tests.data.test_open_buckets import pretend

pytestmark = pytest.mark.airflow


def dag(name: str, build: Callable[[], Any]) -> DAG:
    with DAG(f"test_{name}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as made:
        build()
    return made


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("deferrable", [False, True])
def test_waits_for_a_snapshot(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    main = make_table(warehouse)
    append(main, "1")

    def build() -> None:
        SnapshotCatchUpSensor(
            task_id="wait",
            table="{{ 'd.t' }}",
            min_snapshot_id="{{ 1 + 1 }}",
            partitions="['dt=1', 'dt=2']",
            poke_interval=0.2,
            timeout=600,
            deferrable=deferrable,
        )

    with later(2, lambda: append(main, "2")):
        run = run_dag(dag(f"sensor_{deferrable}", build))
    assert run.state == "success"
    seen = run.xcom("wait")
    assert (seen["caught_up"], seen["snapshot_id"], seen["table"], seen["branch"]) == (True, 2, "d.t", "main")


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("deferrable", [False, True])
def test_waits_for_a_branch_that_somebody_makes(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    main = make_table(warehouse)
    append(main, "1")

    def build() -> None:
        SnapshotCatchUpSensor(task_id="wait", table="d.t", branch="fix", wait_for_branch=True, poke_interval=0.2,
                              timeout=600, deferrable=deferrable)  # fmt: skip

    with later(2, lambda: operate(main, "create_branch", branch="fix", snapshot=1)):
        done = run_dag(dag(f"sensor_branch_{deferrable}", build))
    assert (done.state, done.xcom("wait")["snapshot_id"]) == ("success", 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("deferrable", [False, True])
def test_waits_for_a_partition_that_somebody_marks(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    main = make_table(warehouse)
    append(main, "1")

    def build() -> None:
        SnapshotCatchUpSensor(task_id="wait", table="d.t", marked_partitions=["dt=1"], poke_interval=0.2,
                              timeout=600, deferrable=deferrable)  # fmt: skip

    with later(2, lambda: operate(main, "mark_partition_done", partitions=["dt=1"])):
        done = run_dag(dag(f"sensor_mark_{deferrable}", build))
    assert (done.state, done.xcom("wait")["waiting_for"]) == ("success", [])


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("deferrable", [False, True])
def test_what_will_never_come_true_fails_at_once(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    append(make_table(warehouse), "1")
    common: dict[str, Any] = {"poke_interval": 0.2, "timeout": 30, "deferrable": deferrable, "retries": 3}

    def build() -> None:
        SnapshotCatchUpSensor(task_id="branch", table="d.t", branch="nope", min_snapshot_id=1, **common)
        SnapshotCatchUpSensor(task_id="nothing", table="d.t", **common)
        SnapshotCatchUpSensor(task_id="empty", table="d.t", min_snapshot_id="{{ '' }}", **common)

    run = run_dag(dag(f"sensor_never_{deferrable}", build))
    assert set(run.tasks.values()) == {("failed", 1)}


@pytest.mark.parametrize("deferrable", [False, True])
def test_soft_fail_skips_wherever_it_waits(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    def build() -> None:
        SnapshotCatchUpSensor(task_id="t", table="d.nowhere", min_snapshot_id=1, soft_fail=True, deferrable=deferrable)

    assert run_dag(dag(f"soft_{deferrable}", build)).tasks == {"t": ("skipped", 1)}


def test_times_out(warehouse: Path, run_dag: RunDag) -> None:
    append(make_table(warehouse), "1")
    run = run_dag(
        dag(
            "sensor_timeout",
            lambda: SnapshotCatchUpSensor(
                task_id="wait", table="d.t", min_snapshot_id=9, poke_interval=0.1, timeout=0.3, soft_fail=True
            ),
        )
    )
    assert run.tasks == {"wait": ("skipped", 1)}


@pytest.mark.every(2)
@pytest.mark.parametrize("deferrable", [False, True])
def test_waits_until_a_job_has_left_buckets_alone(warehouse: Path, run_dag: RunDag, deferrable: bool) -> None:
    keyed(warehouse, bucket="1", deletion_vectors__enabled="true", write_only="false")
    main = open_table(str(warehouse), "d.t")
    upsert(main, ("a", 1, "x"))
    create_branch(main, "first", snapshot=1)
    upsert(main.branch("first"), ("a", 2, "y"))
    tag = operate(main, "merge_branch", branch="first").details["undo_tag"]
    pretend(main)
    create_branch(main, "fix", snapshot=main.latest_snapshot_id())
    write_arrow(main.branch("fix"), read_arrow(main), mode="overwrite")
    asked: dict[str, Any] = {"table": "d.t", "poke_interval": 0.2, "deferrable": deferrable, "retries": 3}

    def build() -> None:
        late = BucketsQuietSensor(task_id="late", branch="fix", time_limit="{{ '0 s' }}", **asked)
        skipped = BucketsQuietSensor(task_id="skipped", partitions=["p=a"], time_limit="1 s", soft_fail=True, **asked)
        undo = BucketsQuietSensor(task_id="undo", tag=tag, time_limit="1 s", soft_fail=True, **asked)
        stopped = BucketsQuietSensor(task_id="stopped", branch="fix", writers_stopped="{{ True }}", **asked)
        quiet = BucketsQuietSensor(task_id="quiet", branch="fix", time_limit="10 min", trigger_rule="all_done", **asked)

        @task(trigger_rule="all_done")
        def end_soon() -> None:
            ends.append(threading.Timer(2, pretend, [main], {"timeMillis": 0}))
            ends[0].start()

        [late, skipped, undo, stopped] >> end_soon() >> quiet

    ends: list[threading.Timer] = []
    run = run_dag(dag(f"quiet_{deferrable}", build))
    ends[0].join()
    assert run.tasks == {"late": ("failed", 1), "skipped": ("skipped", 1), "undo": ("skipped", 1),
                         "stopped": ("success", 1),
                         "end_soon": ("success", 1), "quiet": ("success", 1)}  # fmt: skip
    assert run.xcom("quiet")["effect"] is None


def trigger(**condition: Any) -> SensorTrigger:
    asked = parse_catch_up(**condition).to_json()
    return SnapshotCatchUpTrigger(
        table="d.t", branch="main", condition=asked, paimon_conn_id="paimon_default", poke_interval=0.05
    )


async def first_event(waiting: SensorTrigger) -> dict[str, Any]:
    async for event in waiting.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise AssertionError("the trigger ended without an event")


def test_the_trigger_is_rebuilt_from_what_it_serialises(airflow_home: Path, warehouse: Path) -> None:
    append(make_table(warehouse), "1")
    path, arguments = trigger(partitions=["dt=1"], min_snapshot_id=1).serialize()
    assert path == "airflow_paimon.triggers.waits.SensorTrigger"
    event = asyncio.run(first_event(SensorTrigger(**arguments)))
    assert event["found"]["caught_up"] is True


def test_the_trigger_never_blocks_the_loop(airflow_home: Path, warehouse: Path) -> None:
    main = make_table(warehouse)
    append(main, "1")

    async def wait() -> int:
        turns = 0
        event = asyncio.create_task(first_event(trigger(min_snapshot_id=2)))
        while not event.done():
            await asyncio.sleep(0.01)
            turns += 1
            if turns == 20:
                await asyncio.to_thread(append, main, "1", seq=1)
        assert event.result()["found"]["snapshot_id"] == 2
        return turns

    assert asyncio.run(wait()) >= 20


def test_the_trigger_reports_what_can_not_come_true(airflow_home: Path, warehouse: Path) -> None:
    event = asyncio.run(first_event(trigger(min_snapshot_id=1)))
    assert event["error"]["kind"] == "not-found"
    assert event["retryable"] is False


def test_the_trigger_reports_a_missing_connection(airflow_home: Path) -> None:
    waiting = trigger(min_snapshot_id=1)
    waiting.paimon_conn_id = "nowhere"
    event = asyncio.run(first_event(waiting))
    assert (event["error"]["kind"], event["retryable"]) == ("invalid-input", False)
