"""Publishes and rollbacks while Paimon's expiry deletes the history that they look through, at each moment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any, TypeVar

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from tests.core.tables import append, files, make_table, overwrite, rewrite, run
from tests.randomness import moments
from tests.stateful.paimon_expiry import delete_tag, expire_snapshots
from tests.stores import CountingStore, Crash, FaultStore

T = TypeVar("T")
MOST = 400
Rival = Callable[[Table], Callable[[], None]]
"""Takes something away; what it returns takes away the rest."""


class ExpiredBeside(CountingStore):
    """Lets a rival in before the n-th request."""

    def __init__(self, inner: Store, moment: int, rival: Callable[[], Callable[[], None]]) -> None:
        super().__init__(inner)
        self._left, self._rival = moment, rival
        self.rest: Callable[[], None] | None = None

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == 0:
            self.rest = self._rival()
        return super()._call(method, path, action)


def whole_expiry(table: Table) -> Callable[[], None]:
    expire_snapshots(table, 1)
    return lambda: None


def cut_expiry(table: Table) -> Callable[[], None]:
    """Manifests are gone, snapshots not yet: Paimon deletes these last."""
    expiring = table.snapshot_ids()[:-1]
    first = f"snapshot-{expiring[0]}"

    def stop(method: str, path: str) -> None:
        if method == "delete" and path.endswith(first):
            raise Crash

    with pytest.raises(Crash):
        expire_snapshots(Table(FaultStore(table.store, on_mutation=stop), table.name), 1)

    def go_on() -> None:
        for number in expiring:
            table.store.delete(table.paths.snapshot(number))

    return go_on


def tag_deletion(table: Table) -> Callable[[], None]:
    """A user deletes the tag on a state that has expired before."""
    delete_tag(table, "old")
    return lambda: None


def table_with_history(folder: Path, *, old: bool, replaced: bool) -> Table:
    """Partition a was published and taken back.

    ``old``: and tagged meanwhile, before all of that expired; ``replaced``: and written again, after a state without a
    tag.
    """
    table = make_table(folder)
    for dt in "ab":
        append(table, dt)
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    rewrite(table.branch("fix"), "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    if old:
        run(table, "create_tag", tag="old")
    run(table, "rollback_to", tag=undo)
    for _ in range(3):
        overwrite(table, "b")
    if replaced:
        for dt in "ab":
            overwrite(table, dt)
    if old:
        expire_snapshots(table, 1)
    return table


@pytest.mark.every(3)
@pytest.mark.parametrize("operation", ["merge_branch", "rollback_to"])
@pytest.mark.parametrize("rival", [whole_expiry, cut_expiry, tag_deletion])
def test_nothing_is_taken_for_damage(tmp_path: Path, operation: str, rival: Rival) -> None:
    made = table_with_history(tmp_path / "made", old=rival is tag_deletion, replaced=operation == "rollback_to")
    values: dict[str, Any] = {"branch": "fix"} if operation == "merge_branch" else {"tag": "base"}
    wanted = [files(made), after(made, operation)]
    for moment in moments(MOST):
        folder = copytree(tmp_path / "made", tmp_path / str(moment))
        table = open_table(str(folder), made.name)
        reached, committed = beside(folder, operation, values, moment, partial(rival, table))
        assert files(table) == wanted[committed]
        details = run(table, "check_table").details
        assert details["ok"], (moment, details["findings"])
        if not reached:
            return
    pytest.fail(f"more than {MOST} requests")


Files = dict[tuple[bytes, int], set[str]]


def after(table: Table, operation: str) -> Files:
    """The files that main has once the operation has landed."""
    if operation == "rollback_to":
        return files_at(table, "base")
    now, theirs = files(table), files(table.branch("fix"))
    base = files_at(table, "base")
    return now | {place: theirs[place] for place in theirs if theirs[place] != base.get(place)}


def files_at(table: Table, tag: str) -> Files:
    out: Files = {}
    for entry in live_entries(table, table.tag(tag).snapshot).values():
        out.setdefault((entry.partition, entry.bucket), set()).add(entry.file.file_name)
    return out


def beside(
    folder: Path, operation: str, values: dict[str, Any], moment: int, rival: Callable[[], Callable[[], None]]
) -> tuple[bool, bool]:
    """Run an operation; tell whether the moment was reached, and whether it landed."""
    context = open_context(build_request(operation, {"warehouse": str(folder), "table": "d.t", **values}))
    store = ExpiredBeside(context.table.store, moment, rival)
    around = Context(context.request, Table(store, context.table.name), context.now_ms, context.started)
    try:
        perform(around, context.request)
        committed = True
    except ConflictError:
        committed = False
    if store.rest is not None:
        store.rest()
    return store.rest is not None, committed
