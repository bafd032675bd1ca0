"""``make demo``: three days of real flights are wrong; the DAG data_correction corrects them on a branch and publishes.

Everything happens in ``.demo/flights`` and in this process and its children; nothing is left running.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _demo
import _flights

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_paimon.core.table.table import Table

CONF = {
    "table": _flights.TABLE,
    "sql": _flights.CORRECTION,
    "partitions": _flights.PARTITIONS,
    "reason": _flights.REASON,
    "branch": "fix_delays",
}


def run(folder: Path, say: _demo.Say) -> None:
    """Load, correct, compare."""
    started = time.monotonic()
    warehouse, home = folder / "warehouse", folder / "airflow"
    _demo.own_environment(folder, warehouse, {"AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs")})
    _demo.require_java()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    table, seconds = _demo.load_flights(warehouse, say)
    before = look(table)
    say(f"1. {_flights.ROWS:,} real flights of 2013 are in {table.name}, {len(before.files)} days, loaded in "
        f"{seconds:.0f} s.")  # fmt: skip
    say("   The feed of three days gave delays in seconds instead of minutes.\n")
    say("2. Airflow runs the DAG data_correction:")
    import data_correction

    branch = _demo.run_dag(data_correction.dag, CONF, say, lambda: look(table.branch(CONF["branch"])))
    after = look(table)
    say("\n3. What changed. Delays at arrival, in minutes; the branch as it was when approval was asked for:")
    _tell_days(say, before, branch, after)
    _tell_rows(say, before, after)
    _check_rows(after)
    say(f"   All {_flights.ROWS:,} rows are again what the source says.\n")
    _tell_files(say, before, after)
    _tell_where(say, table, folder)
    say(f"Done in {time.monotonic() - started:.0f} s.")


@dataclass(frozen=True)
class Look:
    """A branch at one moment: its rows, and each day's data files with what tells a file from its copy."""

    snapshot: int
    rows: pa.Table
    files: dict[str, set[tuple[str, int, int]]] = field(repr=False)


def look(view: Table) -> Look:
    """Read a branch, and stat its files: name, inode, modification time."""
    from airflow_paimon.core.table.data_file_paths import data_file_path
    from airflow_paimon.core.table.partition_values import format_partition
    from airflow_paimon.core.table.scan import plan_scan
    from airflow_paimon.data import read_arrow

    plan = plan_scan(view)
    assert plan.snapshot is not None
    keys, types = plan.schema.partition_keys, [f.type for f in plan.schema.partition_fields]
    root = Path(view.store.uri.removeprefix("file://"))
    files: dict[str, set[tuple[str, int, int]]] = {}
    for split in plan.splits:
        group = files.setdefault(format_partition(split.values, keys, types), set())
        for file in split.files:
            status = (root / data_file_path(plan.schema, split.values, split.bucket, file)).stat()
            group.add((file.file_name, status.st_ino, status.st_mtime_ns))
    rows = read_arrow(view, version=plan.snapshot.id)
    return Look(plan.snapshot.id, rows.sort_by([(k, "ascending") for k in _flights.KEY]), files)


def _tell_days(say: _demo.Say, before: Look, branch: Look, after: Look) -> None:
    head = f"{'mean':>9} {'longest':>8}"
    say(f"     {'':10} {'':>8} | {'main before':^18} | {'branch':^18} | {'main after':^18}")
    say(f"     {'day':10} {'flights':>8} | {head} | {head} | {head}")
    sides = [_flights.by_day(s.rows, _flights.WRONG_DAYS) for s in (before, branch, after)]
    for day in zip(*sides, strict=True):
        cells = " | ".join(f"{d['mean']:9,.1f} {d['max']:8,}" for d in day)
        say(f"     {day[0]['day']} {day[0]['flights']:8,} | {cells}")


def _tell_rows(say: _demo.Say, before: Look, after: Look) -> None:
    columns = ("flight_date", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay")
    pairs = _changed_rows(before, after)
    say(f"   {len(pairs):,} rows changed, such as:")
    for old, new in pairs[:3]:
        delays = ", ".join(f"{c} {old[c]:,} -> {new[c]:,}" for c in _flights.DELAYS if old[c] is not None)
        say(f"     {' '.join(str(new[c]) for c in columns[:4])} -> {new['dest']}: {delays}")


def _changed_rows(before: Look, after: Look) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pa.array(_flights.WRONG_DAYS, pa.date32())
    sides = [s.rows.filter(pc.is_in(s.rows["flight_date"], value_set=days)).to_pylist() for s in (before, after)]
    return [(old, new) for old, new in zip(*sides, strict=True) if old != new]


def _check_rows(after: Look) -> None:
    source = _flights.read_flights().sort_by([(k, "ascending") for k in _flights.KEY])
    if not after.rows.select(source.column_names).equals(source):
        raise _demo.FailedError("the corrected table differs from the source")


def _tell_files(say: _demo.Say, before: Look, after: Look) -> None:
    wrong = set(_flights.PARTITIONS)
    same = [p for p in before.files if p not in wrong and after.files.get(p) == before.files[p]]
    if before.files.keys() != after.files.keys() or len(same) != len(before.files) - len(wrong):
        raise _demo.FailedError("a day that was not corrected has other files than before")
    files = sum(len(before.files[p]) for p in same)
    new = {f for p in wrong for f in after.files[p]} - {f for p in wrong for f in before.files[p]}
    say(
        f"4. The {len(same)} other days share their {files} data files with the table as it was: same names, inodes and"
    )
    say(f"   modification times. {len(new)} files are new. Published as one snapshot: {before.snapshot} -> "
        f"{after.snapshot}.\n")  # fmt: skip


def _tell_where(say: _demo.Say, table: Table, folder: Path) -> None:
    from airflow_paimon.core.publish.undoable_publishes import undoable_publishes

    undo = undoable_publishes(table)[-1].undo_tag
    warehouse = os.path.relpath(folder / "warehouse")
    say(f"5. The table is a folder, {warehouse}/demo.db/flights. To look at it, in .venv/bin/python:")
    say("     from airflow_paimon import open_table")
    say("     from airflow_paimon.data import read_arrow")
    say(f'     flights = open_table("{warehouse}", "{table.name}")')
    say("     read_arrow(flights)")
    say(f'     read_arrow(flights, version="{undo}")  # as it was before')
    say(f"   Logs: {os.path.relpath(folder / _demo.LOG)}. The same in a browser: make demo-ui.")


if __name__ == "__main__":
    sys.exit(_demo.main("make demo", "flights", run))
