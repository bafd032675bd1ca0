"""Whether a branch accepts commits: not while it is being created, renamed or deleted.

A commit checks this right before it puts its snapshot, and again right after, before it reads the snapshot back.
Creating, renaming and deleting write the record first, and look for new snapshots once no engine can load the branch:
so either they find the commit and stop, or the commit finds their record and is not acknowledged.
"""

from __future__ import annotations

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.table.lineage import CREATING, DELETED, DELETING, READY, RENAMING, Lineage, read_lineage
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table


def require_ready(view: Table) -> Lineage | None:
    """Return the branch's record (None: it has none, or is main).

    Raises:
        ConflictError: the branch is being created, renamed or deleted; the message says how to finish that.
    """
    if view.branch_name == MAIN:
        return None
    record = read_lineage(view, view.branch_name)
    if record is None or record.state == READY:
        return record
    raise not_ready(view, record)


def not_ready(view: Table, record: Lineage) -> ConflictError:
    """Name the operation in progress on the branch, and how to finish it if it was interrupted."""
    name = view.branch_name
    doing, again = {
        CREATING: ("created", f"create_branch {name} with if_exists=skip"),
        RENAMING: (f"renamed to {record.peer!r}", f"rename_branch {name} to {record.peer}"),
        DELETING: ("deleted", f"delete_branch {name}"),
        DELETED: ("deleted", f"delete_branch {name}"),
    }.get(record.state, (f"changed ({record.state})", "the operation that began this"))
    if record.state == CREATING and record.peer is not None:
        doing, again = f"made from branch {record.peer!r} by a rename", f"rename_branch {record.peer} to {name}"
    return ConflictError(
        f"{view.name}: branch {name!r} is being {doing}, so nothing was written. Try again later; if no such operation "
        f"is running, it was interrupted: run {again} again, or see check_table for a repair",
        table=view.name,
        details={"branch": name, "state": record.state},
    )


def is_standing(view: Table, before: Lineage | None) -> bool:
    """After a put: whether the branch still exists and is the one whose record was ``before``."""
    if view.branch_name == MAIN:
        return True
    now = read_lineage(view, view.branch_name)
    if now is None or before is None:
        return now is None and before is None and view.exists()
    return now.state == READY and now.same_branch(before)


def is_gone(view: Table, before: Lineage | None) -> bool:
    """Whether the branch was deleted for good, so that a snapshot put on it now belongs to no branch.

    A branch recreated under the same name counts as another branch.
    """
    now = read_lineage(view, view.branch_name)
    if now is None:
        return not view.exists()
    return now.state == DELETED or (now.state == READY and before is not None and not now.same_branch(before))
