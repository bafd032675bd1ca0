"""Commits in turn: what one process tells the next is right or does no harm, and a newer head costs what is new."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.relay import Relay, Step, turn_of
from airflow_paimon.core.commit.seen import Seen
from airflow_paimon.core.errors import ConflictError, StorageError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.store import open_store
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.store.turns import turn_at
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.table import Table
from tests.conftest import REPO_ROOT
from tests.core.tables import append, make_table, message, names, overwrite, rewrite, run
from tests.randomness import chance
from tests.stores import Alone, CountingStore, Crash, Far, FaultStore, RivalledStore

pytestmark = pytest.mark.usefixtures("notes")


class FarFaulty(FaultStore):
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


def turn_name(table: Table) -> str:
    return f"{table.store.place}\0{table.branch_name}"


def test_the_next_one_in_turn_reads_no_list_and_no_earlier_snapshot(table: Table) -> None:
    here, there = Far(table.store), Far(table.store)
    append(through(here, table), "a")
    first = append(through(there, table), "b").snapshot
    heads: list[int] = []

    def draft(at: HeadState) -> Draft:
        heads.append(at.head.id if at.head else 0)
        if len(heads) == 1:
            append(through(there, table), "c")
            here.tally.reset()
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema)

    entries = message(table, "d").entries()
    assert commit_at(through(here, table), draft).attempts == 1
    assert heads == [2, 3], "planned again on what came meanwhile, before anything was put in vain"
    read = [u.rpartition("/")[2] for m, us in here.tally.log if m in ("read", "read_many") for u in us.split(", ")]
    before_turn = [first.base_manifest_list, first.delta_manifest_list]
    assert sorted(read) == sorted([*before_turn, "schema-0", *["snapshot-3", "snapshot-4"] * 2])
    is_whole(table, 4)


@pytest.mark.parametrize("foreign", [1, 3])
def test_a_commit_of_who_takes_no_turns_makes_what_was_told_old(table: Table, foreign: int) -> None:
    far = through(Far(table.store), table)
    append(far, "a")
    for number in range(foreign):
        append(table, f"foreign{number}")  # by the local store, which tells nothing
    append(far, "b")
    append(far, "b")
    is_whole(table, 3 + foreign)


@pytest.mark.parametrize("foreign", [False, True])
def test_what_was_told_goes_on_after_a_commit_that_it_did_not_help(table: Table, foreign: bool) -> None:
    """Its head was older than all that was told: the next ones, whose heads are not, still need what came before."""
    first = append(table, "a").snapshot
    append(table, "a")
    append(table, "a")
    if foreign:
        append(through(Alone(table.store), table), "a")
    with turn_at(turn_name(table)) as turn:
        assert turn is not None
        relay = Relay.from_note(turn.note())
        turn.leave(told(relay, relay.steps[-2:]).to_note())
    with turn_of(table) as commit_turn:
        assert commit_turn is not None
        newest = commit_turn.newest(first, Seen(table), ahead=False)
        assert newest == table.latest_snapshot()
        assert [step.id for step in commit_turn._told.steps] == ([] if foreign else [2, 3])


def lie(relay: Relay) -> Relay:
    """Another commit under the newest id."""
    step = relay.steps[-1]
    other = replace(step.parsed(), delta_manifest_list="manifest-list-x-1")
    return told(relay, [*relay.steps[:-1], step._replace(snapshot=other.to_bytes())])


def told(relay: Relay, steps: Sequence[Step], base: bytes | None = None) -> Relay:
    return replace(relay, steps=steps, base=relay.base if base is None else base)


def later(step: Step) -> Step:
    moved = replace(step.parsed(), id=step.id + 5)
    return step._replace(id=moved.id, snapshot=moved.to_bytes())


@pytest.mark.parametrize(
    "change",
    [
        lie,
        lambda relay: told(relay, relay.steps, b""),
        lambda relay: told(relay, relay.steps, bytes(len(relay.base))),
        lambda relay: told(relay, [step._replace(delta=b"") for step in relay.steps]),
        lambda relay: told(relay, [step._replace(delta=b"x") for step in relay.steps]),
        lambda relay: told(relay, [step._replace(snapshot=b"{}") for step in relay.steps]),
        lambda relay: told(relay, [later(step) for step in relay.steps]),
        lambda relay: told(relay, relay.steps[:1]),
        lambda relay: replace(relay, announced="0"),
    ],
)
def test_what_is_told_wrongly_does_no_harm(table: Table, change: Callable[[Relay], Relay]) -> None:
    far = through(Far(table.store), table)
    for dt in "aab":
        append(far, dt)
    with turn_at(turn_name(far)) as turn:
        assert turn is not None
        turn.leave(change(Relay.from_note(turn.note())).to_note())
    for dt in "ab":
        append(far, dt)
    overwrite(far, "a")
    is_whole(table, 3)


WHOLE = Relay([Step(7, b"{}", b"list"), Step(8, b"{ }", b"")], b"base", "name")


def test_a_note_says_what_was_to_be_told() -> None:
    assert Relay.from_note(WHOLE.to_note()) == WHOLE
    assert Relay.from_note(Relay([]).to_note()) == Relay([])


@pytest.mark.parametrize(
    "note",
    [
        *(WHOLE.to_note()[:size] for size in (0, 1, 19, 20, 25, -1)),
        WHOLE.to_note() + b"x",
        b"x" + WHOLE.to_note()[1:],
        replace(WHOLE, announced="\xe9").to_note().replace("\xe9".encode(), b"\xff\xff"),
        b"\xff" * 200,
        b'{"steps": [[1, "{}", ""]], "base": "", "announced": "of an earlier release"}',
    ],
)
def test_a_note_that_makes_no_sense_tells_nothing(note: bytes) -> None:
    assert Relay.from_note(note) == Relay()


@pytest.mark.parametrize("after", [False, True])
def test_whoever_dies_at_any_change_is_no_harm_to_the_next_one(table: Table, after: bool) -> None:
    files = set()
    for step in range(1, 10):
        faulty = FarFaulty(table.store, fail_at=step, after=after)
        try:
            append(through(faulty, table), "a")
            break
        except Crash:
            append(through(Far(table.store), table), "b")
            files = names(table)
    is_whole(table, len(names(table)))
    assert files <= names(table)
    assert step > 5, "a commit has more changes than that"


def test_lost_attempts_keep_what_is_the_same_on_any_head(table: Table) -> None:
    append(table, "a")
    store = RivalledStore(table.store, lambda number: append(table, f"rival{number}"), times=2)
    receipt = append(through(store, table), "a")
    assert receipt.attempts == 3
    made = [uri for method, uri in store.tally.log if method == "create" and "/manifest/" in uri]
    assert len(made) == 1 + 1 + 3, "one manifest, one delta list, and a base list for each attempt"
    is_whole(table, 4)


def test_an_overwrite_takes_away_what_came_after_it_was_planned(table: Table) -> None:
    append(table, "a")
    store = RivalledStore(table.store, lambda _: append(table, "a"), times=1)
    overwrite(through(store, table), "a")
    is_whole(table, 1)


def test_what_is_read_step_by_step_is_what_a_whole_read_gives(tmp_path: Path) -> None:
    random = chance("seen")
    table = make_table(tmp_path / "wh", primary=False, **{"manifest.merge-min-count": "4"})
    stored = StoredPartitions(table.schema())
    seen, before = Seen(table), None
    for number in range(24):
        dt = random.choice("abc")
        random.choice((append, append, overwrite, rewrite))(table, dt, seq=number)
        if random.random() < 0.5:
            continue
        head = table.latest_snapshot()
        steps = [] if before is None else table.snapshots(list(range(before.id, head.id)))
        if random.random() < 0.8:
            seen.add([*steps, head])
        chosen = stored.selection({"dt": dt} for dt in random.sample("abcd", 2))
        for selection in (None, chosen, stored.selection([])):
            assert dict(seen.live(head, selection)) == live_entries(table, head, selection)
        if before is not None:
            since = [(e.kind, e.file.file_name) for e in seen.since(before, head, chosen)]
            fresh = [(e.kind, e.file.file_name) for e in Seen(table).since(before, head, chosen)]
            assert since == fresh
        before = head


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


class Held(CountingStore):
    """Stops right before the first put of a snapshot, until it is let go; perhaps it fails then."""

    def __init__(self, inner: Store, fails: BaseException | None = None) -> None:
        super().__init__(inner)
        self.came, self.go, self.fails = threading.Event(), threading.Event(), fails

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method == "create" and "snapshot/snapshot-" in path and not self.came.is_set():
            self.came.set()
            assert self.go.wait(60)
            if self.fails is not None:
                raise self.fails
        return super()._call(method, path, action)


class Watched(CountingStore):
    """Tells when it has put a base list."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.prepared = threading.Event()

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        found = super()._call(method, path, action)
        if method == "create" and "manifest-list" in path and path.endswith("-0"):
            self.prepared.set()
        return found


class FarHeld(Held):
    remote = True


class FarWatched(Watched):
    remote = True


@pytest.mark.parametrize("kinds", [(Held, Watched), (FarHeld, FarWatched)], ids=["near", "far"])
@pytest.mark.parametrize("end", ["it lands", "it is refused", "it dies", "another engine was first"])
def test_others_get_ready_while_a_snapshot_is_put(
    table: Table, end: str, kinds: tuple[type[Held], type[Watched]]
) -> None:
    """They plan on snapshots that are not there yet; what becomes of these is seen before their own are put."""
    for dt in "ab":
        append(table, dt)
    first = kinds[0](table.store, {"it is refused": StorageError("full"), "it dies": Crash()}.get(end))
    second, third = kinds[1](table.store), kinds[1](table.store)
    receipts: list[Any] = []

    def one() -> None:
        with suppress(StorageError, Crash):
            receipts.append(overwrite(through(first, table), "a"))

    threads = [in_thread(one)]
    assert first.came.wait(60)
    for store, commit in ((second, append), (third, overwrite)):
        threads.append(in_thread(lambda s=store, c=commit: receipts.append(c(through(s, table), "b"))))  # type: ignore[misc]
        assert store.prepared.wait(60), "its base list is put beside"
    assert table.snapshot_ids() == [1, 2]
    if end == "another engine was first":
        append(through(Alone(table.store), table), "c")
    first.go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    rivals = int(end == "another engine was first")
    assert len(receipts) == 2 + (end == "it lands") + rivals
    assert all((r.attempts > 1) == (end != "it lands") for r in receipts)
    ids = table.snapshot_ids()
    assert ids == list(range(1, 3 + len(receipts) + rivals))
    live = len(names(table))  # the append of "b" may come after the overwrite when they are planned again
    assert live - rivals in ((2,) if end == "it lands" else (2, 3))
    append(through(Far(table.store), table), "d")
    is_whole(table, live + 1)


class FarHeldAt(FarHeld):
    """A bucket, as its address says, on one of several servers."""

    uri = "s3://bucket/t"


class FarWatchedAt(FarWatched):
    uri = "s3://bucket/t"


def test_a_bucket_of_another_server_is_told_of_nothing(table: Table) -> None:
    """A copy of a table has its snapshots and its address: what is put there next is not here."""
    append(through(FarWatchedAt(table.store), table), "a")
    folder = Path(table.store.uri.removeprefix("file://"))
    shutil.copytree(folder, folder.parent.parent / "copy")
    copy = Table(open_store(folder.parent.parent / "copy"), table.name)
    first, second = FarHeldAt(table.store), FarWatchedAt(copy.store)
    threads = [in_thread(lambda: append(through(first, table), "b"))]
    assert first.came.wait(60)
    threads.append(in_thread(lambda: append(through(second, copy), "c")))
    assert second.prepared.wait(60)
    first.go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    is_whole(table, 2)
    is_whole(copy, 2)


def test_a_retry_is_planned_on_what_is_there(table: Table) -> None:
    """So whoever meets others again and again is not told of snapshots that don't come each time."""
    append(table, "a")
    store, heads = FarHeld(table.store), []
    first = in_thread(lambda: append(through(store, table), "a"))
    assert store.came.wait(60)

    def draft(at: HeadState) -> Draft:
        heads.append((at.head.id if at.head else 0, table.snapshot_ids()[-1]))
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema, only_new=True)

    entries = message(table, "d").entries()
    second = in_thread(lambda: commit_at(through(Far(table.store), table), draft))
    while (2, 1) not in heads:
        assert second.is_alive()
        second.join(0.01)
    append(through(Alone(table.store), table), "c")
    store.go.set()
    for thread in (first, second):
        thread.join(60)
    assert heads[:2] == [(1, 1), (2, 1)], "planned on one that is not there yet"
    assert all(head <= newest for head, newest in heads[2:])
    is_whole(table, 4)


def test_an_announcement_that_somebody_deleted_keeps_nobody_from_committing(table: Table) -> None:
    """Its file is gone as if what it says had been put: who doesn't go ahead meets that note again at each attempt."""
    append(table, "a")
    with turn_at(turn_name(table)) as dead:
        assert dead is not None
        note = Relay.from_note(dead.note())
        never = replace(note.steps[-1].parsed(), id=2, base_manifest_list="never-0", delta_manifest_list="never-1")
        step = Step(2, never.to_bytes(), note.steps[-1].delta)
        dead.leave(told(replace(note, announced="gone"), [*note.steps, step]).to_note())
    entries = message(table, "d").entries()

    def draft(at: HeadState) -> Draft:
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema)

    assert commit_at(table, draft).attempts == 2
    is_whole(table, 2)


def test_the_hint_is_not_set_back(table: Table) -> None:
    """Another one puts the next snapshot, and writes its hint, right after this one's."""

    class Followed(Alone):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            found = super()._call(method, path, action)
            if method == "create" and path.endswith("snapshot-2"):
                append(table, "c")
            return found

    append(table, "a")
    assert table.store.read(table.paths.latest_hint) == b"1"
    append(through(Followed(table.store), table), "b")
    assert table.store.read(table.paths.latest_hint) == b"3"
    is_whole(table, 3)


def test_the_hint_is_not_left_behind_by_many_commits_that_are_followed_at_once(table: Table) -> None:
    """Whoever puts the last one of them may die before it writes its hint."""

    class Followed(Alone):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            found = super()._call(method, path, action)
            if method == "create" and path.rpartition("-")[0] == "snapshot/snapshot" and not path.endswith("-12"):
                append(through(type(self)(self.inner), table), "c")
            return found

        def hint(self, path: str, data: bytes) -> None:
            if data == b"12":
                raise StorageError("it dies")
            super().hint(path, data)

    append(through(Followed(table.store), table), "a")
    assert table.latest_snapshot_id() == 12
    assert int(table.store.read(table.paths.latest_hint)) >= 6
    is_whole(table, 12)


def test_no_hint_is_left_of_a_snapshot_that_expired_before_it_was_written(table: Table) -> None:
    """Paimon would take it for the newest one, as the next one is gone, too."""

    class Slow(Alone):
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


def test_the_end_is_found_though_another_machine_goes_on_meanwhile(table: Table) -> None:
    """Each request of the one that looks gives the other one the time for a commit."""
    append(table, "a")
    rival = through(Alone(table.store), table)
    looking = threading.Event()

    class Slow(Far):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            found = super()._call(method, path, action)
            if looking.is_set() and method == "read" and threading.current_thread() is threading.main_thread():
                append(rival, "c")
            return found

    slow = Slow(table.store)
    head = table.latest_snapshot()
    append(rival, "b")
    with turn_at(turn_name(table)) as last:
        assert last is not None
        dead = last.announce()  # what it announced doesn't come
        assert dead is not None
        last.leave(Relay(announced=dead.name).to_note())
        dead.end(done=False)
    with turn_of(through(slow, table)) as turn:
        assert turn is not None
        looking.set()
        newest = turn.newest(head, Seen(table), ahead=False)
    assert newest is not None and 2 < newest.id < 8, "it doesn't run after the other one"


def test_a_publish_waits_for_the_snapshot_before(table: Table) -> None:
    """What may bring files back is planned on what is there."""
    append(table, "a")
    store, heads = FarHeld(table.store), []
    first = in_thread(lambda: append(through(store, table), "a"))
    assert store.came.wait(60)

    def draft(at: HeadState) -> Draft:
        heads.append((at.head.id if at.head else 0, table.snapshot_ids()[-1]))
        if len(heads) == 1:
            threading.Timer(0.1, store.go.set).start()
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema)

    entries = message(table, "d").entries()
    receipt = commit_at(through(Far(table.store), table), draft)
    first.join(60)
    assert (receipt.attempts, heads) == (1, [(1, 1), (2, 2)])
    is_whole(table, 3)


@pytest.mark.parametrize("kind", [Far, CountingStore])
def test_a_snapshot_that_was_rolled_back_is_not_built_upon_though_it_was_told_of(
    table: Table, kind: type[CountingStore]
) -> None:
    for dt in "abc":
        append(through(kind(table.store), table), dt)
    kept = {e.file.file_name for e in live_entries(table, table.snapshot(2)).values()}
    table.store.delete(table.paths.snapshot(3))  # as Paimon's rollback does
    table.store.replace(table.paths.latest_hint, b"2")
    append(through(kind(table.store), table), "d")
    assert kept < names(table)
    is_whole(table, 3)


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("kind", [Far, CountingStore])
def test_a_snapshot_that_was_rolled_back_neither_refuses_a_commit_nor_answers_for_it(
    table: Table, kind: type[CountingStore], refuses: bool
) -> None:
    def draft(at: HeadState) -> Draft | None:
        if at.head is not None and at.head.id == 3:
            if refuses:
                raise ConflictError("not on this one")
            return None
        return Draft(kind=CommitKind.APPEND, entries=entries, schema=at.schema)

    view = through(kind(table.store), table)
    for dt in "abc":
        append(view, dt)
    entries = message(table, "d").entries()
    table.store.delete(table.paths.snapshot(3))  # as Paimon's rollback does
    table.store.replace(table.paths.latest_hint, b"2")
    receipt = commit_at(view, draft)
    assert receipt.snapshot is not None and receipt.snapshot.id == 3


def test_a_snapshot_that_is_rolled_back_before_the_next_one_looks_is_not_built_upon(table: Table) -> None:
    """It was told of, it was put, and it is gone when the one that was planned on it comes."""
    append(table, "a")
    store = FarHeld(table.store)
    first = in_thread(lambda: append(through(store, table), "b"))
    assert store.came.wait(60)

    class Late(Far):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            if method == "create" and "manifest-list" in path and path.endswith("-1") and not store.go.is_set():
                found = super()._call(method, path, action)
                store.go.set()
                first.join(60)
                table.store.delete(table.paths.snapshot(2))
                table.store.replace(table.paths.latest_hint, b"1")
                return found
            return super()._call(method, path, action)

    receipt = append(through(Late(table.store), table), "c")
    assert receipt.snapshot is not None and receipt.snapshot.id == 2
    is_whole(table, 2)


def test_a_commit_that_was_planned_again_is_not_taken_for_what_was_told_of_it(table: Table) -> None:
    """Its delta list is the same, and so is its id where another engine's came: but it is based on another one."""
    append(table, "a")
    first, second = FarHeld(table.store, Crash()), FarWatched(table.store)
    looks, go = threading.Event(), threading.Event()

    class Slow(Far):
        def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
            if method == "read" and path.endswith("snapshot-3") and not go.is_set():
                looks.set()
                assert go.wait(60)
            return super()._call(method, path, action)

    def dies() -> None:
        with suppress(Crash):
            append(through(first, table), "dead")

    threads = [in_thread(dies)]
    assert first.came.wait(60)
    threads.append(in_thread(lambda: append(through(second, table), "b")))
    assert second.prepared.wait(60)
    threads.append(in_thread(lambda: append(through(Slow(table.store), table), "c")))
    assert looks.wait(60), "planned on a snapshot that is not there"
    append(through(Alone(table.store), table), "other")
    first.go.set()
    for thread in threads[:2]:
        thread.join(60)
    assert table.snapshot_ids() == [1, 2, 3]
    go.set()
    threads[2].join(60)
    is_whole(table, 4)
    text = StoredPartitions(table.schema()).text
    live = live_entries(table, table.latest_snapshot()).values()
    assert {text(e.partition).partition("=")[2] for e in live} == {"a", "b", "c", "other"}


def test_what_a_snapshot_refuses_that_is_not_there_yet_is_not_refused(table: Table) -> None:
    """A bucket is rewritten twice at once: the second one must not lose to a commit that doesn't land."""
    append(table, "a")
    rewrite(through(Far(table.store), table), "a")
    first, second = FarHeld(table.store, Crash()), FarWatched(table.store)
    ends: list[Any] = []

    def one() -> None:
        with suppress(Crash):
            rewrite(through(first, table), "a")

    def two() -> None:
        try:
            ends.append(rewrite(through(second, table), "a").attempts)
        except ConflictError as error:
            ends.append(error)

    before = in_thread(one)
    assert first.came.wait(60)
    after = in_thread(two)
    after.join(0.2)
    first.go.set()
    before.join(60)
    after.join(60)
    assert len(ends) == 1 and isinstance(ends[0], int)
    is_whole(table, 1)


_WRITER = """
import os, sys
from airflow_paimon.core.store import local, turns
from airflow_paimon.core.table.table import open_table
from tests.core.tables import append

def dies(of, method):
    real = getattr(of, method)
    def call(self, *given):
        if of is turns.Turn or "snapshot-" in getattr(self, "_path", str(given[1:2])):
            os.kill(os.getpid(), 9)
        return real(self, *given)
    setattr(of, method, call)

dies(*{
    "in turn": (turns.Turn, "announce"),
    "announced": (local.LocalStore, "get_ready"),
    "before the put": (local._LocalPut, "put"),
    "after the put": (local._LocalPut, "settle"),
}[sys.argv[3]])
append(open_table(path=sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize("dies_at", ["in turn", "announced", "before the put", "after the put"])
def test_others_go_on_when_a_process_is_killed(table: Table, dies_at: str) -> None:
    append(table, "a")
    landed = int(dies_at == "after the put")
    where = [sys.executable, "-c", _WRITER, str(table.store.uri).removeprefix("file://")]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(REPO_ROOT)}
    killed = subprocess.run([*where, "k", dies_at], env=environment, check=False, timeout=300)
    assert killed.returncode == -9
    left = [n for n in table.store.names("manifest") if n.startswith("manifest-list")]
    assert len(left) == {"in turn": 3, "announced": 3}.get(dies_at, 4), "it was killed where it should be"
    assert [append(table, "b").attempts for _ in range(2)] == [1, 1]
    is_whole(table, 3 + landed)
    files = sorted(p.name for p in (Path(tempfile.gettempdir()) / f"airflow-paimon-{os.getuid()}").iterdir())
    assert len(set(files) - {"looked"}) == 1, "announcements go"
