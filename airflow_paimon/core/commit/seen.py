"""What the attempts of one commit have read of its branch, so that a newer head costs only what is new in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.manifest import FileId, ManifestEntry, ManifestFile
from airflow_paimon.core.format.manifest_io import read_manifest_list
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_files import net_change, never_added
from airflow_paimon.core.table.partitions import Selection, selection_key
from airflow_paimon.core.table.scan import (
    NamedList,
    live_entries,
    read_named_lists,
    selected_entries,
    without_collecting,
)
from airflow_paimon.core.table.table import Table

_Live = Mapping[FileId, ManifestEntry]


@dataclass(eq=False, slots=True)
class Seen:
    """``history``: consecutive snapshots by id, each based on the one before; ``_lists``: manifest lists by name, which
    are never written again, and ``_told`` the content of more of them; ``_live``: of some selections, the live files,
    and of which snapshot.
    """

    table: Table
    history: dict[int, Snapshot] = field(default_factory=dict)
    _lists: dict[str, Sequence[ManifestFile]] = field(default_factory=dict)
    _told: dict[str, bytes] = field(default_factory=dict)
    _live: dict[Any, tuple[Snapshot, _Live]] = field(default_factory=dict)
    _before: tuple[Snapshot, str | None] | None = None

    def add(self, snapshots: Sequence[Snapshot], lists: Mapping[str, bytes] | None = None) -> None:
        """Note consecutive snapshots, as they are now, and the content of manifest lists by name. What was known and
        doesn't fit them is forgotten.

        That a snapshot has the id after a known one doesn't say that it is based on it: another engine may have rolled
        the branch back, and replaced the known one, in between. So that one is looked at again.
        """
        self._told.update(lists or {})
        if not snapshots:
            return
        first, known = snapshots[0], self.history
        fits = any(s.id in known and is_same(known[s.id], s) for s in snapshots) or self._stands(first.id - 1)
        if not fits or any(s.id in known and not is_same(known[s.id], s) for s in snapshots):
            known.clear()
        known.update({s.id: s for s in snapshots})

    def forget(self) -> None:
        """Forget all snapshots: it is not certain that they are there."""
        self.history.clear()
        self._live.clear()
        self._before = None

    def _stands(self, number: int) -> bool:
        """Whether a known snapshot is still there."""
        if number not in self.history:
            return False
        now = self.table.find_snapshot(number)
        return now is not None and is_same(now, self.history[number])

    def before(self, head: Snapshot | None) -> str | None:
        """Return the identity of the snapshot with the id before, whether the head is based on it or not; None: it is
        gone, empty: unreadable. Read once for a head.
        """
        if head is None or head.id == 1:
            return None
        if head.id - 1 in self.history and is_same(self.history.get(head.id, head), head):
            return self.history[head.id - 1].identity
        if self._before is None or not is_same(self._before[0], head):
            self._before = head, self._identity_of(head.id - 1)
        return self._before[1]

    def _identity_of(self, number: int) -> str | None:
        try:
            return self.table.snapshot(number).identity
        except NotFoundError:
            return None
        except FormatError:
            return ""

    def manifests(self, head: Snapshot | None) -> list[ManifestFile]:
        """Return the manifests of the base and the delta list, in order: they determine the live files.

        Raises:
            FormatError: one is missing or corrupt.
        """
        if head is None:
            return []
        base, delta = self._read([_base_list(head), _delta_list(head)])
        return [*base, *delta]

    def between(self, before: Snapshot | None, head: Snapshot | None) -> Sequence[Snapshot] | None:
        """Return the snapshots after ``before``, up to ``head``; None: they are not all known."""
        if before is None or head is None or before.id > head.id:
            return None
        if not all(s.id in self.history and is_same(self.history[s.id], s) for s in (before, head)):
            return [] if is_same(before, head) else None
        steps = [self.history.get(number) for number in range(before.id + 1, head.id + 1)]
        found = [s for s in steps if s is not None]
        return found if len(found) == len(steps) else None

    def live(self, head: Snapshot | None, selection: Selection | None) -> _Live:
        """Return the live files of a snapshot, of the selected partitions only (None: all); raises as
        ``live_entries`` does.
        """
        if head is None:
            return {}
        key = selection_key(selection)
        if key is None:
            return live_entries(self.table, head, selection)
        before, found = self._live.get(key, (None, {}))
        steps = self.between(before, head)
        if steps is None:
            found = self._merged({}, self.manifests(head), selection, head)
        elif steps:
            found = self._merged(found, self.deltas(steps), selection, head)
        self._live[key] = head, found
        return found

    def since(self, planned: Snapshot | None, head: Snapshot, selection: Selection) -> Iterable[ManifestEntry]:
        """Return entries committed after ``planned``; all live entries when a snapshot in between has expired."""
        steps = self.between(planned, head)
        if steps is None:
            first = planned.id if planned is not None else 1
            try:
                found = [*self.table.snapshots(list(range(first, head.id))), head]
            except NotFoundError:
                return self.live(head, selection).values()
            if planned is not None and (head.id <= planned.id or not is_same(found[0], planned)):
                return self.live(head, selection).values()
            self.add(found)
            steps = found if planned is None else found[1:]
        return selected_entries(self.table, self.deltas(steps), selection)

    def deltas(self, snapshots: Sequence[Snapshot]) -> list[ManifestFile]:
        """Return the manifests of the delta lists of several snapshots, in order."""
        return [m for rows in self._read(list(map(_delta_list, snapshots))) for m in rows]

    def _merged(
        self, live: _Live, manifests: Sequence[ManifestFile], selection: Selection | None, head: Snapshot
    ) -> _Live:
        where = f"{self.table.label}: snapshot {head.id}"
        with without_collecting():
            change = net_change(chain(live.values(), selected_entries(self.table, manifests, selection)), where)
        if change.deleted:
            raise never_added(where, next(iter(change.deleted.values())).file.file_name)
        return change.added

    def _read(self, wanted: Sequence[NamedList]) -> list[Sequence[ManifestFile]]:
        for name in [w.name for w in wanted if w.name in self._told and w.name not in self._lists]:
            with suppress(PaimonError):  # then it is read
                self._lists[name] = read_manifest_list(self._told.pop(name), name=name)
        new = [w for w in wanted if w.name not in self._lists]
        if new:
            self._lists.update(zip([w.name for w in new], read_named_lists(self.table, new), strict=True))
        return [self._lists[w.name] for w in wanted]


def is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether both are the same commit on top of the same one.

    A commit that is planned again keeps its delta list, and on another snapshot of the same id also its own id.
    """
    mine, others = ((s.id, s.identity, s.base_manifest_list) for s in (one, other))
    return mine == others


def _base_list(snapshot: Snapshot) -> NamedList:
    return NamedList(snapshot.base_manifest_list, snapshot.base_manifest_list_size, f"snapshot {snapshot.id}")


def _delta_list(snapshot: Snapshot) -> NamedList:
    return NamedList(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, f"snapshot {snapshot.id}")
