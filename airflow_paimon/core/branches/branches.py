"""create_branch, delete_branch, rename_branch: gather, plan, execute."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_paimon.core.branches.branch_plan import (
    BranchSource,
    is_protective,
    lineage_for,
    plan_create_branch,
    plan_delete_branch,
    plan_protect,
    plan_rename_branch,
)
from airflow_paimon.core.branches.lineage import Lineage, is_unfinished, read_lineage, read_rename, verified_lineage
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.schema import parse_schema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch, DeleteBranch, RenameBranch
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.paths import (
    MAIN,
    TAG_PREFIX,
    BranchPaths,
    check_branch_name,
    manifest_path,
    protective_tag,
    protects,
)
from airflow_paimon.core.table.reachability import lost_between
from airflow_paimon.core.table.table import Table, parse_timestamp

_REFERRING_OPTIONS = (
    "scan.fallback-branch",
    "scan.primary-branch",
    "scan.fallback-snapshot-branch",
    "scan.fallback-delta-branch",
)


def create_branch(context: Context, request: CreateBranch) -> OperationResult:
    """Create a branch from a tag, a snapshot, or empty (neither given).

    Raises:
        AlreadyExistsError: the branch exists (with ``skip``: from another base, or with commits that hide its base).
        NotFoundError: source branch, tag or snapshot. UnsafeOperationError: the source could expire under the branch.
    """
    name = check_branch_name(request.branch)
    source = _gather_source(context, request)
    wanted = lineage_for(
        name, source, context.now_iso, owner=request.owner, reason=request.reason, operation_id=request.operation_id
    )
    existing = _existing(context.table, name)
    if existing is not None and request.if_exists == "replace" and not _same_operation(existing.lineage, wanted):
        _check_deletable(context, name)
        if not request.dry_run:
            gone = _delete_plan(context, name)
            _refuse_if_written(context.table, name, existing.head.id if existing.head else None)
            execute(context.table, gone)
        existing = None
    if existing is not None:
        done = _reuse(context, request, existing, wanted)
        if done is not None:
            return done
        assert existing.lineage is not None
        wanted = existing.lineage  # a half-made branch of the same request: go on with its own time stamp
    known = context.table.branch(request.from_branch).find_tag(protective_tag(name))
    protect = plan_protect(request.operation, context.table.name, name, source, known)
    made_ms = parse_timestamp(wanted.created_at)
    plan = plan_create_branch(request.operation, context.table.name, source, wanted, made_ms)
    after = source.snapshot.id if source.snapshot else None
    if not request.dry_run:
        try:
            execute(context.table, protect)
            _recheck(context.table, source)
            execute(context.table, plan)
        except AlreadyExistsError as error:
            raise ConflictError(
                f"{context.table.name}: branch {name!r} was created by somebody else at the same moment; run it again",
                table=context.table.name,
            ) from error
    details = _details(wanted) | {"protective_tag": _protective_tag(protect, name, source)}
    both = replace(plan, actions=(*protect.actions, *plan.actions))
    return context.result(both, branch=name, changed=True, before=None, after=after, details=details)


def _protective_tag(protect: Plan, branch: str, source: BranchSource) -> str | None:
    if source.snapshot is None:
        return None
    return protect.actions[0].path.rsplit(f"/{TAG_PREFIX}", 1)[-1] if protect.actions else protective_tag(branch)


def _details(lineage: Lineage) -> dict[str, object]:
    return {
        "from_branch": lineage.from_branch,
        "from_tag": lineage.from_tag,
        "base_snapshot": lineage.snapshot_id,
        "base_identity": lineage.identity,
        "owner": lineage.owner,
        "reason": lineage.reason,
        "created_at": lineage.created_at,
    }


@dataclass(frozen=True, slots=True)
class _Existing:
    lineage: Lineage | None
    half_made: bool
    head: Snapshot | None


def _existing(table: Table, name: str) -> _Existing | None:
    view = table.branch(name)
    if not table.store.list(BranchPaths(name).root.rstrip("/")):
        return None
    lineage = read_lineage(table, name)
    head = view.latest_snapshot()
    half = not view.exists() or (head is None and lineage is not None and is_unfinished(view, lineage))
    return _Existing(lineage if half else verified_lineage(table, name), half, head)


def _same_operation(lineage: Lineage | None, wanted: Lineage) -> bool:
    return lineage is not None and wanted.operation_id is not None and lineage.operation_id == wanted.operation_id


def _reuse(context: Context, request: CreateBranch, existing: _Existing, wanted: Lineage) -> OperationResult | None:
    """Answer for a branch that exists; None = it is half made for the same base, so go on making it."""
    lineage = existing.lineage
    ours = _same_operation(lineage, wanted)
    same = lineage is not None and lineage.same_base(wanted)
    if same and existing.half_made and (ours or request.if_exists == "skip"):
        return None
    if same and lineage is not None and not existing.half_made and (ours or request.if_exists == "skip"):
        details = _details(lineage) | {"already_there": True}
        after = existing.head.id if existing.head else None
        return context.result(None, branch=wanted.branch, changed=ours, before=None, after=after, details=details)
    raise AlreadyExistsError(_exists_message(context, existing, wanted), table=context.table.name)


def _exists_message(context: Context, existing: _Existing, wanted: Lineage) -> str:
    what = f"{context.table.name}: branch {wanted.branch!r} exists"
    if existing.half_made:
        return f"{what}, half made by a run that was cut off; run repair_table, or use if_exists='skip' to go on"
    base = existing.lineage
    if base is None:
        return f"{what}, and nothing says what it was made from; choose another name, or if_exists='replace'"
    made = f"made {base.created_at} from {base.from_tag or base.from_branch}, snapshot {base.snapshot_id}"
    if base.same_base(wanted):
        return f"{what} ({made}); use if_exists='skip' to go on with it or 'replace' to make it anew"
    return f"{what} with another base ({made}; asked for: snapshot {wanted.snapshot_id}); use if_exists='replace'"


def _gather_source(context: Context, request: CreateBranch) -> BranchSource:
    if request.tag is not None and request.snapshot is not None:
        raise InvalidInputError("create_branch: give tag or snapshot, not both", table=context.table.name)
    view = context.table.branch(request.from_branch)
    ids = view.require().schema_ids()
    if request.tag is None and request.snapshot is None:
        schemas = _schema_bytes(view, ids)
        latest = parse_schema(schemas[ids[-1]], f"{view.label}: schema-{ids[-1]}")
        return BranchSource(branch=request.from_branch, schemas=schemas, schema=latest, latest_schema_id=ids[-1])
    tag = view.tag(request.tag) if request.tag is not None else None
    if tag is not None:
        snapshot = tag.snapshot
    else:
        assert request.snapshot is not None
        snapshot = view.snapshot(request.snapshot)
    _check_source_branch(view, request)
    schemas = _schema_bytes(view, [i for i in ids if i <= snapshot.schema_id])
    if snapshot.schema_id not in schemas:
        raise FormatError(f"{view.label}: schema {snapshot.schema_id} of snapshot {snapshot.id} is missing")
    schema = parse_schema(schemas[snapshot.schema_id], f"{view.label}: schema-{snapshot.schema_id}")
    return BranchSource(
        branch=request.from_branch,
        schemas=schemas,
        schema=schema,
        latest_schema_id=ids[-1],
        snapshot=snapshot,
        snapshot_bytes=_snapshot_bytes(view, snapshot),
        tag=tag,
    )


def _check_source_branch(view: Table, request: CreateBranch) -> None:
    """A branch of a branch shares files whose expiry main's tags don't stop, so that branch must never expire."""
    if view.branch_name != MAIN and not is_protective(view.schema()):
        raise UnsafeOperationError(
            f"{view.label} may expire its own snapshots, and that would delete files which branch "
            f"{request.branch!r} shares; create it from main, or from a branch that airflow-paimon made",
            table=view.name,
        )


def _schema_bytes(view: Table, ids: list[int]) -> dict[int, bytes]:
    return dict(zip(ids, view.store.read_many([view.paths.schema(i) for i in ids]), strict=True))


def _snapshot_bytes(view: Table, snapshot: Snapshot) -> bytes:
    """The snapshot file as it lies there, or, when only a tag has it any more, made from the tag."""
    try:
        data = view.store.read(view.paths.snapshot(snapshot.id))
    except NotFoundError:
        return snapshot.to_bytes()
    from_file = view.snapshot(snapshot.id)
    return data if from_file.identity == snapshot.identity else snapshot.to_bytes()


def _recheck(table: Table, source: BranchSource) -> None:
    """After the protective tag stands: is what it protects still there? An expiry may have been under way.

    Raises:
        ConflictError: it is not; the protective tag is harmless and goes with the next try.
    """
    snapshot, view = source.snapshot, table.branch(source.branch)
    if snapshot is None:
        return
    try:
        still = view.tag(source.tag.name).snapshot if source.tag is not None else view.snapshot(snapshot.id)
        if still.identity != snapshot.identity:
            raise NotFoundError("another snapshot has its id now")
        lost = [n for n in snapshot.manifest_lists() if not table.store.exists(manifest_path(n))]
        if not lost and source.tag is None:
            lost = lost_between(view, snapshot)
    except NotFoundError as error:
        raise ConflictError(
            f"{view.label}: snapshot {snapshot.id} went away while the branch was made ({error})", table=table.name
        ) from None
    if lost:
        raise ConflictError(
            f"{view.label}: snapshot {snapshot.id} is being expired: {lost[0]} is gone; branch from a later one",
            table=table.name,
        )


def delete_branch(context: Context, request: DeleteBranch) -> OperationResult:
    """Delete a branch's metadata. Its data files become orphans where nothing else refers to them.

    Raises:
        UnsafeOperationError: a table option or another branch relies on it. NotFoundError: no such branch.
    """
    name, table = request.branch, context.table
    if name == MAIN:
        raise InvalidInputError(f"{table.name}: branch main can't be deleted", table=table.name)
    with attempt_of(context) as tried:
        return _delete_branch(context, request, name, retried=tried.retried)


def _delete_branch(context: Context, request: DeleteBranch, name: str, *, retried: bool) -> OperationResult:
    table = context.table
    if "/" in name or name not in table.branch_names():
        if retried:
            _deleted_by(context, request)
            details = {"already_gone": True, "replayed": True}
            return context.result(None, branch=name, changed=request.if_missing != "skip", details=details)
        if request.if_missing == "skip" or _deleted_by(context, request):
            return context.result(None, branch=name, changed=False, details={"already_gone": True})
        raise NotFoundError(
            f"{table.name} has no branch {name!r}; its branches: {', '.join(table.branch_names()) or 'none'}",
            table=table.name,
        )
    head = table.branch(name).latest_snapshot_id()
    _check_deletable(context, name)
    plan = _delete_plan(context, name)
    if not request.dry_run:
        _refuse_if_written(table, name, head)
        execute(table, plan)
    return context.result(plan, branch=name, changed=True, before=head, details={"files": len(plan.actions)})


def _refuse_if_written(table: Table, name: str, head: int | None) -> None:
    """Look as late as possible: what is committed after this goes with the branch's folder."""
    if table.branch(name).latest_snapshot_id() != head:
        raise ConflictError(
            f"{table.name}: branch {name!r} was written at this moment; nothing was deleted. Stop its writers and run "
            f"it again",
            table=table.name,
        )


def _deleted_by(context: Context, request: DeleteBranch) -> bool:
    """Whether a cut-off run of this deletion got as far as the branch but not to its lineage."""
    lineage = read_lineage(context.table, request.branch)
    if lineage is None or context.request.dry_run:
        return False
    execute(
        context.table,
        plan_delete_branch(
            request.operation, context.table.name, request.branch, (), _protective_paths(context.table, request.branch)
        ),
    )
    return True


def _protective_paths(table: Table, branch: str) -> list[str]:
    views = [v for v in _all_views(table) if v.branch_name != branch]
    return [v.paths.tag(name) for v in views for name in v.tag_names() if protects(name) == branch]


def _delete_plan(context: Context, name: str) -> Plan:
    files = context.table.store.walk(BranchPaths(name).root.rstrip("/"))
    protective = _protective_paths(context.table, name)
    return plan_delete_branch(context.request.operation, context.table.name, name, files, protective)


def _all_views(table: Table) -> list[Table]:
    return [table.branch(MAIN), *(table.branch(n) for n in table.branch_names())]


def _check_deletable(context: Context, name: str) -> None:
    """Refuse when an option of any branch, or the base of another branch, needs this one."""
    table = context.table
    for view in _all_views(table):
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


def rename_branch(context: Context, request: RenameBranch) -> OperationResult:
    """Rename a branch with its lineage and protective tag. A cut-off run is gone on with by running it again.

    Raises:
        AlreadyExistsError: there is a branch of the new name. ConflictError: the branch was written meanwhile.
    """
    table, old, new = context.table, request.branch, check_branch_name(request.to_branch)
    if old in (MAIN, new):
        raise InvalidInputError(f"{table.name}: can't rename {old!r} to {new!r}", table=table.name)
    with attempt_of(context) as tried:
        if tried.retried and _is_renamed(table, old, new):
            head = table.branch(new).latest_snapshot_id()
            details = {"renamed_from": old, "replayed": True}
            return context.result(None, branch=new, changed=True, before=head, after=head, details=details)
        return _rename_branch(context, request, old, new)


def _is_renamed(table: Table, old: str, new: str) -> bool:
    """Whether a rename got to its end: the journal goes last."""
    return read_rename(table, new) is None and not table.branch(old).exists() and table.branch(new).exists()


def _rename_branch(context: Context, request: RenameBranch, old: str, new: str) -> OperationResult:
    table = context.table
    going_on = read_rename(table, new) == old
    files = _branch_bytes(table, old)
    if not going_on:
        table.branch(old).require()
        if table.store.walk(BranchPaths(new).root.rstrip("/")):
            raise AlreadyExistsError(f"{table.name}: branch {new!r} exists; choose another name", table=table.name)
    _check_deletable(context, old)
    tags = _protective_paths(table, old)
    protective = dict(zip(tags, table.store.read_many(tags), strict=True))
    copy, delete = plan_rename_branch(
        request.operation, table.name, old, new, files, read_lineage(table, old), protective
    )
    if not request.dry_run:
        execute(table, copy)
        if _branch_bytes(table, old) != files:
            raise ConflictError(
                f"{table.name}: branch {old!r} was written while it was copied; stop its writers and run it again",
                table=table.name,
            )
        execute(table, delete)
    head = table.branch(old if request.dry_run else new).latest_snapshot_id()
    both = replace(copy, actions=(*copy.actions, *delete.actions))
    return context.result(both, branch=new, changed=True, before=head, after=head, details={"renamed_from": old})


def _branch_bytes(table: Table, name: str) -> dict[str, bytes]:
    files = table.store.walk(BranchPaths(name).root.rstrip("/"))
    return dict(zip(files, table.store.read_many(files), strict=True))
