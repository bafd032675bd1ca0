"""What must hold of what a planner has planned for a branch's publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind, SnapshotRef
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    bucket_namer,
    check_bucket_counts,
    check_deletion_vectors,
    check_moving_keys,
    check_snapshot_numbers,
    highest_sequence,
)
from airflow_paimon.core.publish.column_merge_plan import check_columns, check_ids, check_ranges
from airflow_paimon.core.publish.compare import Comparison, keys_stay, published_difference
from airflow_paimon.core.publish.duplicate_rows import check_moved_rows
from airflow_paimon.core.publish.dynamic_bucket_keys import check_dynamic_bucket_keys
from airflow_paimon.core.publish.partial_publish import check_changed
from airflow_paimon.core.publish.planners import MergePlanner, SchemaLogs
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.related_publishes import refuse_other_ids
from airflow_paimon.core.publish.row_functions import RowFunctions
from airflow_paimon.core.table.history import changed_buckets, difference, snapshots_between
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers import refuse_open
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions


@dataclass(frozen=True, slots=True)
class MergeOnHead:
    """What the checks look at: what was planned of a comparison with one head of main."""

    planner: MergePlanner
    compared: Comparison
    logs: SchemaLogs
    planned: Publication
    rows: RowFunctions


def _check_changed(m: MergeOnHead) -> None:
    check_changed(m.planner.main, m.planner.branch, m.compared)


def _check_deletion_vectors(m: MergeOnHead) -> None:
    check_deletion_vectors(m.planner.main.name, theirs=m.logs.branch[-1], ours=m.compared.schema)


def _check_data_evolution(m: MergeOnHead) -> None:
    main, changes, name = m.planner.main, m.planned.changes, bucket_namer(m.compared.schema)
    if m.planned.row_ids is None or m.planned.row_ids.column_order is None:
        return
    space, theirs, ours = m.planned.row_ids.space, m.compared.theirs_since_base, m.compared.ours_since_base
    check_ids(main.name, changes, theirs, ours, space=space, name_bucket=name)
    if m.planner.takes_all:
        return
    if m.planned.file_merge is None:
        raise UnsupportedFeatureError(
            f"{main.name}: with data-evolution.enabled and fixed buckets (bucket-append-ordered) a branch can't be "
            f"merged; fast_forward publishes it if main has not changed since the branch was made"
        )
    schemas = {s.id: s for s in m.logs.main}, {s.id: s for s in m.logs.branch}
    sides = m.compared.sides
    check_columns(main.name, changes, sides.theirs, sides.ours, space=space, schemas=schemas, name_bucket=name)
    stored = StoredPartitions(m.compared.schema)
    live = live_entries(main, m.compared.head, stored.those({c.bucket.partition for c in changes})) if changes else {}
    check_ranges(main.name, stored.by_bucket(live.values()), changes, space=space, name_bucket=name)


def _check_relatives(m: MergeOnHead) -> None:
    if m.planned.row_ids is not None and m.compared.on_main.relatives:
        relatives = replace(m.compared.on_main, publishes=())
        brought = published_difference(m.planner.branch, m.compared.base, relatives)
        name, space = bucket_namer(m.compared.schema), m.planned.row_ids.space
        refuse_other_ids(m.planner.main.name, brought, m.planned.changes, space, name)


def _check_counts(m: MergeOnHead) -> None:
    main, by_file = m.planner.main, m.planned.file_merge is not None
    sides, schema = m.compared.sides, m.compared.schema
    check_bucket_counts(main.name, sides, m.planned.changes, schema, main.branch_name, by_file=by_file)


def _check_numbers(m: MergeOnHead) -> None:
    check_snapshot_numbers(m.planner.main.name, m.planned.changes, m.compared.schema, m.compared.head.id + 1)


def _check_writers(m: MergeOnHead) -> None:
    """Refuse what a writer that is open on main would not know of."""
    main, request, compared, changes = m.planner.main, m.planner.request, m.compared, m.planned.changes
    schema = compared.schema
    if not schema.primary_keys or request.writers_stopped:
        return
    if not keys_stay(m.planner.branch, compared.base, compared.branch_snapshot, compared.sides):
        check_moving_keys(main.name, changes, schema)
    check_dynamic_bucket_keys(main, schema, changes, compared.theirs_since_base, compared.head)
    if not request.dry_run:  # a plan describes them: they may be closed by then
        refuse_open(main, schema, m.planned.buckets, compared.head, m.planner.context.now_ms, "published")


def check_approved(m: MergeOnHead) -> None:
    """Refuse what the approver has not seen. Files that main has added beside the merged ones are no part of it."""
    main, head, said, planned = m.planner.main, m.compared.head, m.planner.request.approved_main_snapshot, m.planned
    if said is None or not (planned.changes or planned.schemas.new or planned.must_be_recorded):
        return
    approved = SnapshotRef.named(said)
    there = head if head.id == approved.id else main.find_snapshot(approved.id)
    known = approved.id <= head.id and (there is None or approved.is_of(there))
    if known and (approved.id == head.id or planned.file_merge is not None):
        return
    taken = {c.bucket for c in planned.changes}
    since = snapshots_between(main, approved.id, head.id) if known else None
    if since is not None:
        moved = changed_buckets(main, since, taken)
        if not any(s.commit_kind in (CommitKind.COMPACT, CommitKind.ANALYZE) for s in since):
            moved = taken & difference(main, main.snapshot(approved.id), head).buckets
        if not moved:
            return
    raise ConflictError(
        f"{main.name}: {main.branch_name} moved from snapshot {approved.beside(head.id)}, which was approved, to "
        f"{head.id} in partitions that this publish replaces; review the new diff and approve again",
        code="approval-outdated",
        details={"approved_main_snapshot": said, "main_snapshot": head.id},
    )


def _check_moved_rows(m: MergeOnHead) -> None:
    if m.planned.row_ids is not None and not m.compared.scope.is_whole:
        check_moved_rows(m.planner.main, m.planner.branch, m.compared, m.planned, m.rows.find_shared_id)


PLAN_CHECKS = (
    _check_changed,
    _check_deletion_vectors,
    _check_data_evolution,
    _check_relatives,
    _check_counts,
    _check_numbers,
    _check_writers,
    check_approved,
    _check_moved_rows,
)
"""What must hold of what was planned for a head, in the order of the messages. Before it comes the planner's own
``check`` of the request, and the checks that the table requires; after a merge by key ``check_approved`` again. What
must still hold at the commit are its conditions (``run.py``).
"""


def buckets_to_fold(
    planner: MergePlanner, compared: Comparison, changes: Sequence[BucketChange]
) -> dict[BucketKey, int]:
    """Return the buckets of the branch whose rows would win over newer ones of a writer that stays open during the
    publish, with the highest number that they may have, that of the branch point; -1 where it was empty.

    The base's manifests are read only if the replaced files are not sufficient. See docs/contributing/publishing.md, A
    running writer keeps winning.
    """
    request, schema = planner.request, compared.schema
    if not schema.primary_keys or TableOptions(schema.options).sequence_fields or request.writers_stopped:
        return {}
    new = {c.bucket: highest_sequence([e.file for e in c.add]) for c in changes}
    removed = compared.theirs_since_base.removed.items()
    limits = {b: highest_sequence([e.file for e in group.values()]) for b, group in removed}
    doubtful = [b for b, highest in new.items() if highest > limits.get(b, -1)]
    if doubtful:
        base = compared.base
        found = live_entries(planner.main, base if base.id else None)
        live = StoredPartitions(planner.main.schema()).by_bucket(found.values())
        limits |= {b: highest_sequence([e.file for e in live.get(b, [])]) for b in doubtful}
    return {b: limits[b] for b in doubtful if new[b] > limits[b]}
