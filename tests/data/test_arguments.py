"""What the Python functions take: another kind of value is refused by name, and changes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from tests.data.tables import make_table

COLUMNS = {"k": "BIGINT NOT NULL", "v": "STRING", "dt": "STRING NOT NULL"}
ROWS = pa.table({"k": [1], "v": ["a"], "dt": ["x"]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path, COLUMNS, primary_keys=["dt", "k"], partition_keys=["dt"], bucket="1")
    write_arrow(table, ROWS)
    return table


Z: Any = pc.field("z") == 1
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "naive datetime": (lambda t: read_arrow(t, timestamp=dt.datetime(2030, 1, 1)), "has no time zone"),
    "float timestamp": (lambda t: read_arrow(t, timestamp=wrong(1.5)), "timestamp is an ISO time"),
    "bool timestamp": (lambda t: read_arrow(t, timestamp=True), "timestamp is an ISO time"),
    "float version": (lambda t: read_arrow(t, version=wrong(1.0)), "version is a snapshot id"),
    "columns as text": (lambda t: read_arrow(t, columns="dt"), "columns must be a list, not 'dt'"),
    "columns as number": (lambda t: read_arrow(t, columns=wrong(3)), "columns must be a list"),
    "unknown column": (lambda t: read_arrow(t, columns=["z"]), r"no column 'z' \(columns: k, v, dt\)"),
    "unknown in where": (lambda t: read_arrow(t, where=Z), r"names column 'z', .* \(columns: k, v, dt\)$"),
    "where of text": (lambda t: read_arrow(t, where=pc.field("k") == "x"), "where does not fit the table"),
    "name for a table": (lambda _: read_arrow(wrong("d.t")), "a result of airflow_paimon.open_table, not 'd.t'"),
    "rows as dicts": (lambda t: write_arrow(t, wrong([{"k": 1}])), "from_pylist makes one of dicts"),
    "no rows": (lambda t: write_arrow(t, wrong(None)), "must be an Arrow table, not None"),
    "number as operation id": (lambda t: write_arrow(t, ROWS, operation_id=wrong(3)), "operation_id is a string"),
    "blank operation id": (
        lambda t: write_arrow(t, ROWS, operation_id=" "),
        "operation_id is a string that identifies",
    ),
    "partition as list": (lambda t: write_arrow(t, ROWS, "overwrite", wrong(["dt"])), "a partition must be a dict"),
    "partition of no form": (lambda t: write_arrow(t, ROWS, "overwrite", "x"), "key=value"),
    "partition as number": (lambda t: drop_partitions(t, wrong([3])), "a partition must be a dict"),
    "no partitions": (lambda t: drop_partitions(t, []), "at least one"),
    "number as warehouse": (lambda _: open_table(wrong(3), "d.t"), "warehouse is a string, not 3"),
    "number as name": (lambda _: open_table("/x", wrong(3)), "name is a string, not 3"),
    "empty warehouse": (lambda _: open_table("", "d.t"), "warehouse is empty"),
    "empty branch": (lambda _: open_table("/x", "d.t", ""), "branch is empty; main is the default"),
    "text as storage options": (lambda _: open_table("/x", "d.t", storage_options=wrong("x")), "a dict"),
}


def wrong(value: Any) -> Any:
    """A value that the type checker would refuse as well."""
    return value


@pytest.mark.parametrize("what", WRONG)
def test_another_kind_of_value_is_refused_in_one_line(table: Table, what: str) -> None:
    call, words = WRONG[what]
    with pytest.raises(InvalidInputError, match=words) as refused:
        call(table)
    assert "\n" not in refused.value.message
    assert table.latest_snapshot_id() == 1


def test_a_datetime_with_a_zone_is_a_moment(table: Table) -> None:
    time_ms = table.snapshot(1).time_millis
    moment = dt.datetime.fromtimestamp(time_ms / 1000 + 1, dt.timezone(dt.timedelta(hours=5)))
    assert read_arrow(table, timestamp=moment).num_rows == 1


def test_partitions_may_be_texts(table: Table) -> None:
    assert write_arrow(table, ROWS, mode="overwrite", partition="dt=x")["changed"]
    assert not drop_partitions(table, ["dt=y"])["changed"]
    assert drop_partitions(table, "dt=x")["changed"]
    assert read_arrow(table).num_rows == 0


def test_a_path_object_is_a_path(table: Table, tmp_path: Path) -> None:
    assert open_table(path=wrong(tmp_path / "d.db" / "t")).exists()
