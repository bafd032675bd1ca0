"""A backfill over a runbook that works on the partition of the run's date."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from airflow_paimon.core.table.scan import plan_scan
from tests.airflow.processes import wait_until
from tests.data.chain.tables import chain_table, day_is, seen
from tests.live.live_airflow import LiveAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = "backfilled_chain"
FILE = f"""
    from airflow_paimon.dags import chain_dag

    dag = chain_dag(
        "{DAG}",
        schedule="0 3 * * *",
        locked={{"table": "d.t", "date": "{{ds-1}}", "max_chain_length": 0}},
        paimon_conn_id="backfilled",
        dag_arguments={{"max_active_runs": 1}},
    )
"""


def is_created(airflow: LiveAirflow, asked: dict[str, Any]) -> bool:
    """Ask for a backfill; while SQLite is locked, Airflow makes nothing and says so by 503."""
    try:
        airflow.api.call("/api/v2/backfills", asked)
    except HTTPError as error:
        if error.code != 503:
            raise
        return False
    return True


@pytest.mark.thorough
def test_each_run_of_a_backfill_works_on_the_partition_of_its_date(airflow: LiveAirflow, tmp_path: Path) -> None:
    airflow.connect("backfilled", "paimon", {"warehouse": str(tmp_path)})
    days = [f"201307{number:02d}" for number in range(1, 6)]
    writes = [
        ("snapshot" if number == 0 else "delta", day, [(number, number, day), (9, number, day)])
        for number, day in enumerate(days)
    ]
    table = chain_table(tmp_path, writes, buckets=1)
    before = {day: seen(table, where=day_is(day)) for day in days}
    airflow.add_dags(f"{DAG}.py", FILE)
    wait_until(lambda: airflow.rows("select 1 from dag where dag_id = ?", DAG), "the DAG is parsed", 240)
    # Runs at three in the night of the third and the fourth, each for the day before.
    asked = {"dag_id": DAG, "from_date": "2013-07-03T00:00:00Z", "to_date": "2013-07-04T12:00:00Z"}
    wait_until(lambda: is_created(airflow, {**asked, "max_active_runs": 1, "dag_run_conf": {}}), "it is created", 480)
    runs = "select run_type, state from dag_run where dag_id = ? and run_type = 'backfill'"
    wait_until(
        lambda: [state for _, state in airflow.rows(runs, DAG) if state in ("success", "failed")][1:],
        "both runs are over", 480, pause=1,
    )  # fmt: skip
    assert airflow.rows(runs, DAG) == [("backfill", "success")] * 2
    snapshot = plan_scan(table.branch("snapshot"))
    assert sorted({split.values for split in snapshot.splits}) == [("20130701",), ("20130702",), ("20130703",)]
    assert {day: seen(table, where=day_is(day)) for day in days} == before
