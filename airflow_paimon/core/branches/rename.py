"""rename_branch: a copy of the branch under its new name, and the deletion of the old one (``create``, ``delete``).

The record of the copy names the old branch until that is gone, so a rename that was cut off goes on when it is run
again. What is committed to the old branch meanwhile makes it a conflict: both are there, and the next run copies it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from airflow_paimon.core.branches.branch_plan import CreatePlan, Removal, plan_completion, plan_copy_branch
from airflow_paimon.core.branches.create import delete_stale_record, publish_files
from airflow_paimon.core.branches.delete import (
    all_views,
    check_deletable_branch,
    gather_removal,
    remove_branch,
)
from airflow_paimon.core.branches.ownership import (
    changed_meanwhile,
    holds_lock,
    refuse_protected,
    stored_record,
    take_lock,
)
from airflow_paimon.core.branches.retention_tags import missing_tags_of_copy
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import RenameBranch
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.branch_record import (
    CREATING,
    DELETING,
    READY,
    BranchRecord,
    read_branch_record,
    require_ready,
)
from airflow_paimon.core.table.paths import MAIN, SNAPSHOT_PREFIX, BranchPaths, check_branch_name, numbered
from airflow_paimon.core.table.table import Table


def rename_branch(context: Context, request: RenameBranch) -> OperationResult:
    """Rename a branch with its record and protective tags. An interrupted rename is finished by running it again.

    Raises:
        AlreadyExistsError: a branch of the new name exists.
        ConflictError: the branch is being created or deleted, or was written meanwhile: then both stay. Another run
            goes on, unless both were written since.
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
    after = read_branch_record(table, new)
    done = stored_record(table, old) is None and not table.branch(old).exists()
    return done and table.branch(new).exists() and (after is None or after.state == READY)


def _rename_branch(context: Context, request: RenameBranch, old: str, new: str) -> OperationResult:
    table, resumed = context.table, _is_interrupted(context.table, old, new)
    if not resumed:
        require_ready(table.branch(old).require())
        if table.store.walk(BranchPaths(new).root.rstrip("/")):
            raise AlreadyExistsError(f"{table.name}: branch {new!r} exists; choose another name")
        require_ready(table.branch(new))
    refuse_protected(table, old, "rename", force=request.force)
    check_deletable_branch(table, old)
    removal = gather_removal(table, old, context.now_iso, request.operation, copied_to=new)
    root = BranchPaths(new).root.rstrip("/")
    copy = plan_copy_branch(
        request.operation,
        table.name,
        removal.stored,
        to_branch=new,
        copied=table.store.walk(root) if resumed else (),
        protect=_protection(table, old, new),
        since=context.now_iso,
        recorded=stored_record(table, new) if resumed else None,
    )
    if not request.dry_run:
        if not removal.is_under_way:  # else all of it was copied before
            if resumed and not _continues(table, removal, new):
                raise _keep_both(table, removal, new)
            _copy(context, copy, removal, resumed=resumed)
            execute(table, _protection(table, old, new))  # a repair may have taken one for a stale one
        remove_branch(table, removal)
        _end_rename(table, new)
    plan = copy.full_plan(after=removal.full_plan().actions)
    return context.result(
        plan, branch=new, changed=True, before=removal.head, after=removal.head, details={"renamed_from": old}
    )


def _protection(table: Table, old: str, new: str) -> list[PutNew]:
    return [t for v in all_views(table) if v.branch_name != old for t in missing_tags_of_copy(v, old, new)]


def _is_interrupted(table: Table, old: str, new: str) -> bool:
    """Whether an interrupted rename of this very branch has made the new one, or a part of it."""
    made, known = read_branch_record(table, new), read_branch_record(table, old)
    if made is None or made.peer != old or made.state not in (CREATING, READY):
        return False
    if known is None:
        return table.branch(old).exists()
    same = not known.known_origin or known.same_branch(made)
    return same and (known.state == READY or known.peer == new)


def _copy(context: Context, copy: CreatePlan, removal: Removal, *, resumed: bool) -> None:
    table, new = context.table, copy.branch

    def check_source() -> None:
        """Give way to who deletes the old branch: its files are kept only if the copy stood before. A deletion that was
        taken back has put back the record, and schemas that it had hidden while the branch was copied.
        """
        head = BranchPaths(removal.branch).snapshot(removal.head or 0)
        there = removal.head is None or read_if_exists(table.store, head) == removal.stored.files.get(head)
        all_copied = removal.stored.schemas.keys() >= {*table.branch(removal.branch).schema_ids()}
        if there and all_copied and stored_record(table, removal.branch) == removal.stored.record_bytes:
            return
        made = gather_removal(table, new, context.now_iso, context.request.operation)
        if not resumed and made.stored.record_bytes == copy.record.to_bytes():  # else another run goes on with it
            remove_branch(table, made)
        raise changed_meanwhile(table, removal.branch)

    if not resumed:
        execute(table, delete_stale_record(table, new))
    take_lock(table, new, copy.lock)
    execute(table, copy.protect)
    try:
        publish_files(table, copy, check_source)
    except AlreadyExistsError as error:
        if not holds_lock(table, new, copy.lock):
            raise changed_meanwhile(table, new) from error
        raise _keep_both(table, removal, new) from error


def _continues(table: Table, removal: Removal, new: str) -> bool:
    """Whether the snapshots of an interrupted rename's copy are those of the branch, and at most later ones on top.

    Others are of a branch that another engine has made under the name since: what is copied below them is not seen.
    """
    old_dir, paths = BranchPaths(removal.branch).snapshot_dir, BranchPaths(new)
    copied = set(table.branch(new).snapshot_ids())
    own = set(
        numbered(
            [p.removeprefix(f"{old_dir}/") for p in removal.stored.files if p.startswith(old_dir)], SNAPSHOT_PREFIX
        )
    )
    if copied <= own or removal.head is None:
        return True
    head = removal.stored.files[BranchPaths(removal.branch).snapshot(removal.head)]
    return min(copied - own) > removal.head and read_if_exists(table.store, paths.snapshot(removal.head)) == head


def _keep_both(table: Table, removal: Removal, new: str) -> ConflictError:
    """Let the branch and its copy be two branches, and return the error that says so."""
    _end_rename(table, new)
    recorded = removal.stored.record_bytes
    if recorded is not None and BranchRecord.parse(recorded, removal.branch).state == DELETING:
        # of a deletion that was interrupted, which left this record
        execute(table, [*removal.schemas_back, replace(removal.record_back, expected=recorded)])
    return ConflictError(
        f"{table.name}: branch {removal.branch!r} was being renamed to {new!r}, and both were written since the "
        f"rename was interrupted; both stay as they are. Merge one of them, delete it, and rename the other"
    )


def _end_rename(table: Table, new: str) -> None:
    """End the relation of a copy to the other branch. It means nothing any more, should the record change meanwhile."""
    data = stored_record(table, new)
    record = BranchRecord.parse(data, new) if data is not None else None
    if record is not None and record.peer is not None:
        ids = table.branch(new).schema_ids()  # the latest was put first, or is of who made the branch since
        missing = {i: text for i, text in record.schemas.items() if not ids or (int(i) not in ids and int(i) < ids[-1])}
        with suppress(ConflictError):
            execute(table, plan_completion(replace(record, schemas=missing), data))
