"""Columns that a publish brings while others commit, alter main, or publish the same branch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, SetOption
from airflow_paimon.core.table.table import Table
from tests.core.publish.test_publish_killed import perform
from tests.core.tables import alter_table, append, make_table, rewrite, run
from tests.stores import FaultStore

PRICE, OPTION = AddColumn(name="price", type="DOUBLE"), SetOption(key="compaction.min.file-num", value="3")
FIX: dict[str, Any] = {"branch": "fix", "writers_stopped": True}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = make_table(tmp_path)
    append(made, "a")
    append(made, "b")
    run(made, "create_branch", branch="fix", snapshot=2)
    return made


def at(table: Table, *steps: tuple[str, Callable[[], Any]]) -> FaultStore:
    """Do something right before the first call that changes a path, once for each step."""
    left = list(steps)

    def step(method: str, path: str) -> None:
        if left and path.startswith(left[0][0]):
            left.pop(0)[1]()

    return FaultStore(table.store, on_mutation=step)


@pytest.mark.parametrize("operation", ["merge_branch", "replace_main"])
def test_columns_alone_are_published_although_another_writer_was_faster(table: Table, operation: str) -> None:
    alter_table(table.branch("fix"), [PRICE])
    more = {"discard_main": True} if operation == "replace_main" else {}
    store = at(table, (table.paths.snapshot(3), lambda: append(table, "c")))
    assert perform(table, store, operation, **FIX, **more).snapshot_after == 4
    assert "price" in table.schema().field_names


def test_main_is_kept_with_its_own_columns_although_another_writer_was_faster(table: Table) -> None:
    alter_table(table.branch("fix"), [PRICE, DropColumn(name="v"), OPTION])
    rewrite(table.branch("fix"), "a")
    store = at(table, (table.paths.snapshot(3), lambda: append(table, "c")))
    perform(table, store, "replace_main", keep_old_as="old", discard_main=True, **FIX)
    kept = table.branch("old").schema()
    assert kept.content == table.schema(0).content and OPTION.key not in kept.options


@pytest.mark.parametrize("refused", [False, True])
def test_the_same_column_that_somebody_adds_at_the_same_moment_is_theirs(table: Table, refused: bool) -> None:
    alter_table(table.branch("fix"), [PRICE])
    rewrite(table.branch("fix"), "a")
    steps = [(table.paths.schema(1), lambda: alter_table(table, [PRICE]))]
    steps += [(table.paths.snapshot(3), lambda: rewrite(table, "a"))] if refused else []
    if refused:
        with pytest.raises(ConflictError):
            perform(table, at(table, *steps), "merge_branch", **FIX)
    else:
        assert perform(table, at(table, *steps), "merge_branch", **FIX).details["attempts"] == 2
    assert table.schema_ids() == [0, 1]


def test_a_column_that_is_dropped_while_a_publish_ends_that_has_none_stays_dropped(table: Table) -> None:
    alter_table(table, [PRICE])
    append(table, "a")
    run(table, "create_branch", branch="later", snapshot=3)
    rewrite(table.branch("later"), "a")
    store = at(table, ("tag/tag-airflow-paimon-undo", lambda: alter_table(table, [DropColumn(name="price")])))
    assert perform(table, store, "merge_branch", branch="later", writers_stopped=True).changed
    assert "price" not in table.schema().field_names


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("operation", ["merge_branch", "fast_forward", "replace_main"])
def test_a_refused_publish_leaves_the_columns_of_another_one_of_the_branch(
    table: Table, operation: str, refused: bool
) -> None:
    """No file of the branch was written with them."""
    rewrite(table.branch("fix"), "a")
    alter_table(table.branch("fix"), [PRICE, OPTION])
    more = {"approved_main_snapshot": 2} if refused else {}

    def other() -> None:
        assert run(table, operation, operation_id="other", **FIX).changed
        if refused:
            rewrite(table, "a")

    with suppress(PaimonError):
        perform(table, at(table, (table.paths.snapshot(3), other)), operation, operation_id="op", **FIX, **more)
    assert "price" in table.schema().field_names
    assert operation != "replace_main" or OPTION.key in table.schema().options
