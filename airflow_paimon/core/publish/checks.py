"""What must hold of a branch's publish: checks of what a planner has planned, in the order of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot, SnapshotRef
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    bucket_namer,
    check_bucket_counts,
    check_moving_keys,
    check_snapshot_numbers,
    highest_sequence,
    too_high,
)
from airflow_paimon.core.publish.column_merge_plan import check_columns, check_ids, check_ranges
from airflow_paimon.core.publish.compare import Comparison, keys_stay, published_difference
from airflow_paimon.core.publish.dynamic_bucket_keys import check_dynamic_bucket_keys
from airflow_paimon.core.publish.planners import MergePlanner, SchemaLogs
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.related_publishes import refuse_other_ids
from airflow_paimon.core.table.history import Difference, changed_buckets, difference, snapshots_between
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers import refuse_open
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


def check_data_evolution(planner: MergePlanner, compared: Comparison, logs: SchemaLogs, planned: Publication) -> None:
    main, changes, space, name = planner.main, planned.changes, planned.id_space, bucket_namer(compared.schema)
    if space is None:
        return
    check_ids(main.name, changes, compared.theirs_since_base, compared.ours_since_base, space=space, name_bucket=name)
    if planner.takes_all:
        return
    if planned.file_merge is None:
        raise UnsupportedFeatureError(
            f"{main.name}: with data-evolution.enabled and fixed buckets (bucket-append-ordered) a branch can't be "
            f"merged; fast_forward publishes it if main has not changed since the branch was made"
        )
    schemas = {s.id: s for s in logs.main}, {s.id: s for s in logs.branch}
    sides = compared.sides
    check_columns(main.name, changes, sides.theirs, sides.ours, space=space, schemas=schemas, name_bucket=name)
    stored = StoredPartitions(compared.schema)
    live = live_entries(main, compared.head, stored.those({c.bucket.partition for c in changes})) if changes else {}
    by_bucket = stored.by_bucket(live.values())
    check_ranges(main.name, by_bucket, changes, space=space, name_bucket=name)


def _check_relatives(planner: MergePlanner, compared: Comparison, planned: Publication) -> None:
    if planned.id_space is not None and compared.on_main.relatives:
        brought = published_difference(planner.branch, compared.base, replace(compared.on_main, publishes=()))
        name = bucket_namer(compared.schema)
        refuse_other_ids(planner.main.name, brought, planned.changes, planned.id_space, name)


def _check_counts(planner: MergePlanner, compared: Comparison, planned: Publication) -> None:
    main, by_file = planner.main, planned.file_merge is not None
    check_bucket_counts(main.name, compared.sides, planned.changes, compared.schema, main.branch_name, by_file=by_file)


def _check_numbers(planner: MergePlanner, compared: Comparison, planned: Publication) -> None:
    check_snapshot_numbers(planner.main.name, planned.changes, compared.schema, compared.head.id + 1)


def _check_writers(planner: MergePlanner, compared: Comparison, planned: Publication) -> None:
    """Refuse what a writer that is open on main would not know of."""
    main, request, schema, changes = planner.main, planner.request, compared.schema, planned.changes
    if not schema.primary_keys or request.writers_stopped:
        return
    if not keys_stay(planner.branch, compared.base, compared.branch_snapshot, compared.sides):
        check_moving_keys(main.name, changes, schema)
    check_dynamic_bucket_keys(main, schema, changes, compared.theirs_since_base, compared.head)
    if not request.dry_run:  # a plan describes them: they may be closed by then
        refuse_open(main, schema, planned.buckets, compared.head, planner.context.now_ms, "published")


def check_approved(planner: MergePlanner, compared: Comparison, planned: Publication) -> None:
    """Refuse what the approver has not seen. Files that main has added beside the merged ones are no part of it."""
    main, head, said = planner.main, compared.head, planner.request.approved_main_snapshot
    if said is None or not (planned.changes or planned.schemas.new or planned.columns_already_put):
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


PUBLISH_CHECKS = (_check_relatives, _check_counts, _check_numbers, _check_writers, check_approved)
"""What must hold of every publish of a branch, in the order of the messages."""


def buckets_to_fold(
    planner: MergePlanner, compared: Comparison, changes: Sequence[BucketChange]
) -> dict[BucketKey, int]:
    """Return the buckets to fold first, with the highest number allowed. The base's manifests are read only if the
    replaced files are not sufficient.
    """
    request, schema = planner.request, compared.schema
    if not schema.primary_keys or TableOptions(schema.options).sequence_fields:
        return {}
    if request.writers_stopped:
        return {}
    return too_high(changes, _base_highest(planner.main, compared.base, compared.theirs_since_base, changes))


def _base_highest(
    table: Table, base: Snapshot, theirs: Difference, changes: Sequence[BucketChange]
) -> dict[BucketKey, int]:
    """The highest sequence number at the branch point, of each bucket that needs it; -1 where it was empty."""
    removed = {b: highest_sequence([e.file for e in group.values()]) for b, group in theirs.removed.items()}
    doubtful = {c.bucket for c in changes if highest_sequence([e.file for e in c.add]) > removed.get(c.bucket, -1)}
    if doubtful:
        found = live_entries(table, base if base.id else None)
        live = StoredPartitions(table.schema()).by_bucket(found.values())
        removed |= {b: highest_sequence([e.file for e in live.get(b, [])]) for b in doubtful}
    return removed
