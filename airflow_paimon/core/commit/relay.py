"""Turns of this machine's commits at a branch: they are put one after the other, so that none is made in vain.

What a process tells the next one in turn about the head need not be read from a remote storage. It is checked when it
is used: the snapshot that it calls the newest must be in the storage, and manifest lists have the sizes that it names.
Whoever is told nothing reads.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_paimon.core.commit.seen import Seen, is_same
from airflow_paimon.core.commit.staged import Staged
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.manifest_io import read_manifest_list
from airflow_paimon.core.format.snapshot import Snapshot, parse_json, parse_snapshot
from airflow_paimon.core.store.turns import Turn, turn_at
from airflow_paimon.core.table.table import Table

_STEPS = 32
_MOST_BYTES = 2**20
_CLIMBS = 256


@dataclass(frozen=True, slots=True)
class Relay:
    """``steps``: consecutive snapshots, the newest last, each with the content of its delta list; ``base``: the content
    of the newest one's base list.
    """

    steps: Sequence[tuple[Snapshot, bytes]] = ()
    base: bytes = b""

    @property
    def snapshots(self) -> list[Snapshot]:
        return [snapshot for snapshot, _ in self.steps]

    def lists(self) -> Mapping[str, Sequence[ManifestFile]]:
        """Return the manifest lists by name; empty if one is not what its snapshot says."""
        if not self.steps:
            return {}
        newest = self.steps[-1][0]
        wanted = [(s.delta_manifest_list, s.delta_manifest_list_size, data) for s, data in self.steps]
        wanted.append((newest.base_manifest_list, newest.base_manifest_list_size, self.base))
        if any(len(data) != size for _, size, data in wanted):
            return {}
        return {name: read_manifest_list(data, name=name) for name, _, data in wanted}

    def then(self, snapshot: Snapshot, base: bytes, delta: bytes) -> Relay:
        """Return what to tell after a commit on top."""
        follows = self.steps and self.steps[-1][0].id == snapshot.id - 1
        return Relay([*(self.steps if follows else ()), (snapshot, delta)][-_STEPS:], base)

    def to_note(self) -> bytes:
        """Return it as a note; empty if there is too much to tell."""
        steps = [[s.to_bytes().decode(), base64.b64encode(delta).decode()] for s, delta in self.steps]
        note = json.dumps({"base": base64.b64encode(self.base).decode(), "steps": steps}).encode()
        return note if len(note) <= _MOST_BYTES else b""

    @classmethod
    def from_note(cls, note: bytes) -> Relay:
        """Read a note; nothing is told by one that makes no sense."""
        try:
            raw = parse_json(note) if note else {}
            found = [(parse_snapshot(text.encode(), "a note"), base64.b64decode(delta)) for text, delta in raw["steps"]]
            told = cls(found, base64.b64decode(raw["base"]))
            return told if told.lists() else cls()
        except (KeyError, TypeError, ValueError, AttributeError, PaimonError):
            return cls()


class CommitTurn:
    """A turn at a branch: what it is told of the head, and what it tells the next one."""

    def __init__(self, table: Table, turn: Turn) -> None:
        self._table = table
        self._turn = turn
        self._told = Relay.from_note(turn.note()) if table.store.remote else Relay()

    @property
    def waited(self) -> bool:
        return self._turn.waited

    def newest(self, head: Snapshot | None, seen: Seen) -> Snapshot | None:
        """Return the newest snapshot, where ``head`` was that before the turn; ``seen`` gets those in between."""
        if head is None or not self._table.store.remote:
            self._told = Relay()  # of a table that was here before
            return self._climbed(head, seen)
        told = self._told.snapshots
        if not told or told[-1].id < head.id:
            return head
        if not any(is_same(s, head) for s in told):
            self._told = Relay()
            return self._table.latest_snapshot()
        seen.add(told, self._told.lists())
        return head if told[-1].id == head.id else told[-1]

    def _climbed(self, head: Snapshot | None, seen: Seen) -> Snapshot | None:
        """Look for the snapshots after ``head`` one by one: each is based on the one before if all of them are still
        there then. Another engine may have rolled the branch back meanwhile, and have given their ids to others.
        """
        table = self._table
        found: list[Snapshot] = []
        number = head.id if head is not None else 0
        while len(found) < _CLIMBS and (snapshot := table.find_snapshot(number + len(found) + 1)) is not None:
            found.append(snapshot)
        if not found:
            return head
        if head is None or len(found) == _CLIMBS or not all(map(self._is_there, [head, *found[:-1]])):
            return table.latest_snapshot()
        seen.add([head, *found])
        return found[-1]

    def _is_there(self, snapshot: Snapshot) -> bool:
        now = self._table.find_snapshot(snapshot.id)
        return now is not None and is_same(now, snapshot)

    def leave(self, staged: Staged | None) -> None:
        """Tell the next one of the snapshot that was put; None: nothing, as another one came first."""
        if not self._table.store.remote:
            return
        note = b""
        if staged is not None:
            snapshot, delta = staged.snapshot, staged.changes.files[staged.snapshot.delta_manifest_list]
            note = self._told.then(snapshot, staged.files[snapshot.base_manifest_list], delta).to_note()
        self._turn.leave(note)


def takes_turns(table: Table) -> bool:
    """Whether other processes of this machine may commit to the same branch, with put-if-absent in its folder."""
    return table.store.shared and table.store.keeper is None


@contextmanager
def turn_of(table: Table) -> Iterator[CommitTurn | None]:
    """Wait for a turn at a branch, and end it with the block; None: go on without one (``store/turns.py``)."""
    if not takes_turns(table):
        yield None
        return
    with turn_at(f"{table.store.uri}\0{table.branch_name}") as turn:
        yield None if turn is None else CommitTurn(table, turn)
