"""Looks at what a commit stands on right before the put of its snapshot, and at that snapshot right after it."""

from __future__ import annotations

from contextlib import suppress

from airflow_paimon.core.commit.cache import is_same
from airflow_paimon.core.commit.committed import BEING_CHANGED, is_ours, unknown_outcome
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.staged import StagedSnapshot
from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.branch_record import BranchRecord, is_deleted, still_exists
from airflow_paimon.core.table.table import Table


def is_still_there(table: Table, head: Snapshot | None, draft: Draft) -> bool:
    """Whether the head is there, and before the first snapshot the schema."""
    return _has_schema(table, draft.schema) if head is None else head_is_unchanged(table, head)


def head_is_unchanged(table: Table, head: Snapshot | None) -> bool:
    """Whether the snapshot before one that was just put is the one that it is based on."""
    now = None if head is None else table.find_snapshot(head.id)
    return now is not None and head is not None and is_same(now, head)


def _has_schema(table: Table, schema: TableSchema) -> bool:
    """Whether the branch has this very version: one that was made anew has others, and has lost what was written."""
    try:
        return table.schema(schema.id) == schema
    except NotFoundError:
        return False


def read_back(table: Table, staged: StagedSnapshot, branch: BranchRecord | None, *, certain: bool) -> bool | None:
    """Read back the snapshot of this id. ``certain``: the storage refused our put, so an absent file means it lost.

    The branch is checked first: an operation that deletes or renames it later finds the snapshot. None: it was put on a
    branch that had been renamed or deleted for good, and was deleted again.
    """
    snapshot = staged.snapshot
    standing = still_exists(table, branch)
    try:
        committed = is_ours(table, snapshot)
    except NotFoundError:
        if certain:
            return False
        raise unknown_outcome(table, snapshot, "it is missing when it is read back") from None
    if standing or (certain and not committed):
        return committed
    if committed and _is_taken_from_gone_branch(table, staged, branch):
        return None
    raise unknown_outcome(table, snapshot, BEING_CHANGED)


def _is_taken_from_gone_branch(table: Table, staged: StagedSnapshot, branch: BranchRecord | None) -> bool:
    """Delete a snapshot that was put after its branch was deleted for good; False: it is not certain that it goes.

    It belongs to no branch, and would bring its rows into the next branch of that name.
    """
    snapshot, data = staged.snapshot, staged.data
    path, following = table.paths.snapshot(snapshot.id), table.paths.snapshot(snapshot.id + 1)
    if not is_deleted(table, branch) or table.store.exists(following):
        return False
    if not table.store.delete_same(path, data):
        return False
    if table.store.exists(following):  # a writer to the recreated branch has committed on top of it
        with suppress(AlreadyExistsError):
            table.store.create(path, data)
        return False
    return True
