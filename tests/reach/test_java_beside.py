"""Paimon's Java engine goes on committing to a table on HDFS, while this package publishes and expires there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.oracles.fixtures import java_oracle
from tests.oracles.java_driver import JavaOracle
from tests.places import Place, Servers
from tests.reach.local_copies import assert_readable

__all__ = ["java_oracle"]
pytestmark = [pytest.mark.oracle, pytest.mark.slow]

ROUNDS = 6
_MOST = 2000
COLUMNS = {"dt": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
Rows = dict[tuple[str, int], str]


@contextmanager
def committing(java: JavaOracle, place: Place) -> Iterator[Rows]:
    """Let Java commit one row after the other, and give the acknowledged ones, all of them at the end."""
    done, rows, failed = threading.Event(), Rows(), list[Exception]()

    def commit() -> None:
        try:
            while not done.is_set() and len(rows) < _MOST:
                row = {"dt": "java", "k": len(rows), "v": "java"}
                java.write(place.warehouse, place.full("t"), [row])
                rows["java", row["k"]] = "java"  # type: ignore[index]
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield rows
    finally:
        done.set()
        thread.join(120)
    assert not failed, failed


def test_nothing_is_lost_on_either_side(servers: Servers, java_oracle: JavaOracle) -> None:
    place = servers.place("hdfs")
    java_oracle.create_table(
        place.warehouse, place.full("t"), COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"],
        options={"bucket": "1", "num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    table = place.open("t")
    ours: Rows = {}
    write(table, ours, ("fixed", 0, "raw"))
    with committing(java_oracle, place) as theirs:
        for number in range(ROUNDS):
            one_round(place, table, ours, number)
    assert len(theirs) >= ROUNDS, "Java hardly committed beside us"
    wanted = sorted((*key, value) for key, value in {**ours, **theirs}.items())
    for rows in (read_arrow(table), java_oracle.read(place.warehouse, place.full("t"))):
        assert sorted((r["dt"], r["k"], r["v"]) for r in rows.to_pylist()) == wanted
    users = [table.snapshot(number).commit_user for number in table.snapshot_ids()]
    assert len(users) > 1
    assert_readable(table)
    print(f"{len(theirs)} commits of Java's beside {ROUNDS} publishes; head {table.latest_snapshot_id()}")


def one_round(place: Place, table: Table, ours: Rows, number: int) -> None:
    """Commit to main; correct a partition on a branch, publish it; expire."""
    write(table, ours, ("ours", number, "ours"))
    run(table, "create_branch", **place.request("t", branch="fix", snapshot=table.latest_snapshot_id()))
    write(table.branch("fix"), ours, ("fixed", 0, f"fixed {number}"))
    run(table, "merge_branch", **place.request("t", branch="fix"))
    run(table, "delete_branch", **place.request("t", branch="fix"))
    expired = {"older_than": "0 s", "retain_min": 8, "retry_window": "0 s", "keep_undo": False}
    run(table, "expire_snapshots", **place.request("t", **expired))


def write(table: Table, rows: Rows, row: tuple[str, int, str]) -> None:
    write_arrow(table, pa.table({"dt": [row[0]], "k": pa.array([row[1]], pa.int32()), "v": [row[2]]}))
    rows[row[0], row[1]] = row[2]
