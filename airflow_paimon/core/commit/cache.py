"""What the attempts of one commit have read of its branch, so that a newer head costs only what is new in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.manifest import FileId, ManifestEntry, ManifestFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import live_files_of
from airflow_paimon.core.table.manifest_entries import selected_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, base_list, delta_list, read_manifest_lists
from airflow_paimon.core.table.partitions import Selection, selection_key
from airflow_paimon.core.table.table import Table

_Live = Mapping[FileId, ManifestEntry]


@dataclass(eq=False, slots=True)
class CommitCache:
    """``_history``: consecutive snapshots by id, each based on the one before; ``_lists``: manifest lists by name, as
    they never change; ``_live``: of some selections, the live files, and of which snapshot.
    """

    table: Table
    _history: dict[int, Snapshot] = field(default_factory=dict)
    _lists: dict[str, Sequence[ManifestFile]] = field(default_factory=dict)
    _live: dict[Any, tuple[Snapshot, _Live]] = field(default_factory=dict)
    _before: tuple[Snapshot, str | None] | None = None

    def forget(self) -> None:
        """Forget all snapshots: it is not certain that they are there."""
        self._history.clear()
        self._live.clear()
        self._before = None

    def before(self, head: Snapshot | None) -> str | None:
        """Return the identity of the snapshot with the id before, whether the head is based on it or not; None: it is
        gone, empty: unreadable. Read once for a head.
        """
        if head is None or head.id == 1:
            return None
        if self._before is None or not is_same(self._before[0], head):
            identity: str | None = None
            try:
                identity = self.table.snapshot(head.id - 1).identity
            except FormatError:
                identity = ""
            except NotFoundError:
                pass
            self._before = head, identity
        return self._before[1]

    def manifests(self, head: Snapshot | None) -> list[ManifestFile]:
        """Return the manifests of the base and the delta list, in order: they determine the live files.

        Raises:
            FormatError: one is missing or corrupt.
        """
        if head is None:
            return []
        base, delta = self._read([base_list(head), delta_list(head)])
        return [*base, *delta]

    def between(self, before: Snapshot | None, head: Snapshot) -> Sequence[Snapshot] | None:
        """Return the snapshots after ``before`` (None: all) up to ``head``, each based on the one before; None: one of
        them has expired, or ``before`` was rolled back.

        They are read after ``head``, which a commit looks at again right before its put: so nobody has replaced one of
        them in between.
        """
        found = self._chain(1 if before is None else before.id, head)
        if found is None or before is None:
            return found
        return found[1:] if found and is_same(found[0], before) else None

    def _chain(self, first: int, head: Snapshot) -> Sequence[Snapshot] | None:
        """Return the snapshots with the ids from ``first`` to that of ``head``; None: one is gone."""
        known, newest = self._history, max(self._history, default=0)
        if known and not is_same(known[newest], head):
            later = self._snapshots(newest, head.id)
            if later and is_same(later[0], known[newest]):
                known.update({s.id: s for s in later})
            else:
                known.clear()
        known[head.id] = head
        earlier = self._snapshots(first, min(known))
        if earlier is None:
            return None
        known.update({s.id: s for s in earlier})
        return [known[number] for number in range(first, head.id + 1)]

    def _snapshots(self, first: int, end: int) -> Sequence[Snapshot] | None:
        try:
            return self.table.snapshots(list(range(first, end)))
        except NotFoundError:
            return None

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
        steps = None if before is None else self.between(before, head)
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
            return self.live(head, selection).values()
        return selected_entries(self.table, self.deltas(steps), selection)

    def deltas(self, snapshots: Sequence[Snapshot]) -> list[ManifestFile]:
        """Return the manifests of the delta lists of several snapshots, in order."""
        return [m for rows in self._read(list(map(delta_list, snapshots))) for m in rows]

    def _merged(
        self, live: _Live, manifests: Sequence[ManifestFile], selection: Selection | None, head: Snapshot
    ) -> _Live:
        entries = chain(live.values(), selected_entries(self.table, manifests, selection))
        return live_files_of(entries, f"{self.table.label}: snapshot {head.id}")

    def _read(self, wanted: Sequence[ManifestListRef]) -> list[Sequence[ManifestFile]]:
        new = [w for w in wanted if w.name not in self._lists]
        if new:
            self._lists.update(zip([w.name for w in new], read_manifest_lists(self.table, new), strict=True))
        return [self._lists[w.name] for w in wanted]


def is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether both are the same commit on top of the same one."""
    mine, others = ((s.id, s.identity, s.base_manifest_list) for s in (one, other))
    return mine == others
