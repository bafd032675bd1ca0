"""The record of a branch, ``_airflow_paimon/branches/<branch>.json``: its origin and the operation in progress on it.

The recorded origin is verified against the table before it is used: another engine can drop a branch and create another
one of the same name. The state decides about commits: only a branch whose record says ``ready``, or that has no record,
accepts them (docs/contributing/deletion.md, A branch is never half there).

A commit checks this right before it puts its snapshot, and again right after, before it reads the snapshot back.
Creating, renaming and deleting write the record first, and look for new snapshots once no engine can load the branch:
so either they find the commit and stop, or the commit finds their record and is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.format.records import Record, is_record
from airflow_paimon.core.table.options import parse_duration
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import BRANCHES

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

KEPT_MAIN = "main before it was replaced"
"""The reason of a branch that replace_main has made of main: its rows are nowhere else."""
READY, CREATING, DELETING, DELETED = "ready", "creating", "deleting", "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord(Record):
    """``identity`` is the identity of the base snapshot (``Snapshot.identity``); None for a branch created empty.

    ``schema_id``: the source's newest schema id when the branch was created. ``known_origin`` is False for a branch
    created by another engine, which has a record while it is being renamed or deleted, and from when ``alter_branch``
    was told of an owner or the like (``created_at`` is then that time). ``state``: ``creating``, ``ready``,
    ``deleting`` (can still be undone; ``head``: the newest snapshot id when that began), ``deleted`` (only leftover
    files remain to be removed). ``schemas``: the schema files of one that is being made, or can be restored.
    ``peer``: the branch from which a rename makes this one, until that is gone; the one to which a deleted one was
    renamed. ``since``: the time of the rename or deletion.
    ``retention``: how long the branch is to live from ``created_at``, a duration such as ``14 d``; None = it doesn't
    expire. ``protected``: to delete, rename, replace or publish it needs ``force``. ``family``: the same for all
    branches that were made from one another, or rebased; ``came_from``: the snapshots (``snapshot_key``) of other
    branches whose changes the branch began with.
    """

    branch: str
    created_at: str
    from_branch: str = MAIN
    from_tag: str | None = None
    snapshot_id: int | None = None
    identity: str | None = None
    owner: str | None = None
    reason: str | None = None
    operation_id: str | None = None
    schema_id: int | None = None
    known_origin: bool = True
    state: str = READY
    peer: str | None = None
    head: int | None = None
    since: str | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)
    retention: str | None = None
    protected: bool = False
    protected_by: str | None = None
    family: str | None = None
    came_from: tuple[str, ...] = ()
    KIND = BRANCHES

    @property
    def outlives_changes(self) -> bool:
        """Whether the record is needed while no operation is changing the branch."""
        return self.known_origin or bool(self.owner or self.reason or self.retention or self.protected)

    @property
    def family_name(self) -> str:
        """The family; of a record of an earlier version, that of a branch which came from no other one."""
        return self.family or f"{self.branch}@{self.created_at}"

    @property
    def expires_ms(self) -> int | None:
        """When the retention is over (epoch milliseconds); None = never, or the record is unreadable there."""
        if self.retention is None:
            return None
        try:
            end = datetime.fromisoformat(self.created_at) + parse_duration(self.retention, "retention")
            return round(end.timestamp() * 1000)
        except (InvalidInputError, ValueError, OverflowError):
            return None

    @property
    def created_ms(self) -> int | None:
        """When the branch was created (epoch milliseconds); None: the record is unreadable there."""
        try:
            return round(datetime.fromisoformat(self.created_at).timestamp() * 1000)
        except (ValueError, OverflowError):
            return None

    def same_base(self, other: BranchRecord) -> bool:
        """Whether both branches were made from the same snapshot of the same branch."""
        mine = (self.from_branch, self.snapshot_id, self.identity)
        return mine == (other.from_branch, other.snapshot_id, other.identity)

    def same_branch(self, other: BranchRecord) -> bool:
        """Whether both are records of the same branch, not of two branches that had the name one after the other."""
        return (self.created_at, self.operation_id) == (other.created_at, other.operation_id)

    def in_state(self, state: str, *, peer: str | None = None) -> BranchRecord:
        """Return the record of the same branch in another state."""
        return replace(self, state=state, peer=peer, head=None, since=None, schemas={})


def snapshot_key(snapshot: Snapshot) -> str:
    """Return what identifies a snapshot of some branch in ``BranchRecord.came_from``."""
    return f"{snapshot.id}:{snapshot.identity}"


def branch_record_path(branch: str) -> str:
    return BRANCHES.path(branch)


def recorded_branches(table: Table) -> list[str]:
    """Return the names of the branches that have a record, whether or not they exist."""
    return sorted(n.removesuffix(".json") for n in table.store.names(BRANCHES.folder) if is_record(n))


def read_branch_record(table: Table, branch: str) -> BranchRecord | None:
    """Read a branch's record. None when it is missing or unreadable: a table works without it."""
    try:
        return BranchRecord.find(table.store, branch_record_path(branch), table.name)
    except FormatError:
        return None


def matching_branch_record(table: Table, branch: str) -> BranchRecord | None:
    """Return the record if the branch is ready and starts from the snapshot that the record names, else None."""
    record = read_branch_record(table, branch)
    if record is None or record.state != READY or not record.known_origin:
        return None
    view = table.branch(branch)
    if record.snapshot_id is None:
        return record
    try:
        base = view.snapshot(record.snapshot_id)
    except (NotFoundError, FormatError):
        return None
    return record if base.identity == record.identity else None


def began_empty(view: Table) -> bool:
    """Whether a branch was made without a snapshot, as its record says."""
    record = read_branch_record(view, view.branch_name)
    return record is not None and record.known_origin and record.snapshot_id is None


def require_ready(view: Table) -> BranchRecord | None:
    """Return the branch's record (None: it has none, or is main).

    Raises:
        ConflictError: the branch is being created, renamed or deleted; the message says how to finish that.
    """
    if view.branch_name == MAIN:
        return None
    record = read_branch_record(view, view.branch_name)
    if record is None or record.state == READY:
        return record
    raise not_ready(view, record)


def not_ready(view: Table, record: BranchRecord) -> ConflictError:
    """Name the operation in progress on the branch, and how to finish it if it was interrupted."""
    name = view.branch_name
    doing, again = {
        CREATING: ("created", f"create_branch {name} with if_exists=skip"),
        DELETING: ("deleted", f"delete_branch {name}"),
        DELETED: ("deleted", f"delete_branch {name}"),
    }.get(record.state, (f"changed ({record.state})", "the operation that began this"))
    if record.peer is not None and record.state == CREATING:
        doing, again = f"made from branch {record.peer!r} by a rename", f"rename_branch {record.peer} to {name}"
    elif record.peer is not None:
        doing, again = f"renamed to {record.peer!r}", f"rename_branch {name} to {record.peer}"
    return ConflictError(
        f"{view.name}: branch {name!r} is being {doing}, so nothing was written. Try again later; if no such operation "
        f"is running, it was interrupted: run {again} again, or see check_table for a repair",
        details={"branch": name, "state": record.state},
    )


def still_exists(view: Table, before: BranchRecord | None) -> bool:
    """After a put: whether the branch still exists and is the one whose record was ``before``."""
    if view.branch_name == MAIN:
        return True
    now = read_branch_record(view, view.branch_name)
    if now is None or before is None:
        return now is None and before is None and view.exists()
    return now.state == READY and now.same_branch(before)


def is_deleted(view: Table, before: BranchRecord | None) -> bool:
    """Whether the branch was deleted for good, so that a snapshot put on it now belongs to no branch.

    A branch recreated under the same name counts as another branch.
    """
    now = read_branch_record(view, view.branch_name)
    if now is None:
        return not view.exists()
    return now.state == DELETED or (now.state == READY and before is not None and not now.same_branch(before))
