"""merge_branch, fast_forward: a branch becomes one OVERWRITE snapshot on main, files by reference.

See docs/design.md, Publishing is one snapshot, forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.branches.publish_follow import with_follow
from airflow_paimon.core.branches.publish_plan import (
    BucketChange,
    Sides,
    check_bucket_counts,
    check_sequences,
    fast_forward_buckets,
    highest_sequence,
    key_scope,
    mapped_entries,
    merge_buckets,
    merged_index,
    publish_actions,
    summarize,
)
from airflow_paimon.core.branches.publish_sides import ROW_IDS_KEPT, ROW_IDS_PROPERTY, LastPublish, gather_sides
from airflow_paimon.core.branches.retention_tags import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CAME_BACK_PROPERTY,
    index_files,
    plan_keep_tags,
    protect_published,
)
from airflow_paimon.core.branches.safeguards import (
    PublishMarks,
    bucket_namer,
    check_files_exist,
    deletes_again,
    plan_undo_tag,
    replayed,
    result_of,
    undo_tag_action,
)
from airflow_paimon.core.branches.tags import expire_undo_tags
from airflow_paimon.core.chain.guard import refuse_chain_branch
from airflow_paimon.core.commit.committer import Draft, commit, execute, put_new, require_committable, verify_landed
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.plan import Action, Plan, Precondition, PutSnapshot
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import FastForward, PublishBranch
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, assign_row_ids
from airflow_paimon.core.schema.mapping_plan import SchemaMapping, plan_schemas
from airflow_paimon.core.table.history import (
    Difference,
    branch_point,
    difference,
    really_changed,
    snapshots_between,
)
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import BucketKey, group_by_bucket, live_entries, one_form, read_index
from airflow_paimon.core.table.table import Table

Fold = Callable[[Table, Mapping[BucketKey, int]], None]
"""Rewrites buckets of a branch so that no sequence number is above the given one; the data layer provides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    """One consistent look at both sides: what the plan is made from."""

    head: Snapshot
    theirs: Snapshot
    base: Snapshot
    sides: Sides
    last: LastPublish | None
    main_schemas: Sequence[TableSchema]
    branch_schemas: Sequence[TableSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    changes: Sequence[BucketChange]
    schemas: SchemaMapping
    plan: Plan
    index: Sequence[IndexEntry] | None
    keep: Plan
    came_back: bool
    summary: Mapping[str, Any] = field(default_factory=dict)


def publish_branch(context: Context, request: PublishBranch, fold: Fold | None = None) -> OperationResult:
    """Publish a branch onto main.

    Raises:
        ConflictError: both sides changed a bucket or the columns, or an ``expected_*`` does not hold.
        UnsafeOperationError: no shared history; main would lose commits; sequence numbers too high.
    """
    main, branch = context.table, context.table.branch(request.branch)
    if request.branch == MAIN:
        raise InvalidInputError(f"{main.name}: branch main can't be published onto itself", table=main.name)
    branch.require()
    refuse_chain_branch(branch)
    require_committable(main)
    theirs = _branch_head(branch, request)
    with attempt_of(context) as tried:
        marks = PublishMarks.of(context, tried)
        earlier = replayed(context, marks)
        if earlier is not None:
            return earlier
        if request.rewrite and _fold_first(context, request, branch, theirs, fold):
            theirs = _folded(branch, theirs)
        return _publish(context, request, branch, theirs, marks)


def _branch_head(branch: Table, request: PublishBranch) -> Snapshot:
    theirs = branch.latest_snapshot()
    if theirs is None:
        raise UnsafeOperationError(f"{branch.label} is empty: it has no snapshot to publish", table=branch.name)
    expected = request.expected_branch_snapshot
    if expected is not None and theirs.id != expected:
        raise ConflictError(
            f"{branch.label} is at snapshot {theirs.id}, not at {expected} as approved; look at the new diff and "
            f"approve again",
            table=branch.name,
            details={"expected_branch_snapshot": expected, "branch_snapshot": theirs.id},
        )
    return theirs


def _publish(
    context: Context, request: PublishBranch, branch: Table, theirs: Snapshot, marks: PublishMarks
) -> OperationResult:
    main = context.table
    seen: list[_Decided] = []

    def draft(head: Snapshot | None) -> Draft | None:
        gathered = _gather(main, branch, theirs, head, request)
        decided = _decide(context, request, branch, gathered)
        seen[:] = [decided]
        if not decided.changes and not decided.schemas.new:
            return None
        _check_approved(main, request, gathered.head, decided.changes)
        if request.dry_run:
            return None
        planned = _draft(context, request, branch, gathered, decided, marks)
        return with_follow(context, request, main, planned, gathered.head, _reach(gathered), marks, moved)

    def moved(head: Snapshot) -> None:
        seen[:] = [replace(seen[0], summary={**seen[0].summary, "main_snapshot": head.id})]

    receipt = commit(main, draft, marks.identity)
    if receipt.replayed and receipt.snapshot is not None:  # another living try of this operation was faster
        return result_of(context, marks, receipt.snapshot)
    decided = seen[0]
    before = receipt.before.id if receipt.before else None
    details = dict(decided.summary)
    if receipt.snapshot is None:
        would = request.dry_run and bool(decided.changes or decided.schemas.new)
        if not would:
            marks.tried.forget()
        return context.result(decided.plan, branch=MAIN, changed=would, before=before, after=before, details=details)
    protect_published(main, receipt.snapshot)
    verify_landed(main, receipt.snapshot)
    expire_undo_tags(context)
    details |= {"undo_tag": marks.undo_tag, "attempts": receipt.attempts}
    return context.result(
        decided.plan, branch=MAIN, changed=True, before=before, after=receipt.snapshot.id, details=details
    )


def _reach(g: _Gathered) -> set[BucketKey]:
    return g.sides.theirs.buckets | g.sides.theirs_real


def _gather(main: Table, branch: Table, theirs: Snapshot, head: Snapshot | None, request: PublishBranch) -> _Gathered:
    base = branch_point(main, branch)
    if base is None or head is None:
        raise UnsafeOperationError(
            f"{branch.label} shares no snapshot with main (created empty, or main's history and tags were expired), so "
            f"there is nothing to compare with; write its rows to main instead",
            table=main.name,
        )
    if request.expected_main_snapshot is not None and head.id != request.expected_main_snapshot:
        raise ConflictError(
            f"{main.name}: main is at snapshot {head.id}, not at {request.expected_main_snapshot} as expected",
            table=main.name,
            details={"expected_main_snapshot": request.expected_main_snapshot, "main_snapshot": head.id},
        )
    main_schemas = main.schemas()
    sides, last = gather_sides(
        main,
        branch,
        base=base,
        head=head,
        theirs=theirs,
        schema=main_schemas[-1],
        whole=isinstance(request, FastForward),
    )
    return _Gathered(
        head=head,
        theirs=theirs,
        base=base,
        sides=sides,
        last=last,
        main_schemas=main_schemas,
        branch_schemas=branch.schemas(),
    )


def _decide(context: Context, request: PublishBranch, branch: Table, g: _Gathered) -> _Decided:
    table = context.table.name
    main_schema = g.main_schemas[-1]
    if TableOptions(main_schema.options).flag("data-evolution.enabled"):
        raise UnsupportedFeatureError(
            f"{table}: data-evolution.enabled is set; its column files can't be published by reference. Write the "
            f"corrected rows to main instead",
            table=table,
        )
    name = bucket_namer(main_schema)
    if isinstance(request, FastForward):
        changes = fast_forward_buckets(table, g.sides, name, discard_main=request.discard_main)
    else:
        changes = merge_buckets(table, g.sides, name, key_scope(main_schema))
    check_bucket_counts(table, g.sides, changes, name)
    by_id = {s.id: s for s in g.branch_schemas}
    base_schema = by_id.get(g.base.schema_id) or context.table.schema(g.base.schema_id)
    used = {e.file.schema_id for c in changes for e in c.add}
    schemas = plan_schemas(table, base_schema, g.main_schemas, g.branch_schemas, used, context.now_ms)
    _check_sequences(context, request, g, changes, name)
    index, returning = _index_and_returning(context.table, branch, g, changes)
    keep, came_back = plan_keep_tags(context.table, g.base.id, g.head, returning, request.operation)
    summary = {
        "branch": request.branch,
        "branch_snapshot": g.theirs.id,
        "base_snapshot": g.base.id,
        "main_snapshot": g.head.id,
        "mode": request.operation,
        "kept_of_main": len(g.sides.ours.buckets - {c.bucket for c in changes}),
        "new_schemas": [s.id for s in schemas.new],
        **summarize(changes),
    }
    plan = Plan(
        operation=request.operation,
        table=table,
        preconditions=(
            _precondition(MAIN, g.head, main_schema),
            _precondition(request.branch, g.theirs, by_id[g.branch_schemas[-1].id]),
        ),
        actions=(*keep.actions, *_actions(context, request, g, changes, schemas)),
        summary=summary,
    )
    return _Decided(
        changes=changes, schemas=schemas, plan=plan, index=index, keep=keep, came_back=came_back, summary=summary
    )


def _index_and_returning(
    main: Table, branch: Table, g: _Gathered, changes: Sequence[BucketChange]
) -> tuple[Sequence[IndexEntry] | None, set[str]]:
    """Give main's new index entries (None = as they are) and the names of all files that may come back."""
    returning = {e.file.file_name for c in changes for e in c.add}
    if not changes or not (g.head.index_manifest or g.theirs.index_manifest):
        return None, returning
    now = read_index(main, g.head)
    index = merged_index(now, read_index(branch, g.theirs), changes, one_form(g.main_schemas[-1]))
    return index, returning | (index_files(index) - index_files(now))


def _actions(
    context: Context, request: PublishBranch, g: _Gathered, changes: Sequence[BucketChange], schemas: SchemaMapping
) -> tuple[Action, ...]:
    if not changes and not schemas.new:
        return ()
    main, schema = context.table, schemas.latest or g.main_schemas[-1]
    snapshot = PutSnapshot(
        path=main.paths.snapshot(g.head.id + 1), schema_id=schema.id, reason=f"publishes branch {request.branch}"
    )
    undo = undo_tag_action(request, main, g.head)
    whose = f"take the files of branch {request.branch}"
    return publish_actions(MAIN, undo, changes, bucket_namer(g.main_schemas[-1]), schemas.new, snapshot, whose)


def _precondition(branch: str, head: Snapshot, schema: TableSchema) -> Precondition:
    return Precondition(branch=branch, snapshot_id=head.id, identity=head.identity, schema_id=schema.id)


def _check_sequences(
    context: Context, request: PublishBranch, g: _Gathered, changes: Sequence[BucketChange], name: Any
) -> None:
    """Reads the base's manifests only when the replaced files don't settle it."""
    schema = g.main_schemas[-1]
    if not schema.primary_keys or TableOptions(schema.options).sequence_fields or request.writers_stopped:
        return
    check_sequences(context.table.name, changes, base_highest(context.table, g.base, g.sides.theirs, changes), name)


def base_highest(
    table: Table, base: Snapshot, theirs: Difference, changes: Sequence[BucketChange]
) -> dict[BucketKey, int]:
    """The highest sequence number at the branch point, of each bucket that needs it; -1 where it was empty."""
    removed = {b: highest_sequence([e.file for e in group.values()]) for b, group in theirs.removed.items()}
    doubtful = {c.bucket for c in changes if highest_sequence([e.file for e in c.add]) > removed.get(c.bucket, -1)}
    if doubtful:
        live = group_by_bucket(live_entries(table, base).values(), one_form(table.schema()))
        removed |= {b: highest_sequence([e.file for e in live.get(b, [])]) for b in doubtful}
    return removed


def _folded(branch: Table, theirs: Snapshot) -> Snapshot:
    """The branch's head after the fold, which is one commit: what others wrote meanwhile was not asked for.

    Raises:
        ConflictError: somebody else wrote to the branch.
    """
    head = branch.latest_snapshot()
    if head is None or head.id > theirs.id + 1:
        raise ConflictError(
            f"{branch.label} was written while it was folded; nothing was published. Look at what came in, then "
            f"publish again",
            table=branch.name,
            details={"branch_snapshot": head.id if head else None, "folded_snapshot": theirs.id},
        )
    return head


def _fold_first(context: Context, request: PublishBranch, branch: Table, theirs: Snapshot, fold: Fold | None) -> bool:
    """``--rewrite``: fold the buckets whose numbers are too high, as one more commit on the branch. False = none is."""
    main = context.table
    g = _gather(main, branch, theirs, main.latest_snapshot(), request)
    changes = merge_buckets(
        main.name,
        Sides(theirs=g.sides.theirs, ours=Difference(), theirs_real=g.sides.theirs_real, ours_real=set()),
        bucket_namer(g.main_schemas[-1]),
        key_scope(g.main_schemas[-1]),
    )
    limits = base_highest(main, g.base, g.sides.theirs, changes)
    high = {
        c.bucket: limits.get(c.bucket, -1)
        for c in changes
        if highest_sequence([e.file for e in c.add]) > limits.get(c.bucket, -1)
    }
    if not high or request.dry_run:
        return False
    if fold is None:
        raise UnsupportedFeatureError(
            f"{main.name}: rewrite reads and writes rows; run it as a job (run_on='spark')", table=main.name
        )
    fold(branch, high)
    return True


def _check_approved(main: Table, request: PublishBranch, head: Snapshot, changes: Sequence[BucketChange]) -> None:
    approved = request.approved_main_snapshot
    if approved is None or approved == head.id:
        return
    taken = {c.bucket for c in changes}
    since = snapshots_between(main, approved, head.id)
    if since is not None and approved < head.id:
        moved = really_changed(main, since, taken)
        if not any(s.commit_kind in (CommitKind.COMPACT, CommitKind.ANALYZE) for s in since):
            moved = taken & difference(main, main.snapshot(approved), head).buckets
        if not moved:
            return
    raise ConflictError(
        f"{main.name}: main moved from snapshot {approved}, which was approved, to {head.id} in partitions that this "
        f"publish replaces; look at the new diff and approve again",
        table=main.name,
        details={"approved_main_snapshot": approved, "main_snapshot": head.id},
    )


def _id_space(g: _Gathered) -> IdSpace:
    """After a publish that kept the row ids, the two sides agree on all that the branch had given out by then."""
    kept = g.last.branch if g.last is not None and g.last.kept_row_ids else g.base
    return IdSpace(shared=kept.next_row_id or 0, target=g.head.next_row_id or 0, source=g.theirs.next_row_id or 0)


def _draft(
    context: Context, request: PublishBranch, branch: Table, g: _Gathered, decided: _Decided, marks: PublishMarks
) -> Draft:
    """Tag what must be kept, append the columns, check that every file is there; then give the snapshot's content."""
    main, changes = context.table, decided.changes
    index = decided.index
    execute(main, decided.keep)
    execute(main, plan_undo_tag(context, main, g.head, marks, request.undo_retention))
    schema = decided.schemas.latest or g.main_schemas[-1]
    check_files_exist(main, schema, changes, index or ())
    for new in decided.schemas.new:
        try:
            put_new(main, main.paths.schema(new.id), new.to_bytes())
        except AlreadyExistsError:
            raise ConflictError(
                f"{main.name}: main was altered at the same moment; run it again", table=main.name
            ) from None
    entries = mapped_entries(changes, decided.schemas.ids)
    properties = marks.properties(context) | {
        BRANCH_PROPERTY: request.branch,
        BRANCH_SNAPSHOT_PROPERTY: str(g.theirs.id),
        BRANCH_IDENTITY_PROPERTY: g.theirs.identity,
        "airflow-paimon.base-snapshot": str(g.base.id),
    }
    next_row_id = None
    if TableOptions(schema.options).row_tracking:
        space = _id_space(g)
        known = {i for d in (g.sides.ours.removed, g.sides.theirs.removed) for group in d.values() for i in group}
        entries, next_row_id = assign_row_ids(main.name, entries, known, space)
        if space.same:
            properties[ROW_IDS_PROPERTY] = ROW_IDS_KEPT
    if decided.came_back:
        properties[CAME_BACK_PROPERTY] = "true"
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=entries,
        index_entries=index,
        schema=schema,
        properties=properties,
        watermark=g.theirs.watermark if isinstance(request, FastForward) else None,
        next_row_id=next_row_id,
        operation="OVERWRITE",
        rewrite_base=deletes_again(main, g.head, [e for e in entries if e.kind == FileKind.ADD]),
    )
