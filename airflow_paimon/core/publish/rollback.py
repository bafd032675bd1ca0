"""rollback_to: restores an earlier state as one new snapshot; an undo reverts only the changes of a publish."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.publish.approval import is_read_with_main
from airflow_paimon.core.publish.bucket_checks import (
    check_bucket_counts,
    other_bucket_counts,
    warn_of_bucket_counts,
)
from airflow_paimon.core.publish.bucket_files import read_bucket_files
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    Sides,
    changes_of_branch,
    neutral_kinds,
    overlapping_buckets,
    sharing_keys,
    state_buckets,
)
from airflow_paimon.core.publish.checks import check_open_writers
from airflow_paimon.core.publish.file_merge_plan import Cause, FileMerge, merges_by_file
from airflow_paimon.core.publish.file_sides import undo_files
from airflow_paimon.core.publish.hold import conflict_if_gone
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, not_by_key, reason_against
from airflow_paimon.core.publish.newer_head import Unchanged
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.required_checks import RequiredChecks, read_required_checks
from airflow_paimon.core.publish.row_functions import NO_ROWS, RowFunctions
from airflow_paimon.core.publish.run import PlanOnHead, run_publication
from airflow_paimon.core.publish.undoable_publishes import is_undone
from airflow_paimon.core.publish.written_files import WrittenFiles
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import RollbackTo
from airflow_paimon.core.row_tracking.row_ids_plan import refuse_without_ids
from airflow_paimon.core.schema.mapping_plan import SchemaMapping
from airflow_paimon.core.schema.tables import set_option
from airflow_paimon.core.table.history import (
    changed_buckets,
    difference,
    existing_snapshots,
    find_retained,
    retained_snapshot,
    snapshot_by_watermark,
    snapshots_between,
    touched_buckets,
)
from airflow_paimon.core.table.live_files import Difference
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import PUBLISH_TAG_PREFIX, UNDO_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    BUCKET_OPTION_PROPERTY,
    CHECKS_FORCED_PROPERTY,
    CHECKS_PROPERTY,
    DETAILS_PROPERTY,
    KEEP_LATER_PROPERTY,
    OPERATION_PROPERTY,
    RESCALE,
    TARGET_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table, parse_timestamp, snapshot_by_time


def rollback_to(
    context: Context,
    request: RollbackTo,
    rows: RowFunctions = NO_ROWS,
) -> OperationResult:
    """Restore the live files of an earlier snapshot or tag, as a new snapshot: ids and history continue.

    With ``keep_later`` only the buckets that the publish right after the target changed are restored; of those that
    have changed again since, only the keys that it changed.

    Raises:
        NotFoundError: no such target. UnsafeOperationError: its rows have no row ids, those of the table have;
            it has other keys in dynamic buckets, and ``writers_stopped`` is not given.
            Somebody else has to approve it, or a check that the table requires is missing.
        ConflictError: with ``keep_later``, such a key changed again, or such a bucket that can't be merged by key.
    """
    if sum(given is not None for given in (request.tag, request.snapshot, request.timestamp, request.watermark)) != 1:
        raise InvalidInputError("rollback_to: give one of tag, snapshot, timestamp and watermark to go back to")
    if request.keep_later and request.tag is not None and request.tag.startswith(PUBLISH_TAG_PREFIX):
        undo = UNDO_TAG_PREFIX + request.tag.removeprefix(PUBLISH_TAG_PREFIX)
        raise InvalidInputError(
            f"rollback_to: tag {request.tag!r} is the publish itself, and with keep_later (--keep-later) the commit "
            f"after it would be undone. To undo the publish, give tag (--tag) {undo}"
        )
    target = context.table.branch(request.branch).require()
    require_committable(target)
    files = WrittenFiles(rows)

    def make_plan_on_head() -> PlanOnHead:
        restored, schema_at_start = _snapshot_to_restore(request, target), target.schema()
        required_checks = (
            read_required_checks(request, context.table, target, restored) if is_read_with_main(target) else None
        )

        def plan_on_head(head: Snapshot | None, put_schema_ids: Collection[int]) -> Publication:
            _check_kept(target, schema_at_start, restored)
            with conflict_if_gone(target, restored):
                publication = _plan(request, target, restored, head, context.now_ms)
                if required_checks is not None and head is not None:
                    publication = _checked(required_checks, publication, head)
                if not request.dry_run:
                    try:
                        publication = files.merge_by_key(publication, writers_stopped=request.writers_stopped)
                    except ConflictError as error:
                        raise _changed_again(target, restored, error) from None
                return _recorded(publication, request, target, restored)

        return plan_on_head

    return _with_option(context, target, run_publication(context, target, make_plan_on_head, files))


def _recorded(publication: Publication, request: RollbackTo, target: Table, restored: Snapshot) -> Publication:
    """Let an undo be known that changes no row, as all has been put right already: else main would still stand on the
    publish, and the branch would have nothing to publish.
    """
    if not request.keep_later or publication.changes_anything:
        return publication
    publish = find_retained(target, restored.id + 1)
    is_publish = publish is not None and UNDO_TAG_PROPERTY in publish.properties
    return replace(publication, must_be_recorded=is_publish and is_undone(target, restored.id + 1) is False)


def _drops(restored: Snapshot) -> str:
    return f"Without keep_later (--keep-later) every commit after snapshot {restored.id} of the whole table is dropped"


def _changed_again(
    target: Table, restored: Snapshot, error: ConflictError, compactions: Sequence[int] = ()
) -> ConflictError:
    """``compactions``: snapshots of compactions that alone are in the way, newest first."""
    what = error.details.get("overlap") or ", ".join(error.details["conflicts"])
    if compactions:
        steps = ", then ".join(f"snapshot={n - 1} (--snapshot {n - 1})" for n in compactions)
        return ConflictError(
            f"{target.label}: {what} was compacted after the publish; nothing was changed. Revert that by rollback_to "
            f"with keep_later (--keep-later) and {steps}, which changes no row; then undo again",
            code="compaction-conflict",
            details=error.details,
        )
    sql = "undo_statement writes the MERGE" if target.schema().primary_keys else "docs/howto/undo-later.md has the SQL"
    return ConflictError(
        f"{target.label}: {what} changed again after the publish, and the undo would drop newer rows; nothing was "
        f"changed. Restore them on a branch ({sql}), and publish that. {_drops(restored)}",
        code="undo-conflict",
        details=error.details,
    )


def _compactions(target: Table, error: ConflictError, publish: Snapshot, head: Snapshot) -> list[int]:
    """Return the compactions that merged files of a publish, newest first; none if rows are in the way as well."""
    causes = error.details.get("causes", {})
    if causes.keys() != {Cause.COMPACTION.value}:
        return []
    name, buckets = StoredPartitions(target.schema()).bucket_text, set(causes[Cause.COMPACTION.value])
    between = snapshots_between(target, publish.id, head.id) or []
    compactions = (s for s in reversed(between) if s.commit_kind == CommitKind.COMPACT)
    return [s.id for s in compactions if buckets & {*map(name, touched_buckets(target, [s]) or ())}]


def _checked(required_checks: RequiredChecks, publication: Publication, head: Snapshot) -> Publication:
    """Let what changes something pass the checks that the table requires.

    Raises:
        UnsafeOperationError: one is missing or failed, without ``skip_checks``.
    """
    if not publication.changes_anything:
        return publication
    request, restored = required_checks.request, required_checks.snapshot
    assert isinstance(request, RollbackTo)
    undone = retained_snapshot(required_checks.branch, restored.id + 1) if request.keep_later else head
    return required_checks.checked(publication, undone, is_main=not request.keep_later)


def _with_option(context: Context, target: Table, result: OperationResult) -> OperationResult:
    """Set the option ``bucket`` back after the rollback of a rescale; a retry does the same."""
    committed = target.find_snapshot(result.snapshot_after or 0) if result.changed and not result.dry_run else None
    number = committed.properties.get(BUCKET_OPTION_PROPERTY) if committed is not None else None
    if committed is None or number is None:
        return result
    try:
        set_option(context, target, "bucket", number)
    except PaimonError as error:
        error.details.setdefault("done", [committed.id])
        raise
    return replace(result, details={**result.details, "option": int(number)})


def _snapshot_to_restore(request: RollbackTo, target: Table) -> Snapshot:
    if request.tag is not None:
        return target.tag(request.tag).snapshot
    if request.timestamp is not None:
        return snapshot_by_time(target, parse_timestamp(request.timestamp, "timestamp (--timestamp)"))
    if request.watermark is not None:
        return snapshot_by_watermark(target, parse_timestamp(request.watermark, "watermark (--watermark)"))
    return target.snapshot(request.snapshot or 0)


def _check_kept(target: Table, schema_at_start: TableSchema, restored: Snapshot) -> None:
    """Check that the branch is the one of the target: its files need the schema versions that they were written with.

    Raises:
        ConflictError: it was made anew.
    """
    try:
        kept = target.schema(schema_at_start.id).identity == schema_at_start.identity
    except NotFoundError:
        kept = False
    if not kept:
        raise ConflictError(
            f"{target.label} was recreated during the rollback, so snapshot {restored.id} no longer belongs to it; "
            "nothing was changed"
        )


def _plan(request: RollbackTo, target: Table, restored: Snapshot, head: Snapshot | None, now_ms: int) -> Publication:
    if head is None:
        raise NotFoundError(f"{target.label} has no snapshot to go back from")
    schema = target.schema()
    merge: FileMerge | None = None
    key_merge: KeyMergeRequest | None = None
    unchanged: Unchanged | None = None
    if request.keep_later:
        changes, theirs, merge, key_merge = _undo_changes(target, schema, request.tag, restored, head)
        unchanged = Unchanged(buckets=frozenset(theirs.buckets))
        if merge is not None:
            unchanged = Unchanged(files=merge.relies_on)
    else:
        theirs = difference(target, head, restored, schema)
        changes = state_buckets(theirs)
    _check_row_ids(target, schema, restored, changes)
    option = _bucket_option(target, schema, restored, head, changes)
    warned = warn_of_bucket_counts(changes, schema) if option is None else []
    planned = Publication(
        target=target,
        source=target,
        head=head,
        source_snapshot=restored,
        since=restored.id,
        changes=changes,
        schemas=SchemaMapping({}, (), schema),
        preconditions=(HeadIs.of(request.branch, head, schema.id),),
        properties={
            TARGET_PROPERTY: str(restored.id),
            KEEP_LATER_PROPERTY: "true" if request.keep_later else "false",
            **({} if option is None else {BUCKET_OPTION_PROPERTY: str(option)}),
            **_checks_that_return(target, restored, keep_later=request.keep_later),
        },
        summary={
            "target_snapshot": restored.id,
            "target_tag": request.tag,
            "head_snapshot": head.id,
            "keep_later": request.keep_later,
            **({} if key_merge is None else {"merged_by_key": key_merge.summary}),
            **({"warnings": warned} if warned else {}),
        },
        file_merge=merge,
        key_merge=key_merge,
        unchanged=unchanged,
    )
    if schema.primary_keys and not request.writers_stopped:
        check_open_writers(planned, schema, theirs, now_ms, in_place=False, dry_run=request.dry_run)
    return planned


def _checks_that_return(target: Table, restored: Snapshot, *, keep_later: bool) -> dict[str, str]:
    """Return what checks said about the publish that comes back: the target, or the one that an undone undo took."""
    back: Snapshot | None = restored
    if keep_later:
        undo = find_retained(target, restored.id + 1)
        undone_after = undo.number(TARGET_PROPERTY) if undo is not None else None
        back = None if undone_after is None else find_retained(target, undone_after + 1)
    said = {} if back is None else back.properties
    return {name: said[name] for name in (CHECKS_PROPERTY, CHECKS_FORCED_PROPERTY) if name in said}


def _bucket_option(
    target: Table, schema: TableSchema, restored: Snapshot, head: Snapshot, changes: Sequence[BucketChange]
) -> int | None:
    """Return the number that the option ``bucket`` had before the rescales of the whole table that are undone; None:
    there are none, or it was altered since.
    """
    if not other_bucket_counts(changes, schema):
        return None
    since = existing_snapshots(target, list(range(restored.id + 1, head.id + 1)))
    said = [s.values(DETAILS_PROPERTY, dict) for s in since if s.properties.get(OPERATION_PROPERTY) == RESCALE]
    set_by = [one for one in said if one.get("option") != one.get("option_before")]
    if not set_by or set_by[-1]["option"] != TableOptions(schema.options).bucket:
        return None
    return int(set_by[0]["option_before"])


def _check_row_ids(target: Table, schema: TableSchema, restored: Snapshot, changes: Sequence[BucketChange]) -> None:
    """Refuse to go back before row tracking was switched on: Paimon fails on the ids of rows that have none."""
    if TableOptions(schema.options).row_tracking:
        refuse_without_ids(
            target.label,
            (e.file for c in changes for e in c.add),
            f"snapshot {restored.id} brings back",
            f"Read the rows of snapshot {restored.id} and overwrite the table with them: that gives them row ids",
        )


def _check_is_publish(target: Table, tag: str | None, restored: Snapshot, publish: Snapshot) -> None:
    """Refuse to undo a snapshot that is not a publish: an undo tag outlives a publish that was rolled back.

    Raises:
        UnsafeOperationError: undoing it would drop another commit.
    """
    try:
        replaced = target.snapshot(restored.id).identity != restored.identity
    except NotFoundError:
        replaced = False
    undo_tag = publish.properties.get(UNDO_TAG_PROPERTY)
    if replaced or (tag is not None and tag.startswith(UNDO_TAG_PREFIX) and undo_tag != tag):
        raise UnsafeOperationError(
            f"{target.label}: {tag or f'snapshot {restored.id}'} does not belong to the publish of snapshot "
            f"{publish.id}: its publish was refused, or another engine rolled it back; nothing was changed. "
            f"{_drops(restored)}"
        )


def _undo_changes(
    target: Table, schema: TableSchema, tag: str | None, restored: Snapshot, head: Snapshot
) -> tuple[list[BucketChange], Difference, FileMerge | None, KeyMergeRequest | None]:
    """Three-way: base = the publish right after the target, ours = the head, theirs = the target."""
    if restored.id >= head.id:
        raise UnsafeOperationError(
            f"{target.label}: snapshot {restored.id} is the newest, so there is no publish after it to undo; name the "
            f"undo tag of a publish, or the snapshot before it"
        )
    publish = find_retained(target, restored.id + 1)
    if publish is None:
        raise UnsafeOperationError(
            f"{target.label}: snapshot {restored.id + 1}, the publish to undo, is expired, and no tag keeps it, so "
            f"what it changed is not known; nothing was changed. Write the former rows back on a branch, from "
            f"{f'tag {tag}' if tag else f'snapshot {restored.id}'}, and publish that. {_drops(restored)}"
        )
    _check_is_publish(target, tag, restored, publish)
    theirs, ours = (difference(target, publish, other, schema) for other in (restored, head))
    try:
        if merges_by_file(schema):
            merge = undo_files(target, publish=publish, target=restored, head=head, schema=schema)
            return merge.changes, theirs, merge, None
        candidates = sharing_keys(ours.buckets, theirs.buckets, schema)
        between = snapshots_between(target, publish.id, head.id) if candidates else []
        ours_changed = changed_buckets(target, between, candidates, neutral_kinds(schema))
        sides = Sides(theirs=theirs, ours=ours, theirs_changed=theirs.buckets, ours_changed=ours_changed)
        key_merge = _undo_by_key(target, sides, publish, restored, head, schema)
    except ConflictError as error:
        raise _changed_again(target, restored, error, _compactions(target, error, publish, head)) from None
    changes = changes_of_branch(sides, set() if key_merge is None else key_merge.buckets)
    check_bucket_counts(target.name, sides, changes, schema)
    return changes, theirs, None, key_merge


def _undo_by_key(
    target: Table, sides: Sides, publish: Snapshot, restored: Snapshot, head: Snapshot, schema: TableSchema
) -> KeyMergeRequest | None:
    """Return what the undo merges by key, of the buckets that have changed again; None: there are none.

    Raises:
        ConflictError: they can't be merged by key.
    """
    buckets = overlapping_buckets(sides, schema)
    if not buckets:
        return None
    why = reason_against(target, schema, sides, buckets)
    if why is not None:
        raise not_by_key(target.name, buckets, schema, why)

    base, theirs, ours = (
        read_bucket_files(target, snapshot, buckets, schema).with_schemas(target.schema)
        for snapshot in (publish, restored, head)
    )
    return KeyMergeRequest(
        target=target, schema=schema, base=base, theirs=theirs, ours=ours, limits=base.highest_numbers
    )
