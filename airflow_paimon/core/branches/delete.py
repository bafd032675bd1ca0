"""delete_branch, and the removal that create_branch with ``replace`` does first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_paimon.core.branches.branch_plan import DeletePlan, plan_delete_branch
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.plan import Action, Delete, Plan, PutNew, Replace
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DeleteBranch
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.branch_state import not_ready
from airflow_paimon.core.table.lineage import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    RENAMING,
    Lineage,
    lineage_path,
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
        UnsafeOperationError: a table option or another branch needs it. NotFoundError: no such branch.
        ConflictError: a concurrent commit wrote to it, or it is being renamed; nothing was deleted.
    """
    name, table = request.branch, context.table
    if name == MAIN:
        raise InvalidInputError(f"{table.name}: branch main can't be deleted", table=table.name)
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
    check_deletable_branch(table, name)
    removal = gather_removal(table, name, context.now_iso, request.operation)
    if not request.dry_run:
        remove_branch(table, removal)
    plan = removal.plan.whole()
    return context.result(plan, branch=name, changed=True, before=removal.head, details={"files": removal.files})


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
    """A branch to delete. The removal is valid for this ``record`` and ``head`` (its newest snapshot id)."""

    branch: str
    head: int | None
    plan: DeletePlan
    files: int
    record: bytes | None


def gather_removal(
    table: Table, name: str, now_iso: str, operation: str, *, keep: str | None = None, successor: Lineage | None = None
) -> Removal:
    """Plan the deletion of a branch in its current state; an interrupted deletion is continued.

    ``keep``: path of a protective tag that stays. ``successor``: record of the branch that takes the name.

    Raises:
        ConflictError: it is being renamed.
    """
    seen, record = branch_record(table, name), read_lineage(table, name)
    view = table.branch(name)
    head = view.latest_snapshot_id()
    files = table.store.walk(BranchPaths(name).root.rstrip("/"))
    ids = view.schema_ids()
    schemas = dict(zip(ids, table.store.read_many([view.paths.schema(i) for i in ids]), strict=True))
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
        head=head,
        since=now_iso,
        successor=successor,
    )
    return Removal(branch=name, head=head, plan=plan, files=len(files), record=seen)


def remove_branch(table: Table, removal: Removal) -> None:
    """Delete the branch, unless it is concurrently written, or another branch is created from it.

    Raises:
        ConflictError: it was written; nothing was deleted. UnsafeOperationError: another branch was created from it.
    """
    _refuse_if_written(table, removal)
    if branch_record(table, removal.branch) != removal.record:
        raise _another(table, removal)
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
    execute(table, removal.plan.remove)
    if not is_marked(table, removal.branch, removal.plan.remove.actions[0]):
        raise _another(table, removal)
    execute(table, removal.plan.end)


def _give_way(table: Table, removal: Removal) -> NoReturn:
    """Leave the branch to the operation that has meanwhile changed its record; if it is ready, restore its schemas."""
    now = read_lineage(table, removal.branch)
    if now is not None and now.state == READY:
        schemas = [a for a in removal.plan.undo.actions if isinstance(a, PutNew)]
        execute(table, replace(removal.plan.undo, actions=tuple(schemas)))
    raise _another(table, removal)


def branch_record(table: Table, name: str) -> bytes | None:
    """Return a branch's record without verifying it."""
    try:
        return table.store.read(lineage_path(name))
    except NotFoundError:
        return None


def is_marked(table: Table, name: str, mark: Action) -> bool:
    """Whether a branch's record is still the one written by this operation: no other one is changing the branch."""
    return isinstance(mark, Replace | PutNew) and branch_record(table, name) == mark.data


def _another(table: Table, removal: Removal) -> ConflictError:
    return ConflictError(
        f"{table.name}: branch {removal.branch!r} is being changed by another operation; run it again",
        table=table.name,
    )


def _refuse_if_written(table: Table, removal: Removal) -> None:
    if (table.branch(removal.branch).latest_snapshot_id() or 0) > (removal.head or 0):
        raise ConflictError(
            f"{table.name}: branch {removal.branch!r} was written meanwhile; nothing was deleted. Stop its "
            f"writers and run it again",
            table=table.name,
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
        if not view.exists():
            continue
        options = view.schema().options
        used = [k for k in _REFERRING_OPTIONS if options.get(k, "").strip().lower() == name.lower()]
        if used and view.branch_name != name:
            raise UnsafeOperationError(
                f"{view.label} reads branch {name!r} through option {used[0]}; unset that option first",
                table=table.name,
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
                f"first",
                table=table.name,
            )
