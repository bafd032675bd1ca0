"""Commits in turn: what one process tells the next is right or does no harm, and a newer head costs what is new."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.relay import Relay
from airflow_paimon.core.commit.seen import Seen
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.store.turns import turn_at
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, message, names, overwrite, rewrite
from tests.randomness import chance
from tests.stores import CountingStore, Crash, FaultStore, RivalledStore


class Far(CountingStore):
    """A local folder that is used as a remote storage is."""

    remote = True


class FarFaulty(FaultStore):
    remote = True


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"airflow-paimon-{os.getuid()}"


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
    return f"{table.store.uri}\0{table.branch_name}"


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
    assert read == [*before_turn, "snapshot-3", "snapshot-4", "snapshot-4"]
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


def lie(relay: Relay) -> Relay:
    """Another commit under the newest id."""
    (snapshot, delta) = relay.steps[-1]
    return Relay([*relay.steps[:-1], (replace(snapshot, delta_manifest_list="manifest-list-x-1"), delta)], relay.base)


@pytest.mark.parametrize(
    "change",
    [
        lie,
        lambda relay: Relay(relay.steps, b""),
        lambda relay: Relay([(s, b"") for s, _ in relay.steps], relay.base),
        lambda relay: Relay([(replace(s, id=s.id + 5), d) for s, d in relay.steps], relay.base),
        lambda relay: Relay(relay.steps[:1], relay.base),
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


@pytest.mark.parametrize("note", [b"", b"{}", b"[]", b'{"steps": [["{}", ""]], "base": ""}', b"\xff"])
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
