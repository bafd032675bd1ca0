"""delete_branch, and the removal that create_branch with ``replace`` does first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_paimon.core.branches.branch_plan import DeletePlan, plan_delete_branch
from airflow_paimon.core.branches.ownership import being_changed, refuse_protected
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.plan import Action, Delete, Plan, PutNew, Replace
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DeleteBranch
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.store.base import read_if_there
from airflow_paimon.core.table.lineage import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    RENAMING,
    Lineage,
    lineage_path,
    not_ready,
    read_lineage,
)
from airflow_paimon.core.table.paths import MAIN, BranchPaths, protects
from airflow_paimon.core.table.table import Table

_REFERRING_OPTIONS = (
    "scan.fallback-branch",
    "scan.primary-branch",
    "scan.fallback-snapshot-branch",
    "scan.fallback-delta-branch",
)


def delete_branch(context: Context, request: DeleteBranch) -> OperationResult:
    """Delete a branch's metadata. Its data files become orphans where nothing else refers to them.

    An interrupted deletion is finished by running it again.

    Raises:
        UnsafeOperationError: a table option or another branch needs it, or it is protected. NotFoundError: no such
            branch.
        ConflictError: a concurrent commit wrote to it, it is not at the expected snapshot, or it is being renamed;
            nothing was deleted.
    """
    name, table = request.branch, context.table
    if name == MAIN:
        raise InvalidInputError(f"{table.name}: branch main can't be deleted")
    with attempt_of(context) as tried:
        return _delete_branch(context, request, name, retried=tried.retried)


def _delete_branch(context: Context, request: DeleteBranch, name: str, *, retried: bool) -> OperationResult:
    table = context.table
    if not is_there(table, name):
        finished = _finish(context, request)
        if retried:
            details = {"already_gone": True, "replayed": True}
            return context.result(None, branch=name, changed=request.if_missing != "skip", details=details)
        if request.if_missing == "skip" or finished:
            return context.result(None, branch=name, changed=False, details={"already_gone": True})
        raise table.branch(name).missing()
    refuse_protected(table, name, "delete", force=request.force)
    check_deletable_branch(table, name)
    removal = gather_removal(table, name, context.now_iso, request.operation)
    _refuse_other_head(table, removal, request.expected_branch_snapshot)
    if not request.dry_run:
        remove_branch(table, removal)
    plan = removal.plan.whole()
    return context.result(plan, branch=name, changed=True, before=removal.head, details={"files": removal.files})


def _refuse_other_head(table: Table, removal: Removal, expected: int | None) -> None:
    """Refuse another head; ``remove_branch`` checks for later commits until no engine can commit any more."""
    if expected is None or removal.is_under_way or (removal.head or 0) == expected:
        return
    raise ConflictError(
        f"{table.name}: branch {removal.branch!r} is at snapshot {removal.head}, not at {expected} as expected; "
        f"nothing was deleted",
        details={"expected_branch_snapshot": expected, "branch_snapshot": removal.head},
    )


def is_there(table: Table, name: str) -> bool:
    """Whether there is a branch to delete: its folder exists, not recreated by another engine since our deletion."""
    if "/" in name or name not in table.branch_names():
        return False
    record = read_lineage(table, name)
    return record is None or record.state != DELETED or not table.branch(name).exists()


def _finish(context: Context, request: DeleteBranch) -> bool:
    """Remove the record and the tags of a branch without a folder; return whether there was a record."""
    table, name = context.table, request.branch
    record = None if "/" in name else read_lineage(table, name)
    if record is None or request.dry_run:
        return False
    tags = [] if record.state == DELETED else protective_paths(table, name)
    actions = [Delete(path=p, reason=f"protected files of the deleted branch {name}") for p in tags]
    actions.append(Delete(path=lineage_path(name), reason="the branch's record"))
    execute(table, Plan(operation=request.operation, table=table.name, actions=tuple(actions)))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A branch to delete.

    The removal is valid for this ``record`` and these ``snapshots`` (content of the snapshot files, by id).
    ``is_under_way``: an interrupted deletion can't be undone any more.
    """

    branch: str
    snapshots: Mapping[int, bytes]
    plan: DeletePlan
    files: int
    record: bytes | None
    is_under_way: bool

    @property
    def head(self) -> int | None:
        """Its newest snapshot id."""
        return max(self.snapshots, default=None)


def gather_removal(
    table: Table, name: str, now_iso: str, operation: str, *, keep: str | None = None, successor: Lineage | None = None
) -> Removal:
    """Plan the deletion of a branch in its current state; an interrupted deletion is continued.

    ``keep``: path of a protective tag that stays. ``successor``: record of the branch that takes the name.

    Raises:
        ConflictError: it is being renamed, or concurrently deleted.
    """
    seen, record = branch_record(table, name), read_lineage(table, name)
    view = table.branch(name)
    try:
        snapshots = _contents(table, {i: view.paths.snapshot(i) for i in view.snapshot_ids()})
        files = table.store.walk(BranchPaths(name).root.rstrip("/"))
        schemas = _contents(table, {i: view.paths.schema(i) for i in view.schema_ids()})
    except NotFoundError as error:
        raise being_changed(table, name) from error
    if record is None:
        record = Lineage(branch=name, created_at=now_iso, known_origin=False)
    if record.state == RENAMING or (record.state == CREATING and record.peer is not None):
        raise not_ready(view, record)
    if record.state == DELETING:
        schemas |= {int(i): text.encode() for i, text in record.schemas.items()}
    before = record.in_state(READY) if record.state in (DELETING, DELETED) else record
    plan = plan_delete_branch(
        operation,
        table.name,
        before,
        files,
        schemas,
        [p for p in protective_paths(table, name) if p != keep],
        head=max(snapshots, default=None),
        since=now_iso,
        successor=successor,
    )
    return Removal(
        branch=name,
        snapshots=snapshots,
        plan=plan,
        files=len(files),
        record=seen,
        is_under_way=record.state == DELETED,
    )


def _contents(table: Table, paths: Mapping[int, str]) -> dict[int, bytes]:
    return dict(zip(paths, table.store.read_many(list(paths.values())), strict=True))


def remove_branch(table: Table, removal: Removal) -> None:
    """Delete the branch, unless it is concurrently written, or another branch is created from it.

    The record is checked before each file is deleted: if another operation has changed it, this one stops.

    Raises:
        ConflictError: it was written; nothing was deleted. UnsafeOperationError: another branch was created from it.
    """
    _refuse_if_written(table, removal)
    if branch_record(table, removal.branch) != removal.record:
        raise being_changed(table, removal.branch)
    execute(table, removal.plan.hide)
    try:
        _refuse_if_written(table, removal)
        refuse_parent(table, removal.branch)
    except (ConflictError, UnsafeOperationError):
        if is_marked(table, removal.branch, removal.plan.hide.actions[0]):
            execute(table, removal.plan.undo)
        raise
    if not is_marked(table, removal.branch, removal.plan.hide.actions[0]):
        _give_way(table, removal)
    mark = removal.plan.remove.actions[0]

    def still_ours(_: Action) -> None:
        if not is_marked(table, removal.branch, mark):
            raise being_changed(table, removal.branch)

    execute(table, removal.plan.remove, still_ours)
    execute(table, removal.plan.end)


def _give_way(table: Table, removal: Removal) -> NoReturn:
    """Leave the branch to the operation that has meanwhile changed its record; if it is ready, restore its schemas."""
    now = read_lineage(table, removal.branch)
    if now is not None and now.state == READY:
        schemas = [a for a in removal.plan.undo.actions if isinstance(a, PutNew)]
        execute(table, replace(removal.plan.undo, actions=tuple(schemas)))
    raise being_changed(table, removal.branch)


def branch_record(table: Table, name: str) -> bytes | None:
    """Return a branch's record without verifying it."""
    return read_if_there(table.store, lineage_path(name))


def is_marked(table: Table, name: str, mark: Action) -> bool:
    """Whether a branch's record is still the one written by this operation: no other one is changing the branch."""
    return isinstance(mark, Replace | PutNew) and branch_record(table, name) == mark.data


def _refuse_if_written(table: Table, removal: Removal) -> None:
    """Compare the content of its newest snapshot: after another engine's rollback the next commit has an old id."""
    view = table.branch(removal.branch)
    newest = view.latest_snapshot_id()
    if newest is None:
        return  # nothing is left to be lost
    now = read_if_there(table.store, view.paths.snapshot(newest))
    if now is None or now != removal.snapshots.get(newest):
        raise ConflictError(
            f"{table.name}: branch {removal.branch!r} was written meanwhile; nothing was deleted. Stop its "
            f"writers and run it again"
        )


def protective_paths(table: Table, branch: str) -> list[str]:
    """Return the paths of the tags, on main and on other branches, that keep the files of a branch."""
    views = [v for v in all_views(table) if v.branch_name != branch]
    return [v.paths.tag(name) for v in views for name in v.tag_names() if protects(name) == branch]


def all_views(table: Table) -> list[Table]:
    """Return main and all branches, including incomplete ones."""
    return [table.branch(MAIN), *(table.branch(n) for n in table.branch_names())]


def check_deletable_branch(table: Table, name: str) -> None:
    """Refuse if an option of any branch, or the base of another branch, needs this one.

    Raises:
        UnsafeOperationError: names the option or the branch.
    """
    for view in all_views(table):
        try:
            options = view.schema().options if view.exists() else {}
        except NotFoundError:  # concurrently deleted
            continue
        used = [k for k in _REFERRING_OPTIONS if options.get(k, "").strip().lower() == name.lower()]
        if used and view.branch_name != name:
            raise UnsafeOperationError(
                f"{view.label} reads branch {name!r} through option {used[0]}; unset that option first"
            )
    refuse_parent(table, name)


def refuse_parent(table: Table, name: str) -> None:
    """Refuse if another branch starts from this one; that branch sets its protective tag here before it checks its
    base.

    Raises:
        UnsafeOperationError: names the other branch.
    """
    children = {protects(tag) for tag in table.branch(name).tag_names()} - {None, name}
    living = set(table.branch_names()) if children else set()
    for child in sorted(c for c in children if c is not None):
        if child in living or read_lineage(table, child) is not None:
            raise UnsafeOperationError(
                f"{table.name}: branch {child!r} starts from branch {name!r} and shares its files; delete {child!r} "
                f"first"
            )
