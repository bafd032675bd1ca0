"""delete_branch: hide the branch from all engines, look again, and delete what is left of it.

Also the removal that create_branch with ``replace`` does first, and rename_branch once the branch is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from airflow_paimon.core.branches.branch_plan import (
    Removal,
    StoredBranch,
    is_history,
    plan_delete_branch,
    saved_schemas,
)
from airflow_paimon.core.branches.ownership import (
    changed_meanwhile,
    holds_lock,
    refuse_protected,
    stored_record,
    take_lock,
)
from airflow_paimon.core.branches.tags import relying_branches
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import delete_one, execute
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.snapshot import SnapshotRef, Tag, find_legal_hold, parse_snapshot, parse_tag
from airflow_paimon.core.plan import Action, Delete, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DeleteBranch
from airflow_paimon.core.store.base import read_existing, read_if_exists
from airflow_paimon.core.table.branch_record import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    BranchRecord,
    branch_record_path,
    read_branch_record,
)
from airflow_paimon.core.table.options import NAMES_BRANCH
from airflow_paimon.core.table.paths import (
    MAIN,
    SCHEMA_PREFIX,
    SNAPSHOT_PREFIX,
    TAG_PREFIX,
    BranchPaths,
    numbered,
    protective_tag,
    protects,
)
from airflow_paimon.core.table.table import Table

_LOOKS = 3
"""Times that a deleted branch's folder is looked at for late files: each look finds only writers that began before."""


def delete_branch(context: Context, request: DeleteBranch) -> OperationResult:
    """Delete a branch's metadata. Its data files become orphans where nothing else refers to them.

    An interrupted deletion is finished by running it again.

    Raises:
        UnsafeOperationError: a table option or another branch needs it, or it is protected. NotFoundError: no such
            branch.
        ConflictError: a concurrent commit wrote to it, or it is not at the expected snapshot; nothing was deleted.
    """
    name, table = request.branch, context.table
    if name == MAIN:
        raise InvalidInputError(f"{table.name}: branch main can't be deleted")
    with attempt_of(context) as tried:
        return _delete_branch(context, request, name, retried=tried.retried)


def _delete_branch(context: Context, request: DeleteBranch, name: str, *, retried: bool) -> OperationResult:
    table = context.table
    if not has_branch_to_delete(table, name):
        finished = "/" not in name and not request.dry_run and _finish(context, request)
        if retried:
            details = {"already_deleted": True, "replayed": True}
            return context.result(None, branch=name, changed=request.if_missing != "skip", details=details)
        if request.if_missing == "skip" or finished:
            return context.result(None, branch=name, changed=False, details={"already_deleted": True})
        raise table.branch(name).missing()
    refuse_protected(table, name, "delete", force=request.force)
    check_deletable_branch(table, name)
    refuse_legal_hold(table, name)
    removal = gather_removal(table, name, context.now_iso, request.operation)
    _refuse_other_head(table, removal, request.expected_branch_snapshot)
    if not request.dry_run:
        remove_branch(table, removal)
    return context.result(
        removal.full_plan(),
        branch=name,
        changed=True,
        before=removal.head,
        details={"files": len(removal.stored.files)},
    )


def _finish(context: Context, request: DeleteBranch) -> bool:
    """Remove the record and the tags of a branch without a folder; return whether there was a record."""
    table, name = context.table, request.branch
    removal = gather_removal(table, name, context.now_iso, request.operation)
    if removal.stored.record_bytes is None:
        return False
    if not removal.stored.files:
        remove_branch(table, removal)
    elif removal.is_under_way:  # another engine's branch of that name has come since
        execute(
            table,
            [Delete(path=branch_record_path(name), expected=removal.stored.record_bytes, reason="the branch's record")],
        )
    else:
        raise changed_meanwhile(table, name)  # made since it was looked for
    return True


def _refuse_other_head(table: Table, removal: Removal, expected: int | str | None) -> None:
    """Refuse another head; ``remove_branch`` checks for later commits until no engine can commit any more."""
    if expected is None or removal.is_under_way:
        return
    known, head = SnapshotRef.named(expected), removal.head or 0
    path = BranchPaths(removal.branch).snapshot(head)
    if head == known.id and (not head or known.is_of(parse_snapshot(removal.stored.files[path] or b"", path))):
        return
    raise ConflictError(
        f"{table.name}: branch {removal.branch!r} is at snapshot {removal.head}, not at {known.beside(head)} as "
        f"expected; nothing was deleted",
        details={"expected_branch_snapshot": expected, "branch_snapshot": removal.head},
    )


def has_branch_to_delete(table: Table, name: str) -> bool:
    """Whether there is a branch to delete: its folder exists, not recreated by another engine since our deletion."""
    if "/" in name or name not in table.branch_names():
        return False
    record = read_branch_record(table, name)
    return record is None or record.state != DELETED or not table.branch(name).exists()


def gather_removal(
    table: Table,
    name: str,
    now_iso: str,
    operation: str,
    *,
    keep: str | None = None,
    successor: BranchRecord | None = None,
    copied_to: str | None = None,
) -> Removal:
    """Plan the deletion of a branch in its current state; an interrupted deletion is continued.

    ``keep``: path of a protective tag that stays. ``successor``: record of the branch that takes the name.
    ``copied_to``: the branch that it goes on as; that one's protective tags keep what its own have kept.

    Raises:
        ConflictError: it is concurrently deleted.
    """
    seen, record, paths = stored_record(table, name), read_branch_record(table, name), BranchPaths(name)
    root, head = paths.root.rstrip("/"), max(table.branch(name).snapshot_ids(), default=None)
    for info in table.store.list(root):
        if info.is_dir:  # a link, which ``walk`` leaves out, is refused here
            table.store.list(f"{root}/{info.name}")
    files = read_existing(table.store, table.store.walk(root))
    folder = f"{paths.schema_dir}/"
    ids = numbered([f.removeprefix(folder) for f in files if f.startswith(folder)], SCHEMA_PREFIX)
    schemas = {i: files[paths.schema(i)] for i in ids}
    if record is None:
        record = BranchRecord(branch=name, created_at=now_iso, known_origin=False)
    if record.state == DELETING:
        schemas |= saved_schemas(record)
    ready = record.in_state(READY) if record.state in (DELETING, DELETED) else record
    stored = StoredBranch(record=ready, record_bytes=seen, files=files, schemas=schemas, head=head)
    # the tags, on main and on other branches, that keep its files
    others = [v for v in all_views(table) if v.branch_name != name]
    tags = [v.paths.tag(tag) for v in others for tag in v.tag_names() if protects(tag) == name]
    protective = read_existing(table.store, [path for path in tags if path != keep])
    return plan_delete_branch(
        operation,
        table.name,
        stored,
        protective,
        _tags_for_others(table, name, protective) if copied_to is None else (),
        since=now_iso,
        successor=successor,
        copied_to=copied_to,
        is_under_way=record.state == DELETED,
    )


def remove_branch(table: Table, removal: Removal) -> None:
    """Delete the branch, unless it is concurrently written, or another branch is created from it.

    The record is checked before each file is deleted: if another operation has changed it, this one stops.

    Raises:
        ConflictError: it was written; nothing was deleted. UnsafeOperationError: another branch was created from it.
    """
    _refuse_if_written(table, removal)
    lock = removal.lock
    take_lock(table, removal.branch, lock)

    def check_lock(_: Action) -> None:
        """Leave the branch to the operation that has meanwhile changed its record; if it is ready, restore those of its
        schemas that are gone.
        """
        if holds_lock(table, removal.branch, lock):
            return
        now = read_branch_record(table, removal.branch)
        if now is not None and now.state == READY:
            _put_schemas_back(table, removal)
        raise changed_meanwhile(table, removal.branch)

    try:
        execute(table, removal.hide, check_lock)
        _refuse_if_written(table, removal)
        refuse_parent(table, removal.branch)
        if removal.copied_to is None:
            refuse_legal_hold(table, removal.branch)
        elif not removal.is_under_way:
            _check_copied(table, removal.branch, removal.copied_to)
    except (ConflictError, UnsafeOperationError):
        if holds_lock(table, removal.branch, lock):
            _put_schemas_back(table, removal)
            execute(table, [removal.record_back])
        raise
    check_lock(lock)
    execute(table, [removal.seal])
    delete_while_locked(table, removal.branch, removal.seal.data, removal.remove)
    _delete_late_files(table, removal)
    execute(table, [removal.end])


def delete_while_locked(table: Table, branch: str, lock: bytes, actions: Sequence[Action]) -> None:
    """Carry out the deletions of an operation on a branch, as long as the branch's record is the operation's own.

    Who stalls between two of them may find that another run has completed the operation, and that the branch was made
    anew meanwhile, of files that may have the same content: what was deleted of it then is put back.

    Raises:
        ConflictError: the record is another one now, or a file is.
    """
    for action in actions:
        deleted = isinstance(action, Delete) and delete_one(table, action)
        if not isinstance(action, Delete):
            execute(table, [action])
        if stored_record(table, branch) == lock:
            continue
        if deleted and isinstance(action, Delete) and action.expected is not None:
            _put_back_if_needed(table.branch(branch), action.path, action.expected)
        raise changed_meanwhile(table, branch)


def _delete_late_files(table: Table, removal: Removal) -> None:
    """Delete what commits have put into a deleted branch's folder since its files were listed, then the folders.

    No such commit is acknowledged: a writer looks at the branch's record after its put. What stayed would be part of
    the next branch of that name.

    Raises:
        ConflictError: as of ``delete_while_locked``; or commits came during each look. A retry goes on.
    """
    branch, lock = removal.branch, removal.seal.data
    for _ in range(_LOOKS):
        delete_while_locked(table, branch, lock, [removal.folders])
        late = read_existing(table.store, table.store.walk(removal.folders.path))
        if not late:
            return
        if stored_record(table, branch) != lock:  # else nothing of what was read belongs to a new branch
            raise changed_meanwhile(table, branch)
        reason = "a commit put it while the branch was being deleted"
        delete_while_locked(table, branch, lock, [Delete(path=p, expected=d, reason=reason) for p, d in late.items()])
    raise changed_meanwhile(table, branch)


def _put_back_if_needed(view: Table, path: str, data: bytes) -> None:
    """Put a snapshot or tag back if the branch was made anew from that very snapshot before the file was deleted."""
    name = path.rpartition("/")[2]
    if not name.startswith((SNAPSHOT_PREFIX, TAG_PREFIX)):
        return
    base = parse_tag(data, name).snapshot
    record, now = read_branch_record(view, view.branch_name), view.find_snapshot(base.id)
    if record is not None and record.state not in (READY, CREATING):
        return
    needed = now is not None and now.identity == base.identity  # a tag of it, or one that protects it
    if name.startswith(SNAPSHOT_PREFIX):
        from_it = record.identity == base.identity if record is not None else False
        needed = from_it or any(tag.snapshot.identity == base.identity for tag in view.tags())
    elif path.startswith(view.paths.root) and record is not None:
        needed = needed and record.from_tag == name.removeprefix(TAG_PREFIX)
    if needed:
        with suppress(AlreadyExistsError):
            execute(view, [PutNew(path=path, data=data, reason="of the recreated branch")])


def _put_schemas_back(table: Table, removal: Removal) -> None:
    for schema in removal.schemas_back:
        with suppress(AlreadyExistsError):
            execute(table, [schema])


def _refuse_if_written(table: Table, removal: Removal) -> None:
    """Compare the content of its newest snapshot: after another engine's rollback the next commit has an old id."""
    view = table.branch(removal.branch)
    newest = view.latest_snapshot_id()
    if newest is None:
        return  # nothing is left to be lost
    now = read_if_exists(table.store, view.paths.snapshot(newest))
    if now is None or newest != removal.head or now != removal.stored.files.get(view.paths.snapshot(newest)):
        copied = "" if removal.copied_to is None else f", and {removal.copied_to!r} exists as well"
        raise ConflictError(
            f"{table.name}: branch {removal.branch!r} was written meanwhile; nothing was deleted{copied}. Stop its "
            f"writers and run it again"
        )


def _check_copied(table: Table, branch: str, copy: str) -> None:
    """Look, once its schemas are gone, whether its copy has all that is there of a branch. A schema that is there was
    put since they were listed: engines can load the branch by it.
    """
    paths = BranchPaths(branch)
    there = read_existing(table.store, table.store.walk(paths.root.rstrip("/")))
    new = paths.schema_dir + "/" + SCHEMA_PREFIX
    late = {p: d for p, d in there.items() if is_history(paths, p) or p.startswith(new)}
    wanted = {BranchPaths(copy).root + p.removeprefix(paths.root): d for p, d in late.items()}
    copied = read_existing(table.store, list(wanted))
    if missing := sorted(path for path, data in wanted.items() if copied.get(path) != data):
        raise ConflictError(
            f"{table.name}: branch {branch!r} was changed while it was copied to {copy!r} ({missing[0]} differs), and "
            f"both stay. Stop its writers and run it again"
        )


def _tags_for_others(table: Table, branch: str, deleted_tags: Mapping[str, bytes]) -> list[PutNew]:
    """Plan protective tags for the branches of another engine that only tags of this branch keep so far."""
    main = table.branch(MAIN).with_cached_tags()
    own = {path: data for path, data in deleted_tags.items() if path.startswith(f"{main.paths.tag_dir}/")}
    tags = [parse_tag(data, path.rpartition(f"/{TAG_PREFIX}")[2]) for path, data in own.items()]
    names = [tag.name for tag in tags]
    relying = {other: tag.snapshot for tag in tags for other in relying_branches(main, tag, names) if other != branch}
    return [
        PutNew(
            path=main.paths.tag(protective_tag(other)),
            data=Tag(name=protective_tag(other), snapshot=snapshot).to_bytes(),
            reason=f"keeps the files that branch {other} shares",
            same_ok=True,
        )
        for other, snapshot in relying.items()
    ]


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
        used = [k for k in NAMES_BRANCH if options.get(k, "").strip().lower() == name.lower()]
        if used and view.branch_name != name:
            raise UnsafeOperationError(
                f"{view.label} reads branch {name!r} through option {used[0]}; unset that option first"
            )
    refuse_parent(table, name)


def refuse_legal_hold(table: Table, name: str) -> None:
    """Refuse if a tag of the branch is under a legal hold.

    Raises:
        UnsafeOperationError: names the tag, who holds it and why.
    """
    paths = table.branch(name).paths
    there = read_existing(table.store, [paths.tag(tag) for tag in table.branch(name).tag_names()])
    for path, data in there.items():
        tag = find_legal_hold(data, path.rpartition(f"/{TAG_PREFIX}")[2])
        if tag is not None:
            raise UnsafeOperationError(
                f"{table.name}: tag {tag.name!r} of branch {name!r} {tag.legal_hold_text}; the branch stays until "
                f"delete_tag with release_hold (--release-hold) has ended it",
                details={"branch": name, "tag": tag.name, "hold": tag.legal_hold, "held_by": tag.held_by},
            )


def refuse_parent(table: Table, name: str) -> None:
    """Refuse if another branch starts from this one; that branch sets its protective tag here before it checks its
    base.

    Raises:
        UnsafeOperationError: names the other branch.
    """
    children = {protects(tag) for tag in table.branch(name).tag_names()} - {None, name}
    living = set(table.branch_names()) if children else set()
    for child in sorted(c for c in children if c is not None):
        if child in living or read_branch_record(table, child) is not None:
            raise UnsafeOperationError(
                f"{table.name}: branch {child!r} starts from branch {name!r} and shares its files; delete {child!r} "
                f"first"
            )
