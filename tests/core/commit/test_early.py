"""Commits that are planned before a remote storage has answered: what the storage says counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.early import early_state
from airflow_paimon.core.commit.files import commit_append, commit_overwrite
from airflow_paimon.core.commit.seen import Seen
from airflow_paimon.core.errors import NotFoundError, StorageError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.store import local
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.table import table as table_module
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.scan import live_entries, read_delta_lists
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, make_table, message, names, overwrite, rewrite
from tests.randomness import chance
from tests.stores import Alone, CountingStore, Far

WAIT_S = 60

pytestmark = pytest.mark.usefixtures("notes")


class Together(Far):
    """Answers to nothing but puts until a manifest is put."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.put = threading.Event()

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if path.startswith("manifest/") and method == "create":
            self.put.set()
        if method != "create":
            assert self.put.wait(WAIT_S), f"{method} of {path} is waited for before anything is put"
        return super()._call(method, path, action)


class Full(Far):
    def create(self, path: str, data: bytes) -> None:
        if path.startswith("manifest/"):
            raise StorageError("full")
        super().create(path, data)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "wh", primary=False)


def by(store: Store, table: Table) -> Table:
    return Table(store, table.name, table.branch_name)


def commit(store: Store, table: Table, kind: Callable[..., Any] = append, dt: str = "a") -> Any:
    """Commit a file; only the commit itself goes through the store."""
    new, view = [message(table, dt)], by(store, table)
    if kind is append:
        return commit_append(view, new, planned_on=table.latest_snapshot())
    return commit_overwrite(view, new, partitions=[{"dt": dt}])


def begin(table: Table) -> None:
    """From now on this process knows the schema, and is told of the newest snapshot."""
    commit(Far(table.store), table)


@pytest.mark.parametrize("kind", [append, overwrite])
def test_what_changes_is_put_before_anything_is_looked_for(table: Table, kind: Callable[..., Any]) -> None:
    begin(table)
    receipt = commit(Together(table.store), table, kind, dt="b")
    assert (receipt.attempts, receipt.snapshot.id) == (1, 2)
    assert len(names(table)) == 2


def test_another_machine_s_commits_are_found_before_the_put(table: Table) -> None:
    begin(table)
    for _ in range(3):
        append(by(Alone(table.store), table), "b")
    receipt = commit(Far(table.store), table)
    assert (receipt.attempts, receipt.snapshot.id) == (1, 5)
    assert len(names(table)) == 5


def test_a_schema_that_was_altered_meanwhile_is_found(table: Table) -> None:
    begin(table)
    altered = alter_table(table, [AddColumn(name="new", type="STRING")])
    store = Far(table.store)
    receipt = commit(store, table)
    assert (receipt.attempts, receipt.snapshot.schema_id) == (1, altered.id)
    is_clean(table)


def is_clean(table: Table) -> None:
    """Each delta list is that of a snapshot: others were deleted again."""
    lists = {name for name in table.store.names("manifest") if name.endswith("-1")}
    assert lists >= {s.delta_manifest_list for s in table.snapshots()}
    assert len([name for name in lists if name.startswith("manifest-list")]) == len(table.snapshot_ids())


def test_a_table_that_is_gone_is_missed_and_nothing_stays(table: Table) -> None:
    begin(table)
    new = [message(table, "a")]
    for path in table.store.walk(""):
        table.store.delete(path)
    with pytest.raises(NotFoundError, match="no table"):
        commit_append(by(Far(table.store), table), new, planned_on=None)
    assert table.store.walk("") == []


def test_a_head_that_was_told_of_and_is_another_one_s_now_is_no_damage(tmp_path: Path) -> None:
    """Paimon's rollback deletes what a snapshot names; another machine has put one of the same id since."""
    table = make_table(tmp_path / "wh", primary=False, **{"manifest.merge__min__count": "2"})
    begin(table)
    begin(table)
    roll_back(table)
    append(by(Alone(table.store), table), "b")
    receipt = commit(Far(table.store), table)
    assert (receipt.attempts, receipt.snapshot.id) == (2, 3)
    assert len(names(table)) == 3
    is_clean(table)


def test_a_head_that_was_told_of_and_rolled_back_is_forgotten(tmp_path: Path) -> None:
    """Or each attempt would be planned on it, as it follows the one that is the newest now."""
    table = make_table(tmp_path / "wh", primary=False, **{"manifest.merge__min__count": "2"})
    begin(table)
    begin(table)
    roll_back(table)
    receipt = commit(Far(table.store), table)
    assert (receipt.attempts, receipt.snapshot.id) == (2, 2)
    assert len(names(table)) == 2
    is_clean(table)


def roll_back(table: Table) -> None:
    """Take the newest snapshot back as Paimon does: with what only that one names."""
    gone = table.latest_snapshot()
    assert gone is not None
    new = [m.file_name for m in read_delta_lists(table, [gone])]
    table.store.replace(table.paths.latest_hint, str(gone.id - 1).encode())
    table.store.delete(table.paths.snapshot(gone.id))
    for name in (*new, gone.delta_manifest_list, gone.base_manifest_list):
        table.store.delete(manifest_path(name))


class MadeAnew(Far):
    """Once manifests are put, the table is dropped and made again, with ``commits``."""

    commits = 0
    done = False

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if path.startswith("manifest/manifest-list") and not self.done:
            self.done = True
            make_again(self.inner, self.commits)


def make_again(store: Store, commits: int) -> None:
    table = Table(store, "d.t")
    again = replace(table.schema(), comment="again")
    for path in store.walk(""):
        store.delete(path)
    store.create(table.paths.schema(again.id), again.to_bytes())
    for _ in range(commits):
        append(by(Far(store), table), "b")


@pytest.mark.parametrize("before", [0, 1])
def test_no_commit_takes_what_it_wrote_into_a_table_that_is_made_anew_meanwhile(table: Table, before: int) -> None:
    """With the same snapshot ids, and another schema of the same id: the manifests went with the earlier table."""
    for _ in range(before):
        begin(table)
    new = message(table, "d").entries()
    store = MadeAnew(table.store)
    store.commits = before

    def draft(at: HeadState) -> Draft:
        return Draft(kind=CommitKind.APPEND, entries=new, schema=at.schema, only_new=True)

    receipt = commit_at(by(store, table), draft)
    assert (store.done, receipt.attempts, receipt.snapshot and receipt.snapshot.id) == (True, 2, before + 1)
    assert len(names(table)) == before + 1


def test_no_error_of_a_plan_on_what_was_told_counts(table: Table) -> None:
    """Also none that shows a mistake: what was told may be of a table that has been made anew since."""
    begin(table)
    append(by(Alone(table.store), table), "b")

    def draft(at: HeadState) -> Draft:
        heads.append(at.head.id if at.head else 0)
        if heads == [1]:
            raise LookupError("what was told")
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema, only_new=True)

    heads: list[int] = []
    entries = message(table, "d").entries()
    receipt = commit_at(by(Far(table.store), table), draft, early=True)
    assert (receipt.attempts, heads) == (1, [1, 2])
    assert len(names(table)) == 3


def test_a_file_that_can_t_be_written_fails_the_commit(table: Table) -> None:
    begin(table)
    with pytest.raises(StorageError, match="full"):
        commit(Full(table.store), table)
    assert table.snapshot_ids() == [1]
    is_clean(table)


def test_who_takes_no_turns_is_told_nothing(table: Table) -> None:
    begin(table)
    assert early_state(by(Far(table.store), table), Seen(table)) is not None
    assert early_state(by(Alone(table.store), table), Seen(table)) is None
    assert early_state(table, Seen(table)) is None


@pytest.mark.parametrize("few", [1000, 3], ids=["listed", "too many to list"])
def test_no_history_beside_other_writers_loses_a_commit(
    table: Table, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers of this machine, near and far, of another one, schema changes, and rollbacks by another engine."""
    monkeypatch.setattr(local, "_FEW", few)
    monkeypatch.setattr(table_module, "FEW", few)
    random = chance(f"early {few}")
    views = [by(kind(table.store), table) for kind in (Far, Far, CountingStore, Alone)]
    states: dict[int, set[str]] = {0: set()}
    for step in range(40):
        newest = max(states)
        action = random.choice([append, append, overwrite, rewrite, alter_table, "roll back"])
        if action is alter_table:
            alter_table(table, [AddColumn(name=f"c{step}", type="STRING")])
        elif action == "roll back":
            if newest > 1:
                table.store.delete(table.paths.snapshot(newest))
                table.store.replace(table.paths.latest_hint, str(newest - 1).encode())
                del states[newest]
        else:
            receipt = action(random.choice(views), random.choice("ab"), seq=step)
            snapshot = receipt.snapshot
            assert snapshot.id == newest + 1
            assert snapshot.schema_id == table.schema().id
            live = {e.file.file_name for e in live_entries(table, snapshot).values()}
            added = live - set().union(*states.values())
            assert len(added) == 1
            assert (live >= states[newest]) if action is append else (live - states[newest] == added)
            states[newest + 1] = live
    assert table.snapshot_ids() == sorted(states)[1:]
