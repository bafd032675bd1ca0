"""The roots of a table: everything that names files, and what else keeps snapshots, over all branches.

Every deletion of files begins here, so that no kind of root can be forgotten in one of them. Roots are snapshots, tags
and long-lived changelogs of main and of every branch, finished or not, and the trash. They are read from listings,
never from hints, until two readings in a row agree: a single listing can miss what is renamed while it runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import RESTORE, Snapshot, load_json_object, parse_snapshot
from airflow_paimon.core.format.tag import Tag, parse_tag
from airflow_paimon.core.maintenance.trash import TRASH_DIR, TrashEntry, parse_trash
from airflow_paimon.core.table.lineage import READY, read_lineage, recorded_branches
from airflow_paimon.core.table.paths import (
    CHANGELOG_PREFIX,
    CONSUMER_PREFIX,
    MAIN,
    PRIVATE_DIR,
    numbered,
)
from airflow_paimon.core.table.table import Table

SNAPSHOT, TAG, CHANGELOG, TRASH = "snapshot", "tag", "changelog", "trash"
_TRIES = 5


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
    """A streaming reader's position: it needs ``next_snapshot`` and everything later of its branch."""

    branch: str
    name: str
    next_snapshot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """An operation that a retry may look for: in the snapshots of ``branch`` after ``head``."""

    operation_id: str
    branch: str
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """All roots of a table at one moment.

    ``unfinished``: branches that are being created, renamed or deleted, or were when that was interrupted, and folders
    without a schema; each with what is the matter. Their snapshots and tags are among the roots.
    """

    roots: tuple[Root, ...]
    consumers: tuple[Consumer, ...]
    operations: tuple[OperationRecord, ...]
    branches: tuple[str, ...]
    unfinished: tuple[tuple[str, str], ...]

    def of(self, branch: str, kind: str) -> list[Root]:
        """Return the roots of one kind of a branch, in the order of their snapshots."""
        found = (r for r in self.roots if r.branch == branch and r.kind == kind)
        return sorted(found, key=lambda r: (r.snapshot.id, r.name))

    @property
    def trash(self) -> list[TrashEntry]:
        return [r.trash for r in self.roots if r.trash is not None]

    @property
    def identity(self) -> str:
        """A digest of everything: two readings with the same identity saw the same roots."""
        digest = hashlib.sha256()
        for root in self.roots:
            digest.update(f"{root.path}\0{hashlib.sha256(root.data).hexdigest()}\0".encode())
        digest.update(repr((self.consumers, self.operations, self.branches, self.unfinished)).encode())
        return digest.hexdigest()


def gather_roots(table: Table, *, operations_since_ms: int | None = None) -> Roots:
    """Read all roots of a table until two readings in a row agree.

    ``operations_since_ms``: leave out operation records that were put before this time (epoch milliseconds, by the
    storage's clock); None = take them all.

    Raises:
        FormatError: one is unreadable; names it. ConflictError: they kept changing.
    """
    previous: str | None = None
    for _ in range(_TRIES):
        try:
            found = _look(table, operations_since_ms)
        except NotFoundError:  # deleted or renamed between its listing and its reading
            previous = None
            continue
        if found.identity == previous:
            return found
        previous = found.identity
    raise ConflictError(
        f"{table.name}: snapshots, tags or branches were created or deleted during each of {_TRIES} readings, so it "
        f"can't be said which files are needed; nothing was deleted. Run it again when fewer writers are active",
        table=table.name,
    )


def require_finished(table: Table, roots: Roots) -> None:
    """Refuse to delete anything while a branch is incomplete.

    Raises:
        ConflictError: names the branch, and how to finish it.
    """
    for branch, matter in roots.unfinished:
        raise ConflictError(
            f"{table.name}: branch {branch!r} {matter}; nothing was deleted. Try again later; if no operation on that "
            f"branch is running, it was interrupted: check_table says how to finish it",
            table=table.name,
            details={"branch": branch},
        )


def _look(table: Table, operations_since_ms: int | None) -> Roots:
    main = table.branch(MAIN)
    branches = tuple(main.branch_names())
    views = [main, *(main.branch(name) for name in branches)]
    roots = [root for view in views for root in _roots_of(view)]
    roots += _trash(main)
    return Roots(
        roots=tuple(sorted(roots, key=lambda r: r.path)),
        consumers=tuple(c for view in views for c in _consumers(view)),
        operations=tuple(_operations(main, operations_since_ms)),
        branches=branches,
        unfinished=tuple(_unfinished(main, views)),
    )


def _roots_of(view: Table) -> Iterator[Root]:
    paths = view.paths
    names = {paths.snapshot(i): (SNAPSHOT, str(i)) for i in view.snapshot_ids()}
    names |= {paths.tag(name): (TAG, name) for name in view.tag_names()}
    changelogs = numbered(view.store.names(paths.changelog_dir), CHANGELOG_PREFIX)
    names |= {paths.changelog(i): (CHANGELOG, str(i)) for i in changelogs}
    for (path, (kind, name)), data in zip(names.items(), view.store.read_many(list(names)), strict=True):
        root = _root(view, path, kind, name, data)
        if kind != TAG and str(root.snapshot.id) != name:
            raise FormatError(f"{view.name}: {path} holds id {root.snapshot.id}; {RESTORE}", table=view.name)
        yield root


def _root(view: Table, path: str, kind: str, name: str, data: bytes) -> Root:
    if kind == TAG:
        tag = parse_tag(data, name)
        return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=tag.snapshot, tag=tag)
    snapshot = parse_snapshot(data, f"{view.name}: {path}")
    return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=snapshot)


def _trash(main: Table) -> Iterator[Root]:
    paths = [p for p in main.store.walk(TRASH_DIR) if p.endswith(".json") and not p.rpartition("/")[2].startswith(".")]
    for path, data in zip(paths, main.store.read_many(paths), strict=True):
        entry = parse_trash(data, f"{main.name}: {path}")
        inner = _root(main.branch(entry.branch), path, entry.kind, entry.name, entry.content)
        yield replace(inner, kind=TRASH, data=data, tag=None, trash=entry)


def _consumers(view: Table) -> Iterator[Consumer]:
    folder = view.paths.consumer_dir
    names = [n for n in view.store.names(folder) if n.startswith(CONSUMER_PREFIX)]
    for name, data in sorted(zip(names, view.store.read_many([f"{folder}/{n}" for n in names]), strict=True)):
        where = f"{view.name}: {folder}/{name}"
        following = load_json_object(data, where).get("nextSnapshot")
        if not isinstance(following, int) or isinstance(following, bool):
            raise FormatError(f"{where} has no nextSnapshot; restore it, or delete the consumer", table=view.name)
        yield Consumer(branch=view.branch_name, name=name.removeprefix(CONSUMER_PREFIX), next_snapshot=following)


def _operations(main: Table, since_ms: int | None) -> Iterator[OperationRecord]:
    folder = f"{PRIVATE_DIR}/operations"
    young = [
        f"{folder}/{info.name}"
        for info in main.store.list(folder)
        if not info.is_dir and info.name.endswith(".json") and not info.name.startswith(".")
        if since_ms is None or info.modified_ms is None or info.modified_ms >= since_ms
    ]
    for path, data in zip(young, main.store.read_many(young), strict=True):
        where = f"{main.name}: {path}"
        try:
            raw: Any = json.loads(data)
            if "head" in raw:  # not a plan of expire_partitions
                record = OperationRecord(
                    operation_id=str(raw["operation_id"]), branch=str(raw["branch"]), head=int(raw["head"])
                )
                yield record
        except (ValueError, KeyError, TypeError):
            raise FormatError(
                f"{where} is unreadable; see check_table, repair_table deletes it", table=main.name
            ) from None


def _unfinished(main: Table, views: Iterable[Table]) -> Iterator[tuple[str, str]]:
    records = {name: read_lineage(main, name) for name in recorded_branches(main)}
    changing = {name: r.state for name, r in records.items() if r is not None and r.state != READY}
    yield from ((name, f"is incomplete ({state})") for name, state in sorted(changing.items()))
    for view in views:
        name = view.branch_name
        without_schema = name != MAIN and name not in changing and not view.exists()
        if without_schema and main.store.walk(view.paths.root.rstrip("/")):  # on a disk an empty folder may stay
            yield name, "has no schema"
