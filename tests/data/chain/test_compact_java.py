"""O3, Paimon's Java engine, reads both branches of chains that we compacted as we do, and writes on there."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from tests.data.chain.compactions import compact
from tests.data.chain.tables import DAYS, PARTIAL, TWO_VALUES, chain_table
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle


def same(java: JavaOracle, table: Table, folder: Path, *, main: bool = True) -> None:
    """O3 picks wrong anchors in general: of main it is asked where one anchor was written first."""
    for view in (table.branch("snapshot"), table.branch("delta"), *([table] if main else [])):
        branch = None if view.branch_name == "main" else view.branch_name
        assert_same_rows(read_arrow(view), java.read(folder, table.name, branch=branch))


def test_java_reads_compacted_chains(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = chain_table(tmp_path, [w for w in DAYS if w[0] != "snapshot" or w[1] == "20250810"])
    compact(table, "dt=20250811", "dt=20250813")
    same(java_oracle, table, tmp_path)
    compact(table, "dt=20250811", overwrite=True)
    compact(table, from_="dt=20250809", to="dt=20250814", gap_policy="carry_forward")
    same(java_oracle, table, tmp_path)


def test_java_reads_partial_updates(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = chain_table(tmp_path, PARTIAL, values=TWO_VALUES, merge_engine="partial-update")
    compact(table, "dt=20250811")
    same(java_oracle, table, tmp_path, main=False)


def test_java_reads_an_empty_partition(java_oracle: JavaOracle, tmp_path: Path) -> None:
    deletes = [(k, 2, "a", "-D") for k in range(9)]
    table = chain_table(
        tmp_path,
        [("snapshot", "20260201", [(k, 1, "a") for k in range(9)]), ("delta", "20260202", deletes)],
    )
    compact(table, "dt=20260202")
    assert java_oracle.read(tmp_path, table.name, branch="snapshot").num_rows == 9
    same(java_oracle, table, tmp_path)


def test_ties_are_ours_in_java_too_once_compacted(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Rows of a full partition have the lowest sequence number, so that a delta with an equal sequence field wins."""
    table = chain_table(
        tmp_path,
        [
            ("delta", "20260201", [(k, 1, "old") for k in range(50)]),
            ("delta", "20260202", [(1, 1, "new")]),
        ],
        buckets=1,
    )
    compact(table, "dt=20260201")
    same(java_oracle, table, tmp_path)
    read = java_oracle.read(tmp_path, table.name)
    assert read.filter(pc.field("v") == "new").num_rows == 1


def test_java_writes_on_and_compacts_what_we_compacted(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("delta", "20260201", [(k, 1, "a") for k in range(50)])], buckets=1)
    compact(table, "dt=20260201")
    java_oracle.write(tmp_path, table.name, [{"k": 1, "s": 1, "v": "java", "dt": "20260201"}], branch="snapshot")
    same(java_oracle, table, tmp_path)
    java_oracle.request("compact", warehouse=str(tmp_path), table=table.name, branch="snapshot")
    same(java_oracle, table, tmp_path)
    rows = read_arrow(table.branch("snapshot"))
    assert rows.num_rows == 50 and rows.filter(pc.field("v") == "java").num_rows == 1
