"""Snapshots of several branches expire in one run, those of a branch in order, beside kills and other expiries."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, cut_off, make_table, rewrite, run
from tests.soundness import assert_sound
from tests.stores import CountingStore, _Wrapper

T = TypeVar("T")
BRANCHES = ("main", "one", "two", "three")
NOW: Mapping[str, Any] = {
    "older_than": "0 s",
    "retain_min": 1,
    "retry_window": "0 s",
    "keep_undo": False,
    "all_branches": True,
}


def run_on(table: Table, store: Store, operation: str, *, later_ms: int = 1000, **values: Any) -> Mapping[str, Any]:
    request = build_request(operation, {"warehouse": "w", "table": table.name, **values})
    now_ms = int(time.time() * 1000) + later_ms
    return perform(Context(request, Table(store, table.name), now_ms, time.monotonic()), request).details


class OtherAtCall(_Wrapper):
    """Lets somebody else act once, right before the n-th call of any kind."""

    def __init__(self, inner: Store, number: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self._act, self._lock = number, act, threading.Lock()

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        with self._lock:
            self.left -= 1
            acts = self.left == 0
        if acts:
            self._act()
        return action()


@pytest.fixture
def table() -> Table:
    """Main and three branches that were created empty, so that nothing pins their snapshots: 10 each."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    for name in BRANCHES[1:]:
        run(table, "create_branch", branch=name)
        append(table.branch(name), "a")
    for name in BRANCHES:
        for _ in range(9):
            rewrite(table.branch(name), "a")
    return table


def test_the_oldest_snapshot_of_a_branch_goes_first(table: Table) -> None:
    counting = CountingStore(table.store)
    details = run_on(table, counting, "expire_snapshots", **NOW)
    assert set(details["expired"]) == set(BRANCHES)
    gone = [uri.rsplit("/wh/d.db/t/", 1)[1] for method, uri in counting.tally.log if method == "delete"]
    for name in BRANCHES:
        view = table.branch(name)
        own = [p for p in gone if p.startswith(f"{view.paths.snapshot_dir}/snapshot-")]
        numbers = [int(p.rpartition("-")[2]) for p in own]
        assert len(numbers) >= 8 and numbers == sorted(numbers)
        assert view.snapshot_ids() == [view.latest_snapshot_id()]
    assert_sound(table)


def test_killed_at_every_change_there_is_no_gap_in_any_branch(table: Table) -> None:
    """``took_expired_id`` relies on it: while a snapshot is there, no expiry has made the next id free."""
    at_first = {p: table.store.read(p) for p in table.store.walk("")}
    step = 0
    while cut_off(
        table, step := step + 1, "expire_snapshots", **NOW, max_deletes=2, now=str(int(time.time() * 1000) + 1000)
    ):
        assert_sound(table)
        for path in table.store.walk(""):
            table.store.delete(path)
        for path, data in at_first.items():
            table.store.create(path, data)
    assert step > 4 * len(BRANCHES), "an entry of the trash and a deletion for each"


def test_another_expiry_at_any_call_takes_all_of_it_away() -> None:
    """Also right before the look at what was chosen, so that nothing of it is left."""
    number = 0
    while True:
        number += 1
        table = make_table(f"memory://{uuid.uuid4()}/wh")
        append(table, "a")
        for _ in range(3):
            rewrite(table, "a")
        store = OtherAtCall(
            table.store, number, lambda table=table: run_on(table, table.store, "expire_snapshots", **NOW)
        )  # type: ignore[misc]
        run_on(table, store, "expire_snapshots", **NOW)
        assert table.snapshot_ids() == [4]
        assert_sound(table)
        if store.left > 0:
            break
    assert number > 10
