"""The fold before a publish: buckets of the branch that were written by appends are written again with lower numbers.

See docs/contributing/publishing.md, A running writer keeps winning.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.publish.row_functions import RowFunctions
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table

FOLD = "fold"
"""What the property ``airflow-paimon.operation`` of a fold's snapshot says."""


def fold_branch(branch: Table, theirs: Snapshot, limits: Mapping[BucketKey, int], rows: RowFunctions) -> Snapshot:
    """Fold buckets of the branch's head ``theirs``, and return the new head: one commit that changes no row.

    Raises:
        ConflictError: there was another commit on the branch, which nobody has approved.
        UnsafeOperationError: the table has a feature that this engine doesn't write.
    """
    try:
        rows.fold(branch, limits)
    except UnsupportedFeatureError as error:
        raise UnsafeOperationError(
            f"{branch.label}: rows were appended to it, with sequence numbers above those at the branch point, and "
            f"its buckets can't be folded before the publish ({error.message}). Use writers_stopped "
            "(--writers-stopped) when no writer of main is open",
            code="rows-above-main",
        ) from error
    head = branch.latest_snapshot()
    if head is None or head.id > theirs.id + 1 or not is_fold(head):
        raise ConflictError(
            f"{branch.label} was written while it was folded; nothing was published. Review the new commits, then "
            f"publish again",
            details={"branch_snapshot": head.id if head else None, "folded_snapshot": theirs.id},
        )
    return head


def is_folded(branch: Table, head: Snapshot, approved: SnapshotRef) -> bool:
    """Whether only folds of interrupted publishes came after the approved snapshot: they have changed no row."""
    known = branch.find_snapshot(approved.id)
    return known is not None and approved.is_of(known) and head.identity in with_folds(branch, known)


def with_folds(branch: Table, snapshot: Snapshot) -> set[str]:
    """Return the identities of a branch's snapshot and of the folds right after it, which have its rows."""
    found, after = {snapshot.identity}, branch.find_snapshot(snapshot.id + 1)
    while after is not None and is_fold(after):
        found.add(after.identity)
        after = branch.find_snapshot(after.id + 1)
    return found


def is_fold(snapshot: Snapshot) -> bool:
    """Whether a snapshot only gave rows lower sequence numbers for a publish."""
    return snapshot.properties.get(OPERATION_PROPERTY) == FOLD
