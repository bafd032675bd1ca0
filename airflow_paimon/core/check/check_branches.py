"""Findings about branches: unfinished creations and deletions, missing schemas, missing protection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from airflow_paimon.core.branches.branch_plan import plan_completion
from airflow_paimon.core.branches.create import is_empty_or_at_base
from airflow_paimon.core.branches.delete import gather_removal
from airflow_paimon.core.branches.ownership import stored_record
from airflow_paimon.core.commit.staging import plan_staging_deletion
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import Action, Delete, DeleteFolders, PutNew, Replace
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.store.base import read_existing, read_if_exists
from airflow_paimon.core.table.branch_record import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    BranchRecord,
    branch_record_path,
    read_branch_record,
    recorded_branches,
)
from airflow_paimon.core.table.history import last_shared_snapshot
from airflow_paimon.core.table.paths import MAIN, BranchPaths, protective_tag, protects, published_tag
from airflow_paimon.core.table.record_kinds import BRANCHES
from airflow_paimon.core.table.table import Table

_UNDER_WAY = "The operation is still running, or was interrupted"
_AT_RISK = (
    "nothing of main; commits of airflow-paimon are refused there; while its folder has no schema, Paimon's "
    "remove_orphan_files refuses to work on the whole table"
)

_NOTHING = "a branch without a schema and without a commit contains nothing"


def unfinished_branches(table: Table) -> dict[str, BranchRecord]:
    """Return the records of the branches that are in a state other than ready."""
    records = (read_branch_record(table, name) for name in recorded_branches(table))
    return {r.branch: r for r in records if r is not None and r.state != READY}


def unfinished_findings(table: Table, records: dict[str, BranchRecord]) -> Iterator[Finding]:
    """Findings about interrupted creations and deletions, with the way to finish them."""
    for record in records.values():
        if record.state == CREATING:
            yield _half_created(table, record)
        elif record.state in (DELETING, DELETED):
            yield _half_deleted(table, record)


def _half_created(table: Table, record: BranchRecord) -> Finding:
    """What other engines can load is complete but for schemas, which came last, and may have been written to."""
    name, view, seen = record.branch, table.branch(record.branch), stored_record(table, record.branch)
    again, was_to = "create_branch again with if_exists=skip", f"start from snapshot {record.snapshot_id}"
    if record.peer is not None:
        again, was_to = "rename_branch again", "be made a copy"
    elif record.snapshot_id is None:
        was_to = f"get schema {record.schema_id}"
    actions: Sequence[Action] = ()
    head = view.latest_snapshot_id()
    repair: str | None = f"delete its remains (or run {again} to finish it)"
    if record.peer is None and not is_empty_or_at_base(view, record):
        repair = "leave it to the engine that wrote to it, as a branch that starts empty"
        actions = [Delete(path=branch_record_path(name), expected=seen, reason="the branch has another origin")]
    elif view.exists() and (head is not None or record.snapshot_id is None):
        repair, actions = "finish it", plan_completion(record, seen)
        if record.peer is not None:
            repair += f"; {record.peer!r} stays as well (or run {again})"
    elif record.peer is not None or head in (None, record.snapshot_id):
        actions = gather_removal(table, name, record.created_at, "repair_table").full_plan().actions
    message = f"Branch {name!r} was to {was_to} of {record.peer or record.from_branch}, and is not complete. "
    return _half_done(table, "made", name, message, repair if actions else None, actions)


def _half_deleted(table: Table, record: BranchRecord) -> Finding:
    name, view = record.branch, table.branch(record.branch)
    head = view.latest_snapshot_id() or 0
    what, repair = "is being deleted", "finish the deletion"
    if record.state == DELETED and view.exists():
        what, repair = "was deleted, and another engine has created one of that name since", "forget the deletion"
        gone = Delete(
            path=branch_record_path(name), expected=stored_record(table, name), reason="that branch does not exist"
        )
        actions: tuple[Action, ...] = (gone,)
    else:
        removal = gather_removal(table, name, record.created_at, "repair_table")
        actions = removal.rest if record.state == DELETED else removal.full_plan().actions
        if record.state == DELETING and head > (record.head or 0):
            what = f"is being deleted, and another engine wrote snapshot {head} to it meanwhile"
            repair = "keep the branch (delete_branch deletes it after all)"
            actions = removal.undo
    return _half_done(table, "deleted", name, f"Branch {name!r} {what}. ", repair, actions)


def _from_here(table: Table, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Expect of each branch's record, before the first change of it, what it is now: some steps are not repeated."""
    out: list[Action] = []
    changed: set[str] = set()
    for action in actions:
        if (
            isinstance(action, Delete | Replace)
            and action.path not in changed
            and action.path.startswith(BRANCHES.folder)
        ):
            action = replace(action, expected=read_if_exists(table.store, action.path))
        changed.add(action.path)
        out.append(action)
    return tuple(out)


def _half_done(
    table: Table, what: str, name: str, message: str, repair: str | None, actions: Sequence[Action]
) -> Finding:
    return Finding(
        kind=f"half-{what}-branch",
        subject=name,
        severity=ERROR,
        message=message + _UNDER_WAY,
        at_risk=_AT_RISK,
        repair=repair,
        actions=_from_here(table, actions),
        by_name_only=True,
    )


def without_schema(view: Table) -> Finding:
    root = BranchPaths(view.branch_name).root.rstrip("/")
    name = view.branch_name
    own = _own_snapshots(view)
    files = read_existing(view.store, view.store.walk(root))
    only_hints = set(files) <= {view.paths.latest_hint, view.paths.earliest_hint}
    kept = (
        f"snapshots {', '.join(map(str, own))} are perhaps its own, so only you can decide whether its folder may be "
        "deleted"
    )
    actions: tuple[Action, ...] = (
        ()
        if own
        else (
            *(Delete(path=f, expected=data, reason=_NOTHING) for f, data in sorted(files.items())),
            DeleteFolders(path=root, reason=_NOTHING),
            Delete(path=branch_record_path(name), expected=stored_record(view, name), reason="its record"),
        )
    )
    return Finding(
        kind="branch-without-schema",
        subject=name,
        severity=ERROR,
        message=f"Branch {name!r} has no schema: half made or half deleted" + (f"; {kept}" if own else ""),
        at_risk="no engine can read it, and Paimon's remove_orphan_files refuses to work on the whole table",
        repair="delete its folder" if actions else None,
        actions=actions,
        by_name_only=not only_hints,  # a commit that ended while the branch was deleted has put it
    )


def _own_snapshots(view: Table) -> list[int]:
    """Snapshots of a branch that main holds neither as such nor in a tag, or that can't be read: perhaps rows of its
    own. Paimon's create_branch copies tag and snapshot first, the schemas last, so one that is cut off has none."""
    main = view.branch(MAIN)
    own = []
    try:
        shared = {tag.snapshot.identity for tag in main.tags()}
    except (FormatError, NotFoundError):
        shared = set()
    for snapshot_id in view.snapshot_ids():
        try:
            identity = view.snapshot(snapshot_id).identity
            if identity not in shared and identity != main.snapshot(snapshot_id).identity:
                own.append(snapshot_id)
        except (FormatError, NotFoundError):
            own.append(snapshot_id)
    return own


def staging_finding(view: Table) -> Finding:
    name = view.branch_name
    return Finding(
        kind="staging-branch",
        subject=name,
        severity=INFO,
        message=f"Branch {name!r} is where a correction with engine=connector stages its files: one is under way, or "
        f"was cut off",
        at_risk="nothing; files that were not taken over take up space until orphan cleaning finds them",
        repair="delete it",
        actions=plan_staging_deletion(view).actions,
        by_name_only=True,
    )


def protection_findings(view: Table) -> Iterator[Finding]:
    """A branch that shares files which no tag without retention keeps."""
    table, name = view.branch(MAIN), view.branch_name
    record = read_branch_record(table, name)
    source = table.branch(record.from_branch) if record is not None else table
    source = source if source.exists() else table  # another engine dropped it
    base = last_shared_snapshot(source, view)
    if base is None and record is not None and record.snapshot_id in view.snapshot_ids():
        base = view.snapshot(record.snapshot_id)
    if base is None:
        return
    same = [t.name for t in source.tags() if t.snapshot.identity == base.identity and t.time_retained is None]
    holders = [tag for tag in same if protects(tag) in (None, name)]  # another branch's goes with that branch
    if any(protects(holder) == name for holder in holders) or (holders and record is None):
        return
    taken = source.find_tag(protective_tag(name)) is not None  # on another snapshot, or with a retention
    tag_name = published_tag(name, base.id) if taken else protective_tag(name)
    action = PutNew(
        path=source.paths.tag(tag_name),
        data=Tag(name=tag_name, snapshot=base).to_bytes(),
        reason=f"keeps the files that branch {name} shares",
        same_ok=True,
    )
    yield Finding(
        kind="unprotected-branch",
        subject=name,
        severity=WARNING,
        message=f"Branch {name!r} shares files of snapshot {base.id} of {source.branch_name}, and no protective tag "
        f"keeps them (it was deleted, or another engine made the branch)",
        at_risk=f"when {source.branch_name} expires snapshots, the branch loses files and can't be read",
        repair=f"create tag {tag_name!r}",
        actions=(action,),
    )
