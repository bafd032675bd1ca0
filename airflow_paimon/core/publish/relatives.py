"""Publishes of a branch's relatives, which have files in common with it: its rebase, a branch made from it, or the one
that it was rebased or made from.

A file of both is known by its name on main, so publishing both is safe while that file is live on main and on the
branch. Once either side has merged it into another file, or changed its rows, nothing tells any more which rows are the
same (docs/contributing/publishing.md, Relatives).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.audit_properties import recorded_between
from airflow_paimon.core.publish.earlier_publishes import (
    BranchPublish,
    Recognised,
    publish_scope,
    rollbacks_before,
    standing_of,
)
from airflow_paimon.core.publish.hold import PublishedMark
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.table.history import Difference, difference
from airflow_paimon.core.table.lineage import Lineage, read_lineage, state_text
from airflow_paimon.core.table.partition_scope import PartitionScope
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CAME_FROM_PROPERTY,
    FAMILY_PROPERTY,
    REBASED_BRANCH_PROPERTY,
)
from airflow_paimon.core.table.scan import read_each_delta_list, read_entries
from airflow_paimon.core.table.table import Table


def family_properties(record: Lineage | None) -> dict[str, str]:
    """Return the snapshot properties that say to which family a published branch belongs, and what it came from."""
    if record is None or not record.known_origin:
        return {}
    came = {CAME_FROM_PROPERTY: json.dumps(record.came_from)} if record.came_from else {}
    return {FAMILY_PROPERTY: record.family_name, **came}


def brought_by_relatives(
    main: Table, branch: Table, since: Sequence[Snapshot], known: Recognised
) -> tuple[BranchPublish, ...]:
    """Return the publishes of relatives on which main stands, each with the newest state of the branch, or of the one
    that it was made from, whose changes it brought to main. Of the others it can't be told.

    ``since``: main's snapshots after the branch point; ``known``: the branch's own publishes.
    """
    others = _others_standing(main, since, known)
    record = read_lineage(main, branch.branch_name) if others else None
    if record is None:
        return ()
    of_family = [p for p in others if p.main.properties.get(FAMILY_PROPERTY) == record.family_name]
    newest: dict[str, int] = {}
    for publish in of_family:
        name, number = _published(publish)
        newest[name] = max(number, newest.get(name, 0))
    return tuple(found for p in of_family if (found := _with_state(main, branch, record, p, newest)) is not None)


def _with_state(
    main: Table, branch: Table, record: Lineage, publish: BranchPublish, newest: Mapping[str, int]
) -> BranchPublish | None:
    """The branch's own states come first; else it is as it began, if that was brought; else what a parent had.

    ``newest``: the newest snapshot that each relative has published.
    """
    brought = _brought(main, publish, newest)
    own = _newest(branch, brought)
    if own is not None:
        return None if rollbacks_before(branch, own) else replace(publish, branch=own)
    beginning = _kept_beginning(branch, record, branch.latest_snapshot_id() or 0)
    if beginning is None:
        return None
    if record.came_from[-1] in brought:
        return replace(publish, branch=beginning)
    names = [record.from_branch, _published(publish)[0]]  # a rebase has no parent but by its rows
    at = record
    while at.came_from:
        for view in map(main.branch, names):
            began, then = _state(view, at.came_from[-1]), _newest(view, brought)
            if began is None or then is None:
                continue
            if began.id <= then.id:
                until = max(then.id, newest.get(view.branch_name, 0))
                if any(s.id <= until for s in rollbacks_before(view, began)):
                    return None
                return replace(publish, branch=beginning if at is record else began, of_parent=at is not record)
            return None if at.from_branch == MAIN else replace(publish, branch=then, of_parent=True)
        parent, until = at.from_branch, _number(at.came_from[-1])
        above = None if parent == MAIN else read_lineage(main, parent)
        if above is None or _kept_beginning(main.branch(parent), above, until) is None:
            return None
        at, names = above, [above.from_branch]
    return None


def _published(publish: BranchPublish) -> tuple[str, int]:
    """Return the branch that was published, and which snapshot of it."""
    said = publish.main
    return said.properties.get(BRANCH_PROPERTY, MAIN), said.number(BRANCH_SNAPSHOT_PROPERTY) or 0


def _brought(main: Table, publish: BranchPublish, newest: Mapping[str, int]) -> list[str]:
    """Return the state that a relative published, and those that it came from and had not taken back by then. What
    can't be told, as a branch on the way is gone, is left out.
    """
    name, number = _published(publish)
    out = [f"{number}:{publish.main.properties[BRANCH_IDENTITY_PROPERTY]}"]
    until = newest[name]
    for text in reversed(publish.main.values(CAME_FROM_PROPERTY, list)):
        view, record = main.branch(name), read_lineage(main, name)
        if record is None or record.came_from[-1:] != (text,) or _state(view, out[-1]) is None:
            break
        began = _kept_beginning(view, record, until)
        if began is None:
            break
        out.append(text)
        name = record.from_branch if record.from_branch != MAIN else began.properties.get(REBASED_BRANCH_PROPERTY, MAIN)
        until = _number(text)
    return out


def _kept_beginning(view: Table, record: Lineage, until: int) -> Snapshot | None:
    """Return the branch as it was made from another one; None: that is gone, or the branch was rolled back to before
    it, up to its snapshot ``until``.
    """
    found = _beginning(view, record) if record.came_from else None
    if found is None or any(s.id <= until for s in rollbacks_before(view, found)):
        return None
    rebased = REBASED_BRANCH_PROPERTY in found.properties
    return found if rebased or state_text(found) == record.came_from[-1] else None


def _newest(view: Table, texts: Iterable[str]) -> Snapshot | None:
    """Return the newest of these states that is the branch's own."""
    own = (s for text in texts if (s := _state(view, text)) is not None)
    return max(own, key=lambda s: s.id, default=None)


def meets_relative(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    since: Sequence[Snapshot],
    is_whole: bool,
    known: Recognised,
    marks: Sequence[PublishedMark],
    theirs: Difference,
    rest: Difference,
    ours: Difference,
    scope: PartitionScope,
) -> bool:
    """Whether main stands on the publish of a relative, and a file that both had is not on main and on the branch now.

    ``since``: main's snapshots after ``base``; ``is_whole``: all of them are there, else the records of publishes are
    read. ``theirs`` and ``ours``: what branch and main changed since ``base``. ``known``: the branch's own publishes,
    of which ``marks`` tells when main's snapshots are gone; ``rest``: of ``theirs`` what none of them brought.
    """
    history = since if is_whole else _with_records(main, base, head, since)
    others = [
        p for p in _others_standing(main, history, known) if p.scope.meets(scope) and not _is_own(branch, p.main, marks)
    ]
    if not others:
        return False
    mine, on_main = _origins(theirs, scope.holds), _origins(ours, scope.holds)
    record, both = read_lineage(main, branch.branch_name), mine & on_main
    for publish in others:
        shared = _shared(branch, base, record, publish, scope)
        if shared is None or shared - both:
            return True
    there = [p.main for p in others if p.main in since]
    return _came_and_went(main, there, _origins(rest, scope.holds) - on_main)


def _with_records(main: Table, base: Snapshot, head: Snapshot, since: Sequence[Snapshot]) -> list[Snapshot]:
    found = {s.id: s for s in recorded_between(main, base.id, head.id)}
    return [s for _, s in sorted((found | {s.id: s for s in since}).items())]


def _others_standing(main: Table, since: Sequence[Snapshot], known: Recognised) -> list[BranchPublish]:
    """Return the publishes of other branches that main's head stands on. ``branch`` is main's snapshot there."""
    published = [s for s in since if BRANCH_IDENTITY_PROPERTY in s.properties and s.id not in known.found]
    if not published:
        return []
    schema = main.schema()
    others = {s.id: BranchPublish(main=s, branch=s, scope=publish_scope(schema, s, main.label)) for s in published}
    standing = standing_of(since, Recognised(found={**known.found, **others}))
    return [publish for publish in standing.publishes if publish.main.id in others]


def _is_own(branch: Table, publish: Snapshot, marks: Sequence[PublishedMark]) -> bool:
    said = publish.properties
    text = f"{said.get(BRANCH_SNAPSHOT_PROPERTY)}:{said[BRANCH_IDENTITY_PROPERTY]}"
    state = _state(branch, text)
    named = said.get(BRANCH_PROPERTY) == branch.branch_name
    return state is not None and (named or any(mark.snapshot == state.id for mark in marks))


def _shared(
    branch: Table, base: Snapshot, record: Lineage | None, publish: BranchPublish, scope: PartitionScope
) -> set[str] | None:
    """Return the files, by their names on a branch, that both branches had once; None: it can't be told any more."""
    said = publish.main.properties
    if record is None or said.get(FAMILY_PROPERTY) != record.family_name:
        return set()
    states = [s for text in publish.main.values(CAME_FROM_PROPERTY, list) if (s := _state(branch, text)) is not None]
    if record.came_from and (own := _beginning(branch, record)) is not None:
        states.append(own)
    if not states:
        return None

    def holds(partition: bytes) -> bool:
        return scope.holds(partition) and publish.scope.holds(partition)

    return set[str]().union(*(_origins(difference(branch, base, state), holds) for state in states))


def _state(branch: Table, text: str) -> Snapshot | None:
    """Return the branch's own snapshot that ``state_text`` has written, None if it is another branch's, or gone."""
    found = branch.find_snapshot(_number(text))
    return found if found is not None and state_text(found) == text else None


def _number(text: str) -> int:
    """Return the number of the snapshot that ``state_text`` has written; 0, which none has: it is damaged."""
    number = text.partition(":")[0]
    return int(number) if number.isdigit() else 0


def _beginning(branch: Table, record: Lineage) -> Snapshot | None:
    """Return the branch as it was made from another one: the commit of a rebase, or its first snapshot."""
    first = record.snapshot_id or 0
    rebased = branch.find_snapshot(first + 1)
    if rebased is not None and REBASED_BRANCH_PROPERTY in rebased.properties:
        return rebased
    return branch.find_snapshot(first)


def _came_and_went(main: Table, publishes: Sequence[Snapshot], missing: set[str]) -> bool:
    """Whether one of these publishes brought a file of the branch that main has no more, whatever was recorded."""
    if not (publishes and missing):
        return False
    brought = read_each_delta_list(main, publishes)
    entries = (e for part in read_entries(main, [m for rows in brought for m in rows]) for e in part)
    return any(e.kind == FileKind.ADD and origin_name(e.file.file_name) in missing for e in entries)


def _origins(changed: Difference, holds: Callable[[bytes], bool]) -> set[str]:
    groups = (files for bucket, files in changed.added.items() if holds(bucket.partition))
    return {origin_name(i.file_name) for files in groups for i in files}
