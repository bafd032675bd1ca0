"""All snapshots of a branch, while an expiry takes the oldest away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airflow_paimon.core.store.wrapper import StoreWrapper
from tests.core.tables import append, make_table


class Expiring(StoreWrapper):
    """Deletes these snapshots after the first read of several files."""

    __slots__ = ("gone",)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        found = self.inner.read_many(paths)
        while self.gone:
            self.inner.delete(f"snapshot/snapshot-{self.gone.pop()}")
        return found


def test_no_hole_where_an_expiry_passes(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "a")
    data = table.store.read("snapshot/snapshot-1")
    for number in range(2, 131):
        copy = data.replace(b'"id": 1,', f'"id": {number},'.encode())
        table.store.create(f"snapshot/snapshot-{number}", copy)
    store = Expiring(table.store)
    store.gone = list(range(1, 101))
    assert [s.id for s in replace(table, store=store).snapshots()] == list(range(101, 131))
