"""``make demo-pipeline``: three days of a raw feed are wrong, and so are the daily delays that are made from it.

The DAG pipeline_correction corrects the feed on a branch, makes the days again on a branch of the other table, asks
once, and publishes both. Everything happens in ``.demo/pipeline`` and in this process and its children.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _demo
import _flights

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_paimon.core.table.table import Table

DAILY = "demo.daily_delays"
DAYS = "BETWEEN DATE '2013-07-08' AND DATE '2013-07-10'"
CORRECT = f"""\
UPDATE branch SET dep_delay = CAST(dep_delay / 60 AS INT), arr_delay = CAST(arr_delay / 60 AS INT)
WHERE flight_date {DAYS}
"""
REPLAY = f"""\
MERGE INTO branch USING (
  SELECT flight_date, carrier, count(*) AS flights, sum(arr_delay) AS delay
  FROM flights WHERE flight_date {DAYS} GROUP BY flight_date, carrier
) AS again ON branch.flight_date = again.flight_date AND branch.carrier = again.carrier
WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""
CONF = {
    "tables": [{"table": _flights.TABLE, "correct": CORRECT}, {"table": DAILY, "replay": REPLAY}],
    "reason": _flights.REASON,
    "branch": "fix_delays",
}
CARRIERS = ("AA", "B6", "DL", "UA")


def run(folder: Path, say: _demo.Say) -> None:
    """Load, summarize, correct both, compare."""
    started = time.monotonic()
    warehouse, home = folder / "warehouse", folder / "airflow"
    _demo.own_environment(folder, warehouse, {"AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs")})
    _demo.require_java()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    raw, seconds = _demo.load_flights(warehouse, say)
    daily = make_daily(warehouse, raw)
    before = [read(raw), read(daily)]
    say(f"1. {_flights.ROWS:,} real flights of 2013 are in {raw.name}, loaded in {seconds:.0f} s; {daily.name} is made")
    say(f"   from them: {before[1].num_rows:,} rows, one for each day and carrier.")
    say("   The feed of three days gave delays in seconds instead of minutes: both tables are wrong.\n")
    say("2. Airflow runs the DAG pipeline_correction over both tables, which takes minutes:")
    import pipeline_correction

    branches = [raw.branch(CONF["branch"]), daily.branch(CONF["branch"])]
    seen = _demo.run_dag(pipeline_correction.dag, CONF, say, lambda: [read(raw), read(daily), *map(read, branches)])
    after = [read(raw), read(daily)]
    if seen[:2] != before or seen[2:] != after:
        raise _demo.FailedError("main was not what it was until the approval, or is not what was approved")
    say("\n3. What changed in both. Main had the wrong rows until the approval; now it has what the branches had:")
    _tell_flights(say, before[0], after[0])
    _tell_delays(say, before[1], after[1])
    _check(after)
    say("   All rows of both tables are again what the source says.\n")
    _tell_undo(say, folder)
    say(f"Done in {time.monotonic() - started:.0f} s.")


def make_daily(warehouse: Path, raw: Table) -> Table:
    """Make the delays of each day and carrier from the flights as they are."""
    from airflow_paimon.core.schema.tables import create_table
    from airflow_paimon.data import write_arrow

    columns = [("flight_date", "DATE NOT NULL"), ("carrier", "STRING NOT NULL"), ("flights", "BIGINT"),
               ("delay", "BIGINT")]  # fmt: skip
    daily = create_table(
        str(warehouse),
        DAILY,
        columns,
        partition_keys=["flight_date"],
        primary_keys=["flight_date", "carrier"],
        options={"bucket": "1", "partition.legacy-name": "false"},
        comment="Delays at arrival of each day and carrier, in minutes, from demo.flights",
    )
    write_arrow(daily, summary(read(raw)))
    return daily


def read(table: Table) -> pa.Table:
    """Read a table, in the order of its key."""
    from airflow_paimon.data import read_arrow

    return read_arrow(table).sort_by([(key, "ascending") for key in table.schema().primary_keys])


def summary(flights: pa.Table) -> pa.Table:
    """Count flights and minutes of delay by day and carrier, without Spark."""
    found = flights.group_by(["flight_date", "carrier"]).aggregate([([], "count_all"), ("arr_delay", "sum")])
    named = found.select(["flight_date", "carrier", "count_all", "arr_delay_sum"])
    ordered = named.rename_columns(["flight_date", "carrier", "flights", "delay"])
    return ordered.sort_by([("flight_date", "ascending"), ("carrier", "ascending")])


def _tell_flights(say: _demo.Say, before: pa.Table, after: pa.Table) -> None:
    say(f"   {_flights.TABLE}, corrected: delay at arrival in minutes")
    say(f"     {'':10} {'':>8} | {'before':^18} | {'after':>11}")
    say(f"     {'day':10} {'flights':>8} | {'mean':>9} {'longest':>8} | {'mean':>9} {'longest':>8}")
    for old, new in zip(*(_flights.by_day(rows, _flights.WRONG_DAYS) for rows in (before, after)), strict=True):
        cells = " | ".join(f"{day['mean']:9,.1f} {day['max']:8,}" for day in (old, new))
        say(f"     {old['day']} {old['flights']:8,} | {cells}")


def _tell_delays(say: _demo.Say, before: pa.Table, after: pa.Table) -> None:
    pairs = [(o, n) for o, n in zip(before.to_pylist(), after.to_pylist(), strict=True) if o != n]
    days = {new["flight_date"] for _, new in pairs}
    say(f"   {DAILY}, replayed: {len(pairs)} rows of {len(days)} days changed, such as, in minutes of delay:")
    for old, new in [pair for pair in pairs if pair[1]["carrier"] in CARRIERS][: len(CARRIERS)]:
        say(f"     {new['flight_date']} {new['carrier']} {new['flights']:4,} flights: {old['delay']:9,} -> "
            f"{new['delay']:7,}")  # fmt: skip


def _check(after: list[Any]) -> None:
    source = _flights.read_flights().sort_by([(key, "ascending") for key in _flights.KEY])
    if not after[0].select(source.column_names).equals(source):
        raise _demo.FailedError("the corrected flights differ from the source")
    expected = summary(source)
    if after[1].select(expected.column_names).to_pylist() != expected.to_pylist():
        raise _demo.FailedError("the replayed delays differ from what the source gives")


def _tell_undo(say: _demo.Say, folder: Path) -> None:
    say("4. To take both back: trigger pipeline_correction_undo with")
    say(f'     {{"tables": ["{_flights.TABLE}", "{DAILY}"], "branch": "{CONF["branch"]}"}}')
    say(f"   Logs: {os.path.relpath(folder / _demo.LOG)}.")


if __name__ == "__main__":
    sys.exit(_demo.main("make demo-pipeline", "pipeline", run))
