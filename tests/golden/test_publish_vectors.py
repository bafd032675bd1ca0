"""Publishes and undos of an append table whose deletion vectors Paimon's connector wrote: each file keeps its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.publish.undoable_publishes import verify_publish
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.data.row_statements import Change, statement


@pytest.fixture
def table(golden: Callable[[str], Path], tmp_path: Path) -> Table:
    """Rows 1 to 3 in two files; snapshot 2 deletes row 2 by a vector. Branch fix is of snapshot 1."""
    shutil.copytree(golden("paimon-2.0.0") / "wh" / "d.db" / "dva", tmp_path / "d.db" / "dva")
    table = open_table(str(tmp_path), "d.dva")
    run(table, "create_branch", branch="fix", snapshot=1)
    return table


def setting(key: int, value: str) -> Change:
    return lambda row: {**row, "v": value} if row["k"] == key else row


def shown(table: Table) -> dict[int, Any]:
    return {r["k"]: r["v"] for r in read_arrow(table).to_pylist()}


def vectors(table: Table) -> int:
    return sum(len(e.deletion_vector_ranges or ()) for e in read_index_entries(table, table.latest_snapshot()))


def test_a_correction_of_one_file_leaves_the_vector_of_another(table: Table) -> None:
    statement(table.branch("fix"), setting(1, "fixed"))
    write_arrow(table, pa.table({"k": pa.array([9], pa.int32()), "v": ["appended"]}))
    run(table, "merge_branch", branch="fix")
    verify_publish(table, snapshot_id=4, branch="fix", branch_snapshot=2)
    assert shown(table) == {1: "fixed", 3: "c", 9: "appended"} and vectors(table) == 1


@pytest.mark.parametrize("rewrite", [False, True])
def test_a_correction_of_the_file_in_which_main_deleted_a_row_is_a_conflict(table: Table, rewrite: bool) -> None:
    """It would bring the row back."""
    statement(table.branch("fix"), setting(3, "fixed"))
    with pytest.raises(ConflictError, match="both changed") as refused:
        run(table, "merge_branch", branch="fix", revert_compaction=rewrite)
    assert refused.value.details["cause"] == "rows"
    assert shown(table) == {1: "a", 3: "c"}


def test_deleted_rows_come_back_by_an_undo_and_go_again_by_a_second(table: Table) -> None:
    """The undo of the delete keeps what was appended after it; the undo of that undo brings the vector back."""
    write_arrow(table, pa.table({"k": pa.array([9], pa.int32()), "v": ["appended"]}))
    undone = run(table, "rollback_to", snapshot=1, keep_later=True)
    assert shown(table) == {1: "a", 2: "b", 3: "c", 9: "appended"} and vectors(table) == 0
    write_arrow(table, pa.table({"k": pa.array([10], pa.int32()), "v": ["appended"]}))
    run(table, "rollback_to", tag=undone.details["undo_tag"], keep_later=True)
    assert shown(table) == {1: "a", 3: "c", 9: "appended", 10: "appended"} and vectors(table) == 1


def test_a_vector_that_main_took_back_does_not_come_with_the_branch(table: Table) -> None:
    """Not the branch but main deleted the row, and main took that back."""
    run(table, "create_branch", branch="fix2", snapshot=2)
    statement(table.branch("fix2"), setting(1, "fixed"))
    run(table, "rollback_to", snapshot=1)
    result = run(table, "merge_branch", branch="fix2")
    assert result.changed and shown(table) == {1: "fixed", 2: "b", 3: "c"}, (
        "the delete was main's, and main took it back"
    )
