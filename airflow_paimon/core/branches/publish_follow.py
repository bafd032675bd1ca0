"""Carries a planned merge, or undo, over to a newer head, so that it keeps up with continuous writers.

Planning reads all changes since the branch point, or the publish; a writer that commits faster than that would win
every race for the next snapshot id. Only buckets that the other commits changed are read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_paimon.core.branches.publish_plan import within_reach
from airflow_paimon.core.branches.safeguards import PublishMarks, plan_undo_tag
from airflow_paimon.core.commit.committer import Draft, execute
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.history import snapshots_between
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import BucketKey, read_delta_lists, read_entries
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

Moved = Callable[[Snapshot], None]
"""Called with the new head on which the merge is now based."""


def with_follow(
    context: Context,
    view: Table,
    planned: Draft,
    head: Snapshot,
    theirs: set[BucketKey],
    marks: PublishMarks,
    moved: Moved,
) -> Draft:
    """Return the draft with its ``follow``; ``theirs``: the buckets that it changes."""

    def follow(newer: Snapshot) -> Draft | None:
        if not leaves_untouched(view, head, newer, theirs, planned.schema):
            return None
        execute(view, plan_undo_tag(context, view, newer, marks))
        moved(newer)
        return with_follow(context, view, planned, newer, theirs, marks, moved)

    return replace(planned, follow=follow)


def leaves_untouched(view: Table, old: Snapshot, new: Snapshot, theirs: set[BucketKey], schema: TableSchema) -> bool:
    """Whether the commits from ``old`` to ``new`` change none of the inputs of a three-way merge.

    ``theirs``: the buckets that it changes."""
    if new.index_manifest != old.index_manifest or new.schema_id != old.schema_id:
        return False
    if view.schema().id != schema.id or TableOptions(schema.options).row_tracking:
        return False
    try:
        if view.snapshot(old.id).identity != old.identity:
            return False
    except NotFoundError:
        return False
    between = snapshots_between(view, old.id, new.id)
    if between is None:
        return False
    form = StoredPartitions(schema).canonical
    manifests = read_delta_lists(view, between)
    touched = {BucketKey(form(e.partition), e.bucket) for part in read_entries(view, manifests) for e in part}
    return not within_reach(touched, theirs, schema)
