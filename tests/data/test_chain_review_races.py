"""Races and orders of chain maintenance that a review found: each test is named after what happened."""

from __future__ import annotations

import pytest

from airflow_paimon.core.chain_staleness import stale_partitions
from airflow_paimon.core.chain_state import gather_chain
from airflow_paimon.core.table import Table
from tests.core.tables import run
from tests.data.chains import Row
from tests.data.compactions import change, compact, outcomes
from tests.data.test_chain_expire import OLD, both, killed_between, made, rows_of

LATE: Row = (7, 7, "late")


def stale(table: Table) -> list[str]:
    return [s.values[-1][4:] for s in stale_partitions(table, gather_chain(table))]


# -- expiry and stale partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "dynamic_overwrite"])
def test_expiry_keeps_what_a_stale_partition_is_to_be_built_from(mode: str) -> None:
    """A late or corrected delta behind an old anchor went before anybody had built it in, and its finding with it."""
    table = made("0101", "0102 0103 0110")
    compact(table, "dt=20250103")
    change(table, "delta", "20250102", [LATE], mode=mode)
    assert stale(table) == ["0103"]
    result = run(table, "expire_partitions", **OLD)
    assert not result.changed
    assert "dt=20250103 is stale" in result.details["groups"][0]["reason"]
    assert result.details["waits_for"] == ["dt=20250103"]
    assert "compact_chain_table --pending" in result.details["warnings"][0]
    assert stale(table) == ["0103"]
    assert outcomes(compact(table, pending=True, max_chain_length=9)) == {"dt=20250103": "stale-rebuilt"}
    assert run(table, "expire_partitions", **OLD).changed
    assert both(table) == ("0103", "0103 0110")
    assert LATE in [r[:3] for r in rows_of(table, {"0110"})]


def test_expiry_keeps_the_inputs_of_stale_partitions_one_behind_the_other() -> None:
    """What stays for one stale partition is stale itself; segments before their inputs go all the same."""
    table = made("0101 0105", "0102 0106 0107 0108 0110")
    compact(table, "dt=20250107", "dt=20250110")
    change(table, "delta", "20250106", [LATE])
    assert stale(table) == ["0107", "0110"]
    result = run(table, "expire_partitions", **OLD)
    assert both(table) == ("0105 0107 0110", "0106 0107 0108 0110")
    assert result.details["segments"] == 1
    compact(table, pending=True, max_chain_length=9)
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0110", "0110")
    assert LATE in [r[:3] for r in rows_of(table, {"0110"})]


def test_a_stale_partition_that_expires_itself_keeps_nothing() -> None:
    table = made("0101 0201", "0102 0103 0205")
    compact(table, "dt=20250103")
    change(table, "delta", "20250102", [LATE])
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0201", "0205")


def test_an_expiry_of_compacted_partitions_ends_what_a_killed_one_began() -> None:
    """Between the two commits what stays lacks its deltas while its anchor is there: that keeps nothing."""
    table = made("0101", "0102 0103 0105 0110")
    compact(table, "dt=20250103", "dt=20250110")
    killed_between(table)
    assert both(table) == ("0101 0103 0110", "0110")
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0110", "0110")
