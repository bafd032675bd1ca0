"""Roots as values: what names files in a table, and what else keeps snapshots. ``roots`` gathers them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.tag import Tag
from airflow_paimon.core.metadata_expiry.trash import TrashEntry
from airflow_paimon.core.table.paths import MAIN

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A streaming reader's position: it needs ``next_snapshot`` and everything later of its branch.

    ``modified_ms``: when it was written last, by the storage's clock; None where that isn't known.
    """

    branch: str
    name: str
    next_snapshot: int
    modified_ms: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """An operation that a retry may look for: in the snapshots of ``branch`` after ``head``."""

    operation_id: str
    branch: str
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The roots of a table.

    ``unfinished``: branches that are being created, renamed or deleted, or were when that was interrupted, and folders
    without a schema; each with what is the matter. Their snapshots and tags are among the roots.
    """

    roots: tuple[Root, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    operations: tuple[OperationRecord, ...] = ()
    branches: tuple[str, ...] = ()
    unfinished: tuple[tuple[str, str], ...] = ()

    def of(self, branch: str, kind: str) -> list[Root]:
        """Return the roots of one kind of a branch, in the order of their snapshots."""
        found = (r for r in self.roots if r.branch == branch and r.kind == kind)
        return sorted(found, key=lambda r: (r.snapshot.id, r.name))

    @property
    def keeping(self) -> list[Root]:
        """The roots whose files must stay: all but those in the trash whose files are being deleted."""
        return [r for r in self.roots if r.trash is None or not r.trash.reaping]
