"""Who must approve what brings rows to main or takes rows from it: somebody other than who asked, where that is asked.

Every operation whose request is an ``Approved`` asks here before it writes anything.
"""

from __future__ import annotations

from airflow_paimon.core.errors import NotFoundError, UnsafeOperationError
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.requests.requests import Approved, ExpirePartitions, RollbackTo
from airflow_paimon.core.table.features import is_chain_part
from airflow_paimon.core.table.made_by import truncated
from airflow_paimon.core.table.options import FOUR_EYES_OPTION, NAMES_BRANCH, TableOptions, parse_boolean
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    APPROVED_BY_PROPERTY,
    FOUR_EYES_PROPERTY,
    REASON_PROPERTY,
    REQUESTED_BY_PROPERTY,
)
from airflow_paimon.core.table.table import Table

_MAX_WORDS = 1000
"""Bytes of a reason that a snapshot keeps."""


def is_read_with_main(view: Table) -> bool:
    """Whether readers of the table see this branch: main, and those that main's options add, as of a chain table."""
    if view.branch_name == MAIN:
        return True
    options = view.branch(MAIN).schema().options
    return view.branch_name.lower() in {options.get(key, "").strip().lower() for key in NAMES_BRANCH}


def table_requires_four_eyes(table: Table) -> bool:
    """Whether the table's option asks for four eyes.

    Raises:
        InvalidInputError: it is neither true nor false.
    """
    said = table.branch(MAIN).schema().options.get(FOUR_EYES_OPTION, "false")
    return parse_boolean(said, f"{table.name}: option {FOUR_EYES_OPTION}")


def changes_readers_rows(request: Approved, view: Table) -> bool:
    """Whether the request, and not the table's own options, brings rows to readers of the table or takes rows from
    them. ``view``: the branch that is written, main for a publish.
    """
    if isinstance(request, ExpirePartitions):
        return not request.is_by_own_options and is_read_with_main(view)
    return not isinstance(request, RollbackTo) or is_read_with_main(view)


def needs_four_eyes(request: Approved, view: Table) -> bool:
    """Whether the request asks for it, the table's option does, or a publish is taken back that needed it.

    The last one holds for an undo of an undo as well, by which an undone publish comes back.

    Raises:
        InvalidInputError: the option is neither true nor false.
    """
    if request.four_eyes:
        return True
    if not changes_readers_rows(request, view):
        return False
    return table_requires_four_eyes(view) or (
        isinstance(request, RollbackTo) and _takes_back_an_approved_one(request, view)
    )


def _takes_back_an_approved_one(request: RollbackTo, view: Table) -> bool:
    if request.timestamp is not None or request.watermark is not None:  # any may be taken back: its target isn't known
        return any(FOUR_EYES_PROPERTY in p.snapshot.properties for p in undoable_publishes(view))
    try:
        target = view.tag(request.tag).snapshot.id if request.tag is not None else request.snapshot or 0
    except NotFoundError:  # the rollback itself says so, or finds that an earlier try was committed
        return False
    return any(
        p.snapshot.id == target + 1 or (not request.keep_later and p.snapshot.id > target)
        for p in undoable_publishes(view)
        if FOUR_EYES_PROPERTY in p.snapshot.properties
    )


def check_four_eyes(request: Approved, view: Table, done: str) -> bool:
    """Check that somebody other than the requester approved, if that is needed; returns whether it is.

    A dry run needs no approval yet. ``done``: what was not done when it is refused.

    Raises:
        UnsafeOperationError: nobody approved, nobody is known to have asked, or it is the same person.
    """
    if not needs_four_eyes(request, view) or request.dry_run:
        return False
    requester, approved = ((who or "").strip() for who in (request.requested_by, request.approved_by))
    if requester and approved and requester.casefold() != approved.casefold():
        return True
    why = (
        "nobody approved it"
        if not approved
        else f"it is not known who asked for it, so {approved!r} may have approved their own request"
        if not requester
        else f"{approved!r} asked for it and approved it"
    )
    raise UnsafeOperationError(
        f"{request.table}: {request.operation} needs the approval of a second person (four-eyes rule), and {why}; "
        f"nothing was {done}. Another user has to approve "
        f"it{_OR_OWN_OPTIONS if isinstance(request, ExpirePartitions) else ''}",
        code="needs-four-eyes",
        details={"requested_by": request.requested_by, "approved_by": request.approved_by},
    )


_OR_OWN_OPTIONS = "; an expiry by the table's own options (partition.expiration-time and the like) needs no approval"


def approval_properties(request: Approved, *, four_eyes: bool) -> dict[str, str]:
    """Return what the snapshot's properties say of who asked, who approved and why."""
    said = {
        REASON_PROPERTY: truncated(getattr(request, "reason", None) or "", _MAX_WORDS),
        APPROVED_BY_PROPERTY: request.approved_by,
        REQUESTED_BY_PROPERTY: request.requested_by,
        FOUR_EYES_PROPERTY: "true" if four_eyes else None,
    }
    return {name: text for name, text in said.items() if text}


def refuse_unapproved(branch: Table, *, required: bool = False) -> None:
    """Refuse to change rows of a branch that readers of main see without anybody's approval, where four eyes are
    asked for: by the table's option, or ``required``.

    Raises:
        UnsafeOperationError: names the branch, and the way out.
    """
    if branch.branch_name == MAIN or not is_read_with_main(branch):
        return
    if not (required or table_requires_four_eyes(branch)):
        return
    is_part = is_chain_part(TableOptions(branch.branch(MAIN).schema().options), branch.branch_name)
    what, of = ("a branch of a chain table", "it (from_branch)") if is_part else ("read together with main", "main")
    raise UnsafeOperationError(
        f"{branch.label} is {what}, so readers see a correction immediately, but {FOUR_EYES_OPTION} or the Paimon "
        f"connection needs a second person's approval: correct a branch of {of} and publish that by merge_branch, or "
        "use dry_run=True"
    )
