"""``make demo-chain``: real flights as a chain table, carriers as groups and days as the chain; one night of it.

The table holds the last flight of each flight number. The first of July is a full partition, the nine days after it are
changes. The DAG nightly_chain_maintenance makes long chains full and expires what is old; reads stay the same.
Everything happens in ``.demo/chain`` and in this process and its children; nothing is left running.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _demo
import _flights

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_paimon.core.table.table import Table

TABLE = "demo.last_flights"
FIRST, DAYS = 1, range(2, 11)
"""Days of July 2013: the one in full, and the changes."""
COLUMNS = (
    "flight INT",
    "origin STRING",
    "dest STRING",
    "tailnum STRING",
    "arr_delay INT",
    "scheduled_hour TIMESTAMP(3) WITH LOCAL TIME ZONE",
    "carrier STRING",
    "dt STRING",
)
CONF = {"table": TABLE, "max_chain_length": 6, "expiration_time": "365 d", "max_jobs": 2}
_ORDER = ("carrier", "dt", "flight", "origin")


def run(folder: Path, say: _demo.Say) -> None:
    """Load, run a night, compare."""
    started = time.monotonic()
    warehouse, home = folder / "warehouse", folder / "airflow"
    _demo.own_environment(folder, warehouse, {"AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs")})
    _demo.require_java()
    for old in (home, warehouse):
        shutil.rmtree(old, ignore_errors=True)
    home.mkdir()
    table = load(warehouse)
    before = rows_of(table)
    say(f"1. {TABLE}: the last flight of each flight number. Each carrier has a chain of days: 1 July as a full")
    say(f"   partition (its anchor), then 9 days of changes (deltas): {_sizes(table)}.")
    say("   A read of 10 July merges 9 deltas into the anchor.\n")
    say("2. Airflow runs the DAG nightly_chain_maintenance:")
    figures = one_night(say)
    say(f"   {figures['compacted'].get('compacted', 0)} partitions made full, {figures['expired_segments']} segments "
        f"expired ({figures['expired_partitions']} partitions).\n")  # fmt: skip
    after = rows_of(table)
    _check(before, after)
    say(f"3. What is left: {_sizes(table)}. A read of 10 July merges {figures['longest_chain']} deltas.")
    say(f"   All {after.num_rows:,} rows of the days that are left read as before, and as in the source.\n")
    say("4. To look at it, in a shell:")
    say(f"     .venv/bin/python -m airflow_paimon chain --warehouse {os.path.relpath(warehouse)} --table {TABLE}")
    say(f"   Logs: {os.path.relpath(folder / _demo.LOG)}. Done in {time.monotonic() - started:.0f} s.")


def load(warehouse: Path) -> Table:
    """Make the chain table and write its two branches."""
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.core.table.table import open_table
    from airflow_paimon.data import write_arrow
    from airflow_paimon.execution import run_operation

    keys = ["carrier", "dt"]
    arguments = {
        "column": COLUMNS,
        "primary_key": [*keys, "flight", "origin"],
        "partition_key": keys,
        "chain_partition_key": ["dt"],
        "timestamp_pattern": "$dt",
        "timestamp_formatter": "yyyyMMdd",
        "sequence_field": ["scheduled_hour"],
        "option": ["bucket=1"],
    }
    run_operation(build_request("create_chain_table", {"warehouse": str(warehouse), "table": TABLE, **arguments}))
    table = open_table(str(warehouse), TABLE)
    write_arrow(table.branch("snapshot"), flights_of([FIRST]))
    write_arrow(table.branch("delta"), flights_of(DAYS))
    return table


def flights_of(days: range | list[int]) -> pa.Table:
    """The real flights of these days of July 2013, as the table has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    flights = _flights.read_flights()
    wanted = pa.array([date(2013, 7, day) for day in days], pa.date32())
    flights = flights.filter(pc.is_in(flights["flight_date"], value_set=wanted))
    flights = flights.append_column("dt", pc.strftime(flights["flight_date"], format="%Y%m%d"))
    return flights.select([c.split()[0] for c in COLUMNS])


def last_flights(until: int) -> list[dict[str, Any]]:
    """What the table must say of a day, from the source alone."""
    last: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in flights_of(range(FIRST, until + 1)).sort_by("scheduled_hour").to_pylist():
        last[row["carrier"], row["flight"], row["origin"]] = row | {"dt": f"201307{until:02d}"}
    return [last[key] for key in sorted(last)]


def rows_of(table: Table) -> pa.Table:
    """Read every day, in order."""
    from airflow_paimon.data import read_arrow

    return read_arrow(table).sort_by([(name, "ascending") for name in _ORDER])


def one_night(say: _demo.Say) -> dict[str, Any]:
    """Run the DAG as ``airflow dags test`` would; returns its figures."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils import db
    from airflow.utils.session import create_session
    from sqlalchemy import select

    db.initdb()
    import nightly_chain_maintenance

    run = nightly_chain_maintenance.dag.test(run_conf=CONF)
    with create_session() as session:
        query = select(TaskInstance).where(TaskInstance.run_id == run.run_id).order_by(TaskInstance.start_date)
        for ti in session.scalars(query):
            label = f" {ti.rendered_map_index}" if ti.rendered_map_index else ""
            say(f"     {ti.task_id:<16} {ti.state:<8} {ti.duration or 0:5.1f} s{label}")
        if run.state != "success":
            raise _demo.FailedError(f"the DAG run ended as {run.state}")
        found: dict[str, Any] = next(t for t in run.get_task_instances() if t.task_id == "metrics").xcom_pull("metrics")
    return found


def _sizes(table: Table) -> str:
    from airflow_paimon.core.table.scan import plan_scan

    counts = {name: len({s.values for s in plan_scan(table.branch(name)).splits}) for name in ("snapshot", "delta")}
    return f"{counts['snapshot']} full partitions, {counts['delta']} deltas"


def _check(before: pa.Table, after: pa.Table) -> None:
    """Check that each day that is left reads as before, and that the last one agrees with the source."""
    kept = {(r["carrier"], r["dt"]) for r in after.select(["carrier", "dt"]).to_pylist()}
    if after.to_pylist() != [r for r in before.to_pylist() if (r["carrier"], r["dt"]) in kept]:
        raise _demo.FailedError("a day reads differently after the night")
    last = DAYS[-1]
    if [r for r in after.to_pylist() if r["dt"] == f"201307{last:02d}"] != last_flights(last):
        raise _demo.FailedError("the last day is not what the source says")


if __name__ == "__main__":
    sys.exit(_demo.main("make demo-chain", "chain", run))
