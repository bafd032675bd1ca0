"""Carries out a publish or a rollback: one snapshot by the committer, and the tags and columns that it needs.

A refused publish leaves nothing: tags set by this call are deleted, and its columns are removed again. After an unknown
outcome, or when the commit has landed, nothing is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.branches.retention_tags import CAME_BACK_PROPERTY, protect_published
from airflow_paimon.core.commit.committer import (
    CommitIdentity,
    Draft,
    MakeDraft,
    Receipt,
    commit,
    execute,
    find_landed,
    put_new,
)
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
)
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import Delete, Plan, PutNew
from airflow_paimon.core.publish.changelog import ChangelogFiles, WriteChangelog, with_changelog
from airflow_paimon.core.publish.draft import Decision, KeptHead, Publication, draft_of, publication
from airflow_paimon.core.publish.follow import with_follow
from airflow_paimon.core.publish.four_eyes import check_four_eyes
from airflow_paimon.core.publish.hold import Mark, drop_hold, mark_published, put_hold, unmark_published
from airflow_paimon.core.publish.replace_main import complete, drop_kept, keep_head, replaced_after
from airflow_paimon.core.publish.row_ids import Rewrite, RewrittenFiles, names_of
from airflow_paimon.core.publish.safeguards import (
    PublishMarks,
    check_files_exist,
    plan_undo_tag,
    replayed,
    result_of,
    undo_retention,
)
from airflow_paimon.core.publish.schema_records import bring_schemas, reconcile_records, record_of
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Publish, ReplaceMain
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.lineage import READY, read_lineage
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

Decide = Callable[[Snapshot | None], Decision]
"""Returns a decision for a head (None: the branch has no snapshot), or raises the reason for a refusal."""


def run_publication(
    context: Context,
    target: Table,
    make_decide: Callable[[], Decide],
    rewrite: Rewrite | None = None,
    changelog: WriteChangelog | None = None,
) -> OperationResult:
    """Publish one snapshot on ``target``, or return the result of an earlier try that did. A dry run only plans.

    ``make_decide`` is called once, after the check that no earlier try has landed. ``rewrite`` writes files again whose
    row ids mean other rows on the target, ``changelog`` what changes, for streaming readers.
    """
    request = context.request
    assert isinstance(request, Publish)
    undo_retention(request)  # refused before anything is written
    four_eyes = check_four_eyes(context, target)
    with attempt_of(context, target.branch_name) as tried:
        marks = PublishMarks.of(context, tried, four_eyes=four_eyes)
        earlier = replayed(context, marks)
        if earlier is None:
            own = _OwnWrites(marks.identity, RewrittenFiles(rewrite), ChangelogFiles(changelog))
            return _run(context, target, marks, make_decide(), own)
        reconcile_records(context.table)  # that try may have been interrupted before this
        _complete_again(target, earlier)
        return earlier


def _complete_again(target: Table, earlier: OperationResult) -> None:
    landed = target.find_snapshot(earlier.snapshot_after or 0)
    if landed is not None:
        complete(target, landed)


@dataclass(slots=True)
class _OwnWrites:
    """Tags, columns, files and the branch that keeps the head, written by this call in addition to its snapshot.

    ``since``: the head when it began; ``used``: the names of those files that the last attempt refers to; ``head``: the
    one that ``branch`` keeps; ``hold``: keeps what the publish takes; ``marked``: see ``mark_published``.
    """

    identity: CommitIdentity
    files: RewrittenFiles
    changelog: ChangelogFiles
    used: set[str] = field(default_factory=set)
    since: int | None = None
    tags: dict[str, bytes] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    columns: bool = False
    branch: KeptHead | None = None
    head: int | None = None
    hold: str | None = None
    marked: Mark | None = None
    checked: set[str] = field(default_factory=set)

    def discard(self, target: Table, used: Collection[str] = ()) -> None:
        """Delete the files that were written, but for the used ones, and the hold on what they were taken from."""
        if self.hold is not None:
            drop_hold(target, self.hold)
        self.files.discard(target, used)
        self.changelog.discard(target, used)


def _run(context: Context, target: Table, marks: PublishMarks, decide: Decide, own: _OwnWrites) -> OperationResult:
    request = context.request
    assert isinstance(request, Publish)
    seen: list[Publication] = []

    def draft(head: Snapshot | None) -> Draft | None:
        if own.since is None:
            own.since = head.id if head is not None else 0
        planned = publication(request, decide(head), writes_rows=own.changelog.write is not None)
        seen[:] = [planned]
        own.columns |= planned.decision.new_schemas_pending
        if not planned.decision.changes_anything or request.dry_run:
            return None
        changelog = own.changelog.entries_of(planned)
        seen[:] = [with_changelog(planned, changelog)]
        return _protected(context, planned, marks, own, moved, changelog)

    def moved(head: Snapshot) -> None:
        seen[:] = [replace(seen[0], summary={**seen[0].summary, _HEAD_KEY[request.operation]: head.id})]

    receipt = _commit(context, target, draft, marks, own)
    if receipt.snapshot is not None:
        _finish(context, target, receipt.snapshot, seen[0].held if seen else (), marks, own)
        own.discard(target, () if receipt.replayed else own.used)
    elif not request.dry_run:
        _leave_nothing(context, target, marks, own)
        marks.tried.forget()
    if receipt.replayed and receipt.snapshot is not None:  # a concurrent try of this operation was faster
        return result_of(context, marks, receipt.snapshot)
    return _result(context, seen[0], marks, receipt)


def _finish(
    context: Context,
    target: Table,
    landed: Snapshot,
    held: Sequence[Snapshot],
    marks: PublishMarks,
    own: _OwnWrites,
) -> None:
    """Set the tags that a landed publish needs. A retry with the same operation id does the same.

    Raises:
        OutcomeUnknownError: the storage failed, but the publish is durable.
    """
    try:
        protect_published(target, landed, held)
        complete(target, landed)
        _restore_undo_tag(context, target, landed, marks)
        _restore_kept_head(context, target, landed, own)
        if own.columns:
            reconcile_records(target)
    except StorageError as error:
        raise OutcomeUnknownError(
            f"{target.label}: snapshot {landed.id} landed, but the tags that keep its files could not be set "
            f"({error.message}). Run it again with the same operation id, or run repair_table, before anything expires",
            table=target.name,
            details={"snapshot": landed.id, "uuid": landed.uuid},
        ) from error


def _restore_undo_tag(context: Context, target: Table, landed: Snapshot, marks: PublishMarks) -> None:
    """Set the undo tag again if a refused, concurrent try of the same operation has deleted it.

    That try looks for this snapshot after deleting the tag; this one looks for the tag after landing.
    """
    before = target.find_snapshot(landed.id - 1)
    if before is None:
        return
    undo = plan_undo_tag(context, target, before, marks)
    if not target.store.exists(undo.actions[0].path):
        execute(target, undo)


def _restore_kept_head(context: Context, target: Table, landed: Snapshot, own: _OwnWrites) -> None:
    """Keep the head again if a refused, concurrent operation has deleted the branch that keeps it: it had made it.

    Both look for the other's traces after their own, as for the undo tag.
    """
    before, kept = target.find_snapshot(landed.id - 1), own.branch
    if before is None or kept is None:
        return
    record, view = read_lineage(target, kept.branch), target.branch(kept.branch)
    whole = record is not None and record.state == READY and view.exists()
    if not (whole and (view.latest_snapshot_id() or 0) >= before.id):
        keep_head(context, before, kept.branch, kept.schema, landed.commit_user)


def _commit(context: Context, target: Table, draft: MakeDraft, marks: PublishMarks, own: _OwnWrites) -> Receipt:
    try:
        return commit(target, draft, own.identity)
    except OutcomeUnknownError:
        raise
    except PaimonError as error:
        if _leave_nothing(context, target, marks, own) and isinstance(error, FormatError):
            marks.tried.forget()
        raise


def _result(context: Context, planned: Publication, marks: PublishMarks, receipt: Receipt) -> OperationResult:
    target, details = planned.decision.target, dict(planned.summary)
    before = receipt.before.id if receipt.before else None
    if receipt.snapshot is None:
        after, changed = before, context.request.dry_run and planned.decision.changes_anything
    else:
        after, changed = receipt.snapshot.id, True
        details |= {"undo_tag": marks.undo_tag, "attempts": receipt.attempts}
        if receipt.warning is not None:
            details["warnings"] = [*details.get("warnings", ()), receipt.warning]
    return context.result(
        planned.plan, branch=target.branch_name, changed=changed, before=before, after=after, details=details
    )


_HEAD_KEY = {"merge_branch": "main_snapshot", "rollback_to": "head_snapshot"}
"""Of the operations whose decision can be carried over to a newer head."""


def _protected(
    context: Context,
    planned: Publication,
    marks: PublishMarks,
    own: _OwnWrites,
    moved: Callable[[Snapshot], None],
    changelog: Sequence[ManifestEntry] | None,
) -> Draft:
    """Set the retention tags, check that every file exists, and return the snapshot's content."""
    request, d = context.request, planned.decision
    assert isinstance(request, Publish)
    if own.hold is None:
        own.hold = put_hold(d.source, d.wanted)
        if d.merge is not None and d.source.branch_name != d.target.branch_name:
            own.marked = mark_published(d.source, d.wanted, own.identity.user)
    rewritten = own.files.entries_of(planned)
    own.used = names_of(rewritten) | {e.file.file_name for e in changelog or ()}
    draft = draft_of(planned, marks.properties(context), rewritten, changelog)
    _set_keep_tags(d.target, planned.keep, own)
    undo = plan_undo_tag(context, d.target, d.head, marks)
    path = undo.actions[0].path
    if path not in own.tags and not d.target.store.exists(path):
        own.tags[path] = b""
    execute(d.target, undo)
    check_files_exist(d.target, draft.schema, d.changes, planned.index or (), own.checked)
    if d.keep_head is not None:
        own.branch, own.head = d.keep_head, d.head.id
        keep_head(context, d.head, d.keep_head.branch, d.keep_head.schema, own.identity.user)
    if d.schemas.new:
        draft = replace(draft, prepare=_bringing(planned, own))
    elif isinstance(request, ReplaceMain):  # another schema since then would be main's instead of the branch's
        newest = draft.schema.id
        draft = replace(draft, prepare=lambda: d.target.schema_ids()[-1] == newest)
    if d.follows is None or request.expected_main_snapshot is not None:
        return draft
    ids_from = None if d.id_space is None else d.id_space.first_free
    return with_follow(context, d.target, draft, d.head, d.follows, marks, moved, ids_from)


def _bringing(planned: Publication, own: _OwnWrites) -> Callable[[], bool]:
    d = planned.decision
    new = d.schemas.new
    record = record_of(d.source.branch_name, own.identity, d.head, new[0].id - 1, new)

    def prepare() -> bool:
        own.columns = True
        return bring_schemas(d.target, record, new)

    return prepare


def _set_keep_tags(view: Table, keep: Plan, own: _OwnWrites) -> None:
    for action in keep.actions:
        assert isinstance(action, PutNew)
        try:
            put_new(view, action.path, action.data)
            own.kept[action.path] = action.data
        except AlreadyExistsError:
            execute(view, replace(keep, actions=(action,)))  # an error if it is not the same tag


def _leave_nothing(context: Context, target: Table, marks: PublishMarks, own: _OwnWrites) -> bool:
    """Undo the writes of a publish that did not land. A failure is only logged, so that it does not hide the cause."""
    others = context.request.operation_id is not None  # other tries may live; without an id nobody else can be meant
    try:
        if others and own.since is not None and find_landed(target, own.identity, own.since) is not None:
            return False
        own.discard(target)
        if own.marked is not None:
            unmark_published(own.marked)
        if own.columns:
            reconcile_records(target)
        if own.branch is not None:
            _drop_kept(context, target, own)
        _delete_tags(target, own)
        shared = others and own.since is not None and (own.tags or own.branch is not None)
        landed = find_landed(target, own.identity, own.since or 0) if shared else None
        if landed is not None:  # another living try, which relies on the same undo tag and the same kept branch
            _restore_undo_tag(context, target, landed, marks)
            _restore_kept_head(context, target, landed, own)
            return False
    except PaimonError as error:
        log.warning("%s: a refused publish left tags or columns (%s); run check_table", target.label, error)
        return False
    return True


def _drop_kept(context: Context, target: Table, own: _OwnWrites) -> None:
    assert own.branch is not None
    try:
        drop_kept(context, own.branch.branch, own.identity.user)
    except ConflictError as error:  # another try of the operation is making it again
        log.info("%s: %s", context.table.name, error)
    landed = None if own.head is None else replaced_after(target, own.head, own.branch.branch)
    if landed is not None:  # another operation, which had found the branch
        _restore_kept_head(context, target, landed, own)


def _delete_tags(target: Table, own: _OwnWrites) -> None:
    """Delete tags of this call. A keep tag on which another publish that has landed relies is set again.

    The other publish checks its keep tags after it has landed; this one checks for such a publish after the deletion.
    """
    paths = [*own.tags, *own.kept]
    if not paths:
        return
    actions = tuple(Delete(path=p, reason="set by a publish that was refused") for p in paths)
    execute(target, Plan(operation="refused", table=target.name, actions=actions))
    if not own.kept or own.since is None:
        return
    since: Sequence[Snapshot] = [s for s in target.snapshots() if s.id > own.since]
    if any(CAME_BACK_PROPERTY in s.properties for s in since):
        again = tuple(PutNew(path=p, data=d, same_ok=True, reason="needed") for p, d in own.kept.items())
        execute(target, Plan(operation="refused", table=target.name, actions=again))
