"""What must hold of what was planned for a head: of a branch's publish, and of a rollback beside open writers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, read_hash_index, same_hashes
from airflow_paimon.core.format.manifest import DataFile, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.publish.bucket_checks import (
    check_bucket_counts,
    check_deletion_vectors,
    check_moving_keys,
    check_snapshot_numbers,
    other_keys,
    warn_of_bucket_counts,
)
from airflow_paimon.core.publish.bucket_files import read_bucket_files
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    highest_sequence,
    listed,
    neutral_kinds,
)
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder, check_column_conflicts, check_ids, check_ranges
from airflow_paimon.core.publish.compare import Comparison, published_difference
from airflow_paimon.core.publish.partial_publish import check_changed, texts_of
from airflow_paimon.core.publish.planners import PublishPlanner
from airflow_paimon.core.publish.publication import Publication, RowIds
from airflow_paimon.core.publish.row_functions import RowFunctions
from airflow_paimon.core.row_tracking.row_ids_plan import (
    IdRange,
    IdSpace,
    has_row_ids,
    id_space,
    is_stored,
    origin,
    stored_ids,
)
from airflow_paimon.core.table.history import changed_buckets, difference, snapshots_between
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.open_writers import refuse_open
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.table import Table


def plan_checked(
    planner: PublishPlanner,
    compared: Comparison,
    rows: RowFunctions,
    *,
    spare_ids: int = 0,
) -> Publication:
    """Let the planner decide, give rows their ids, and check it all. ``spare_ids``: row ids to leave to main.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns.
    """
    publication, options = planner.plan(compared), TableOptions(compared.schema.options)
    if options.row_tracking:
        publication = replace(publication, row_ids=_row_ids(compared, publication, spare_ids))
    if options.data_evolution:  # an update adds a file and removes none
        publication = replace(publication, unchanged=None)
    _check_plan(planner, compared, publication, rows)
    if warned := warn_of_bucket_counts(publication.changes, compared.schema):
        publication = replace(publication, summary={**publication.summary, "warnings": warned})
    return publication


def _row_ids(compared: Comparison, planned: Publication, spare_ids: int) -> RowIds:
    """After a publish, main knows all ids that the branch had assigned until then, shifted as its snapshot says.

    It knows the versions as well, unless rows of that publish come back now: those are changed by this one.
    """
    last, base, by_file = compared.on_main.last, compared.base, planned.file_merge
    shifts = last.shifts if last is not None else ()
    comes_back = compared.branch_rolled_back or (
        by_file is None and any(c.bucket in compared.sides.ours_changed for c in planned.changes)
    )
    order = None
    if TableOptions(compared.schema.options).data_evolution:
        known = max((s.next_row_id or 0 for s in (base, *([] if last is None else [last.branch]))), default=0)
        order = ColumnOrder(known=known, floor=base.id if last is None else max(base.id, last.main.id))
    sides = (compared.branch_since_base, compared.main_since_base)
    removed = {i for side in sides for group in side.removed.values() for i in group}
    renamed = (i for group in compared.main_since_base.added.values() for i in group if origin(i) != i)
    return RowIds(
        space=id_space(
            planned.target.name,
            earlier=shifts,
            shared=(last.branch if last is not None and shifts else base).next_row_id or 0,
            target=(compared.head.next_row_id or 0) + (0 if by_file is None else spare_ids),
            source=compared.branch_snapshot.next_row_id or 0,
            base=base.id,
            published=() if last is None or comes_back else compared.on_main.versions,
        ),
        known=removed | (frozenset() if by_file is None else by_file.restored_files),
        renamed_files={origin(i): i for i in renamed},
        column_order=order,
    )


def _check_plan(planner: PublishPlanner, compared: Comparison, planned: Publication, rows: RowFunctions) -> None:
    """Check what was planned for a head, in the order of the messages.

    Before it comes the planner's own ``check`` of the request, after it what the table requires; after a merge by key
    ``check_approved`` again. What must still hold at the commit are its conditions (``run.py``).

    Raises:
        PaimonError: it must not be published.
    """
    main, schema, changes, ids = planner.main, compared.schema, planned.changes, planned.row_ids
    check_changed(compared)
    check_deletion_vectors(main.name, theirs=compared.logs.branch[-1], ours=schema)
    if ids is not None:
        _check_row_ids(compared, planned, ids)
    if ids is not None and ids.column_order is not None and not planner.takes_all:
        _check_data_evolution(compared, planned, ids.space)
    by_file = planned.file_merge is not None
    check_bucket_counts(main.name, compared.sides, changes, schema, main.branch_name, by_file=by_file)
    check_snapshot_numbers(main.name, changes, schema, compared.head.id + 1)
    request, now_ms = planner.request, planner.context.now_ms
    if schema.primary_keys and not request.writers_stopped:
        theirs, in_place = compared.branch_since_base, _keys_stay(compared)
        check_open_writers(planned, schema, theirs, now_ms, in_place=in_place, dry_run=request.dry_run)
    check_approved(planner, compared, planned)
    if ids is not None and not compared.scope.is_whole:
        _check_moved_rows(compared, planned, rows)


def _check_row_ids(compared: Comparison, planned: Publication, ids: RowIds) -> None:
    """Of files that main got by a relative's publish; with data evolution, of all: an update removes none."""
    relatives = replace(compared.on_main, publishes=())
    shared, own = [published_difference(compared, relatives)], compared.branch_since_base.added
    if ids.column_order is not None:
        plain = {b: {i: e for i, e in files.items() if e.file.first_row_id is not None} for b, files in own.items()}
        shared.append(Difference(added=plain))
    name = StoredPartitions(compared.schema).bucket_text
    ours = compared.main_since_base
    check_ids(compared.main.name, planned.changes, shared, ours, space=ids.space, name_bucket=name)


def _check_data_evolution(compared: Comparison, planned: Publication, space: IdSpace) -> None:
    main, changes, name = compared.main, planned.changes, StoredPartitions(compared.schema).bucket_text
    if planned.file_merge is None:
        raise UnsupportedFeatureError(
            f"{main.name}: with data-evolution.enabled and fixed buckets (bucket-append-ordered) a branch can't be "
            f"merged; fast_forward publishes it if main has not changed since the branch was made"
        )
    sides, logs = compared.sides, compared.logs
    schemas = {s.id: s for s in logs.main}, {s.id: s for s in logs.branch}
    check_column_conflicts(main.name, changes, sides.theirs, sides.ours, space=space, schemas=schemas, name_bucket=name)
    live = read_bucket_files(main, compared.head, {c.bucket for c in changes}, compared.schema)
    check_ranges(main.name, live.entries, changes, space=space, name_bucket=name)


def check_open_writers(
    planned: Publication, schema: TableSchema, theirs: Difference, now_ms: int, *, in_place: bool, dry_run: bool
) -> None:
    """Refuse what a writer that is open on the target would not know of. ``theirs``: what the source changed.
    ``in_place``: each key of the source is in the partition that it is in on the target.

    Raises:
        UnsafeOperationError: lists the buckets.
    """
    target, whose, done = planned.target, "the branch", "published"
    if planned.is_rollback:
        whose, done = f"snapshot {planned.source_snapshot.id}", "changed"
    if not in_place:
        check_moving_keys(target.label, planned.changes, schema, whose)
    _check_dynamic_bucket_keys(planned, schema, theirs, whose)
    if not dry_run:  # a plan describes them: they may be closed by then
        refuse_open(target, schema, planned.buckets, planned.head, now_ms, done)


def _keys_stay(compared: Comparison) -> bool:
    """Whether each key of the branch is where it is on main: it has only corrections in place, and main no changes."""
    commits = compared.branch_commits
    return (
        not compared.sides.ours_changed
        and commits is not None
        and all(
            s.commit_kind in neutral_kinds(compared.schema) or KEYS_STAY.items() <= s.properties.items()
            for s in commits
        )
    )


def _check_dynamic_bucket_keys(planned: Publication, schema: TableSchema, theirs: Difference, whose: str) -> None:
    """Refuse changes that give dynamic buckets other keys than they have on the target: writers remember the bucket of
    each key. Reads the hash indexes that the changes replace.
    """
    target, bucket_of = planned.target, StoredPartitions(schema).bucket
    mine = {bucket_of(i): i for i in read_index_entries(target, planned.head) if i.index_type == INDEX_TYPE}
    other = []
    for bucket in {c.bucket for c in planned.changes} & theirs.index.keys():
        new = next((i for i in theirs.index[bucket] if i.index_type == INDEX_TYPE), None)
        old = mine.get(bucket)
        if (new and new.file_name) != (old and old.file_name) and not _same_keys(target, new, old):
            other.append(bucket)
    if other:
        raise other_keys(target.label, other, schema, whose)


def _same_keys(table: Table, new: IndexEntry | None, old: IndexEntry | None) -> bool:
    if new is None or old is None or new.row_count != old.row_count:
        return False
    entries = (new, old)
    data = table.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])
    one, other = (read_hash_index(d, e.row_count, name=e.file_name) for d, e in zip(data, entries, strict=True))
    return same_hashes(one, other)


def check_approved(planner: PublishPlanner, compared: Comparison, planned: Publication) -> None:
    """Refuse what the approver has not seen. Files that main has added beside the merged ones are no part of it.

    Raises:
        ConflictError: main has changed what is replaced since the approved snapshot.
    """
    main, head, said = planner.main, compared.head, planner.request.approved_main_snapshot
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
        neutral = neutral_kinds(compared.schema)
        moved = changed_buckets(main, since, taken, neutral)
        if not any(s.commit_kind in neutral for s in since):
            moved = taken & difference(main, main.snapshot(approved.id), head).buckets
        if not moved:
            return
    raise ConflictError(
        f"{main.name}: {main.branch_name} moved from snapshot {approved.beside(head.id)}, which was approved, to "
        f"{head.id} in partitions that this publish replaces; review the new diff and approve again",
        code="approval-outdated",
        details={"approved_main_snapshot": said, "main_snapshot": head.id},
    )


def _check_moved_rows(compared: Comparison, publication: Publication, rows: RowFunctions) -> None:
    """Check that no row of a publish of some partitions would be on main twice: the branch may have moved it to one of
    them from one that is not published.

    Compares the ids that files to be published store with those of main's files that the branch has changed, and that
    stay. Reads them only where their bounds don't tell.

    Raises:
        UnsafeOperationError: an id is on both sides.
    """
    assert publication.row_ids is not None
    space, known = publication.row_ids.space, publication.row_ids.known
    added = [e for c in publication.changes for e in c.add if is_stored(e.file) and e.identifier not in known]
    if not added:
        return
    main, stay = compared.main, _staying(compared)
    suspects = [e for e in added if any(_overlap(space.moved(stored_ids(e.file)), o.file) for o in stay)]
    if not suspects:
        return
    others = [o for o in stay if any(_overlap(space.moved(stored_ids(e.file)), o.file) for e in suspects)]
    found = rows.find_shared_id(compared.branch, suspects, main, others, read_index_entries(main, compared.head), space)
    if found is not None:
        where = listed(texts_of(compared.schema, {e.partition for e in others}))
        raise UnsafeOperationError(
            f"{main.name}: the branch has moved rows from {where} to partitions that are to be published, "
            f"e.g. the one with _ROW_ID {found}, so they would be on main twice; "
            f"nothing was published. Publish those partitions together",
            details={"files": sorted(e.file.file_name for e in suspects)[:MAX_LISTED]},
        )


def _staying(compared: Comparison) -> list[ManifestEntry]:
    """Return main's files out of scope, of the buckets in which the branch has other files or deletion vectors."""
    change = difference(compared.branch, compared.head, compared.branch_snapshot)
    buckets = {b for b in change.removed.keys() | change.index.keys() if not compared.scope.holds(b.partition)}
    found = read_bucket_files(compared.main, compared.head, buckets, compared.schema)
    return [e for group in found.entries.values() for e in group]


def _overlap(ids: IdRange | None, file: DataFile) -> bool:
    """Whether a file may have one of these ids; None: any."""
    if not has_row_ids(file):
        return False
    first = file.first_row_id
    other = stored_ids(file) if first is None else IdRange(first, first + file.row_count - 1)
    return ids is None or other is None or (ids.first <= other.last and other.first <= ids.last)


def buckets_to_fold(
    planner: PublishPlanner, compared: Comparison, changes: Sequence[BucketChange]
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
    removed = compared.branch_since_base.removed.items()
    limits = {b: highest_sequence([e.file for e in group.values()]) for b, group in removed}
    doubtful = {b for b, highest in new.items() if highest > limits.get(b, -1)}
    if doubtful:
        found = read_bucket_files(compared.main, compared.base, doubtful, schema)
        limits |= dict.fromkeys(doubtful, -1) | found.highest_numbers
    return {b: limits[b] for b in doubtful if new[b] > limits[b]}
