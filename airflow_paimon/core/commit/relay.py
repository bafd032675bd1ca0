"""Turns of this machine's commits at a branch: they are put one after the other, so that none is made in vain.

In its turn a commit is planned on top of the newest snapshot, and tells the next one of its own before that is there:
of all that the next one needs to plan on top of it. Then its turn ends. It writes its base list, waits until the
snapshot before has been put, and puts its own; so the commits of several processes wait for their writes side by side,
and only the puts go one after the other.

What is told is checked when it is used: the snapshot before must be in the storage, or have been put after nobody had
seen it there, and manifest lists have the sizes that it names. If it doesn't come, whoever has planned on it plans
again, and this time waits for the one before in its turn. Whoever is told nothing reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from airflow_paimon.core.commit.seen import Seen, is_same
from airflow_paimon.core.commit.staged import Staged
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.snapshot import Snapshot, parse_snapshot
from airflow_paimon.core.store.base import side_by_side
from airflow_paimon.core.store.turns import Announced, Awaited, Turn, peek, turn_at
from airflow_paimon.core.table.table import Table

_STEPS = 32
_MOST_BYTES = 2**20
_CLIMBS = 256
_AT_ONCE = 16
_FORM = b"relay-2\n"
_NOTE, _STEP = struct.Struct("<8s3I"), struct.Struct("<q2I")
"""A note: its form, how long the announcement and the base list are, and how many steps follow; of each its id and how
long its two parts are. Then all of that.
"""


class Step(NamedTuple):
    """A snapshot that was told of, as its file, and the content of its delta list."""

    id: int
    snapshot: bytes
    delta: bytes

    def parsed(self) -> Snapshot:
        return parse_snapshot(self.snapshot, "a note")


@dataclass(frozen=True, slots=True)
class Relay:
    """``steps``: consecutive snapshots, the newest last; ``base``: the content of the newest one's base list;
    ``announced``: what says whether the newest one was put; empty: it was.
    """

    steps: Sequence[Step] = ()
    base: bytes = b""
    announced: str = ""

    def since(self, head: Snapshot) -> Sequence[tuple[Snapshot, bytes]] | None:
        """Return ``head``, as it was given, and what came after it, with delta lists; None: nothing is told of it."""
        try:
            found = [(step.parsed(), step.delta) for step in self.steps if step.id >= head.id]
        except PaimonError:
            return None
        fits = [s.id for s, _ in found] == list(range(head.id, head.id + len(found)))
        return [(head, found[0][1]), *found[1:]] if found and fits and is_same(found[0][0], head) else None

    def ends_with(self, newest: Snapshot) -> bool:
        """Whether the newest snapshot that was told of is this one."""
        try:
            return is_same(self.steps[-1].parsed(), newest)
        except PaimonError:
            return False

    def lists(self, found: Sequence[tuple[Snapshot, bytes]]) -> Mapping[str, bytes]:
        """Return the content of manifest lists by name, of those that are what their snapshot says."""
        newest = found[-1][0]
        told = [(s.delta_manifest_list, s.delta_manifest_list_size, data) for s, data in found]
        told.append((newest.base_manifest_list, newest.base_manifest_list_size, self.base))
        return {name: data for name, size, data in told if len(data) == size}

    def then(self, staged: Staged, announced: str) -> Relay:
        """Return what to tell of a snapshot on top."""
        snapshot = staged.snapshot
        follows = self.steps and self.steps[-1].id == snapshot.id - 1
        step = Step(snapshot.id, staged.data, staged.changes.files[snapshot.delta_manifest_list])
        base = staged.files[snapshot.base_manifest_list]
        return Relay([*(self.steps if follows else ()), step][-_STEPS:], base, announced)

    def to_note(self) -> bytes:
        """Return it as a note; empty if there is too much to tell."""
        announced = self.announced.encode()
        parts = [_NOTE.pack(_FORM, len(announced), len(self.base), len(self.steps))]
        parts += [_STEP.pack(step.id, len(step.snapshot), len(step.delta)) for step in self.steps]
        note = b"".join([*parts, announced, self.base, *(part for step in self.steps for part in step[1:])])
        return note if len(note) <= _MOST_BYTES else b""

    @classmethod
    def from_note(cls, note: bytes) -> Relay:
        """Read a note; nothing is told by one that makes no sense, as of another release."""
        try:
            form, name, lists, number = _NOTE.unpack_from(note)
            place = _NOTE.size + number * _STEP.size
            sizes_of_steps = list(_STEP.iter_unpack(note[_NOTE.size : place]))
            announced, base = note[place : place + name], note[place + name : place + name + lists]
            place += name + lists
            steps = []
            for step, snapshot, delta in sizes_of_steps:
                middle = place + snapshot
                steps.append(Step(step, note[place:middle], note[middle : middle + delta]))
                place = middle + delta
            told = form == _FORM and place == len(note)
            return cls(steps, base, announced.decode()) if told else cls()
        except (struct.error, ValueError):
            return cls()


class CommitTurn:
    """A turn at a branch: what it is told of the head, and what it tells the next one."""

    def __init__(self, table: Table, turn: Turn) -> None:
        self._table = table
        self._turn = turn
        self._told = Relay.from_note(turn.note())
        self._before: Awaited | None = turn.announced(self._told.announced) if self._told.announced else None
        self._opened = self._before
        self._mine: Announced | None = None
        self._failed = False

    @property
    def waited(self) -> bool:
        return self._turn.waited

    def newest(self, head: Snapshot | None, seen: Seen, *, ahead: bool) -> Snapshot | None:
        """Return the newest snapshot, where ``head`` was that before the turn; ``seen`` gets those in between.

        ``ahead``: it may be one that is not there yet (``is_ahead``); otherwise wait for that.
        """
        if not ahead or self._before is None or not self._before.is_pending():
            self._settle()
        found = None if head is None else self._told.since(head)
        if head is None or found is None:
            return self._looked_up(head, seen)
        seen.add([s for s, _ in found], self._told.lists(found))
        known = found[-1][0]
        return known if self._table.store.remote or self._before is not None else self._climbed(known, seen)

    def _looked_up(self, head: Snapshot | None, seen: Seen) -> Snapshot | None:
        """Return the newest snapshot where nothing that was told helps."""
        self._settle()
        told, self._told = self._told, Relay()
        if head is not None and told.steps and told.steps[-1].id >= head.id:
            newest = self._table.latest_snapshot()
            if newest is not None and told.ends_with(newest):
                self._told = told  # or all whose head is older than this commit would have to look, one after the other
            return newest
        certain = self._table.store.remote and not (self.waited or self._failed)
        return head if head is not None and certain else self._climbed(head, seen)

    def _settle(self) -> None:
        """Wait until the snapshot that was told of is there; forget what was told if it doesn't come."""
        before, self._before = self._before, None
        if before is not None and not before.wait(self._beat):
            self._told, self._failed = Relay(), True

    def _beat(self) -> None:
        self._turn.beat()
        if self._mine is not None:
            self._mine.beat()

    def is_ahead(self) -> bool:
        """Whether the newest snapshot is not there yet, or it is not known that it came."""
        if self._before is not None and not self._before.is_pending() and self._before.wait(self._beat):
            self._before = None
        return self._before is not None

    def has_come(self) -> bool:
        """Wait for the snapshot before, when it was ahead, and return whether it was put."""
        before, self._before = self._before, None
        return before is not None and before.wait(self._beat)

    def is_there(self, newest: Snapshot | None) -> bool:
        """Whether a snapshot is in the storage now; if not, what was told of it is forgotten."""
        if newest is None or self._is_there(newest):
            return True
        self._told, self._failed = Relay(), True
        return False

    def _climbed(self, head: Snapshot | None, seen: Seen) -> Snapshot | None:
        """Look for the snapshots after ``head``: each is based on the one before if all of them are still there then.
        Another engine may have rolled the branch back meanwhile, and have given their ids to others.

        Where another machine puts one after the other, whoever reads one after the other never gets to the end: after
        the first one several are asked for at once.
        """
        table = self._table
        found: list[Snapshot] = []
        number = head.id if head is not None else 0
        width = 1
        while len(found) < _CLIMBS:
            first = number + len(found) + 1
            asked = side_by_side(table.store, [partial(table.find_snapshot, first + i) for i in range(width)])
            new = [s for s in takewhile(lambda s: s is not None, asked) if s is not None]
            found += new
            if len(new) < width:
                break
            width = _AT_ONCE if table.store.remote else 1
        if not found:
            return head
        if head is None or len(found) >= _CLIMBS:
            return table.latest_snapshot()
        if not all(side_by_side(table.store, [partial(self._is_there, s) for s in [head, *found[:-1]]])):
            return table.latest_snapshot()
        seen.add([head, *found])
        return found[-1]

    def _is_there(self, snapshot: Snapshot) -> bool:
        now = self._table.find_snapshot(snapshot.id)
        return now is not None and is_same(now, snapshot)

    def go_ahead(self, staged: Staged) -> None:
        """Tell the next one of a snapshot that is not put yet, and end the turn, if that is possible."""
        mine = self._turn.announce()
        if mine is None:
            return
        note = self._told.then(staged, mine.name).to_note()
        if not note:
            mine.end(done=False)
            return
        self._mine = mine
        self._tell(note)
        self._turn.end()

    def leave(self, staged: Staged | None) -> None:
        """Tell the next one of the snapshot that was put; None: nothing, as another one came first."""
        if self._mine is not None:
            self._mine.end(done=staged is not None)
        else:
            self._tell(b"" if staged is None else self._told.then(staged, "").to_note())

    def _tell(self, note: bytes) -> None:
        self._turn.leave(note)
        if self._opened is not None:
            self._opened.remove()

    def close(self) -> None:
        """Let nobody wait any longer."""
        if self._mine is not None:
            self._mine.end(done=False)
        if self._opened is not None:
            self._opened.close()


def last_told(table: Table, seen: Seen) -> tuple[Snapshot, bool] | None:
    """Return the newest snapshot that commits of this machine told of, and whether it is still to come; it may not be
    there. ``seen`` gets it, and what was told of it. None: nothing is told.
    """
    note, announced = peek(_name(table))
    relay = Relay.from_note(note)
    try:
        found = [(step.parsed(), step.delta) for step in relay.steps[-2:]]
    except PaimonError:
        return None
    ids = [step.id for step in relay.steps[-2:]]
    if not found or [s.id for s, _ in found] != ids or ids != list(range(ids[0], ids[0] + len(ids))):
        return None
    seen.add([s for s, _ in found], relay.lists(found))
    return found[-1][0], bool(relay.announced) and _is_pending(announced(relay.announced))


def _is_pending(awaited: Awaited) -> bool:
    try:
        return awaited.is_pending()
    finally:
        awaited.close()


def _name(table: Table) -> str:
    return f"{table.store.place}\0{table.branch_name}"


def takes_turns(table: Table) -> bool:
    """Whether other processes of this machine may commit to the same branch, with put-if-absent in its folder."""
    return table.store.shared and table.store.keeper is None


@contextmanager
def turn_of(table: Table) -> Iterator[CommitTurn | None]:
    """Wait for a turn at a branch, and end it with the block; None: go on without one (``store/turns.py``)."""
    if not takes_turns(table):
        yield None
        return
    with turn_at(_name(table)) as turn:
        if turn is None:
            yield None
            return
        mine = CommitTurn(table, turn)
        try:
            yield mine
        finally:
            mine.close()
