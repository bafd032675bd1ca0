"""rollback_to: an earlier state comes back as one new snapshot; an undo takes back just what a publish changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.branches.publish_follow import with_follow
from airflow_paimon.core.branches.publish_plan import (
    BucketChange,
    Sides,
    check_bucket_counts,
    key_scope,
    mapped_entries,
    merge_buckets,
    merged_index,
    neutral_kinds,
    publish_actions,
    state_buckets,
    summarize,
    within_reach,
)
from airflow_paimon.core.branches.retention_tags import (
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
from airflow_paimon.core.commit.committer import Draft, commit, execute, require_committable, verify_landed
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.plan import Action, Plan, Precondition, PutSnapshot
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import RollbackTo
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.history import Difference, difference, really_changed, snapshots_between
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.scan import one_form, read_index
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """``undone``: what the undo of a publish takes back; None: a whole state comes back, so every commit matters."""

    changes: list[BucketChange]
    plan: Plan
    index: Sequence[IndexEntry] | None
    keep: Plan
    came_back: bool
    undone: Difference | None = None
    summary: dict[str, Any] = field(default_factory=dict)


def rollback_to(context: Context, request: RollbackTo) -> OperationResult:
    """Give a branch the live files of an earlier snapshot or tag, as a new snapshot: ids and history go on.

    With ``keep_later`` only the buckets that the publish right after the target changed go back.

    Raises:
        NotFoundError: no such target. ConflictError: with ``keep_later``, such a bucket changed again.
    """
    if (request.tag is None) == (request.snapshot is None):
        raise InvalidInputError("rollback_to: give a tag or a snapshot to go back to", table=context.table.name)
    view = context.table.branch(request.branch).require()
    require_committable(view)
    with attempt_of(context, request.branch) as tried:
        marks = PublishMarks.of(context, tried)
        earlier = replayed(context, marks)
        if earlier is not None:
            return earlier
        target = view.tag(request.tag).snapshot if request.tag is not None else view.snapshot(request.snapshot or 0)
        return _roll_back(context, request, view, target, marks)


def _roll_back(
    context: Context, request: RollbackTo, view: Table, target: Snapshot, marks: PublishMarks
) -> OperationResult:
    seen: list[_Decided] = []

    def draft(head: Snapshot | None) -> Draft | None:
        if head is None:
            raise NotFoundError(f"{view.label} has no snapshot to go back from", table=view.name)
        _check_expected(view, request, head)
        decided = _decide(context, request, view, target, head)
        seen[:] = [decided]
        if not decided.changes or request.dry_run:
            return None
        planned = _draft(context, request, view, target, head, decided, marks)
        if decided.undone is None:
            return planned
        return with_follow(context, request, view, planned, head, decided.undone.buckets, marks, moved)

    def moved(head: Snapshot) -> None:
        seen[:] = [replace(seen[0], summary={**seen[0].summary, "head_snapshot": head.id})]

    receipt = commit(view, draft, marks.identity)
    if receipt.replayed and receipt.snapshot is not None:  # another living try of this operation was faster
        return result_of(context, marks, receipt.snapshot)
    decided = seen[0]
    before = receipt.before.id if receipt.before else None
    if receipt.snapshot is None:
        would = request.dry_run and bool(decided.changes)
        if not would:
            marks.tried.forget()
        return context.result(
            decided.plan, branch=request.branch, changed=would, before=before, after=before, details=decided.summary
        )
    protect_published(view, receipt.snapshot)
    verify_landed(view, receipt.snapshot)
    details = decided.summary | {"undo_tag": marks.undo_tag, "attempts": receipt.attempts}
    if receipt.warning is not None:
        details["warnings"] = [receipt.warning]
    return context.result(
        decided.plan, branch=request.branch, changed=True, before=before, after=receipt.snapshot.id, details=details
    )


def _check_expected(view: Table, request: RollbackTo, head: Snapshot) -> None:
    expected = request.expected_main_snapshot
    if expected is not None and head.id != expected:
        raise ConflictError(
            f"{view.label} is at snapshot {head.id}, not at {expected} as expected",
            table=view.name,
            details={"expected_main_snapshot": expected, "main_snapshot": head.id},
        )


def _decide(context: Context, request: RollbackTo, view: Table, target: Snapshot, head: Snapshot) -> _Decided:
    schema = view.schema()
    name = bucket_namer(schema)
    undone = None
    if request.keep_later:
        changes, undone = _undo_changes(view, request.tag, target, head, name)
    else:
        changes = state_buckets(difference(view, head, target))
    index, returning = _index_and_returning(view, target, head, changes)
    targets = (target,) if returning else ()
    keep, came_back = plan_keep_tags(view, target.id, head, returning, request.operation, *targets)
    summary = {
        "target_snapshot": target.id,
        "target_tag": request.tag,
        "head_snapshot": head.id,
        "keep_later": request.keep_later,
        **summarize(changes),
    }
    plan = Plan(
        operation=request.operation,
        table=view.name,
        preconditions=(
            Precondition(branch=request.branch, snapshot_id=head.id, identity=head.identity, schema_id=schema.id),
        ),
        actions=(*keep.actions, *_actions(request, view, target, head, changes)),
        summary=summary,
    )
    return _Decided(
        changes=changes, plan=plan, index=index, keep=keep, came_back=came_back, undone=undone, summary=summary
    )


def _index_and_returning(
    view: Table, target: Snapshot, head: Snapshot, changes: list[BucketChange]
) -> tuple[Sequence[IndexEntry] | None, set[str]]:
    """Give the new index entries (None = as they are) and the names of all files that may come back."""
    returning = {e.file.file_name for c in changes for e in c.add}
    if not changes or not (head.index_manifest or target.index_manifest):
        return None, returning
    now = read_index(view, head)
    index = merged_index(now, read_index(view, target), changes, one_form(view.schema()))
    return index, returning | (index_files(index) - index_files(now))


def _actions(
    request: RollbackTo, view: Table, target: Snapshot, head: Snapshot, changes: list[BucketChange]
) -> tuple[Action, ...]:
    if not changes:
        return ()
    schema, undo = view.schema(), undo_tag_action(request, view, head)
    back = f"back to snapshot {target.id}"
    snapshot = PutSnapshot(path=view.paths.snapshot(head.id + 1), schema_id=schema.id, reason=back)
    return publish_actions(view.branch_name, undo, changes, bucket_namer(schema), (), snapshot, back)


def _check_follows(view: Table, tag: str | None, target: Snapshot, publish: Snapshot) -> None:
    """Refuse to undo what is no publish: an undo tag stays behind when its publish was refused or rolled back.

    Raises:
        UnsafeOperationError: undoing it would drop somebody else's commit.
    """
    try:
        replaced = view.snapshot(target.id).identity != target.identity
    except NotFoundError:
        replaced = False
    undo_tag = publish.properties.get("airflow-paimon.undo-tag")
    if replaced or (tag is not None and tag.startswith(UNDO_TAG_PREFIX) and undo_tag != tag):
        raise UnsafeOperationError(
            f"{view.label}: snapshot {publish.id} is not the publish that {tag or f'snapshot {target.id}'} is the undo "
            f"of: that publish was refused, or another engine rolled it back. Roll back without keep_later if you want "
            f"the state of snapshot {target.id} back whole",
            table=view.name,
        )


def _undo_changes(
    view: Table, tag: str | None, target: Snapshot, head: Snapshot, name: Any
) -> tuple[list[BucketChange], Difference]:
    """Three-way: base = the publish right after the target, ours = the head, theirs = the target."""
    try:
        publish = view.snapshot(target.id + 1)
    except NotFoundError:
        raise UnsafeOperationError(
            f"{view.label}: snapshot {target.id + 1}, the publish to undo, is expired, so what came after it can't be "
            f"told apart; roll back without keep_later (that drops everything after snapshot {target.id})",
            table=view.name,
        ) from None
    _check_follows(view, tag, target, publish)
    theirs, ours = difference(view, publish, target), difference(view, publish, head)
    schema = view.schema()
    candidates = within_reach(ours.buckets, theirs.buckets, schema)
    between = snapshots_between(view, publish.id, head.id) if candidates else []
    ours_real = really_changed(view, between, candidates, neutral_kinds(schema))
    sides = Sides(theirs=theirs, ours=ours, theirs_real=theirs.buckets, ours_real=ours_real)
    try:
        changes = merge_buckets(view.name, sides, name, key_scope(schema))
    except ConflictError as error:
        listed = ", ".join(error.details["conflicts"])
        raise ConflictError(
            f"{view.label}: {listed} changed again after the publish, so the undo would drop newer rows; nothing was "
            f"changed. Correct those partitions on a new branch, or roll back without keep_later to drop them",
            table=view.name,
            details=error.details,
        ) from None
    check_bucket_counts(view.name, sides, changes, name)
    return changes, theirs


def _draft(
    context: Context,
    request: RollbackTo,
    view: Table,
    target: Snapshot,
    head: Snapshot,
    decided: _Decided,
    marks: PublishMarks,
) -> Draft:
    changes, index = decided.changes, decided.index
    execute(view, decided.keep)
    execute(view, plan_undo_tag(context, view, head, marks, request.undo_retention))
    schema = view.schema()
    check_files_exist(view, schema, changes, index or ())
    entries = mapped_entries(changes, {})
    properties = marks.properties(context) | {"airflow-paimon.target-snapshot": str(target.id)}
    if decided.came_back:
        properties[CAME_BACK_PROPERTY] = "true"
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=entries,
        index_entries=index,
        schema=schema,
        properties=properties,
        next_row_id=max(head.next_row_id or 0, target.next_row_id or 0),
        operation="OVERWRITE",
        rewrite_base=deletes_again(view, head, [e for e in entries if e.kind == FileKind.ADD]),
    )
