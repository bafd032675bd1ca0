"""find_rows and erase_rows on a table of Paimon's connector: rows behind deletion vectors are still in their file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from tests.core.tables import run
from tests.data.erasure.tables import find, found, holding
from tests.data.erasure.test_erase_rows import ALL, erase
from tests.data.test_compact import run as compacted

Golden = Callable[[str], Path]


@pytest.fixture
def table(golden: Golden, tmp_path: Path) -> Table:
    """Rows 1 to 3 in two files; snapshot 2 deletes row 2 by a vector."""
    shutil.copytree(golden("paimon-2.0.0") / "wh" / "d.db" / "dva", tmp_path / "d.db" / "dva")
    return open_table(str(tmp_path), "d.dva")


def test_a_row_behind_a_deletion_vector_is_found(table: Table) -> None:
    assert read_arrow(table).column("k").to_pylist() == [1, 3]
    details = find(table, "k = 2")
    assert found(details) == holding(table, "k", 2) and len(details["found"]) == 1
    assert details["branches"] == [{"branch": "main", "snapshot": 2, "files": 1, "rows": 1}]
    compacted(table)
    details = find(table, "k = 2")
    assert found(details) == holding(table, "k", 2), "the compaction has left it to earlier snapshots"
    assert details["branches"] == [] and [h["kind"] for h in details["references"]] == ["snapshots"]


def test_a_row_behind_a_deletion_vector_is_erased(table: Table) -> None:
    """The file is written again although no reader sees a row of it go, and its vector goes with it."""
    run(table, "create_tag", tag="old", snapshot=1)
    first = erase(table, where="k = 2").details
    assert [(e["files"], e["rows"]) for e in first["erased"]] == [(1, 0)] and not first["complete"]
    assert read_arrow(table).column("k").to_pylist() == [1, 3]
    assert not [e for e in read_index_entries(table, table.latest_snapshot()) if e.deletion_vector_ranges]
    assert erase(table, where="k = 2", **ALL).details["complete"] and holding(table, "k", 2) == {}
    assert read_arrow(table).column("k").to_pylist() == [1, 3]
