"""Carries out a publish or a rollback: one snapshot by the committer, and the tags and columns that it needs.

What a try needs before its snapshot is there, it holds under names of its own. A try that is refused deletes that, and
nothing else; once a snapshot was committed, its properties say what the staged tags become, and a retry completes it.
After an unknown outcome nothing is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_paimon.core.branches.retention_tags import (
    delete_staged_tags,
    keep_tag,
    protect_published,
    staged_tag,
    staged_tag_names,
)
from airflow_paimon.core.commit.committer import (
    COMMITTED,
    CommitOptions,
    Draft,
    MakeDraft,
    Receipt,
    commit_at,
    execute,
)
from airflow_paimon.core.commit.conditions import BucketsAreClosed, Condition, HeadState
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import delete_files
from airflow_paimon.core.errors import FormatError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef, Tag
from airflow_paimon.core.plan import HeadIs, Replace
from airflow_paimon.core.publish.approval import check_four_eyes, is_read_with_main
from airflow_paimon.core.publish.audit_properties import keep_record
from airflow_paimon.core.publish.hold import drop_hold, drop_holds_of, put_hold
from airflow_paimon.core.publish.publication import Publication, with_carry_over, with_plan
from airflow_paimon.core.publish.publish_identity import (
    PublishIdentity,
    check_approved_at,
    check_files_exist,
    result_of,
    undo_retention,
)
from airflow_paimon.core.publish.publish_schemas import is_put, put_schemas, restore_schema, revert_schemas
from airflow_paimon.core.publish.replace_main import carry_over_tags_and_consumers
from airflow_paimon.core.publish.row_functions import RowFunctions
from airflow_paimon.core.publish.staged_files import KeyMergeFiles, StagedFiles, changelog_counts
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Publish, PublishBranch, RollbackTo
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.features import check_known
from airflow_paimon.core.table.open_writers import describe_writers
from airflow_paimon.core.table.open_writers_plan import remembers_replaced_rows
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

PlanOnHead = Callable[[Snapshot | None, Collection[int]], Publication]
"""Returns what is published on a head (None: the branch has no snapshot), or raises the reason for a refusal. It gets
the ids of the schema versions that earlier attempts have put.
"""


def run_publication(
    context: Context,
    target: Table,
    make_plan_on_head: Callable[[], PlanOnHead],
    rows: RowFunctions,
    keys: KeyMergeFiles,
) -> OperationResult:
    """Publish one snapshot on ``target``, or return the result of an earlier try that did. A dry run only plans.

    ``make_plan_on_head`` is called once, after the check that no earlier try was committed. ``keys``: what is merged by
    key.
    """
    request = context.request
    assert isinstance(request, Publish)
    undo_retention(request)  # refused before anything is written
    check_approved_at(request)
    four_eyes = check_four_eyes(request, target, "published")
    with attempt_of(context, target.branch_name) as tried:
        identity = PublishIdentity.of(context, tried, four_eyes=four_eyes)
        files = StagedFiles.of(rows, keys)
        own = _Try(context, request, target, identity, files)
        committed = tried.committed(identity.operation)
        return _execute(own, make_plan_on_head()) if committed is None else _committed_before(own, committed)


@dataclass(slots=True)
class _Try:
    """A try, and what it writes in addition to its snapshot, under names of its own: one that is not committed deletes
    it.

    ``planned``: by the last attempt; ``tags``: the paths of staged
    tags; ``hold``: keeps what the publish takes; ``checked``: files that were found; ``before``: the target's
    schema before it may have got the versions ``brought``.
    """

    context: Context
    request: Publish
    target: Table
    identity: PublishIdentity
    files: StagedFiles
    planned: Publication | None = None
    tags: set[str] = field(default_factory=set)
    hold: str | None = None
    checked: set[str] = field(default_factory=set)
    before: TableSchema | None = None
    brought: list[TableSchema] = field(default_factory=list)

    def put_staged_tag(self, tag: Tag) -> None:
        """Put a tag under a name of this try; in place of what the try has put for that tag before."""
        staged = staged_tag(self.identity.name, tag, self.context.now_local)
        path = self.target.paths.tag(staged.name)
        self.tags.add(path)
        reason = "kept until the snapshot of a publish exists"
        execute(self.target, [Replace(path=path, data=staged.to_bytes(), reason=reason)])

    def say(self, more: Mapping[str, Any]) -> None:
        """Add to the summary of what is planned."""
        assert self.planned is not None
        self.planned = replace(self.planned, summary={**self.planned.summary, **more})

    def delete_staged_of_expired(self, snapshots: Sequence[Snapshot]) -> None:
        """Delete staged tags again on states that an expiry has taken meanwhile: nothing of theirs is left to keep."""
        store = self.target.store
        for snapshot in snapshots:
            lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
            if not all(run_parallel(store, [partial(store.exists, manifest_path(name)) for name in lists])):
                path = self.target.paths.tag(
                    staged_tag(self.identity.name, keep_tag(snapshot), self.context.now_local).name
                )
                delete_files(self.target, [path])
                self.tags.discard(path)

    def discard(self, used: Collection[str] = ()) -> None:
        """Delete the files that were written, but for the used ones, and the hold on what they were taken from."""
        if self.hold is not None:
            drop_hold(self.target, self.hold)
        self.files.discard(self.target, used)

    def leave_nothing(self, *, columns: bool = True) -> None:
        """Delete all of it, and take the ``columns`` back. A failure is only logged, so that it doesn't hide why the
        publish was refused.
        """
        try:
            self.discard()
            delete_files(self.target, list(self.tags))
            if columns and self.before is not None and self.brought:
                assert self.planned is not None
                revert_schemas(self.target, self.planned.source.branch_name, self.before, self.brought)
        except PaimonError as error:
            log.warning("%s: a refused publish left columns (%s); run check_table", self.target.label, error)


def _committed_before(own: _Try, committed: Snapshot) -> OperationResult:
    """Return the result of the try that was committed, and complete what it may have left if it was cut off."""
    _finish(own, committed, is_whole=not staged_tag_names(own.target, committed))
    return result_of(own.context, own.identity, committed)


def _execute(own: _Try, plan_on_head: PlanOnHead) -> OperationResult:
    request, identity = own.request, own.identity
    writers: dict[str, Any] = {}

    expected = _expected(request, own.target)

    def draft(at: HeadState) -> Draft | None:
        for condition in expected if at.head is not None else ():
            condition.check(at)
        publication = plan_on_head(at.head, {s.id for s in own.brought})
        planned = own.planned = with_plan(request, publication, writes_rows=own.files.changelog.write is not None)
        check_known([at.head, planned.source_snapshot], table=own.target.name)
        writers.update(writers or _writers(own, planned))
        if not planned.changes_anything or request.dry_run:
            return None
        return _protected(own, planned, on_new_head, expected)

    def on_new_head(head: Snapshot) -> None:
        own.put_staged_tag(Tag(name=identity.undo_tag, snapshot=head))
        own.say(_head_said(request, head))

    receipt = _commit(own, draft)
    if receipt.replayed and receipt.snapshot is not None:  # a concurrent try of this operation was faster
        own.leave_nothing(columns=False)
        return _committed_before(own, receipt.snapshot)
    warnings: list[str] = []
    if receipt.snapshot is not None:
        warnings = _finish(own, receipt.snapshot)
        own.discard(own.files.used)
    elif not request.dry_run:
        own.leave_nothing()
        identity.tried.forget()
    if writers:
        own.say({"open_writers": writers})
        warnings = [*([writers["note"]] if writers["effect"] else []), *warnings]
    return _receipt(own, receipt, warnings)


def _writers(own: _Try, d: Publication) -> dict[str, Any]:
    """Describe the running jobs that may have the replaced buckets open: for a plan, and where a job will restart."""
    schema, buckets = d.target.schema(), d.buckets
    if not buckets or (remembers_replaced_rows(schema) and not own.request.dry_run):
        return {}  # such a publish is refused
    return describe_writers(d.target, schema, buckets, d.head, own.context.now_ms)


def _finish(own: _Try, committed: Snapshot, *, is_whole: bool = False) -> list[str]:
    """Let the staged tags of a committed publish become what its properties name, and do what follows it. Returns
    warnings.

    A retry with the same operation id does the same. ``is_whole``: no staged tag was left: what is missing now was
    taken away since.

    Raises:
        OutcomeUnknownError: something failed, but the publish is durable.
    """
    target = own.target
    try:
        follow_up = [partial(f, target, committed) for f in (protect_published, _keep_record, restore_schema)]
        run_parallel(target.store, follow_up)
        warnings = [] if is_whole else carry_over_tags_and_consumers(own.context, target, committed)
        delete_staged_tags(target, committed)
        if own.identity.tried.retried:
            drop_holds_of(target, own.identity.commit_identity.user)
    except PaimonError as error:
        raise OutcomeUnknownError(
            f"{target.label}: snapshot {committed.id} was committed, but not all that has to follow it could be done "
            f"({error.message}). Run it again with the same operation id, or run repair_table, before anything expires",
            details={"snapshot": committed.id, "uuid": committed.uuid},
        ) from error
    return warnings


def _keep_record(target: Table, committed: Snapshot) -> None:
    if is_read_with_main(target):
        keep_record(target, committed)


def _commit(own: _Try, draft: MakeDraft) -> Receipt:
    try:
        return commit_at(own.target, draft, CommitOptions(identity=own.identity.commit_identity))
    except OutcomeUnknownError:
        raise
    except PaimonError as error:
        if COMMITTED not in error.details:
            own.leave_nothing()
            if isinstance(error, FormatError):
                own.identity.tried.forget()
        raise


def _receipt(own: _Try, receipt: Receipt, warnings: Sequence[str]) -> OperationResult:
    assert own.planned is not None
    details, plan = dict(own.planned.summary), own.planned.plan
    before = receipt.before.id if receipt.before else None
    after, changed = before, own.request.dry_run and own.planned.changes_anything
    if receipt.snapshot is not None:
        after, changed = receipt.snapshot.id, True
        details |= {"undo_tag": own.identity.undo_tag, "attempts": receipt.attempts}
    if later := [*([] if receipt.warning is None else [receipt.warning]), *warnings]:
        details["warnings"] = [*details.get("warnings", ()), *later]
    branch = own.target.branch_name
    return own.context.result(plan, branch=branch, changed=changed, before=before, after=after, details=details)


def _head_said(request: Publish, head: Snapshot) -> dict[str, Any]:
    """Return what a summary says of the head that a publication is carried over to."""
    if isinstance(request, RollbackTo):
        return {"head_snapshot": head.id}
    return {"main_snapshot": head.id, "main_identity": head.identity}


def _expected(request: Publish, target: Table) -> Sequence[HeadIs]:
    if request.expected_main_snapshot is None:
        return ()
    known = SnapshotRef.named(request.expected_main_snapshot)
    return (HeadIs(branch=target.branch_name, snapshot_id=known.id, identity=known.identity or None),)


def _protected(
    own: _Try,
    d: Publication,
    on_new_head: Callable[[Snapshot], None],
    conditions: Sequence[Condition],
) -> Draft:
    """Hold what the publish stands on, check that every file exists, and return the snapshot's content."""
    identity = own.identity
    if own.hold is None:
        is_publish = d.source.branch_name != d.target.branch_name
        user, schema = (identity.commit_identity.user, d.target.schema_ids()[-1]) if is_publish else (None, None)
        own.hold = put_hold(d.source, d.source_snapshot, user, d.scope, schema)
    draft = own.files.draft(d, identity.properties(own.context))
    if draft.changelog is not None:
        own.say(changelog_counts(d, draft.changelog))
    tags = (*map(keep_tag, d.held), Tag(name=identity.undo_tag, snapshot=d.head))
    run_parallel(d.target.store, [partial(own.put_staged_tag, tag) for tag in tags])
    own.delete_staged_of_expired([s for s in d.held if s.identity != d.source_snapshot.identity])
    check_files_exist(d.target, draft.schema, d.changes, d.index or (), own.checked)
    if isinstance(own.request, PublishBranch | RollbackTo) and own.request.writers_stopped:
        gone = [e for e in draft.entries if e.kind == FileKind.DELETE]  # else the plan has looked
        conditions = [*conditions, BucketsAreClosed(replaced=gone, stopped=True)]
    draft = replace(draft, prepare=partial(_brings_schemas, own, d, draft.schema), conditions=conditions)
    if d.reach is None:
        return draft
    ids_from = None if d.id_space is None else d.id_space.first_free
    return with_carry_over(d.target, draft, d.head, d.reach, on_new_head, ids_from)


def _brings_schemas(own: _Try, d: Publication, schema: TableSchema) -> bool:
    """Put the schema versions of a publish, right before its snapshot of ``schema``. False: decide again."""
    new = d.schemas.new
    if not new:  # another schema since then would be the target's instead of this one
        return d.target.schema_ids()[-1] == schema.id
    below = new[0].id - 1
    if below not in {s.id for s in own.brought}:  # else it is one that an earlier attempt has put
        own.before = d.target.schema(below)
    own.brought += new
    if put_schemas(d.target, new, latest_first=d.schemas.latest_first):
        return True
    own.brought = [s for s in own.brought if is_put(d.target, s)]
    return False
