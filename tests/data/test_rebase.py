"""Rows of a rebased branch: what main has now, with the branch's changes; no row id is on two rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.core.tables import run
from tests.data.row_statements import statement, with_ids
from tests.data.test_compact import run as run_compact


def insert(view: Table, dt: str, *keys: int) -> None:
    n = len(keys)
    write_arrow(view, pa.table({"k": pa.array(keys, pa.int32()), "v": ["new"] * n, "dt": [dt] * n}))


def update(view: Table, *keys: int) -> None:
    statement(view, lambda row: {**row, "v": "changed"} if row["k"] in keys else row)


def shown(view: Table) -> dict[int, str]:
    found, head = with_ids(view), view.latest_snapshot()
    ids = [row[-2] for row in found]
    assert head is not None and len(set(ids)) == len(ids) and max(ids) < (head.next_row_id or 0)
    return {row[0]: row[1] for row in found}


def test_rows_and_their_ids_go_through_a_rebase_and_its_publish(tmp_path: Path) -> None:
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    insert(table, "a", 0, 1)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    update(fix, 0)
    insert(fix, "b", 20, 21)
    update(fix, 20)
    run_compact(fix, min_files=2, branch="fix")
    insert(table, "a", 5, 6, 7)
    main = shown(table)
    run(table, "rebase_branch", branch="fix", to_branch="next")
    rebased = table.branch("next")
    assert shown(rebased) == main | {0: "changed", 20: "changed", 21: "new"}
    insert(rebased, "b", 22)
    insert(table, "a", 8)
    run(table, "delete_branch", branch="fix")
    run(table, "merge_branch", branch="next")
    assert shown(table) == main | {0: "changed", 20: "changed", 21: "new", 22: "new", 8: "new"}
    assert run(table, "check_table").details["errors"] == 0


def test_an_update_that_was_rebased_still_meets_main_s_appends(tmp_path: Path) -> None:
    """It is no commit that replaces the partition as a whole."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options={"bucket": "-1"})
    insert(table, "a", 0, 1)
    run(table, "create_branch", branch="fix", snapshot=1)
    update(table.branch("fix"), 0)
    insert(table, "a", 2)
    run(table, "rebase_branch", branch="fix", to_branch="next")
    insert(table, "a", 3)
    assert run(table, "merge_branch", branch="next").changed
    found = {row["k"]: row["v"] for row in _rows(table)}
    assert found == {0: "changed", 1: "new", 2: "new", 3: "new"}


def _rows(view: Table) -> list[dict[str, object]]:
    from airflow_paimon.data import read_arrow

    return list(read_arrow(view).to_pylist())
