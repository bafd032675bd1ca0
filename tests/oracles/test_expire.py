"""Partitions that our core expired, as Paimon's own engines see the table, and what they would have expired."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_paimon.core.commit.partition_contents import partition_contents
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from tests.core.tables import run
from tests.data.chain.expiries import OLD, both, made
from tests.data.chain.test_expire_races import LEFT
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle, SparkConnectorOracle
from tests.oracles.interop import World

pytestmark = pytest.mark.oracle


def test_java_reads_the_branches_of_an_expired_chain_table(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = made("US/0101 US/0201 US/0301 EU/0110 EU/0120", "US/0105 US/0101 EU/0115 US/0205 US/0315", tmp_path)
    run(table, "expire_partitions", **OLD)
    assert both(table) == LEFT
    for branch in ("snapshot", "delta"):
        theirs = canonical_rows(java_oracle.read(tmp_path, "d.t", branch=branch))
        assert theirs == canonical_rows(read_arrow(table.branch(branch)))


def test_java_reads_a_chain_over_the_anchor_that_was_kept(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Java 1.4.2 reads daily chains with one anchor right; it goes on writing, too."""
    table = made("0101 0201", "0101 0110 0205", tmp_path)
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0201", "0205")
    assert canonical_rows(java_oracle.read(tmp_path, "d.t")) == canonical_rows(read_arrow(table))
    java_oracle.write(tmp_path, "d.t", [{"k": 7, "s": 9, "v": "java", "dt": "20250206"}], branch="delta")
    read = canonical_rows(java_oracle.read(tmp_path, "d.t"))
    assert read == canonical_rows(read_arrow(table))
    assert (201, 201, "snapshot-0201", "20250206") in read


def test_the_connector_expires_the_same_partitions(
    connector_oracle: SparkConnectorOracle, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """By value and by update, on twins; an unreadable partition stays in both."""
    today = datetime.now()
    ages = (0, 1, 29, 31, 400)
    days = [(today - timedelta(days=n)).strftime("%Y%m%d") for n in ages]
    left = []
    for name in ("ours", "theirs"):
        world = World(tmp_path, java_oracle, f"d.{name}")
        world.create()
        rows = [{"p": p, "k": n, "v": "x"} for n, p in enumerate([*days, "someday"])]
        java_oracle.write(tmp_path, world.table, rows)
        if name == "theirs":
            connector_oracle.sql(
                tmp_path,
                "CALL sys.expire_partitions(table => 'd.theirs', expiration_time => '30 d', "
                "timestamp_formatter => 'yyyyMMdd', expire_strategy => 'values-time')",
            )
        else:
            run(open_table(str(tmp_path), "d.ours"), "expire_partitions", expiration_time="30 d",
                timestamp_formatter="yyyyMMdd")  # fmt: skip
        table = open_table(str(tmp_path), world.table)
        left.append([h.text for h in partition_contents(plan_scan(table))])
        assert canonical_rows(java_oracle.read(tmp_path, world.table)) == canonical_rows(read_arrow(table))
    assert left[0] == left[1] == sorted(f"p={p}" for p in [*days[:3], "someday"])
    result = run(
        open_table(str(tmp_path), "d.ours"), "expire_partitions", expiration_time="1 d", strategy="update-time"
    )
    assert not result.changed
