"""delete_branch, and the removal that create_branch with ``replace`` does first."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_paimon.core.branches.branch_plan import DeletePlan, plan_delete_branch
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.plan import Delete, Plan
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
        UnsafeOperationError: a table option or another branch relies on it. NotFoundError: no such branch.
        ConflictError: it was written at this moment, or is being renamed; nothing was deleted.
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
        raise NotFoundError(
            f"{table.name} has no branch {name!r}; its branches: {', '.join(table.branch_names()) or 'none'}",
            table=table.name,
        )
    check_deletable_branch(table, name)
    removal = gather_removal(table, name, context.now_iso, request.operation)
    if not request.dry_run:
        remove_branch(table, removal)
    plan = removal.plan.whole()
    return context.result(plan, branch=name, changed=True, before=removal.head, details={"files": removal.files})


def is_there(table: Table, name: str) -> bool:
    """Whether there is something to delete: a folder, unless another engine made it after ours was gone for good."""
    if "/" in name or name not in table.branch_names():
        return False
    record = read_lineage(table, name)
    return record is None or record.state != DELETED or not table.branch(name).exists()


def _finish(context: Context, request: DeleteBranch) -> bool:
    """Remove the record and the tags of a branch whose folder is gone; tell whether there was a record."""
    table, name = context.table, request.branch
    record = None if "/" in name else read_lineage(table, name)
    if record is None or request.dry_run:
        return False
    tags = [] if record.state == DELETED else protective_paths(table, name)
    actions = [Delete(path=p, reason=f"protected files of branch {name}, which is gone") for p in tags]
    actions.append(Delete(path=lineage_path(name), reason="the branch's record"))
    execute(table, Plan(operation=request.operation, table=table.name, actions=tuple(actions)))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A branch that is to go. ``head``: its newest snapshot id, on which the removal relies."""

    branch: str
    head: int | None
    plan: DeletePlan
    files: int


def gather_removal(
    table: Table, name: str, now_iso: str, operation: str, *, keep: str | None = None, successor: Lineage | None = None
) -> Removal:
    """Plan the deletion of a branch as it is now; an interrupted one is gone on with.

    ``keep``: path of a protective tag that stays. ``successor``: record of the branch that takes the name.

    Raises:
        ConflictError: it is being renamed.
    """
    view, record = table.branch(name), read_lineage(table, name)
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
        successor=successor,
    )
    return Removal(branch=name, head=head, plan=plan, files=len(files))


def remove_branch(table: Table, removal: Removal) -> None:
    """Delete the branch, unless it is written at this moment.

    Raises:
        ConflictError: it was written; nothing was deleted.
    """
    _refuse_if_written(table, removal)
    execute(table, removal.plan.hide)
    try:
        _refuse_if_written(table, removal)
    except ConflictError:
        execute(table, removal.plan.undo)
        raise
    execute(table, removal.plan.remove)


def _refuse_if_written(table: Table, removal: Removal) -> None:
    if table.branch(removal.branch).latest_snapshot_id() != removal.head:
        raise ConflictError(
            f"{table.name}: branch {removal.branch!r} was written at this moment; nothing was deleted. Stop its "
            f"writers and run it again",
            table=table.name,
        )


def protective_paths(table: Table, branch: str) -> list[str]:
    """Give the paths of the tags, on main and on other branches, that keep the files of a branch."""
    views = [v for v in all_views(table) if v.branch_name != branch]
    return [v.paths.tag(name) for v in views for name in v.tag_names() if protects(name) == branch]


def all_views(table: Table) -> list[Table]:
    """Give main and all branches, half-made ones included."""
    return [table.branch(MAIN), *(table.branch(n) for n in table.branch_names())]


def check_deletable_branch(table: Table, name: str) -> None:
    """Refuse when an option of any branch, or the base of another branch, needs this one.

    Raises:
        UnsafeOperationError: says what needs it.
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
    living = set(table.branch_names())
    for tag in table.branch(name).tag_names():
        child = protects(tag)
        if child in living and child != name:
            raise UnsafeOperationError(
                f"{table.name}: branch {child!r} was made from branch {name!r} and shares its files; delete {child!r} "
                f"first",
                table=table.name,
            )
