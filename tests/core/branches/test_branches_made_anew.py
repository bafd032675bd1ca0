"""A branch that somebody deletes and makes anew, or another engine rolls back, while an operation is at work on it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.clock import next_millisecond
from tests.core.tables import append, copied, make_table, names, run
from tests.soundness import assert_sound
from tests.stores import SteppedStore

Act = Callable[[Table], object]


@pytest.fixture
def made() -> Table:
    """Branch ``fix`` begins with snapshot 3 of main, and has two commits."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", primary=False)
    for _ in range(3):
        append(table, "a")
    run(table, "create_tag", tag="x", snapshot=3)
    run(table, "create_tag", tag="w", snapshot=1)
    run(table, "create_branch", branch="fix", tag="x")
    append(table.branch("fix"), "b")
    append(table.branch("fix"), "b")
    return table


def made_anew(table: Table) -> None:
    """With the operations of this package."""
    run(table, "delete_branch", branch="fix", force=True)
    next_millisecond()
    run(table, "create_branch", branch="fix", tag="w")
    append(table.branch("fix"), "c")


def made_anew_elsewhere(commits: int) -> Act:
    """As another engine does it: without a record, and with main's schema."""

    def act(table: Table) -> None:
        store, folder = table.store, "branch/branch-fix"
        for path in store.walk(folder):
            store.delete(path)
        store.create(f"{folder}/schema/schema-0", store.read("schema/schema-0"))
        store.create(f"{folder}/snapshot/snapshot-1", store.read("tag/tag-w"))
        store.create(f"{folder}/tag/tag-w", store.read("tag/tag-w"))
        for _ in range(commits):
            append(table.branch("fix"), "c")

    return act


def rolled_back_elsewhere(table: Table) -> None:
    """Another engine deletes the newest snapshots at once."""
    fix = table.branch("fix")
    for number in fix.snapshot_ids()[-2:]:
        table.store.delete(fix.paths.snapshot(number))
    table.store.replace(fix.paths.latest_hint, str(fix.snapshot_ids()[-1]).encode())


def at_every_step(made: Table, act: Act, what: Callable[[Table], object]) -> Iterator[Table]:
    """Let ``act`` happen before each step of ``what``, on a copy of the table each; give those tables."""
    for step in itertools.count(1):
        table = copied(made)

        def meanwhile(table: Table = table) -> None:
            with suppress(PaimonError):  # the operation may have come first
                act(table)

        store = SteppedStore(table.store, step, meanwhile)
        with suppress(PaimonError):
            what(Table(store, table.name))
        if not store.happened:
            return
        yield table


def operation(name: str, **values: Any) -> Callable[[Table], object]:
    def perform_it(table: Table) -> object:
        warehouse = table.store.uri.rsplit("/", 2)[0]
        request = build_request(name, {"warehouse": warehouse, "table": table.name, **values})
        return perform(replace(open_context(request), table=table), request)

    return perform_it


@pytest.mark.parametrize("commits", [0, 4, 6])
def test_no_commit_stays_on_a_branch_that_was_made_anew_right_before_its_put(made: Table, commits: int) -> None:
    """With four commits its head has the id of the earlier one: what the earlier branch had would be back."""
    for table in at_every_step(made, made_anew_elsewhere(commits), lambda table: append(table.branch("fix"), "d")):
        fix = table.branch("fix")
        assert fix.snapshot_ids() == list(range(1, len(fix.snapshot_ids()) + 1))
        assert len(names(fix)) in (commits + 1, commits + 2)
        assert_sound(table, leaks=True)


def test_no_commit_brings_back_what_another_engine_rolls_back_right_before_its_put(made: Table) -> None:
    for table in at_every_step(made, rolled_back_elsewhere, lambda table: append(table.branch("fix"), "d")):
        assert len(names(table.branch("fix"))) in (3, 4)
        assert_sound(table, leaks=True)


@pytest.mark.parametrize("act", [made_anew, made_anew_elsewhere(0), made_anew_elsewhere(4)])
def test_a_branch_made_anew_is_not_rolled_back_to_a_snapshot_of_the_earlier_one(made: Table, act: Act) -> None:
    """Its files may have been written with schema versions that the new branch never had."""
    for table in at_every_step(made, act, operation("rollback_to", branch="fix", snapshot=4)):
        fix = table.branch("fix")
        assert {e.file.schema_id for e in live_entries(fix, fix.latest_snapshot()).values()} <= set(fix.schema_ids())
        assert run(table, "check_table").details["errors"] == 0


def test_a_deletion_leaves_the_schemas_of_a_branch_that_was_deleted_and_made_anew_meanwhile(made: Table) -> None:
    for table in at_every_step(made, made_anew, operation("delete_branch", branch="fix")):
        whole = table.branch("fix").schema_ids() == [0, 1]
        assert whole or not table.store.walk("branch/branch-fix")
