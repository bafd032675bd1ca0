"""merge_branch, fast_forward, replace_main: a branch becomes one OVERWRITE snapshot on main, files by reference.

See docs/contributing/publishing.md, Publishing is one snapshot, forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_paimon.core.branches.ownership import publish_properties, refuse_protected
from airflow_paimon.core.branches.tags import expire_undo_tags
from airflow_paimon.core.chain.guard import check_chain_publish, refuse_chain_branch, report_write
from airflow_paimon.core.commit.committer import require_committable
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, KnownHead, Snapshot
from airflow_paimon.core.plan import Precondition
from airflow_paimon.core.publish.audit_properties import changes_property
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    bucket_namer,
    check_bucket_counts,
    check_deletion_vectors,
    check_moving_keys,
    check_snapshot_numbers,
    highest_sequence,
    sequences_too_high,
    too_high,
    warn_of_bucket_counts,
)
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder, check_columns, check_ids, check_ranges
from airflow_paimon.core.publish.compare import Compared, gather_sides, keys_stay, published_difference
from airflow_paimon.core.publish.diff_record import kept_diff
from airflow_paimon.core.publish.draft import Decision
from airflow_paimon.core.publish.fold import Fold, fold_branch, is_folded
from airflow_paimon.core.publish.hold import UnfinishedPublish, unfinished_publishes, while_there
from airflow_paimon.core.publish.key_merge import MergeKeys
from airflow_paimon.core.publish.moved_rows import RowsStay
from airflow_paimon.core.publish.other_keys import refuse_other_keys
from airflow_paimon.core.publish.own_files import FindSharedId, KeyFiles, Rewrite, WriteChangelog
from airflow_paimon.core.publish.parts import check_changed, part_properties, part_summary
from airflow_paimon.core.publish.planners import Merge, SchemaLogs, planner_of
from airflow_paimon.core.publish.relatives import family_properties, refuse_other_ids
from airflow_paimon.core.publish.required_checks import Gate, gate_of
from airflow_paimon.core.publish.run import Decide, run_publication
from airflow_paimon.core.publish.schema_records import (
    is_continued_by,
    read_records,
    reconcile_records,
    withdrawn_versions,
)
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import PublishBranch
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, PublishedVersion, id_space, origin
from airflow_paimon.core.schema.mapping_plan import SchemaMapping
from airflow_paimon.core.store.base import side_by_side
from airflow_paimon.core.table.history import (
    Difference,
    difference,
    publish_target,
    really_changed,
    snapshots_between,
)
from airflow_paimon.core.table.open_writers import refuse_open
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BASE_SNAPSHOT_PROPERTY,
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
)
from airflow_paimon.core.table.scan import BucketKey, group_by_bucket, live_entries
from airflow_paimon.core.table.table import Table

_SPARE_IDS = 100_000


@dataclass(slots=True)
class _SpareIds:
    """How many row ids to leave to main, for rows that it gets while files are written again with later ids."""

    seen: list[int] = field(default_factory=list)

    def after(self, head: Snapshot) -> int:
        """0 at first; once other commits were faster twice, far more than main has given out meanwhile."""
        self.seen.append(head.next_row_id or 0)
        return 0 if len(self.seen) < 3 else max(_SPARE_IDS, 100 * (self.seen[-1] - self.seen[-2]))


def publish_branch(
    context: Context,
    request: PublishBranch,
    fold: Fold | None = None,
    rewrite: Rewrite | None = None,
    changelog: WriteChangelog | None = None,
    find_shared_id: FindSharedId | None = None,
    merge_keys: MergeKeys | None = None,
) -> OperationResult:
    """Publish a branch onto main; one that began with a chain table's snapshot or delta branch onto that.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns; or an
            ``expected_*`` does not hold.
        UnsafeOperationError: no shared history; main would lose commits; sequence numbers too high.
    """
    context = replace(context, table=context.table.reading_tags_once())
    main, branch = context.table, context.table.branch(request.branch)
    if request.branch == MAIN:
        raise InvalidInputError(f"{main.name}: branch main can't be published onto itself")
    first: list[Callable[[], Any]] = [partial(_refuse_branch, main, branch), partial(publish_target, main, branch)]
    _, main = side_by_side(main.store, first)
    if main.branch_name != MAIN:
        context = replace(context, table=main)
        check_chain_publish(main, branch, request.operation)
    reads: list[Callable[[], Any]] = [
        partial(branch_head, branch, request.expected_branch_snapshot),
        partial(planner_of, context, request, branch),
        main.branch(MAIN).schemas,
    ]
    theirs, planner, schemas = side_by_side(main.store, reads)
    diff, keys = kept_diff(request, branch, theirs, schemas), KeyFiles(merge_keys)

    def make_decide() -> Decide:
        looks: list[Callable[[], Any]] = [
            partial(refuse_protected, main, branch.branch_name, "publish", force=request.force),
            partial(gate_of, request, main, branch, theirs),
            planner.check,
            *([] if request.dry_run else [planner.is_brought]),
        ]
        record, gate, _, *is_brought = side_by_side(main.store, looks)
        pending: int | None = None
        if not request.dry_run:
            is_continued = is_continued_by(main, branch.branch_name, *is_brought, whole=planner.replaces)
            reconcile_records(main, is_continued)
            pending = min((r.before for r in read_records(main) if is_continued(r)), default=None)
        about = {**publish_properties(record), **family_properties(record), **diff.properties}
        return _decider(planner, theirs, fold, pending, gate, about, RowsStay(find_shared_id), keys)

    with while_there(branch, theirs):
        result = run_publication(context, main, make_decide, rewrite, changelog, keys)
    if result.changed and not request.dry_run:
        expire_undo_tags(context)
        if diff.warnings and not result.details.get("replayed"):
            warnings = [*result.details.get("warnings", ()), *diff.warnings]
            result = replace(result, details={**result.details, "warnings": warnings})
    if main.branch_name != MAIN and not request.dry_run and result.snapshot_after is not None and result.changed:
        report = report_write(main, main.find_snapshot(result.snapshot_after))
        result = replace(result, details={**result.details, **report})
    return result


def _refuse_branch(main: Table, branch: Table) -> None:
    branch.require()
    refuse_chain_branch(branch)
    require_committable(main)


def _decider(
    planner: Merge,
    theirs: Snapshot,
    fold: Fold | None,
    pending: int | None,
    gate: Gate,
    about: Mapping[str, str],
    rows_stay: RowsStay,
    keys: KeyFiles,
) -> Decide:
    """Return what decides on a head of main. Where it isn't refused otherwise, it folds the branch first, once, and
    merges by key what both sides changed.
    """
    main, branch, wanted = planner.main, planner.branch, theirs
    spare, unfinished = _SpareIds(), unfinished_publishes(branch, planner.request.operation_id)
    described: dict[tuple[int, int], dict[str, str]] = {}

    def decide(head: Snapshot | None) -> Decision:
        nonlocal wanted
        compared, logs = gather_merge(planner, wanted, head, unfinished, pending)
        looked = gate.look(
            compared.head if planner.replaced_whole() else compared.base, is_main=planner.replaced_whole()
        )
        decision, high = _plan(planner, compared, logs, about, spare)
        rows_stay.check(main, branch, compared, decision)
        if (
            decision.changes_anything
            and not planner.request.dry_run
            and (compared.base.id, compared.theirs.id) not in described
        ):
            described[compared.base.id, compared.theirs.id] = changes_property(branch, compared.base, compared.theirs)
        decision = replace(
            decision,
            properties={
                **decision.properties,
                **looked.properties,
                **described.get((compared.base.id, compared.theirs.id), {}),
            },
            summary={**decision.summary, **looked.summary},
        )
        if planner.request.dry_run:
            return decision
        if not high:
            return _with_keys(planner, compared, decision, keys)
        if fold is None or wanted is not theirs:
            raise sequences_too_high(main.name, high, compared.schema)
        wanted = fold_branch(branch, theirs, high, fold)
        return decide(head)

    return decide


def _with_keys(planner: Merge, compared: Compared, decision: Decision, keys: KeyFiles) -> Decision:
    """Merge by key what the decision leaves to that.

    Raises:
        ConflictError: see ``KeyFiles.into``; or rows of main would go that the approver has not seen.
    """
    decided = keys.into(decision, writers_stopped=planner.request.writers_stopped)
    if decided.merged is not None and decided.merged.overlapping:  # some may be replaced: see ``on_overlap``
        replaced = [c for c in decided.changes if c.bucket in decided.merged.files]
        _check_approved(planner.main, planner.request, compared.head, replaced, by_file=False)
    return decided


def branch_head(branch: Table, expected: int | str | None) -> Snapshot:
    """Return the newest snapshot of a branch.

    Raises:
        UnsafeOperationError: it has none. ConflictError: it is another one than ``expected``, and not that one folded.
    """
    theirs = branch.latest_snapshot()
    if theirs is None:
        raise UnsafeOperationError(
            f"{branch.label} is empty: it has no snapshot to publish. Write rows into it; or, if it should have begun "
            "with main's, delete it and create it from a tag or snapshot of main"
        )
    known = None if expected is None else KnownHead.named(expected)
    if known is not None and not known.is_of(theirs) and not is_folded(branch, theirs, known):
        raise ConflictError(
            f"{branch.label} is at snapshot {theirs.id}, not at {known.beside(theirs.id)} as approved; review the new "
            f"diff and approve again",
            code="branch-changed",
            details={"expected_branch_snapshot": expected, "branch_snapshot": theirs.id},
        )
    return theirs


def gather_merge(
    planner: Merge,
    theirs: Snapshot,
    head: Snapshot | None,
    unfinished: Sequence[UnfinishedPublish],
    pending: int | None,
) -> tuple[Compared, SchemaLogs]:
    """Compare the branch with a head of main, and read the schema versions of both.

    Raises:
        UnsafeOperationError: they share no history. ConflictError: main is not at the expected snapshot.
    """
    main, branch, request = planner.main, planner.branch, planner.request
    reads: list[Callable[[], Any]] = [planner.base, *([] if head is None else [main.schemas])]
    base, *logs = side_by_side(main.store, reads)
    onto = main.branch_name
    if base is None or head is None:
        instead = ", or let the branch take main's place with replace_main --discard-main if it was created empty"
        instead = instead if onto == MAIN else ""
        raise UnsafeOperationError(
            f"{branch.label} shares no snapshot with {onto} (created empty, or the history and tags of {onto} were "
            f"expired), so there is nothing to compare with. Write its rows to {onto}{instead}"
        )
    expected = request.expected_main_snapshot
    if expected is not None and not KnownHead.named(expected).is_of(head):
        named = KnownHead.named(expected).beside(head.id)
        raise ConflictError(
            f"{main.name}: {onto} is at snapshot {head.id}, not at {named} as expected",
            details={"expected_main_snapshot": expected, "main_snapshot": head.id},
        )
    main_schemas = logs[0]
    compared = gather_sides(
        main,
        branch,
        base=base,
        head=head,
        theirs=theirs,
        schema=main_schemas[-1],
        whole=planner.takes_all,
        unfinished=unfinished,
        scope=planner.scope,
    )
    check_changed(main, branch, compared)
    compared = replace(compared, sides=planner.adjusted_sides(base, head, compared.sides))
    rest: list[Callable[[], Any]] = [
        lambda: frozenset(withdrawn_versions(main, branch.branch_name)),
        branch.schemas,
    ]
    withdrawn, theirs_log = side_by_side(main.store, rest)
    return compared, SchemaLogs(main=main_schemas, branch=theirs_log, withdrawn=withdrawn, pending=pending)


def plan_merge(planner: Merge, compared: Compared, logs: SchemaLogs) -> Decision:
    """Plan a merge that nothing has to be folded for.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns.
    """
    return _plan(planner, compared, logs, {}, _SpareIds())[0]


def _plan(
    planner: Merge, compared: Compared, logs: SchemaLogs, about: Mapping[str, str], spare: _SpareIds
) -> tuple[Decision, Mapping[BucketKey, int]]:
    """Return the decision, and the buckets of the branch to fold before, with the highest number that they may have."""
    main, request, schema = planner.main, planner.request, compared.schema
    check_deletion_vectors(main.name, theirs=logs.branch[-1], ours=schema)
    planned = planner.plan(compared, logs)
    changes, by_file = planned.changes, planned.merge is not None
    evolves = TableOptions(schema.options).data_evolution
    tracked = TableOptions(schema.options).row_tracking
    space = _id_space(main, compared, changes, spare=spare.after(compared.head), by_file=by_file) if tracked else None
    if space is not None and compared.standing.relatives:
        brought = published_difference(planner.branch, compared.base, replace(compared.standing, publishes=()))
        refuse_other_ids(main.name, brought, changes, space, bucket_namer(schema))
    if evolves and space is not None:
        check_ids(main.name, changes, *compared.since_base, space=space, name_bucket=bucket_namer(schema))
    if evolves and space is not None and not planner.takes_all:
        _check_columns(main, compared, logs, changes, space, by_file=by_file)
    check_bucket_counts(main.name, compared.sides, changes, schema, main.branch_name, by_file=by_file)
    high = _too_high(planner, compared, changes, set() if planned.keys is None else planned.keys.buckets)
    if changes or planned.schemas.new or logs.pending is not None:
        _check_approved(main, request, compared.head, changes, by_file=by_file)
    summary = {**_summary(request, compared, changes, planned.schemas), **planned.summary}
    if high:
        summary["folds"] = sorted(map(bucket_namer(schema), high))[:MAX_LISTED]
    if warned := warn_of_bucket_counts(changes, schema):
        summary["warnings"] = warned
    removed = {i for d in compared.since_base for group in d.removed.values() for i in group}
    decision = Decision(
        target=main,
        source=planner.branch,
        head=compared.head,
        wanted=compared.theirs,
        since=compared.base.id,
        changes=changes,
        schemas=planned.schemas,
        new_schemas_pending=logs.pending is not None,
        fixes_schema=planned.fixes_schema,
        preconditions=(
            _precondition(main.branch_name, compared.head, schema),
            _precondition(request.branch, compared.theirs, logs.branch[-1]),
        ),
        properties={**_properties(request, compared), **part_properties(compared), **about, **planned.properties},
        summary={**summary, **part_summary(compared)},
        reason=f"publishes branch {request.branch}",
        watermark=planned.watermark,
        id_space=space,
        columns=_column_order(compared) if evolves else None,
        already={origin(i): i for group in compared.since_base[1].added.values() for i in group if origin(i) != i},
        known=removed | (planned.merge.known if planned.merge is not None else frozenset()),
        merge=planned.merge,
        keys=planned.keys,
        follows=None if evolves else planned.follows,  # an update adds a file and removes none
        scope=planner.scope,
    )
    return decision, high


def _column_order(compared: Compared) -> ColumnOrder:
    if compared.last is None:
        return ColumnOrder(known=compared.base.next_row_id or 0, floor=compared.base.id)
    known = max(compared.base.next_row_id or 0, compared.last.branch.next_row_id or 0)
    return ColumnOrder(known=known, floor=max(compared.base.id, compared.last.main.id))


def _check_columns(
    main: Table, compared: Compared, logs: SchemaLogs, changes: Sequence[BucketChange], space: IdSpace, *, by_file: bool
) -> None:
    if not by_file:
        raise UnsupportedFeatureError(
            f"{main.name}: with data-evolution.enabled and fixed buckets (bucket-append-ordered) a branch can't be "
            f"merged; fast_forward publishes it if main has not changed since the branch was made"
        )
    check_columns(
        main.name,
        changes,
        compared.sides.theirs,
        compared.sides.ours,
        space=space,
        schemas=({s.id: s for s in logs.main}, {s.id: s for s in logs.branch}),
        name_bucket=bucket_namer(compared.schema),
    )
    stored = StoredPartitions(compared.schema)
    live = live_entries(main, compared.head, stored.those({c.bucket.partition for c in changes})) if changes else {}
    by_bucket = group_by_bucket(live.values(), stored.canonical)
    check_ranges(main.name, by_bucket, changes, space=space, name_bucket=bucket_namer(compared.schema))


def _properties(request: PublishBranch, compared: Compared) -> dict[str, str]:
    return {
        BRANCH_PROPERTY: request.branch,
        BRANCH_SNAPSHOT_PROPERTY: str(compared.theirs.id),
        BRANCH_IDENTITY_PROPERTY: compared.theirs.identity,
        BASE_SNAPSHOT_PROPERTY: str(compared.base.id),
    }


def _summary(
    request: PublishBranch, compared: Compared, changes: Sequence[BucketChange], schemas: SchemaMapping
) -> dict[str, object]:
    return {
        "branch": request.branch,
        "branch_snapshot": compared.theirs.id,
        "branch_identity": compared.theirs.identity,
        "base_snapshot": compared.base.id,
        "main_snapshot": compared.head.id,
        "main_identity": compared.head.identity,
        "mode": request.operation,
        "kept_of_main": len(compared.sides.ours.buckets - {c.bucket for c in changes}),
        "new_schemas": [s.id for s in schemas.new],
    }


def _precondition(branch: str, head: Snapshot, schema: TableSchema) -> Precondition:
    return Precondition(branch=branch, snapshot_id=head.id, identity=head.identity, schema_id=schema.id)


def _too_high(
    planner: Merge, compared: Compared, changes: Sequence[BucketChange], keyed: Collection[BucketKey]
) -> dict[BucketKey, int]:
    """Check what numbers and hash indexes allow; return the buckets to fold first, with the highest number allowed.

    The base's manifests are read only if the replaced files are not sufficient. ``keyed``: buckets to merge by key.
    """
    main, request, schema = planner.main, planner.request, compared.schema
    check_snapshot_numbers(main.name, changes, schema, compared.head.id + 1)
    if not schema.primary_keys:
        return {}
    if not request.writers_stopped:
        if not keys_stay(planner.branch, compared.base, compared.theirs, compared.sides):
            check_moving_keys(main.name, changes, schema)
        refuse_other_keys(main, schema, changes, compared.since_base[0], compared.head)
        if not request.dry_run:  # a plan describes them: they may be closed by then
            replaced = {c.bucket for c in changes if c.delete} | set(keyed)
            refuse_open(main, schema, replaced, compared.head, planner.context.now_ms, "published")
    if TableOptions(schema.options).sequence_fields or (request.writers_stopped and not request.rewrite):
        return {}
    return too_high(changes, base_highest(main, compared.base, compared.since_base[0], changes))


def base_highest(
    table: Table, base: Snapshot, theirs: Difference, changes: Sequence[BucketChange]
) -> dict[BucketKey, int]:
    """The highest sequence number at the branch point, of each bucket that needs it; -1 where it was empty."""
    removed = {b: highest_sequence([e.file for e in group.values()]) for b, group in theirs.removed.items()}
    doubtful = {c.bucket for c in changes if highest_sequence([e.file for e in c.add]) > removed.get(c.bucket, -1)}
    if doubtful:
        found = live_entries(table, base if base.id else None)
        live = group_by_bucket(found.values(), StoredPartitions(table.schema()).canonical)
        removed |= {b: highest_sequence([e.file for e in live.get(b, [])]) for b in doubtful}
    return removed


def _check_approved(
    main: Table, request: PublishBranch, head: Snapshot, changes: Sequence[BucketChange], *, by_file: bool
) -> None:
    """Refuse what the approver has not seen. Files that main has added beside the merged ones are no part of it."""
    if request.approved_main_snapshot is None:
        return
    approved = KnownHead.named(request.approved_main_snapshot)
    there = head if head.id == approved.id else main.find_snapshot(approved.id)
    known = approved.id <= head.id and (there is None or approved.is_of(there))
    if known and (approved.id == head.id or by_file):
        return
    taken = {c.bucket for c in changes}
    since = snapshots_between(main, approved.id, head.id) if known else None
    if since is not None:
        moved = really_changed(main, since, taken)
        if not any(s.commit_kind in (CommitKind.COMPACT, CommitKind.ANALYZE) for s in since):
            moved = taken & difference(main, main.snapshot(approved.id), head).buckets
        if not moved:
            return
    raise ConflictError(
        f"{main.name}: {main.branch_name} moved from snapshot {approved.beside(head.id)}, which was approved, to "
        f"{head.id} in partitions that this publish replaces; review the new diff and approve again",
        details={"approved_main_snapshot": request.approved_main_snapshot, "main_snapshot": head.id},
    )


def _id_space(
    table: Table, compared: Compared, changes: Sequence[BucketChange], *, spare: int, by_file: bool
) -> IdSpace:
    """After a publish, main knows all ids that the branch had assigned until then, shifted as its snapshot says.

    It knows the versions as well, unless rows of that publish come back now: those are changed by this one.
    """
    shifts = compared.last.shifts if compared.last is not None else ()
    known = compared.last.branch if compared.last is not None and shifts else compared.base
    return id_space(
        table.name,
        earlier=shifts,
        shared=known.next_row_id or 0,
        target=(compared.head.next_row_id or 0) + (spare if by_file else 0),
        source=compared.theirs.next_row_id or 0,
        base=compared.base.id,
        published=_published_versions(compared, changes, by_file=by_file),
    )


def _published_versions(
    compared: Compared, changes: Sequence[BucketChange], *, by_file: bool
) -> Sequence[PublishedVersion]:
    if compared.last is None:
        return ()
    comes_back = compared.goes_back or (not by_file and any(c.bucket in compared.sides.ours_real for c in changes))
    return () if comes_back else compared.standing.versions
