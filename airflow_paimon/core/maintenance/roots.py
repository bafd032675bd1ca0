"""The roots of a table: everything that names files, and what else keeps snapshots, over all branches.

Every deletion of files begins here, so that no kind of root can be forgotten in one of them. Roots are snapshots, tags
and long-lived changelogs of main and of every branch, finished or not, and the trash. They are read from listings,
never from hints, until two readings in a row agree: a single listing can miss what is renamed while it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from airflow_paimon.core.commit.idempotency import COMMITS
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import RESTORE, load_json_object, parse_snapshot
from airflow_paimon.core.format.tag import parse_tag
from airflow_paimon.core.maintenance.root_values import (
    CHANGELOG,
    SNAPSHOT,
    TAG,
    TRASH,
    Consumer,
    OperationRecord,
    Roots,
)
from airflow_paimon.core.maintenance.root_values import Root as Root
from airflow_paimon.core.maintenance.trash import TRASH_DIR, parse_trash
from airflow_paimon.core.table.lineage import READY, read_lineage, recorded_branches
from airflow_paimon.core.table.paths import (
    CHANGELOG_PREFIX,
    CONSUMER_PREFIX,
    MAIN,
    PRIVATE_DIR,
    STREAMS_DIR,
    numbered,
)
from airflow_paimon.core.table.table import Table

_TRIES = 5


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
        consumers=tuple(c for view in views for c in consumers_of(view)),
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
        try:
            tag = parse_tag(data, name)
        except FormatError as error:
            raise FormatError(f"{view.name}: {path}: {error.message}", table=view.name) from error
        return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=tag.snapshot, tag=tag)
    snapshot = parse_snapshot(data, f"{view.name}: {path}")
    return Root(kind=kind, branch=view.branch_name, name=name, path=path, data=data, snapshot=snapshot)


def _trash(main: Table) -> Iterator[Root]:
    paths = [p for p in main.store.walk(TRASH_DIR) if p.endswith(".json") and not p.rpartition("/")[2].startswith(".")]
    for path, data in zip(paths, main.store.read_many(paths), strict=True):
        entry = parse_trash(data, f"{main.name}: {path}")
        inner = _root(main.branch(entry.branch), path, entry.kind, entry.name, entry.content)
        yield replace(inner, kind=TRASH, data=data, tag=None, trash=entry)


def consumers_of(view: Table) -> Iterator[Consumer]:
    """Read the consumers of a branch.

    Raises:
        FormatError: one is unreadable; names it. NotFoundError: one was deleted meanwhile.
    """
    folder = view.paths.consumer_dir
    infos = [i for i in view.store.list(folder) if i.name.startswith(CONSUMER_PREFIX)]
    for info, data in zip(infos, view.store.read_many([f"{folder}/{i.name}" for i in infos]), strict=True):
        name = info.name
        where = f"{view.name}: {folder}/{name}"
        following = load_json_object(data, where).get("nextSnapshot")
        if not isinstance(following, int) or isinstance(following, bool):
            raise FormatError(f"{where} has no nextSnapshot; restore it, or delete the consumer", table=view.name)
        yield Consumer(
            branch=view.branch_name,
            name=name.removeprefix(CONSUMER_PREFIX),
            next_snapshot=following,
            modified_ms=info.modified_ms,
        )


def _operations(main: Table, since_ms: int | None) -> Iterator[OperationRecord]:
    """Records of operations, and of the last batches of streams, which are tried again in the same way."""
    young = [
        f"{folder}/{info.name}"
        for folder in (f"{PRIVATE_DIR}/operations", STREAMS_DIR)
        for info in main.store.list(folder)
        if not info.is_dir and info.name.endswith(".json") and not info.name.startswith(".")
        if since_ms is None or info.modified_ms is None or info.modified_ms >= since_ms
    ]
    for path, data in zip(young, main.store.read_many(young), strict=True):
        try:
            raw: Any = json.loads(data)
            if "head" in raw and raw.get(COMMITS, True):  # not a plan of expire_partitions
                name = f"stream {raw['query']}" if path.startswith(STREAMS_DIR) else str(raw["operation_id"])
                yield OperationRecord(operation_id=name, branch=str(raw["branch"]), head=int(raw["head"]))
        except (ValueError, KeyError, TypeError):
            way_out = (
                "look which batches of the stream are in, then delete it"
                if path.startswith(STREAMS_DIR)
                else "see check_table, repair_table deletes it"
            )
            raise FormatError(f"{main.name}: {path} is unreadable; {way_out}", table=main.name) from None


def _unfinished(main: Table, views: Iterable[Table]) -> Iterator[tuple[str, str]]:
    records = {name: read_lineage(main, name) for name in recorded_branches(main)}
    changing = {name: r.state for name, r in records.items() if r is not None and r.state != READY}
    yield from ((name, f"is incomplete ({state})") for name, state in sorted(changing.items()))
    for view in views:
        name = view.branch_name
        without_schema = name != MAIN and name not in changing and not view.exists()
        if without_schema and main.store.walk(view.paths.root.rstrip("/")):  # on a disk an empty folder may stay
            yield name, "has no schema"
