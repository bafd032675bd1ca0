"""What was newest at the last look is read while the folder is listed; the listing decides whether it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.table.paths import BranchPaths
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, copied, make_table
from tests.randomness import chance
from tests.stores import CountingStore, Far

WAIT_S = 30


class Together(Far):
    """Listings that answer only once a file was asked for."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked = threading.Event()

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method.startswith("read"):
            self.asked.set()
        if method == "names":
            assert self.asked.wait(WAIT_S), f"{path} is listed, and nothing is read meanwhile"
            self.asked.clear()
        return super()._call(method, path, action)


class Broken(Far):
    """Reads of one file fail a given number of times."""

    times = 1

    def read_many(self, paths: Any) -> list[bytes]:
        if self.times:
            self.times -= 1
            raise StorageError("no answer")
        return super().read_many(paths)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "wh")


def by(store: CountingStore, table: Table) -> Table:
    return Table(store, table.name, table.branch_name)


def test_any_history_is_read_as_without_guesses(table: Table) -> None:
    choice = chance("guesses")
    append(table, "a")
    for _ in range(6):
        near = copied(table)
        far = by(Far(near.store), near)
        for step in range(8):
            newest = near.latest_snapshot_id() or 0
            match choice.randrange(4):
                case 0:
                    append(near, f"p{step}")
                case 1 if newest > 1:  # rolled back by another engine
                    near.store.delete(near.paths.snapshot(newest))
                    near.store.replace(near.paths.latest_hint, str(newest - 1).encode())
                case 2:
                    alter_table(near, [AddColumn(name=f"c{step}", type="STRING")])
                case _:  # made again, with other files of the same names
                    near.store.delete(near.paths.schema(near.schema().id))
                    if not near.exists():
                        near.store.create(near.paths.schema(0), table.store.read(table.paths.schema(0)))
            assert far.latest_snapshot() == near.latest_snapshot()
            assert far.schema() == near.schema()
            assert far.schemas() == near.schemas()


def test_a_table_looks_and_reads_at_once(table: Table) -> None:
    append(table, "a")
    first = by(Far(table.store), table)
    first.latest_snapshot()
    first.schemas()
    store = Together(table.store)
    assert by(store, table).latest_snapshot() == table.latest_snapshot()
    assert by(store, table).schema() == table.schema()
    assert by(store, table).schemas() == table.schemas()


def test_a_guess_that_fails_is_no_failure(table: Table) -> None:
    append(table, "a")
    by(Far(table.store), table).latest_snapshot()
    broken = by(Broken(table.store), table)
    assert broken.latest_snapshot() == table.latest_snapshot()


def test_branches_don_t_share_what_is_newest(table: Table) -> None:
    far = by(Far(table.store), table)
    for _ in range(3):
        append(table, "a")
    far.latest_snapshot()
    root = BranchPaths("b")
    table.store.create(root.schema(0), table.store.read(table.paths.schema(0)))
    table.store.create(root.snapshot(1), table.store.read(table.paths.snapshot(1)))
    newest = far.branch("b").latest_snapshot()
    assert newest is not None
    assert newest.id == 1
