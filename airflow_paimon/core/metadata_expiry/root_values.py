"""Roots as values: what names files in a table, the trash included, and what else keeps snapshots. Pure.

``_airflow_paimon/trash/<branch>/<kind>-<name>-<digest>.json`` holds the content of a snapshot, tag or long-lived
changelog that an expiry has taken away. The entry is put before the file is deleted, and deleted after the last file
that only it names. While it lies there its files stay, so that readers finish and the file can be put back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.records import NOT_STORED, Record
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import TRASH_ENTRIES

if TYPE_CHECKING:
    # The values of plans: they must not load the stores.
    from airflow_paimon.core.table.consumers import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashEntry(Record):
    """A file that was taken away. ``kind``: ``snapshot``, ``tag`` or ``changelog``; ``name``: snapshot id or tag name.

    ``path``: where it was; ``content``: its bytes. ``unlinked_ms``: when it was taken away by the clock of the machine
    that did it, ``put_ms``: by the storage's, as far as that is known (epoch milliseconds); the grace time is counted
    from the latter.
    ``reaping``: the grace time is over, and some of the files that only it names may be gone.
    """

    branch: str
    kind: str
    name: str
    path: str
    content: bytes
    unlinked_ms: int
    operation_id: str | None = None
    reaping: bool = False
    put_ms: int | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    KIND = TRASH_ENTRIES

    @property
    def in_trash_since_ms(self) -> int:
        """When the grace time began."""
        return self.unlinked_ms if self.put_ms is None else self.put_ms

    @property
    def trash_path(self) -> str:
        """Where the entry lies; two files that had one path have two entries."""
        digest = hashlib.sha256(self.content).hexdigest()[:16]
        return self.KIND.path(f"{self.branch}/{self.kind}-{self.name}-{digest}")


SNAPSHOT, TAG, CHANGELOG, TRASH, HOLD = "snapshot", "tag", "changelog", "trash", "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A file that names files. ``name``: the snapshot id or the tag's name; ``data``: the file's content.

    ``tag`` is set for tags, ``trash`` for what lies in the trash (``branch`` and ``name`` are then of what it was).
    """

    kind: str
    branch: str
    name: str
    path: str
    data: bytes
    snapshot: Snapshot
    tag: Tag | None = None
    trash: TrashEntry | None = None

    @property
    def label(self) -> str:
        """How messages and results name it: ``tag 'month_end'``, ``snapshot 7 of branch 'fix'``."""
        kind = f"{self.kind} of {self.trash.kind}" if self.trash is not None else self.kind
        name = f"{self.name!r}" if TAG in kind else self.name
        return f"{kind} {name}" + ("" if self.branch == MAIN else f" of branch {self.branch!r}")

    @property
    def is_changelog(self) -> bool:
        """Whether it is a long-lived changelog, also one in the trash: no table state can be read by it."""
        return CHANGELOG in (self.kind, self.trash.kind if self.trash is not None else None)


class Vanished(ConflictError):
    """A snapshot that was listed is gone when it is to be read."""


_AHEAD = 16
"""How many snapshots are read with one that is asked for."""


class LazySnapshots:
    """The snapshots of a branch, ascending; each is read when it is asked for.

    ``ids``: all of them. ``read``: called with some ids, returns those snapshots that are still there, in order.

    Raises, wherever it reads:
        Vanished: one is gone. FormatError: one is unreadable; names it.
    """

    def __init__(self, branch: str, ids: Sequence[int], read: Callable[[Sequence[int]], Sequence[Root]]) -> None:
        self.branch = branch
        self.ids = ids
        self._read = read
        self._known: dict[int, Root] = {}

    @classmethod
    def of(cls, branch: str, roots: Sequence[Root]) -> LazySnapshots:
        """Make it of snapshots that were read, ascending."""
        known = {r.snapshot.id: r for r in roots}
        return cls(branch, list(known), lambda ids: [known[i] for i in ids])

    def at(self, position: int) -> Root:
        """Return the snapshot at a position; reads some after it as well."""
        number = self.ids[position]
        if number not in self._known:
            self.by_ids(self.ids[position : position + _AHEAD])
        return self._known[number]

    def by_ids(self, ids: Sequence[int]) -> list[Root]:
        """Return the snapshots with these ids."""
        new = [i for i in ids if i not in self._known]
        found = {r.snapshot.id: r for r in (self._read(new) if new else ())}
        if len(found) < len(new):
            lost = next(i for i in new if i not in found)
            raise Vanished(f"Snapshot {lost} of branch {self.branch!r} vanished meanwhile; run it again")
        self._known |= found
        return [self._known[i] for i in ids]

    def backwards(self) -> Iterator[list[Root]]:
        """Go through them from the newest one, several at a time."""
        for stop in range(len(self.ids), 0, -_AHEAD):
            yield self.by_ids(self.ids[max(stop - _AHEAD, 0) : stop])[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """An operation that a retry may look for: in the snapshots of ``branch`` from ``start`` on."""

    operation_id: str
    branch: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The roots of a table.

    ``unread``: the snapshots of each branch, if they are not among ``roots``: they are read when they are needed.
    ``unfinished``: branches that are being created, renamed or deleted, or were when that was interrupted, and folders
    without a schema; each with what is the matter. Their snapshots and tags are among the roots.
    """

    roots: tuple[Root, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    operations: tuple[OperationRecord, ...] = ()
    branches: tuple[str, ...] = ()
    unfinished: tuple[tuple[str, str], ...] = ()
    unread: Mapping[str, LazySnapshots] = field(default_factory=dict)

    def of(self, branch: str, kind: str) -> list[Root]:
        """Return the roots of one kind of a branch, in the order of their snapshots."""
        found = (r for r in self.roots if r.branch == branch and r.kind == kind)
        return sorted(found, key=lambda r: (r.snapshot.id, r.name))

    def snapshots(self, branch: str) -> LazySnapshots:
        """Return the snapshots of a branch, whether they were read or not."""
        unread = self.unread.get(branch)
        return LazySnapshots.of(branch, self.of(branch, SNAPSHOT)) if unread is None else unread

    @property
    def living(self) -> list[Root]:
        """The roots whose files must stay: all but those in the trash whose files are being deleted."""
        return [r for r in self.roots if r.trash is None or not r.trash.reaping]
