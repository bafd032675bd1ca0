"""What attempts of one commit have read is forgotten once another engine has rolled the branch back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, message, names
from tests.stores import _Wrapper


def roll_back_and_go_on(table: Table) -> None:
    table.store.delete(table.paths.snapshot(2))
    table.store.replace(table.paths.latest_hint, b"1")
    append(table, "a", seq=50)
    append(table, "a", seq=60)


def test_a_commit_does_not_go_on_with_files_that_were_rolled_back(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    append(table, "a")
    new = message(table, "a", level=0)
    calls: list[int] = []

    def draft(at: HeadState) -> Draft:
        calls.append(at.head.id if at.head else 0)
        live = {e.identifier: e for e in at.live(at.stored.those([new.partition]))}
        if len(calls) == 1:
            roll_back_and_go_on(table)
        return Draft(
            kind=CommitKind.OVERWRITE, schema=at.schema,
            entries=[*(e.deleted() for e in live.values()), *new.entries()],
        )  # fmt: skip

    commit_at(table, draft)
    assert names(table) == {new.new_files[0].file_name}


class RolledBackWhileRead(_Wrapper):
    """Right after a turn has read a snapshot, another engine rolls back to the one before it and commits twice."""

    def __init__(self, inner: Store, number: int, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.number, self.act, self.done = number, act, False

    def read(self, path: str) -> bytes:
        data = super().read(path)
        if path == f"snapshot/snapshot-{self.number}" and not self.done:
            self.done = True
            self.act()
        return data


def test_snapshots_that_are_read_one_by_one_belong_together(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    new = message(table, "a")

    def roll_back() -> None:
        table.store.delete(table.paths.snapshot(2))
        table.store.replace(table.paths.latest_hint, b"1")
        append(table, "a", seq=50)
        append(table, "a", seq=60)

    calls: list[int] = []

    def draft(at: HeadState) -> Draft:
        calls.append(at.head.id if at.head else 0)
        live = {e.identifier: e for e in at.live(at.stored.those([new.partition]))}
        if len(calls) == 1:
            append(table, "a")
        return Draft(
            kind=CommitKind.OVERWRITE, schema=at.schema,
            entries=[*(e.deleted() for e in live.values()), *new.entries()],
        )  # fmt: skip

    commit_at(Table(RolledBackWhileRead(table.store, 2, roll_back), table.name), draft)
    assert names(table) == {new.new_files[0].file_name}
