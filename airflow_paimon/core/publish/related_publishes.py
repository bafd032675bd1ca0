"""Publishes of a branch's relatives: its rebase, a branch made from it, or the one that it was rebased or made from.

Main gets by them what the branch began with, or what it had when the other one began (docs/contributing/publishing.md,
Relatives).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_paimon.core.errors import LostMetadataError
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.earlier_publishes import (
    BranchPublish,
    PublishesOnMain,
    own_state,
    rollbacks_before,
    state_number,
)
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.table.branch_record import BranchRecord, read_branch_record, snapshot_key
from airflow_paimon.core.table.manifest_entries import read_deltas
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CAME_FROM_PROPERTY,
    REBASED_BRANCH_PROPERTY,
)
from airflow_paimon.core.table.table import Table


def match_relatives(main: Table, branch: Table, on_main: PublishesOnMain) -> PublishesOnMain:
    """Return the standing publishes with what each relative's brought to main: the newest state of the branch, or of
    the one that it was made from.
    """
    record = read_branch_record(main, branch.branch_name) if on_main.relatives else None
    newest: dict[str, int] = {}
    for publish in on_main.relatives:
        name, number = _published(publish)
        newest[name] = max(number, newest.get(name, 0))
    found = {p.main.id: _with_brought_state(main, branch, record, p, newest) for p in on_main.relatives}
    return replace(
        on_main,
        relatives=tuple(p for p in found.values() if p is not None),
        unmatched=tuple(p for p in on_main.relatives if found[p.main.id] is None),
    )


def _with_brought_state(
    main: Table, branch: Table, record: BranchRecord | None, publish: BranchPublish, newest: Mapping[str, int]
) -> BranchPublish | None:
    """Return a relative's publish with the newest state that main got by it and that the branch has as well; None: it
    can't be told.

    That is one of the branch's own; else what it began with, if the relative brought that; else, where both came from
    one parent, the older one of what they began with. ``newest``: the newest snapshot that each relative has published.
    """
    brought = _brought(main, publish, newest)
    own = _newest(branch, brought)
    if own is not None:
        return None if rollbacks_before(branch, own) else replace(publish, branch=own)
    beginning = None if record is None else _kept_beginning(branch, record, branch.latest_snapshot_id() or 0)
    if record is None or beginning is None:
        return None
    if record.came_from[-1] in brought:
        return replace(publish, branch=beginning)
    names = [record.from_branch, _published(publish)[0]]  # a rebase has no parent but by its rows
    at = record
    while at.came_from:
        for view in map(main.branch, names):
            began, then = own_state(view, at.came_from[-1]), _newest(view, brought)
            if began is None or then is None:
                continue
            if began.id <= then.id:
                until = max(then.id, newest.get(view.branch_name, 0))
                if any(s.id <= until for s in rollbacks_before(view, began)):
                    return None
                return replace(publish, branch=beginning if at is record else began, of_parent=at is not record)
            return None if at.from_branch == MAIN else replace(publish, branch=then, of_parent=True)
        parent, until = at.from_branch, state_number(at.came_from[-1])
        above = None if parent == MAIN else read_branch_record(main, parent)
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
        view, record = main.branch(name), read_branch_record(main, name)
        if record is None or record.came_from[-1:] != (text,) or own_state(view, out[-1]) is None:
            break
        began = _kept_beginning(view, record, until)
        if began is None:
            break
        out.append(text)
        name = record.from_branch if record.from_branch != MAIN else began.properties.get(REBASED_BRANCH_PROPERTY, MAIN)
        until = state_number(text)
    return out


def _kept_beginning(view: Table, record: BranchRecord, until: int) -> Snapshot | None:
    """Return the branch as it was made from another one; None: that is gone, or the branch was rolled back to before
    it, up to its snapshot ``until``.
    """
    if not record.came_from:
        return None
    first = record.snapshot_id or 0
    found = view.find_snapshot(first + 1)  # the commit of a rebase
    rebased = found is not None and REBASED_BRANCH_PROPERTY in found.properties
    found = found if rebased else view.find_snapshot(first)
    if found is None or any(s.id <= until for s in rollbacks_before(view, found)):
        return None
    return found if rebased or snapshot_key(found) == record.came_from[-1] else None


def _newest(view: Table, texts: Iterable[str]) -> Snapshot | None:
    """Return the newest of these states that is the branch's own."""
    own = (s for text in texts if (s := own_state(view, text)) is not None)
    return max(own, key=lambda s: s.id, default=None)


def brought_and_removed(main: Table, publishes: Sequence[Snapshot], missing: set[str]) -> bool:
    """Whether one of these publishes brought a file of the branch that main has no more, whatever was recorded."""
    for publish in publishes if missing else ():
        try:
            [entries] = read_deltas(main, [publish])
        except LostMetadataError:  # it has expired, and no tag holds it
            continue
        if any(e.kind == FileKind.ADD and origin_name(e.file.file_name) in missing for e in entries):
            return True
    return False
