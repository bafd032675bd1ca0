"""Whether somebody other than who asked has to approve a change of main, and whether they did."""

from __future__ import annotations

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.publish.published import publishes
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Publish, RollbackTo
from airflow_paimon.core.table.options import FOUR_EYES_OPTION
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import FOUR_EYES_PROPERTY
from airflow_paimon.core.table.table import Table


def needs_four_eyes(request: Publish, target: Table) -> bool:
    """Whether the request asks for it, the table's option does, or a publish is taken back that needed it.

    The last one holds for an undo of an undo as well, by which an undone publish comes back.

    Raises:
        InvalidInputError: the option is neither true nor false.
    """
    if request.four_eyes:
        return True
    if isinstance(request, RollbackTo) and not is_read_with_main(target):
        return False
    said = target.branch(MAIN).schema().options.get(FOUR_EYES_OPTION, "false").strip().lower()
    if said not in ("true", "false"):
        raise InvalidInputError(f"{target.name}: option {FOUR_EYES_OPTION} must be true or false; it is {said!r}")
    return said == "true" or (isinstance(request, RollbackTo) and _takes_back_an_approved_one(request, target))


def is_read_with_main(view: Table) -> bool:
    """Whether readers of the table see this branch: main, and those that main's options add, as of a chain table."""
    options = view.branch(MAIN).schema().options.items()
    named = {value.strip().lower() for key, value in options if key.startswith(("scan.fallback-", "scan.primary-"))}
    return view.branch_name == MAIN or view.branch_name.lower() in named


def _takes_back_an_approved_one(request: RollbackTo, view: Table) -> bool:
    try:
        target = view.tag(request.tag).snapshot.id if request.tag is not None else request.snapshot or 0
    except NotFoundError:  # the rollback itself says so, or finds that an earlier try has landed
        return False
    return any(
        p.snapshot.id == target + 1 or (not request.keep_later and p.snapshot.id > target)
        for p in publishes(view)
        if FOUR_EYES_PROPERTY in p.snapshot.properties
    )


def check_four_eyes(context: Context, target: Table) -> bool:
    """Check that somebody other than the requester approved, if that is needed; returns whether it is.

    A dry run needs no approval yet.

    Raises:
        UnsafeOperationError: nobody approved, nobody is known to have asked, or it is the same person.
    """
    request = context.request
    assert isinstance(request, Publish)
    if not needs_four_eyes(request, target) or request.dry_run:
        return False
    asked, approved = ((who or "").strip() for who in (request.requested_by, request.approved_by))
    if asked and approved and asked.casefold() != approved.casefold():
        return True
    why = (
        "nobody approved it"
        if not approved
        else f"it is not known who asked for it, so {approved!r} may have approved their own request"
        if not asked
        else f"{approved!r} asked for it and approved it"
    )
    raise UnsafeOperationError(
        f"{request.table}: {request.operation} needs four eyes, and {why}; nothing was published. Somebody else has to "
        f"approve it",
        details={"requested_by": request.requested_by, "approved_by": request.approved_by},
    )
