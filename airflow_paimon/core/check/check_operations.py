"""Snapshots, tags and changelogs that Paimon 2.0 can't read, as their ``operation`` is none of its constants.

Development versions of airflow-paimon wrote COMPACT and INSERT. Paimon before 2.0 ignores the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_paimon.core.commit.committer import WRITER
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.snapshot import Operation, Snapshot, parse_snapshot
from airflow_paimon.core.format.tag import parse_tag
from airflow_paimon.core.metadata_expiry.root_values import TRASH_DIR, parse_trash
from airflow_paimon.core.plan import Delete, Plan, Replace
from airflow_paimon.core.requests.findings import ERROR, Finding
from airflow_paimon.core.table.paths import CHANGELOG_PREFIX, numbered
from airflow_paimon.core.table.table import Table

UNREADABLE = "unreadable-operation"


def operation_findings(view: Table) -> Iterator[Finding]:
    """Find them in one branch. The repair leaves the field out, as in a compaction of Paimon's own.

    The repair replaces a file under its id and uuid. That is safe: nothing decides by the field, and a reader gets the
    whole old or the whole new content, which mean the same state. A file that was changed or taken away since it was
    looked at stays as it is.
    """
    found = [*_snapshots(view), *_tags(view)]
    if not found:
        return
    example = found[0][1]
    yield Finding(
        kind=UNREADABLE,
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: the operation of {len(found)} snapshots, tags or changelogs is no constant of Paimon "
        f"2.0, e.g. {example.operation!r} of snapshot {example.id}",
        at_risk="Paimon 2.0 can't read them: its reads, writes, streams, tags or expiry of the branch fail",
        repair=f"leave the field out of {len(found)} files; their state stays the same",
        actions=tuple(action for action, _ in found),
        by_name_only=not all(_is_ours(snapshot) for _, snapshot in found),
    )


def taken_away(table: Table, plan: Plan) -> Plan:
    """Return the deletions of repaired files that an expiry has moved into the trash at that very moment."""
    repaired = {a.path: a.expected for a in plan.actions if isinstance(a, Replace) and a.expected is not None}
    paths = [p for p in table.store.walk(TRASH_DIR) if p.endswith(".json")] if repaired else []
    entries = [parse_trash(data, path) for path, data in _read(table, paths)]
    reason = "an expiry has taken it away meanwhile"
    actions = [Delete(path=e.path, reason=reason) for e in entries if repaired.get(e.path) == e.content]
    return replace(plan, actions=tuple(actions))


def _snapshots(view: Table) -> Iterator[tuple[Replace, Snapshot]]:
    paths = [view.paths.snapshot(i) for i in view.snapshot_ids()]
    paths += [view.paths.changelog(i) for i in numbered(view.store.names(view.paths.changelog_dir), CHANGELOG_PREFIX)]
    for path, data in _read(view, paths):
        snapshot = parse_snapshot(data, f"{view.name}: {path}")
        if _is_unreadable(snapshot):
            yield _replacement(path, data, replace(snapshot, operation=None).to_bytes()), snapshot


def _tags(view: Table) -> Iterator[tuple[Replace, Snapshot]]:
    for path, data in _read(view, [view.paths.tag(name) for name in view.tag_names()]):
        tag = parse_tag(data, path)
        if _is_unreadable(tag.snapshot):
            readable = replace(tag, snapshot=replace(tag.snapshot, operation=None))
            yield _replacement(path, data, readable.to_bytes()), tag.snapshot


def _read(view: Table, paths: list[str]) -> Iterator[tuple[str, bytes]]:
    try:
        yield from zip(paths, view.store.read_many(paths), strict=True)
    except NotFoundError:  # some have expired meanwhile
        for path in paths:
            try:
                yield path, view.store.read(path)
            except NotFoundError:
                continue


def _is_unreadable(snapshot: Snapshot) -> bool:
    return snapshot.operation is not None and snapshot.operation not in Operation.__members__


def _is_ours(snapshot: Snapshot) -> bool:
    return (snapshot.writer_version or "").startswith(WRITER)


def _replacement(path: str, data: bytes, readable: bytes) -> Replace:
    return Replace(path=path, data=readable, reason="Paimon 2.0 can't read its operation", expected=data)
