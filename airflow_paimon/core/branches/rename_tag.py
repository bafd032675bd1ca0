"""rename_tag: the same snapshot and retention under another name. The new tag is there before the old one goes."""

from __future__ import annotations

from dataclasses import replace

from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import check_held, refuse_second_automatic, refuse_tag_of_set
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.commit.idempotency import Attempt, attempt_of
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import Plan, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import RenameTag
from airflow_paimon.core.table.paths import RESERVED_TAG_PREFIX, check_tag_name
from airflow_paimon.core.table.table import Table


def rename_tag(context: Context, request: RenameTag) -> OperationResult:
    """Rename a tag. A try that was cut off leaves both names, and a retry completes it.

    Raises:
        NotFoundError: no such tag. AlreadyExistsError: the new name is taken. InvalidInputError: one of the names is
            kept for this package's own tags. UnsafeOperationError: readers of a table set read it. ConflictError: the
            snapshot expired, or the tag was changed, meanwhile.
    """
    name = check_tag_name(request.to_tag)
    for given in (request.tag, name):
        if given.startswith(RESERVED_TAG_PREFIX):
            raise InvalidInputError(
                f"{context.table.name}: tags whose names start with {RESERVED_TAG_PREFIX} are set by airflow-paimon "
                f"itself, which finds them by their names; {given!r} can't be renamed or taken as a name"
            )
    if name == request.tag:
        raise InvalidInputError(f"{context.table.name}: tag {name!r} has that name already")
    view = context.table.branch(request.branch).require()
    with attempt_of(context, request.branch) as tried:
        return _rename(context, request, view, tried)


def _rename(context: Context, request: RenameTag, view: Table, tried: Attempt) -> OperationResult:
    old = view.find_tag(request.tag) if "/" not in request.tag else None
    taken = view.find_tag(request.to_tag)
    if old is None and taken is not None and tried.retried:
        return _renamed(context, request, taken, None, replayed=True)
    tag = old or view.tag(request.tag)  # raises NotFoundError with the existing tags
    refuse_tag_of_set(view, tag)
    new = replace(tag, name=request.to_tag)
    if taken is not None and not (tried.retried and taken == new):
        raise AlreadyExistsError(
            f"{view.label}: tag {request.to_tag!r} exists, on snapshot {taken.snapshot.id}; choose another name"
        )
    if taken is None:
        refuse_second_automatic(view, new, instead_of=tag.name)
    put = PutNew(path=view.paths.tag(new.name), data=new.to_bytes(), reason=f"renames {tag.name!r}", same_ok=True)
    gone = deletion(view, tag, f"is called {new.name!r} from now on")
    plan = Plan(operation=request.operation, table=view.name, actions=(put, gone), summary={"tag": tag.name})
    if not request.dry_run:
        execute(view, [put])
        check_held(view, new, None)
        try:
            execute(view, [gone])  # what it has kept, the new one keeps as long
        except ConflictError as error:  # it was changed since it was read, such as by a legal hold
            if view.find_tag(new.name) == new:
                execute(view, [deletion(view, new, f"{tag.name!r} was changed meanwhile")])
            raise ConflictError(
                f"{view.label}: tag {tag.name!r} was changed while it was renamed; rename it again"
            ) from error
    return _renamed(context, request, tag, plan)


def _renamed(
    context: Context, request: RenameTag, tag: Tag, plan: Plan | None, *, replayed: bool = False
) -> OperationResult:
    details = {"tag": request.to_tag, "renamed_from": request.tag, "snapshot": tag.snapshot.id}
    details |= {"replayed": True} if replayed else {}
    at = {"before": tag.snapshot.id, "after": tag.snapshot.id}
    return context.result(plan, branch=request.branch, changed=True, **at, details=details)
