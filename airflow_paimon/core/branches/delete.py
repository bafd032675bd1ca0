"""delete_branch and rename_branch: hide the branch from all engines, look again, and delete what is left of it.

Also the removal that create_branch with ``replace`` does first. A rename copies the branch to its new name before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_paimon.core.branches.branch_plan import (
    DeletePlan,
    ProtectiveCopy,
    RenamePlan,
    plan_delete_branch,
    plan_rename_branch,
)
from airflow_paimon.core.branches.ownership import being_changed, refuse_protected
from airflow_paimon.core.branches.tags import relying_branches
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import delete_one
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.snapshot import KnownHead, Tag, find_hold, parse_snapshot, parse_tag
from airflow_paimon.core.plan import Action, Delete, DeleteFolders, PutNew, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import DeleteBranch, RenameBranch
from airflow_paimon.core.store.base import read_if_there, read_present
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
    require_ready,
)
from airflow_paimon.core.table.options import NAMES_BRANCH
from airflow_paimon.core.table.paths import (
    MAIN,
    SNAPSHOT_PREFIX,
    TAG_PREFIX,
    BranchPaths,
    check_branch_name,
    protective_tag,
    protects,
    published_tag,
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
    refuse_held(table, name)
    removal = gather_removal(table, name, context.now_iso, request.operation)
    _refuse_other_head(table, removal, request.expected_branch_snapshot)
    if not request.dry_run:
        remove_branch(table, removal)
    plan = removal.plan.whole()
    return context.result(plan, branch=name, changed=True, before=removal.head, details={"files": removal.files})


def _refuse_other_head(table: Table, removal: Removal, expected: int | str | None) -> None:
    """Refuse another head; ``remove_branch`` checks for later commits until no engine can commit any more."""
    if expected is None or removal.is_under_way:
        return
    known, head = KnownHead.named(expected), removal.head or 0
    if head == known.id and (not head or known.is_of(parse_snapshot(removal.snapshots[head], f"snapshot-{head}"))):
        return
    raise ConflictError(
        f"{table.name}: branch {removal.branch!r} is at snapshot {removal.head}, not at {known.beside(head)} as "
        f"expected; nothing was deleted",
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
    seen = None if "/" in name else branch_record(table, name)
    record = None if seen is None else read_lineage(table, name)
    if seen is None or record is None or request.dry_run:
        return False
    tags = {} if record.state == DELETED else protective_tags(table, name)
    reason = f"protected files of the deleted branch {name}"
    execute(table, _tags_for_others(table, name, tags))
    execute_while(table, name, seen, [Delete(path=p, expected=data, reason=reason) for p, data in tags.items()])
    execute(table, [Delete(path=lineage_path(name), expected=seen, reason="the branch's record")])
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
        schemas = _contents(table, {i: view.paths.schema(i) for i in view.schema_ids()})
        known = {view.paths.snapshot(i): d for i, d in snapshots.items()}
        known |= {view.paths.schema(i): d for i, d in schemas.items()}
        walked = table.store.walk(BranchPaths(name).root.rstrip("/"))
        files = read_present(table.store, [f for f in walked if f not in known])
        files |= {f: known[f] for f in walked if f in known}
    except NotFoundError as error:
        raise being_changed(table, name) from error
    if record is None:
        record = Lineage(branch=name, created_at=now_iso, known_origin=False)
    if record.state == RENAMING or (record.state == CREATING and record.peer is not None):
        raise not_ready(view, record)
    if record.state == DELETING:
        schemas |= {int(i): text.encode() for i, text in record.schemas.items()}
    before = record.in_state(READY) if record.state in (DELETING, DELETED) else record
    protective = {p: data for p, data in protective_tags(table, name).items() if p != keep}
    plan = plan_delete_branch(
        operation,
        table.name,
        before,
        files,
        schemas,
        protective,
        _tags_for_others(table, name, protective),
        recorded=seen,
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
    mark = removal.plan.hide[0]
    _write_mark(table, removal.branch, mark)

    def still_hiding(_: Action) -> None:
        if not is_marked(table, removal.branch, mark):
            _give_way(table, removal)

    try:
        execute(table, removal.plan.hide[1:], still_hiding)
        _refuse_if_written(table, removal)
        refuse_parent(table, removal.branch)
        refuse_held(table, removal.branch)
    except (ConflictError, UnsafeOperationError):
        if is_marked(table, removal.branch, mark):
            _put_schemas_back(table, removal)
            execute(table, removal.plan.undo[-1:])
        raise
    still_hiding(mark)
    execute(table, removal.plan.remove[:1])
    removed = removal.plan.remove[0]
    assert isinstance(removed, Replace)
    execute_while(table, removal.branch, removed.data, removal.plan.remove[1:])
    _clear_folder(table, removal.branch, removed.data)
    execute(table, removal.plan.end[1:])


def _write_mark(table: Table, branch: str, *marks: Action) -> None:
    """Mark a branch, unless another operation has changed its record.

    Raises:
        ConflictError: it has.
    """
    try:
        execute(table, marks)
    except (AlreadyExistsError, ConflictError) as error:
        raise being_changed(table, branch) from error


def execute_while(table: Table, branch: str, mark: bytes, actions: Sequence[Action]) -> None:
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
        if branch_record(table, branch) == mark:
            continue
        if deleted and isinstance(action, Delete) and action.expected is not None:
            _put_back_if_needed(table.branch(branch), action.path, action.expected)
        raise being_changed(table, branch)


def _clear_folder(table: Table, branch: str, mark: bytes) -> None:
    """Delete what commits have put into a deleted branch's folder since its files were listed, then the folders.

    No such commit is acknowledged: a writer looks at the branch's record after its put. What stayed would be part of
    the next branch of that name.

    Raises:
        ConflictError: as of ``execute_while``; or commits came during each look. A retry goes on.
    """
    root = BranchPaths(branch).root.rstrip("/")
    for _ in range(_LOOKS):
        execute_while(table, branch, mark, [DeleteFolders(path=root, reason="the branch's empty folders")])
        late = read_present(table.store, table.store.walk(root))
        if not late:
            return
        if branch_record(table, branch) != mark:  # else nothing of what was read belongs to a new branch
            raise being_changed(table, branch)
        reason = "a commit put it while the branch was being deleted"
        execute_while(table, branch, mark, [Delete(path=p, expected=d, reason=reason) for p, d in late.items()])
    raise being_changed(table, branch)


def _put_back_if_needed(view: Table, path: str, data: bytes) -> None:
    """Put a snapshot or tag back if the branch was made anew from that very snapshot before the file was deleted."""
    name = path.rpartition("/")[2]
    if not name.startswith((SNAPSHOT_PREFIX, TAG_PREFIX)):
        return
    base = parse_tag(data, name).snapshot
    record, now = read_lineage(view, view.branch_name), view.find_snapshot(base.id)
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


def _give_way(table: Table, removal: Removal) -> NoReturn:
    """Leave the branch to the operation that has meanwhile changed its record; if it is ready, restore those of its
    schemas that are gone.
    """
    now = read_lineage(table, removal.branch)
    if now is not None and now.state == READY:
        _put_schemas_back(table, removal)
    raise being_changed(table, removal.branch)


def _put_schemas_back(table: Table, removal: Removal) -> None:
    for schema in (a for a in removal.plan.undo if isinstance(a, PutNew)):
        with suppress(AlreadyExistsError):
            execute(table, [schema])


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


def protective_tags(table: Table, branch: str) -> dict[str, bytes]:
    """Read the tags, on main and on other branches, that keep the files of a branch, by path."""
    views = [v for v in all_views(table) if v.branch_name != branch]
    paths = [v.paths.tag(name) for v in views for name in v.tag_names() if protects(name) == branch]
    return read_present(table.store, paths)


def _tags_for_others(table: Table, branch: str, going: Mapping[str, bytes]) -> list[PutNew]:
    """Plan protective tags for the branches of another engine that only tags of this branch keep so far."""
    main = table.branch(MAIN).reading_tags_once()
    tags = [parse_tag(data, path.rpartition(f"/{TAG_PREFIX}")[2]) for path, data in _on(main, going).items()]
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


def _on(view: Table, tags: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in tags.items() if path.startswith(f"{view.paths.tag_dir}/")}


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


def refuse_held(table: Table, name: str) -> None:
    """Refuse if a tag of the branch is under a legal hold.

    Raises:
        UnsafeOperationError: names the tag, who holds it and why.
    """
    paths = table.branch(name).paths
    there = read_present(table.store, [paths.tag(tag) for tag in table.branch(name).tag_names()])
    for path, data in there.items():
        tag = find_hold(data, path.rpartition(f"/{TAG_PREFIX}")[2])
        if tag is not None:
            raise UnsafeOperationError(
                f"{table.name}: tag {tag.name!r} of branch {name!r} {tag.hold_text}; the branch stays until delete_tag "
                f"with release_hold (--release-hold) has ended it",
                details={"branch": name, "tag": tag.name, "hold": tag.hold, "held_by": tag.held_by},
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
        if child in living or read_lineage(table, child) is not None:
            raise UnsafeOperationError(
                f"{table.name}: branch {child!r} starts from branch {name!r} and shares its files; delete {child!r} "
                f"first"
            )


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
        _execute(context, gathered, old, new)
    head = table.branch(old if request.dry_run else new).latest_snapshot_id()
    plan = gathered.plan.whole()
    return context.result(plan, branch=new, changed=True, before=head, after=head, details={"renamed_from": old})


def _execute(context: Context, rename: Rename, old: str, new: str) -> None:
    table, plan = context.table, rename.plan
    _claim(table, rename, old, new)
    try:
        execute(table, plan.copy)
        if plan.claim and not is_marked(table, old, plan.claim[-1]):
            if not rename.resumed and is_marked(table, new, plan.claim[-2]):
                execute(table, plan.withdraw)
            raise being_changed(table, old)
        execute(table, plan.hide)
        if not plan.claim:  # all was copied before
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
    mark = rename.record if not plan.claim else plan.claim[-1].data
    *rest, record = late.remove
    execute_while(table, old, mark or b"", rest)
    _clear_folder(table, old, mark or b"")
    execute(table, [record])


def _claim(table: Table, rename: Rename, old: str, new: str) -> None:
    """Write both records, unless another operation is changing one of the branches or branching from the old one."""
    stale = read_lineage(table, new)
    if stale is not None and stale.state == READY and not rename.resumed:
        if table.store.walk(BranchPaths(new).root.rstrip("/")):
            raise AlreadyExistsError(f"{table.name}: branch {new!r} exists; choose another name")
        of_deleted = Delete(path=lineage_path(new), expected=branch_record(table, new), reason="of a deleted branch")
        execute(table, [of_deleted])
    if branch_record(table, old) != rename.record:
        raise being_changed(table, old)
    _write_mark(table, old, *rename.plan.claim[:1])
    try:
        _write_mark(table, old, *rename.plan.claim[1:])
    except ConflictError:
        if not rename.resumed:
            execute(table, rename.plan.withdraw[-1:])
        raise
    try:
        refuse_parent(table, old)
    except UnsafeOperationError:
        execute(table, rename.plan.undo)
        raise


@dataclass(frozen=True, slots=True)
class Rename:
    """``resumed``: an earlier try was interrupted. If it had copied all, the plan only deletes the rest of the old
    branch.

    ``record``: the old branch's record for which the plan is valid.
    """

    plan: RenamePlan
    resumed: bool
    record: bytes | None


def gather_rename(table: Table, old: str, new: str, now_iso: str, operation: str) -> Rename:
    """Plan a rename, or the rest of an interrupted one.

    Raises:
        NotFoundError: no such branch. ConflictError: it is being created, deleted or given another name.
    """
    marks = branch_record(table, new), branch_record(table, old)
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
    kept = marks if removing else None
    plan = plan_rename_branch(
        *(operation, table.name, record, new, files, there, tags),
        since=since,
        resumed=making,
        recorded=marks[1],
        marks=kept,
    )
    if removing:
        plan = replace(plan, claim=(), copy=(), hide=(), remove=plan.remove[1:])
    return Rename(plan, resumed=making or removing, record=marks[1])


def _files(table: Table, name: str) -> dict[str, bytes]:
    """The content of a branch's files, without temporary files of writers."""
    root = BranchPaths(name).root.rstrip("/")
    for info in table.store.list(root):
        if info.is_dir:  # a link, which ``walk`` leaves out, is refused here
            table.store.list(f"{root}/{info.name}")
    files = [f for f in table.store.walk(root) if not f.rpartition("/")[2].startswith(".")]
    return dict(zip(files, table.store.read_many(files), strict=True))


def _protective(table: Table, old: str, new: str) -> dict[str, ProtectiveCopy]:
    """The protective tags by path, with their paths under the new name."""
    found: dict[str, ProtectiveCopy] = {}
    for path, data in protective_tags(table, old).items():
        folder, _, name = path.rpartition(f"/{TAG_PREFIX}")
        target = f"{folder}/{TAG_PREFIX}{protective_tag(new)}{name.removeprefix(protective_tag(old))}"
        there = read_if_there(table.store, target)
        if there not in (None, data):  # a tag of that name keeps other files
            number = parse_tag(data, path).snapshot.id
            target = f"{folder}/{TAG_PREFIX}{published_tag(new, number)}"
            there = read_if_there(table.store, target)
        found[path] = ProtectiveCopy(data, None if there == data else target)
    return found
