"""create_branch: from a tag, from a snapshot, or empty. The base is checked again once a tag protects it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_paimon.core.branches.branch_plan import (
    BranchSource,
    CreatePlan,
    Parent,
    Removal,
    base_schema,
    is_protective,
    new_branch_record,
    plan_create_branch,
)
from airflow_paimon.core.branches.delete import (
    check_deletable_branch,
    gather_removal,
    refuse_legal_hold,
    remove_branch,
)
from airflow_paimon.core.branches.ownership import (
    changed_meanwhile,
    checked_retention,
    holds_lock,
    ownership_details,
    refuse_protected,
    stored_record,
)
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import execute, execute_at_once
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot, Tag, parse_snapshot
from airflow_paimon.core.plan import Action, Delete, PutNew, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CreateBranch
from airflow_paimon.core.store.base import read_if_exists, run_parallel
from airflow_paimon.core.table.branch_record import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    BranchRecord,
    branch_record_path,
    matching_branch_record,
    not_ready,
    read_branch_record,
    require_ready,
)
from airflow_paimon.core.table.features import is_chain_part
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import (
    MAIN,
    TAG_PREFIX,
    BranchPaths,
    check_branch_name,
    manifest_path,
    protective_tag,
)
from airflow_paimon.core.table.reachability import lost_between
from airflow_paimon.core.table.table import Table


def gather_source(context: Context, request: CreateBranch) -> BranchSource:
    """Read the base of the new branch.

    Raises:
        NotFoundError: source branch, tag or snapshot. UnsafeOperationError: the source could expire under the branch.
        ConflictError: the source is itself being created, renamed or deleted.
    """
    if request.tag is not None and request.snapshot is not None:
        raise InvalidInputError("create_branch: give tag or snapshot, not both")
    view = context.table.branch(request.from_branch)
    is_empty = request.tag is None and request.snapshot is None
    looks: list[Callable[[], Any]] = [partial(_ready_schema_ids, view)]
    if not is_empty:
        name, number = request.tag, request.snapshot or 0
        looks += [partial(view.snapshot, number) if name is None else partial(view.tag, name), view.schema]
    ids, *found = run_parallel(view.store, looks)
    if is_empty:
        schemas = schema_bytes(view, ids)
        latest = parse_schema(schemas[ids[-1]], f"{view.label}: schema-{ids[-1]}")
        return BranchSource(branch=request.from_branch, schemas=schemas, schema=latest, latest_schema_id=ids[-1])
    base, newest = found
    tag, snapshot = (base, base.snapshot) if isinstance(base, Tag) else (None, base)
    is_part = is_chain_part(TableOptions(newest.options), view.branch_name)
    # A branch of a branch shares files whose expiry main's tags don't stop, so that branch must never expire. A chain
    # table's branch holds back for its own tags, of which the new branch gets one.
    if not is_part and view.branch_name != MAIN and not is_protective(newest):
        raise UnsafeOperationError(
            f"{view.label} may expire its own snapshots, which would delete files that branch "
            f"{request.branch!r} shares; create it from main, or from a branch created by airflow-paimon"
        )
    files: list[Callable[[], Any]] = [
        partial(schema_bytes, view, [i for i in ids if i <= snapshot.schema_id]),
        partial(snapshot_bytes, view, snapshot),
    ]
    schemas, data = run_parallel(view.store, files)
    if snapshot.schema_id not in schemas:
        raise FormatError(f"{view.label}: schema {snapshot.schema_id} of snapshot {snapshot.id} is missing")
    schema = parse_schema(schemas[snapshot.schema_id], f"{view.label}: schema-{snapshot.schema_id}")
    return BranchSource(
        branch=request.from_branch,
        schemas=schemas,
        schema=base_schema(schema, snapshot),
        latest_schema_id=ids[-1],
        snapshot=snapshot,
        snapshot_bytes=data,
        tag=tag,
        is_chain_part=is_part,
    )


def _ready_schema_ids(view: Table) -> list[int]:
    ids = view.schema_ids()
    if not ids:
        raise view.missing()
    require_ready(view)
    return ids


def schema_bytes(view: Table, ids: list[int]) -> dict[int, bytes]:
    """Read schema files by id."""
    return dict(zip(ids, view.store.read_many([view.paths.schema(i) for i in ids]), strict=True))


def snapshot_bytes(view: Table, snapshot: Snapshot) -> bytes:
    """The snapshot file byte for byte, or made from the tag if the snapshot has expired."""
    try:
        data = view.store.read(view.paths.snapshot(snapshot.id))
    except NotFoundError:
        return snapshot.to_bytes()
    from_file = parse_snapshot(data, f"{view.label}: snapshot-{snapshot.id}")
    return data if from_file.identity == snapshot.identity else snapshot.to_bytes()


def recheck_source(table: Table, source: BranchSource) -> None:
    """Check, once the protective tag is set, that no running expiry has deleted files of the base.

    Raises:
        ConflictError: some are gone; or the source's deletion, taken back since, had hidden schemas of it.
    """
    snapshot, view = source.snapshot, table.branch(source.branch)
    if snapshot is None:
        return
    if source.branch != MAIN and not {i for i in view.schema_ids() if i <= snapshot.schema_id} <= source.schemas.keys():
        raise changed_meanwhile(table, source.branch)
    require_ready(view)  # an operation that deletes or renames the source from here on finds our protective tag on it
    try:
        still = view.tag(source.tag.name).snapshot if source.tag is not None else view.snapshot(snapshot.id)
        if still.identity != snapshot.identity:
            raise NotFoundError("another snapshot has its id now")
        # Not its changelog's list: Paimon's expiry keeps the state of a tagged snapshot, and not the changes.
        state = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
        there = run_parallel(table.store, [partial(table.store.exists, manifest_path(n)) for n in state])
        lost = [n for n, is_there in zip(state, there, strict=True) if not is_there]
        if not lost and source.tag is None:
            lost = lost_between(view, snapshot)
    except NotFoundError as error:
        raise ConflictError(f"{view.label}: snapshot {snapshot.id} disappeared during the creation ({error})") from None
    if lost:
        raise ConflictError(
            f"{view.label}: snapshot {snapshot.id} is being expired: {lost[0]} was deleted; branch from a later one"
        )


log = logging.getLogger(__name__)


def create_branch(context: Context, request: CreateBranch) -> OperationResult:
    """Create a branch from a tag, a snapshot, or empty (neither given); raises as ``make_branch`` does."""
    with attempt_of(context, commits=False):
        return make_branch(context, request)


def make_branch(
    context: Context, request: CreateBranch, parent: Parent | None = None, schema: TableSchema | None = None
) -> OperationResult:
    """Create a branch, as an operation or as a part of one.

    ``parent``: whose changes are to be put on it; None: those of the source, if that is a branch. ``schema``: the
    source's version with its columns and options; None: the one of its base.

    With ``replace`` the new base is checked and protected before the old branch is deleted.

    Raises:
        AlreadyExistsError: the branch exists (with ``skip``: from another base, or with commits that hide its base).
        NotFoundError: source branch, tag or snapshot. UnsafeOperationError: the source could expire under the branch.
        ConflictError: the branch is being renamed or deleted, or created by a concurrent operation.
    """
    name = check_branch_name(request.branch)
    source = gather_source(context, request)
    source = source if schema is None else replace(source, schema=schema)
    record = _new_record(context, request, source, parent)
    existing = _existing(context.table, name)
    replaces = existing is not None and _replaces(context.table, request, existing, record)
    interrupted = None if replaces else existing
    if interrupted is not None:
        done = _reuse(context, request, interrupted, record)
        if done is not None:
            return done
        assert interrupted.record is not None
        record = interrupted.record  # the table may have been altered since
    # not beside the look at the branch: of one that is deleted meanwhile its tag would seem to be there
    known = context.table.branch(request.from_branch).find_tag(protective_tag(name))
    written = interrupted is not None and interrupted.head is not None
    plan = plan_create_branch(request.operation, context.table.name, source, record, known, written=written)
    removal = _removal(context, plan, record) if replaces else None
    if not request.dry_run:
        try:
            _execute(context.table, plan, source, removal, resumed=interrupted is not None)
        except AlreadyExistsError as error:
            raise ConflictError(
                f"{context.table.name}: branch {name!r} was created by a concurrent operation; run it again"
            ) from error
    return _result(context, plan, source, removal)


def _new_record(context: Context, request: CreateBranch, source: BranchSource, parent: Parent | None) -> BranchRecord:
    retention = checked_retention(request.retention, context.table.name)
    if parent is None and source.branch != MAIN and source.snapshot is not None and not source.is_chain_part:
        parent = Parent(read_branch_record(context.table, source.branch), source.snapshot)
    return new_branch_record(request, source, context.now_iso, retention, parent)


def _replaces(table: Table, request: CreateBranch, existing: _Existing, record: BranchRecord) -> bool:
    """Whether an existing branch is to be replaced: not one that this operation has made, or begun to."""
    if request.if_exists != "replace":
        return False
    if existing.state not in (DELETING, DELETED) and _same_operation(existing.record, record):
        return False
    if request.from_branch == request.branch:
        raise InvalidInputError(f"{table.name}: branch {request.branch!r} can't be replaced by a branch of itself")
    return True


def _result(context: Context, plan: CreatePlan, source: BranchSource, removal: Removal | None) -> OperationResult:
    after = source.snapshot.id if source.snapshot else None
    tag = plan.protective_path
    name = tag.rpartition(f"/{TAG_PREFIX}")[2] if tag is not None else None
    whole = plan.full_plan(removal.full_plan().actions if removal is not None else ())
    details = _record_details(plan.record) | {"protective_tag": name}
    return context.result(whole, branch=plan.branch, changed=True, before=None, after=after, details=details)


def _execute(
    table: Table,
    plan: CreatePlan,
    source: BranchSource,
    replaced_branch: Removal | None,
    *,
    resumed: bool,
) -> None:
    """Carry out the creation. A refusal before the first file of the branch is put leaves no files.

    ``resumed``: an earlier try was interrupted; on failure its record and tag stay, as it may have left files.
    """
    made: list[Action] = []
    stale = delete_stale_record(table, plan.branch) if replaced_branch is None and not resumed else []
    try:
        if replaced_branch is None:
            execute(table, (*stale, plan.lock))
            made.append(plan.lock)
        execute(table, plan.protect)
        made += plan.protect
        recheck_source(table, source)
        if replaced_branch is not None:
            remove_branch(table, replaced_branch)
    except (AlreadyExistsError, ConflictError, FormatError, NotFoundError, StorageError, UnsafeOperationError):
        if not resumed:
            _delete_put_files(table, made)
            if _has_same_base(table, plan):  # another creator of the branch may rely on the same tag
                execute(table, plan.protect)
        raise
    publish_files(table, plan)


def publish_files(table: Table, plan: CreatePlan, check_source: Callable[[], None] | None = None) -> None:
    """Put the files of a branch that is locked and protected, its schemas last: engines see it by them.

    ``check_source``: what raises if the source has gone before the branch's own files keep it.

    Raises:
        ConflictError: it was deleted meanwhile. AlreadyExistsError: a file of it has another content.
    """
    try:
        execute_at_once(table, plan.files)
        if check_source is not None:
            check_source()
        _check_lock(table, plan)
        execute(table, plan.schemas)
        _check_lock(table, plan)
    except (AlreadyExistsError, ConflictError):
        _delete_own_files(table, plan)
        raise
    execute(table, plan.finish)


def _delete_put_files(table: Table, made: list[Action]) -> None:
    """Delete the files put by this call before it was refused. A failure is harmless: check_table lists leftovers."""
    put = [a for a in reversed(made) if isinstance(a, PutNew | Replace)]
    actions = [Delete(path=a.path, expected=a.data, reason="the branch was not created") for a in put]
    try:
        execute(table, actions)
    except (ConflictError, StorageError, OutcomeUnknownError) as error:
        log.warning("%s: could not delete %s (%s)", table.name, ", ".join(a.path for a in actions), error)


def _check_lock(table: Table, plan: CreatePlan) -> None:
    """Check, before the branch becomes visible, that it was not deleted meanwhile, together with its protective tag."""
    tag = plan.protective_path
    protected = [] if tag is None else [partial(table.store.exists, tag)]
    if not all(run_parallel(table.store, [partial(holds_lock, table, plan.branch, plan.lock), *protected])):
        raise ConflictError(f"{table.name}: the branch was deleted while it was being created; run it again")


def _delete_own_files(table: Table, plan: CreatePlan) -> None:
    """Delete the first files of a branch whose lock was lost, unless they belong to the branch that exists now."""
    if _has_same_base(table, plan):
        return
    put = (a for a in (*plan.files, *plan.schemas) if isinstance(a, PutNew))
    _delete_put_files(table, [a for a in put if read_if_exists(table.store, a.path) == a.data])


def _has_same_base(table: Table, plan: CreatePlan) -> bool:
    """Whether the current record names the same base snapshot, and its branch is not deleted for good."""
    now = read_branch_record(table, plan.branch)
    return now is not None and now.state != DELETED and now.same_base(plan.record)


def _removal(context: Context, plan: CreatePlan, record: BranchRecord) -> Removal:
    """Removal of the old branch before the new one is created; the tag that protects the new base stays."""
    name, keep = plan.branch, plan.protective_path
    check_deletable_branch(context.table, name)
    refuse_legal_hold(context.table, name)
    assert isinstance(context.request, CreateBranch)
    refuse_protected(context.table, name, "replace", force=context.request.force)
    return gather_removal(context.table, name, context.now_iso, "create_branch", keep=keep, successor=record)


def _record_details(record: BranchRecord) -> dict[str, object]:
    return {
        "from_branch": record.from_branch,
        "from_tag": record.from_tag,
        "base_snapshot": record.snapshot_id,
        "base_identity": record.identity,
        "created_at": record.created_at,
        **ownership_details(record),
    }


@dataclass(frozen=True, slots=True)
class _Existing:
    """``record``: verified, unless the branch is incomplete. ``state``: as recorded; ``ready`` without a record."""

    record: BranchRecord | None
    state: str
    incomplete: bool
    head: Snapshot | None


def _existing(table: Table, name: str) -> _Existing | None:
    """Find an existing branch. A folder without files, or the record of a deleted branch, is not a branch."""
    view = table.branch(name)
    looks: list[Callable[[], Any]] = [
        partial(read_branch_record, table, name),
        partial(table.store.walk, BranchPaths(name).root.rstrip("/")),
    ]
    record, files = run_parallel(table.store, looks)
    state = READY if record is None else record.state
    if state == READY and not files:
        return None
    if record is not None and state in (DELETING, DELETED):
        return _Existing(record, state, incomplete=True, head=None)
    if record is not None and state == CREATING and record.peer is not None:
        raise not_ready(view, record)
    head = view.latest_snapshot()
    half = state == CREATING or not view.exists()
    return _Existing(record if half else matching_branch_record(table, name), state, half, head)


def delete_stale_record(table: Table, name: str) -> list[Action]:
    """Delete the record of a branch that another engine has dropped."""
    seen, record = stored_record(table, name), read_branch_record(table, name)
    if record is None or record.state != READY:
        return []
    if table.store.walk(BranchPaths(name).root.rstrip("/")):
        return []  # just created by another operation: our lock will find its record
    return [Delete(path=branch_record_path(name), expected=seen, reason="record of a deleted branch")]


def _same_operation(record: BranchRecord | None, wanted: BranchRecord) -> bool:
    return record is not None and wanted.operation_id is not None and record.operation_id == wanted.operation_id


def _reuse(
    context: Context, request: CreateBranch, existing: _Existing, wanted: BranchRecord
) -> OperationResult | None:
    """Return the result for an existing branch; None = it is incomplete and has the same base, so finish it."""
    record = existing.record
    if existing.state in (DELETING, DELETED):
        assert record is not None
        raise not_ready(context.table.branch(wanted.branch), record)
    ours = _same_operation(record, wanted)
    same = record is not None and record.same_base(wanted)
    accepted = same and (ours or request.if_exists == "skip")
    if accepted and existing.incomplete and is_empty_or_at_base(context.table.branch(wanted.branch), wanted):
        return None
    if accepted and record is not None and not existing.incomplete:
        details = _record_details(record) | {"already_exists": True}
        after = existing.head.id if existing.head else None
        return context.result(None, branch=wanted.branch, changed=ours, before=None, after=after, details=details)
    raise AlreadyExistsError(_exists_message(context, existing, wanted), code="branch-exists")


def is_empty_or_at_base(view: Table, record: BranchRecord) -> bool:
    """Whether an incomplete branch is empty or starts from its base. If not, another engine has recreated it."""
    if record.snapshot_id is None or view.latest_snapshot_id() is None:
        return True
    base = view.find_snapshot(record.snapshot_id)
    return base is not None and base.identity == record.identity


def _exists_message(context: Context, existing: _Existing, wanted: BranchRecord) -> str:
    what = f"{context.table.name}: branch {wanted.branch!r} exists"
    if existing.incomplete:
        return (
            f"{what}, incomplete: its creation is still running, or was interrupted. Use if_exists=skip "
            f"with the same base to finish it, delete_branch to remove it, or see check_table for a repair"
        )
    base = existing.record
    if base is None:
        return f"{what}, and its origin is not recorded; choose another name, or if_exists=replace"
    made = f"created {base.created_at} from {base.from_tag or base.from_branch}, {_base_text(base)}"
    if base.same_base(wanted):
        return f"{what} ({made}); if_exists=skip uses it as it is, if_exists=replace recreates it"
    return (
        f"{what} with another base ({made}; asked for: {_base_text(wanted)}); choose another name, or "
        f"if_exists=replace to recreate it"
    )


def _base_text(record: BranchRecord) -> str:
    return "empty" if record.snapshot_id is None else f"snapshot {record.snapshot_id}"
