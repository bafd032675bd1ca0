"""rename_branch: copy to the new name, hide the old name, delete the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_paimon.core.branches.branch_plan import RenamePlan, plan_rename_branch
from airflow_paimon.core.branches.delete import (
    branch_record,
    check_deletable_branch,
    is_marked,
    protective_paths,
    refuse_parent,
)
from airflow_paimon.core.branches.ownership import being_changed, refuse_protected
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.tag import parse_tag
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import RenameBranch
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.store.base import read_if_there
from airflow_paimon.core.table.lineage import (
    CREATING,
    READY,
    RENAMING,
    Lineage,
    lineage_path,
    read_lineage,
    require_ready,
)
from airflow_paimon.core.table.paths import (
    MAIN,
    TAG_PREFIX,
    BranchPaths,
    check_branch_name,
    protective_tag,
    published_tag,
)
from airflow_paimon.core.table.table import Table


def rename_branch(context: Context, request: RenameBranch) -> OperationResult:
    """Rename a branch with its record and protective tags. An interrupted rename is finished by running it again.

    A commit that another engine makes meanwhile is copied too.

    Raises:
        AlreadyExistsError: a branch of the new name exists.
        ConflictError: the branch is being created or deleted; or the rename was interrupted and both branches were
            written since: then both stay.
    """
    table, old, new = context.table, request.branch, check_branch_name(request.to_branch)
    if old in (MAIN, new):
        why = "main keeps its name" if old == MAIN else "that is its name already"
        raise InvalidInputError(f"{table.name}: branch {old!r} can't be renamed to {new!r}: {why}")
    with attempt_of(context) as tried:
        if tried.retried and _is_renamed(table, old, new):
            head = table.branch(new).latest_snapshot_id()
            details = {"renamed_from": old, "replayed": True}
            return context.result(None, branch=new, changed=True, before=head, after=head, details=details)
        return _rename_branch(context, request, old, new)


def _is_renamed(table: Table, old: str, new: str) -> bool:
    """Whether a rename was completed: the old branch's record is deleted last."""
    before, after = read_lineage(table, old), read_lineage(table, new)
    under_way = (before is not None and before.peer == new) or (after is not None and after.peer == old)
    return not under_way and not table.branch(old).exists() and table.branch(new).exists()


def _rename_branch(context: Context, request: RenameBranch, old: str, new: str) -> OperationResult:
    table = context.table
    gathered = gather_rename(table, old, new, context.now_iso, request.operation)
    if not gathered.resumed:
        if table.store.walk(BranchPaths(new).root.rstrip("/")):
            raise AlreadyExistsError(f"{table.name}: branch {new!r} exists; choose another name")
        require_ready(table.branch(new))
    refuse_protected(table, old, "rename", force=request.force)
    check_deletable_branch(table, old)
    if not request.dry_run:
        _carry_out(context, gathered, old, new)
    head = table.branch(old if request.dry_run else new).latest_snapshot_id()
    plan = gathered.plan.whole()
    return context.result(plan, branch=new, changed=True, before=head, after=head, details={"renamed_from": old})


def _carry_out(context: Context, rename: Rename, old: str, new: str) -> None:
    table, plan = context.table, rename.plan
    _claim(table, rename, old, new)
    try:
        execute(table, plan.copy)
        if plan.claim and not is_marked(table, old, plan.claim.actions[-1]):
            if not rename.resumed and is_marked(table, new, plan.claim.actions[-2]):
                execute(table, plan.withdraw)
            raise being_changed(table, old)
        execute(table, plan.hide)
        if rename.copied:
            late = plan
        else:
            late = gather_rename(table, old, new, context.now_iso, context.request.operation).plan
            execute(table, late.copy)
    except AlreadyExistsError as error:
        both = gather_rename(table, old, new, context.now_iso, context.request.operation)
        execute(table, both.plan.undo)
        raise ConflictError(
            f"{table.name}: branch {old!r} was being renamed to {new!r}, and both were written since the rename was "
            f"interrupted; both stay as they are. Merge one of them, delete it, and rename the other"
        ) from error
    execute(table, late.remove)


def _claim(table: Table, rename: Rename, old: str, new: str) -> None:
    """Write both records, unless another operation is changing one of the branches or branching from the old one."""
    stale = read_lineage(table, new)
    if stale is not None and stale.state == READY and not rename.resumed:
        if table.store.walk(BranchPaths(new).root.rstrip("/")):
            raise AlreadyExistsError(f"{table.name}: branch {new!r} exists; choose another name")
        gone = Delete(path=lineage_path(new), reason="record of a deleted branch")
        execute(table, replace(rename.plan.claim, actions=(gone,)))
    if branch_record(table, old) != rename.record:
        raise being_changed(table, old)
    try:
        execute(table, rename.plan.claim)
    except AlreadyExistsError as error:
        raise being_changed(table, old) from error
    try:
        refuse_parent(table, old)
    except UnsafeOperationError:
        execute(table, rename.plan.undo)
        raise


@dataclass(frozen=True, slots=True)
class Rename:
    """``resumed``: an earlier try was interrupted. ``copied``: the copy was complete, so that only the rest of
    the old branch has to be deleted.

    ``record``: the old branch's record for which the plan is valid.
    """

    plan: RenamePlan
    resumed: bool
    copied: bool
    record: bytes | None


def gather_rename(table: Table, old: str, new: str, now_iso: str, operation: str) -> Rename:
    """Plan a rename, or the rest of an interrupted one.

    Raises:
        NotFoundError: no such branch. ConflictError: it is being created, deleted or given another name.
    """
    seen = branch_record(table, old)
    before, after = read_lineage(table, old), read_lineage(table, new)
    making = after is not None and after.state == CREATING and after.peer == old
    removing = not making and before is not None and before.state == RENAMING and before.peer == new
    since: str | None = now_iso
    if making:
        assert after is not None
        since = after.since
        record = replace(after.in_state(READY), branch=old)
    elif removing:
        assert before is not None
        record = before.in_state(READY)
    else:
        known = require_ready(table.branch(old).require())
        record = known or Lineage(branch=old, created_at=now_iso, known_origin=False)
    files, there = _files(table, old), _files(table, new) if making else {}
    tags = _protective(table, old, new)
    plan = plan_rename_branch(operation, table.name, record, new, files, there, tags, since=since, resumed=making)
    if removing:
        nothing, rest = replace(plan.claim, actions=()), plan.remove.actions[1:]
        plan = replace(plan, claim=nothing, copy=nothing, hide=nothing, remove=replace(plan.remove, actions=rest))
    return Rename(plan, resumed=making or removing, copied=removing, record=seen)


def _files(table: Table, name: str) -> dict[str, bytes]:
    """The content of a branch's files, without temporary files of writers."""
    files = [
        f for f in table.store.walk(BranchPaths(name).root.rstrip("/")) if not f.rpartition("/")[2].startswith(".")
    ]
    return dict(zip(files, table.store.read_many(files), strict=True))


def _protective(table: Table, old: str, new: str) -> dict[str, tuple[str, bytes] | None]:
    """The protective tags by path: path and content under the new name, None if that tag exists already."""
    paths = protective_paths(table, old)
    found: dict[str, tuple[str, bytes] | None] = {}
    for path, data in zip(paths, table.store.read_many(paths), strict=True):
        target = path.replace(protective_tag(old), protective_tag(new))
        there = read_if_there(table.store, target)
        if there not in (None, data):  # a tag of that name keeps other files
            number = parse_tag(data, path).snapshot.id
            target = target.rpartition("/")[0] + f"/{TAG_PREFIX}{published_tag(new, number)}"
            there = read_if_there(table.store, target)
        found[path] = None if there == data else (target, data)
    return found
