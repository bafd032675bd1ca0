"""Commits beside other writers and other engines: none is lost, and a newer head costs what is new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.cache import CommitCache
from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import NotFoundError, OutcomeUnknownError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, files, make_table, message, names, overwrite, rewrite, run
from tests.environment import REPO_ROOT
from tests.randomness import chance
from tests.stores import CountingStore, Crash, Far, FaultStore, RivalledStore, SteppedStore
from tests.together import set_off, wait_until_ready


class FarFaulty(FaultStore):
    remote = True


class FarRivalled(RivalledStore):
    remote = True


class FarStepped(SteppedStore):
    remote = True


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "wh", primary=False)


def through(store: Store, table: Table) -> Table:
    return Table(store, table.name, table.branch_name)


def is_whole(table: Table, files: int) -> None:
    ids = table.snapshot_ids()
    assert ids == list(range(1, len(ids) + 1))
    assert len(names(table)) == files


def by_partition(table: Table) -> dict[str, int]:
    """How many files each has."""
    text = StoredPartitions(table.schema()).text
    return {text(partition).partition("=")[2]: len(found) for (partition, _), found in files(table).items()}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [FarFaulty, FaultStore], ids=["far", "near"])
def test_whoever_dies_at_any_change_is_no_harm_to_the_next_one(
    table: Table, kind: type[FaultStore], after: bool
) -> None:
    before = set()
    for step in range(1, 10):
        try:
            append(through(kind(table.store, fail_at=step, after=after), table), "a")
            break
        except Crash:
            append(table, "b")
            before = names(table)
    is_whole(table, len(names(table)))
    assert before <= names(table)
    assert step > 5, "a commit has more changes than that"


@pytest.mark.parametrize("kind", [FarRivalled, RivalledStore], ids=["far", "near"])
def test_a_lost_put_costs_what_is_new(table: Table, kind: type[RivalledStore]) -> None:
    """What is the same on any head is written once, and nothing is read twice."""
    for _ in range(3):
        append(table, "a")
    store = kind(table.store, lambda number: append(table, f"rival{number}"), times=2)
    assert overwrite(through(store, table), "a").attempts == 3
    made = [uri for method, uri in store.tally.log if method == "create" and "/manifest/" in uri]
    assert len(made) == 1 + 1 + 3, "one manifest, one delta list, and a base list for each attempt"
    read = [path for method, uris in store.tally.log if method.startswith("read") for path in uris.split(", ")]
    manifests = [path for path in read if "manifest" in path]
    assert len(manifests) == len(set(manifests)) > 4
    is_whole(table, 3)


def test_an_overwrite_takes_away_what_came_after_it_was_planned(table: Table) -> None:
    append(table, "a")
    store = RivalledStore(table.store, lambda _: append(table, "a"), times=1)
    overwrite(through(store, table), "a")
    is_whole(table, 1)


def test_what_is_read_step_by_step_is_what_a_whole_read_gives(tmp_path: Path) -> None:
    random = chance("seen")
    table = make_table(tmp_path / "wh", primary=False, **{"manifest.merge-min-count": "4"})
    stored = StoredPartitions(table.schema())
    cache, before = CommitCache(table), None
    for number in range(24):
        dt = random.choice("abc")
        random.choice((append, append, overwrite, rewrite))(table, dt, seq=number)
        if random.random() < 0.5:
            continue
        head = table.latest_snapshot()
        chosen = stored.selection({"dt": dt} for dt in random.sample("abcd", 2))
        for selection in (None, chosen, stored.selection([])):
            assert dict(cache.live(head, selection)) == live_entries(table, head, selection)
        if before is not None:
            since = [(e.kind, e.file.file_name) for e in cache.since(before, head, chosen)]
            fresh = [(e.kind, e.file.file_name) for e in CommitCache(table).since(before, head, chosen)]
            assert since == fresh
        before = head


def roll_back(table: Table) -> None:
    """Take the newest snapshot back as Paimon does: with what only that one names."""
    gone = table.latest_snapshot()
    assert gone is not None
    new = [m.file_name for m in read_delta_lists(table, [gone])]
    table.store.replace(table.paths.latest_hint, str(gone.id - 1).encode())
    table.store.delete(table.paths.snapshot(gone.id))
    for name in (*new, gone.delta_manifest_list, gone.base_manifest_list):
        table.store.delete(manifest_path(name))


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("kind", [FarStepped, SteppedStore], ids=["far", "near"])
def test_a_head_that_another_engine_takes_back_at_any_moment_is_not_built_upon(
    tmp_path: Path, kind: type[SteppedStore], goes_on: bool
) -> None:
    step, happened = 0, True
    while happened:
        step += 1
        table = make_table(tmp_path / str(step), primary=False, **{"manifest.merge__min__count": "2"})
        for dt in "abc":
            append(table, dt)
        new = [message(table, "d")]

        def rival(table: Table = table) -> None:
            roll_back(table)
            if goes_on:
                append(table, "e")

        store = kind(table.store, step, rival)
        entries = new[0].entries()

        def draft(at: HeadState, entries: Any = entries) -> Draft:
            return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema, only_new=True)

        try:
            commit_at(through(store, table), draft)
        except OutcomeUnknownError:
            assert not {e.file.file_name for e in entries} <= names(table), "it was taken back after it landed"
        happened = store.happened
        ids = table.snapshot_ids()
        assert ids == list(range(1, len(ids) + 1))
        live = by_partition(table)
        assert live.keys() >= {"a", "b"}, "and every list can be read"
        assert ("e" in live) == (goes_on and happened)
    assert step > 10


class MadeAnew(CountingStore):
    """Once the manifests and lists are put, the table is dropped and made again, with ``commits``."""

    commits = 0
    done = False

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if path.startswith("manifest/manifest-list") and path.endswith("-0") and not self.done:
            self.done = True
            make_again(self.inner, self.commits)


def make_again(store: Store, commits: int) -> None:
    table = Table(store, "d.t")
    again = replace(table.schema(), comment="again")
    for path in store.walk(""):
        store.delete(path)
    store.create(table.paths.schema(again.id), again.to_bytes())
    for _ in range(commits):
        append(through(Far(store), table), "b")


@pytest.mark.parametrize("before", [0, 1])
def test_no_commit_takes_what_it_wrote_into_a_table_that_is_made_anew_meanwhile(table: Table, before: int) -> None:
    """With the same snapshot ids, and another schema of the same id: the manifests went with the earlier table."""
    for _ in range(before):
        append(table, "a")
    new = message(table, "d").entries()
    store = MadeAnew(table.store)
    store.commits = before

    def draft(at: HeadState) -> Draft:
        return Draft(kind=CommitKind.APPEND, entries=new, schema=at.schema, only_new=True)

    receipt = commit_at(through(store, table), draft)
    assert (store.done, receipt.attempts, receipt.snapshot and receipt.snapshot.id) == (True, 2, before + 1)
    assert len(names(table)) == before + 1


def test_a_table_that_is_gone_is_missed_and_nothing_stays(table: Table) -> None:
    append(table, "a")
    new = message(table, "a").entries()
    for path in table.store.walk(""):
        table.store.delete(path)

    def draft(at: HeadState) -> Draft:
        return Draft(kind=CommitKind.APPEND, entries=new, schema=at.schema, only_new=True)

    with pytest.raises(NotFoundError, match="no table"):
        commit_at(through(Far(table.store), table), draft)
    assert table.store.walk("") == []


def test_no_history_beside_other_writers_loses_a_commit(table: Table) -> None:
    """Writers near and far, schema changes, and rollbacks by another engine."""
    random = chance("other writers")
    views = [through(kind(table.store), table) for kind in (Far, Far, CountingStore)]
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


def test_no_hint_is_left_of_a_snapshot_that_expired_before_it_was_written(table: Table) -> None:
    """Paimon would take it for the newest one, as the next one is gone, too."""

    class Slow(CountingStore):
        def hint(self, path: str, data: bytes) -> None:
            for _ in range(3):
                append(table, "b")
            run(table, "expire_snapshots", retain_min=1, retain_max=1, older_than="0 s")
            super().hint(path, data)

    append(through(Slow(table.store), table), "a")
    assert table.snapshot_ids() == [4]
    assert not table.store.exists(table.paths.latest_hint)
    append(table, "c")
    assert table.store.read(table.paths.latest_hint) == b"5"


_WRITER = """
import json, sys
from airflow_paimon.core.table.table import open_table
from tests.core.tables import append, overwrite
table, me = open_table(path=sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    receipt = (overwrite if i % 3 == 2 else append)(table, me, seq=i)
    print(json.dumps([receipt.snapshot.id, receipt.snapshot.uuid]), flush=True)
"""


def test_eight_processes_lose_no_commit_and_leave_no_gap_though_some_are_killed_or_stopped(table: Table) -> None:
    commits, pipe = 12, subprocess.PIPE
    command = [sys.executable, "-c", _WRITER, table.store.uri.removeprefix("file://")]
    writers = [
        subprocess.Popen([*command, f"p{n}", str(commits)], stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT)
        for n in range(8)
    ]
    wait_until_ready(writers)
    set_off(writers)
    random = chance("eight processes")
    while len(table.snapshot_ids()) < 5:
        assert any(writer.poll() is None for writer in writers)
    for number in (0, 1, 2):
        time.sleep(random.uniform(0, 0.1))
        writers[number].send_signal(signal.SIGKILL)
        writers[number + 3].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    for number in (3, 4, 5):
        writers[number].send_signal(signal.SIGCONT)
    told = [[tuple(json.loads(line)) for line in writer.communicate(timeout=500)[0].splitlines()] for writer in writers]
    assert all(len(found) == commits for found in told[3:])
    ids = table.snapshot_ids()
    assert ids == list(range(1, len(ids) + 1))
    committed = [(s.id, s.uuid) for s in table.snapshots()]
    assert {one for found in told for one in found} <= set(committed), "each that was told is there"
    assert len(committed) <= sum(map(len, told)) + 3, "and of those that were killed one each may be there untold"
    kept = by_partition(table)
    assert {f"p{n}": kept[f"p{n}"] for n in range(3, 8)} == {f"p{n}": 1 for n in range(3, 8)}
