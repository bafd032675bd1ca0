"""The roots of a table: everything that names files, and what else keeps snapshots, over all branches.

Every deletion of files begins here, so that no kind of root can be forgotten in one of them. Roots are snapshots, tags
and long-lived changelogs of main and of every branch, finished or not, the holds of running publishes, and the trash.
They are read from listings, never from hints. Nothing stands still meanwhile, and nothing has to:
docs/contributing/deletion.md, Files are deleted by what names them, says why two looks, taken together, miss nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_paimon.core.commit.idempotency import AttemptRecord
from airflow_paimon.core.commit.stream_batch import BatchRecord
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.records import is_record
from airflow_paimon.core.format.snapshot import RESTORE, parse_snapshot, parse_tag
from airflow_paimon.core.metadata_expiry.references import has_all_metadata
from airflow_paimon.core.metadata_expiry.root_values import (
    CHANGELOG,
    HOLD,
    SNAPSHOT,
    TAG,
    TRASH,
    LazySnapshots,
    OperationRecord,
    Root,
    Roots,
    TrashEntry,
    Vanished,
)
from airflow_paimon.core.publish.hold import Hold
from airflow_paimon.core.store.base import FileInfo, read_existing
from airflow_paimon.core.table.branch_record import READY, read_branch_record, recorded_branches
from airflow_paimon.core.table.consumers import read_consumers
from airflow_paimon.core.table.paths import (
    CHANGELOG_PREFIX,
    MAIN,
    MANIFEST_DIR,
    SNAPSHOT_PREFIX,
    TAG_PREFIX,
    numbered,
)
from airflow_paimon.core.table.record_kinds import HOLDS, OPERATIONS, RESULTS, STREAMS
from airflow_paimon.core.table.table import Table

T = TypeVar("T")

_MOST_LOOKS = 5
_TRIES = 8
_MOST_ROUNDS = 1000
"""Tries in which another expiry takes a root away don't count as failed ones, but end as well."""
_Stamp = tuple[int, int | None]
"""Size and time of a file: another file under its name has another one."""


@dataclass(slots=True)
class RootReader:
    """Looks at the roots of a table, any number of times; reads a file again only if it has been replaced.

    ``reads_snapshots``: read all; otherwise snapshots are only listed, and read (in each look again) when they are
    asked for. ``operations_since_ms``: leave out operation records that were put before this time (epoch milliseconds,
    by the storage's clock); None = take them all.
    """

    table: Table
    operations_since_ms: int | None = None
    reads_snapshots: bool = True
    _read: dict[str, tuple[_Stamp, Root]] = field(default_factory=dict)
    _ever: dict[tuple[str, bytes], Root] = field(default_factory=dict)
    _ids: set[tuple[str, int]] = field(default_factory=set)
    _looks: int = 0
    _lost: bool = False

    def gather(self) -> Roots:
        """Look again, at least twice in all; return what was there in any look.

        Of the trash only what is there now: nothing is made from an entry whose files are being deleted. A look that
        has lost something between its listing and its reading is followed by another one.

        Raises:
            FormatError: a root is unreadable; names it. Vanished: an unread snapshot was there in an earlier look only.
        """
        now = self.read_once()
        while self._looks < 2 or (self._lost and self._looks < _MOST_LOOKS):
            now = self.read_once()
        moved = {(r.trash.path, r.trash.content) for r in now.roots if r.trash is not None}
        self._check_listed(now)
        known = {(r.path, r.data): r for r in now.roots}
        gone = [r for key, r in self._ever.items() if key not in known and key not in moved]
        unread = read_existing(
            self.table.store, [r.path for r in gone if r.branch in now.unread and r.kind == SNAPSHOT]
        )
        before = (r for r in gone if unread.get(r.path) != r.data)  # the others are among those that are not read yet
        roots = sorted((*known.values(), *before), key=lambda r: r.path)
        return replace(now, roots=tuple(roots))

    def _check_listed(self, now: Roots) -> None:
        """Whoever reads snapshots later must know of each that was there in an earlier look; the trash has its own."""
        there = {(branch, number) for branch, some in now.unread.items() for number in some.ids}
        trash = {(r.branch, r.snapshot.id) for r in now.roots if r.trash is not None and r.trash.kind == SNAPSHOT}
        for branch, number in self._ids - there - trash if now.unread else ():
            raise Vanished(
                f"{self.table.name}: snapshot {number} of branch {branch!r} vanished meanwhile; run it again"
            )

    def read_all(self) -> None:
        """Read all snapshots from now on, and count looks anew."""
        self.reads_snapshots, self._looks = True, 0

    def read_once(self) -> Roots:
        """Look once; enough for whoever only moves roots into the trash.

        Raises:
            FormatError: a root is unreadable; names it.
        """
        self._lost = False
        main = self.table.branch(MAIN)
        branches = tuple(main.branch_names())
        views = [main, *(main.branch(name) for name in branches)]
        unread = {} if self.reads_snapshots else {view.branch_name: self._listed(view) for view in views}
        roots = [root for view in views for root in self._roots_of(view)]
        roots += self._holds(main)
        roots += self._trash(main)  # last: what is moved there meanwhile is seen there
        self._ever |= {(r.path, r.data): r for r in roots if r.kind != TRASH}
        self._ids |= {(branch, number) for branch, some in unread.items() for number in some.ids}
        self._looks += 1
        found = Roots(
            roots=tuple(sorted(roots, key=lambda r: r.path)),
            consumers=tuple(c for view in views for c in read_consumers(view)),
            operations=tuple(_operations(main, self.operations_since_ms)),
            branches=branches,
            unfinished=tuple(_unfinished(main, views)),
            unread=unread,
        )
        self._lost |= not {*branches} <= {*main.branch_names()}
        return found

    def _roots_of(self, view: Table) -> Iterator[Root]:
        paths = view.paths
        names: dict[str, tuple[str, str]] = {}
        infos: dict[str, FileInfo] = {}
        for kind, folder, prefix in (
            *(((SNAPSHOT, paths.snapshot_dir, SNAPSHOT_PREFIX),) if self.reads_snapshots else ()),
            (TAG, paths.tag_dir, TAG_PREFIX),
            (CHANGELOG, paths.changelog_dir, CHANGELOG_PREFIX),
        ):
            files = {i.name: i for i in view.store.list(folder) if not i.is_dir and i.name.startswith(prefix)}
            chosen = [n for n in files if n != prefix] if kind == TAG else _numbered(list(files), prefix)
            names |= {f"{folder}/{n}": (kind, n.removeprefix(prefix)) for n in chosen}
            infos |= {f"{folder}/{n}": files[n] for n in chosen}
        yield from self._read_new(infos, lambda path, data: _root(view, path, *names[path], data))

    def _listed(self, view: Table) -> LazySnapshots:
        names = set(view.store.names(view.paths.snapshot_dir))
        found = {*numbered(list(names), SNAPSHOT_PREFIX)}
        ids = sorted(i for i in found if i > 0 and f"{SNAPSHOT_PREFIX}{i}" in names)

        def read(ids: Sequence[int]) -> Sequence[Root]:
            paths = {view.paths.snapshot(number): str(number) for number in ids}
            files = read_existing(view.store, list(paths))
            self._lost |= len(files) < len(paths)
            found = [_root(view, path, SNAPSHOT, name, files[path]) for path, name in paths.items() if path in files]
            self._ever |= {(r.path, r.data): r for r in found}
            return found

        return LazySnapshots(view.branch_name, ids, read)

    def _holds(self, main: Table) -> Iterator[Root]:
        """What publishes and rollbacks that are running take their files from."""
        infos = {f"{HOLDS.folder}/{i.name}": i for i in main.store.list(HOLDS.folder) if is_record(i.name)}

        def parse(path: str, data: bytes) -> Root:
            held = Hold.parse(data, f"{main.name}: {path}")
            return Root(kind=HOLD, branch=held.branch, name=path, path=path, data=data, snapshot=held.snapshot)

        yield from self._read_new(infos, parse)

    def _trash(self, main: Table) -> Iterator[Root]:
        infos = {i.name: i for i in main.store.files(TrashEntry.KIND.folder) if is_record(i.name)}

        def parse(path: str, data: bytes) -> Root:
            entry = replace(TrashEntry.parse(data, f"{main.name}: {path}"), put_ms=infos[path].modified_ms)
            inner = _root(main.branch(entry.branch), path, entry.kind, entry.name, entry.content)
            return replace(inner, kind=TRASH, data=data, tag=None, trash=entry)

        yield from self._read_new(infos, parse)

    def _read_new(self, infos: Mapping[str, FileInfo], parse: Callable[[str, bytes], Root]) -> Iterator[Root]:
        """Read the files that aren't known as they are; one that is gone by then is left out."""
        files: dict[str, _Stamp] = {path: (info.size, info.modified_ms) for path, info in infos.items()}
        old = {p for p, stamp in files.items() if None not in stamp and p in self._read and self._read[p][0] == stamp}
        content = read_existing(self.table.store, [p for p in files if p not in old])
        self._lost |= len(old) + len(content) < len(files)
        for path, stamp in files.items():
            if path in content:
                self._read[path] = stamp, parse(path, content[path])
            if path in content or path in old:
                yield self._read[path][1]

    def without_vanished(self, living: Sequence[Root], do: Callable[[Sequence[Root]], T]) -> T:
        """Call ``do`` with roots whose files must be there. One that another expiry takes away at this moment, together
        with what it names, is left out: it keeps nothing any more. So is an entry of the trash that has lost some of
        its manifests: to Paimon's own orphan cleaning, they are orphans.

        Raises:
            FormatError: one that stays can't be read.
        """
        failed = 0
        for left in reversed(range(_MOST_ROUNDS)):
            try:
                return do(living)
            except FormatError:
                known = set(self._ever)
                found = self.read_once().living
                now = {(r.path, r.data) for r in found}
                suspects = [r for r in living if r.kind == TRASH or (r.path, r.data) not in now]
                there = set(self.table.store.names(MANIFEST_DIR)) if suspects else set()
                lost = {(r.path, r.data) for r in suspects if not has_all_metadata(self.table, r, there)}
                # One that is new may have the files of one that is gone: it was renamed.
                renamed = [r for r in found if r.kind != TRASH and (r.path, r.data) not in known]
                living = [*(r for r in living if (r.path, r.data) not in lost), *renamed]
                failed += 0 if lost else 1
                if failed == _TRIES or not left:
                    raise
                time.sleep(0.02 * failed)  # Paimon deletes a snapshot's manifests right before the snapshot
        raise AssertionError  # the last round returns or raises


def unfinished_warnings(roots: Roots) -> list[str]:
    """Say which branches are incomplete. What is there of them keeps its files; nothing of them expires."""
    return [
        f"branch {branch!r} {matter}: nothing of it expires. If no operation on that branch is running, it was "
        "interrupted: check_table shows how to finish it"
        for branch, matter in roots.unfinished
    ]


def _numbered(names: list[str], prefix: str) -> list[str]:
    return [name for name in names if name in {f"{prefix}{i}" for i in numbered([name], prefix) if i > 0}]


def _root(view: Table, path: str, kind: str, name: str, data: bytes) -> Root:
    if kind == TAG:
        try:
            tag = parse_tag(data, name)
        except FormatError as error:
            raise FormatError(f"{view.name}: {path}: {error.message}") from error
        return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=tag.snapshot, tag=tag)
    snapshot = parse_snapshot(data, f"{view.name}: {path}")
    if str(snapshot.id) != name:
        raise FormatError(f"{view.name}: {path} has the id {snapshot.id} inside; {RESTORE}")
    return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=snapshot)


def _operations(main: Table, since_ms: int | None) -> Iterator[OperationRecord]:
    """Operations without a result, and the last batches of streams, which are tried again in the same way."""
    ended = {info.name for info in main.store.list(RESULTS.folder)}
    young = [
        f"{folder}/{info.name}"
        for folder in (OPERATIONS.folder, STREAMS.folder)
        for info in main.store.list(folder)
        if not info.is_dir and is_record(info.name) and info.name not in ended
        if since_ms is None or info.modified_ms is None or info.modified_ms >= since_ms
    ]
    for path, data in read_existing(main.store, young).items():
        name = f"{main.name}: {path}"
        if path.startswith(STREAMS.folder):
            batch = BatchRecord.parse(data, name)
            yield OperationRecord(operation_id=f"stream {batch.query}", branch=batch.branch, start=batch.head or 1)
        else:
            tried = AttemptRecord.parse(data, name)
            if tried.commits:
                yield OperationRecord(operation_id=tried.operation_id, branch=tried.branch, start=tried.head or 1)


def _unfinished(main: Table, views: Iterable[Table]) -> Iterator[tuple[str, str]]:
    records = {name: read_branch_record(main, name) for name in recorded_branches(main)}
    changing = {name: r.state for name, r in records.items() if r is not None and r.state != READY}
    yield from ((name, f"is incomplete ({state})") for name, state in sorted(changing.items()))
    for view in views:
        name = view.branch_name
        without_schema = name != MAIN and name not in changing and not view.exists()
        if without_schema and main.store.walk(view.paths.root.rstrip("/")):  # on a disk an empty folder may stay
            yield name, "has no schema"
