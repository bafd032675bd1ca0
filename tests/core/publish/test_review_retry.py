"""What a review of retries with an operation id found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.table import Table
from tests.core.publish.test_publish_killed import killed_at
from tests.core.tables import alter_table, append, cut_off, forget_results, make_table, rewrite, run


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="base")
    return table


@pytest.fixture
def fix(table: Table) -> Table:
    run(table, "create_branch", branch="fix", tag="base")
    return table.branch("fix")


@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("create_tag", {"tag": "new"}),
        ("create_tag", {"tag": "new", "time_retained": "7 d"}),
        ("delete_tag", {"tag": "base"}),
        ("delete_branch", {"branch": "fix"}),
        ("rename_branch", {"branch": "fix", "to_branch": "mend"}),
    ],
)
def test_a_retry_after_the_result_was_lost(table: Table, fix: Table, operation: str, values: dict[str, Any]) -> None:
    if operation == "delete_tag":
        run(table, "delete_branch", branch="fix")
    first = run(table, operation, operation_id="op", **values)
    forget_results(table)
    again = run(table, operation, operation_id="op", **values)
    assert (first.changed, again.changed) == (True, True)
    assert again.details["replayed"]


def test_an_empty_branch_that_was_cut_off_gets_its_columns(tmp_path: Path) -> None:
    for step in range(1, 30):
        table = make_table(tmp_path / f"wh{step}")
        alter_table(table, [AddColumn(name="x", type="INT")])
        crashed = cut_off(table, step, "create_branch", branch="fix", operation_id="op")
        run(table, "create_branch", branch="fix", operation_id="op")
        assert table.branch("fix").schema().field_names == ("k", "v", "dt", "x"), step
        if not crashed:
            return
    raise AssertionError("30 steps were not enough")


@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward", "replace_main"])
@pytest.mark.parametrize("recreated", [False, True])
def test_a_publish_whose_branch_was_deleted_after_its_commit(
    table: Table, fix: Table, operation: str, recreated: bool
) -> None:
    rewrite(fix, "a")
    asked = {"branch": "fix", "expected_branch_snapshot": fix.latest_snapshot_id(), "operation_id": "op"}
    first = run(table, operation, **asked)
    forget_results(table)
    run(table, "delete_branch", branch="fix")
    if recreated:
        run(table, "create_branch", branch="fix", tag="base")
    again = run(table, operation, **asked)
    assert again.details["replayed"]
    assert again.snapshot_after == first.snapshot_after == table.latest_snapshot_id()


@pytest.mark.parametrize(
    ("operation", "values"), [("delete_branch", {"force": True}), ("rename_branch", {"to_branch": "x"})]
)
def test_a_retry_warns_of_tags_of_a_branch_that_is_gone(
    table: Table, fix: Table, operation: str, values: dict[str, Any]
) -> None:
    rewrite(fix, "a")
    run(table, "create_tag", tag="v1", branch="fix")
    asked: dict[str, Any] = {"branch": "fix", "tags": True, "operation_id": "op"}
    killed_at(table, table.paths.snapshot(2), "merge_branch", after=True, **asked)
    run(table, operation, branch="fix", **values)
    again = run(table, "merge_branch", writers_stopped=True, **asked)
    assert again.details["replayed"] and "v1" not in table.tag_names()
    assert again.details["warnings"][0].startswith("the branch was deleted or renamed")


def test_a_publish_of_no_branch_is_refused_however_often_it_is_tried(table: Table) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError, match="gone"):
            run(table, "merge_branch", branch="gone", operation_id="op")
