"""Carries out a publish or a rollback: one snapshot by the committer, and the tags and columns that it needs.

What a try needs before its snapshot is there, it holds under names of its own. A try that is refused deletes that, and
nothing else; once a snapshot was committed, its properties say what the staged tags become, and a retry completes it.
After an unknown outcome nothing is undone.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
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
    try_name,
)
from airflow_paimon.core.commit.committer import COMMITTED, commit_at
from airflow_paimon.core.commit.conditions import BucketsAreClosed, Condition, HeadState
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions, Draft, MakeDraft, Receipt
from airflow_paimon.core.commit.idempotency import Attempt, attempt_of, name_part
from airflow_paimon.core.commit.put import delete_files, execute
from airflow_paimon.core.errors import FormatError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef, Tag
from airflow_paimon.core.plan import HeadIs, Replace
from airflow_paimon.core.publish.approval import approval_properties, check_four_eyes, is_read_with_main
from airflow_paimon.core.publish.audit_properties import figures_property, keep_record
from airflow_paimon.core.publish.branch_tags import set_branch_tags
from airflow_paimon.core.publish.bucket_merge_plan import mapped_entries, summarize
from airflow_paimon.core.publish.hold import drop_hold, drop_holds_of, put_hold
from airflow_paimon.core.publish.publication import PlannedPublication, Publication, plan_publication
from airflow_paimon.core.publish.publish_schemas import is_put, put_schemas, restore_schema, revert_schemas
from airflow_paimon.core.publish.replace_main import follow_replacement
from airflow_paimon.core.publish.streaming_readers import CHANGES
from airflow_paimon.core.publish.written_files import WrittenFiles, check_files_exist
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import PublishBranch, RollbackTo
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.features import check_known
from airflow_paimon.core.table.open_writers import describe_writers
from airflow_paimon.core.table.open_writers_plan import remembers_replaced_rows
from airflow_paimon.core.table.options import requested_retention
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX, manifest_path
from airflow_paimon.core.table.properties import (
    APPROVED_AT_PROPERTY,
    BASE_SNAPSHOT_PROPERTY,
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    DURATION_PROPERTY,
    KEEP_LATER_PROPERTY,
    LEFT_PARTITIONS_PROPERTY,
    ONLY_PARTITIONS_PROPERTY,
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
    TARGET_PROPERTY,
    TRY_PROPERTY,
    UNDO_RETENTION_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table, parse_timestamp

log = logging.getLogger(__name__)

PlanOnHead = Callable[[Snapshot | None, Collection[int]], Publication]
"""Returns what is published on a head (None: the branch has no snapshot), or raises the reason for a refusal. It gets
the ids of the schema versions that were put for earlier heads.
"""


def run_publication(
    context: Context,
    target: Table,
    make_plan_on_head: Callable[[], PlanOnHead],
    files: WrittenFiles,
) -> OperationResult:
    """Publish one snapshot on ``target``, or return the result of an earlier try that did. A dry run only plans.

    ``make_plan_on_head`` is called once, after the check that no earlier try was committed.

    Raises:
        InvalidInputError: before anything is written: the time of the approval is not ISO with an offset, or the
            retention of the undo tag is no duration, or not longer than 0.
    """
    request = context.request
    assert isinstance(request, PublishBranch | RollbackTo)
    if request.approved_at is not None:
        parse_timestamp(request.approved_at, f"{request.table}: approved_at")
    requested_retention(request.undo_retention, f"{request.table}: undo_retention")
    four_eyes = check_four_eyes(request, target, "published")
    own, operation_id = uuid.uuid4().hex, request.operation_id
    with attempt_of(context, target.branch_name) as tried:
        run = _PublishRun(
            context=context,
            request=request,
            target=target,
            tried=tried,
            name=own if operation_id is None else try_name(operation_id, own),
            undo_tag=UNDO_TAG_PREFIX + (own if operation_id is None else name_part(operation_id)),
            four_eyes=four_eyes,
            files=files,
        )
        committed = tried.committed(request.operation)
        return _execute(run, make_plan_on_head()) if committed is None else _committed_before(run, committed)


@dataclass(slots=True, kw_only=True)
class _PublishRun:
    """One run of an operation, on one head after the other, and what it writes in addition to its snapshot, under
    names of its own: one that is not committed deletes it.

    ``name``: of this try, for its staged tags. ``planned``, ``draft``: for the last head. ``hold_path``: of the file
    that keeps what the publish takes. ``schema_before``: the target's, before it may have got ``put_versions``.
    """

    context: Context
    request: PublishBranch | RollbackTo
    target: Table
    tried: Attempt
    name: str
    undo_tag: str
    four_eyes: bool
    files: WrittenFiles
    planned: PlannedPublication | None = None
    draft: Draft | None = None
    staged_tag_paths: set[str] = field(default_factory=set)
    hold_path: str | None = None
    found_files: set[str] = field(default_factory=set)
    schema_before: TableSchema | None = None
    put_versions: list[TableSchema] = field(default_factory=list)

    @property
    def identity(self) -> CommitIdentity:
        return self.tried.identity(self.request.operation)

    @property
    def properties(self) -> dict[str, str]:
        """Snapshot properties that every publish carries, for retries and for people."""
        request = self.request
        out = {
            OPERATION_PROPERTY: request.operation,
            UNDO_TAG_PROPERTY: self.undo_tag,
            UNDO_RETENTION_PROPERTY: request.undo_retention,
            TRY_PROPERTY: self.name,
            DURATION_PROPERTY: str(round((time.monotonic() - self.context.started) * 1000)),
        }
        if request.operation_id:
            out[OPERATION_ID_PROPERTY] = request.operation_id
        if request.approved_at:
            out[APPROVED_AT_PROPERTY] = request.approved_at
        return out | approval_properties(request, four_eyes=self.four_eyes)

    def put_staged_tag(self, tag: Tag) -> None:
        """Put a tag under a name of this try; in place of what the try has put for that tag before."""
        staged = staged_tag(self.name, tag, self.context.now_local)
        path = self.target.paths.tag(staged.name)
        self.staged_tag_paths.add(path)
        reason = "kept until the snapshot of a publish exists"
        execute(self.target, [Replace(path=path, data=staged.to_bytes(), reason=reason)])

    def add_to_summary(self, more: Mapping[str, Any]) -> None:
        """Add to the summary of what is planned."""
        assert self.planned is not None
        self.planned = replace(self.planned, summary={**self.planned.summary, **more})

    def delete_staged_of_expired(self, snapshots: Sequence[Snapshot]) -> None:
        """Delete staged tags again on states that an expiry has taken meanwhile: nothing of theirs is left to keep."""
        store = self.target.store
        for snapshot in snapshots:
            lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
            if not all(run_parallel(store, [partial(store.exists, manifest_path(name)) for name in lists])):
                path = self.target.paths.tag(staged_tag(self.name, keep_tag(snapshot), self.context.now_local).name)
                delete_files(self.target, [path])
                self.staged_tag_paths.discard(path)

    def discard(self, committed: Draft | None = None) -> None:
        """Delete the files that were written, but for those committed, and the hold on what they were taken from."""
        if self.hold_path is not None:
            drop_hold(self.target, self.hold_path)
        self.files.discard(self.target, committed)

    def leave_nothing(self) -> None:
        """Delete all of it, and take the columns back. A failure is only logged, so that it doesn't hide why this
        was refused.
        """
        try:
            self.discard()
            delete_files(self.target, list(self.staged_tag_paths))
            if self.schema_before is not None and self.put_versions:
                assert self.planned is not None
                revert_schemas(
                    self.target, self.planned.publication.source.branch_name, self.schema_before, self.put_versions
                )
        except PaimonError as error:
            log.warning("%s: a refused publish left columns (%s); run check_table", self.target.label, error)


def _execute(run: _PublishRun, plan_on_head: PlanOnHead) -> OperationResult:
    request = run.request
    writers: dict[str, Any] = {}

    expected: list[Condition] = []
    if request.expected_main_snapshot is not None:
        known = SnapshotRef.named(request.expected_main_snapshot)
        expected.append(HeadIs(branch=run.target.branch_name, snapshot_id=known.id, identity=known.identity or None))

    def draft(at: HeadState) -> Draft | None:
        for condition in expected if at.head is not None else ():
            condition.check(at)
        publication = plan_on_head(at.head, {s.id for s in run.put_versions})
        planned = run.planned = plan_publication(request, publication)
        check_known([at.head, publication.source_snapshot], table=run.target.name)
        writers.update(writers or _writers(run, planned.publication))
        if not publication.changes_anything or request.dry_run:
            return None
        run.draft = _held_draft(run, planned, expected)
        return run.draft

    receipt = _commit(run, draft)
    if receipt.replayed and receipt.snapshot is not None:  # a concurrent try of this operation was faster
        run.leave_nothing()
        return _committed_before(run, receipt.snapshot)
    warnings: list[str] = []
    if receipt.snapshot is not None:
        warnings = _finish(run, receipt.snapshot)
        run.discard(run.draft)
    elif not request.dry_run:
        run.leave_nothing()
        run.tried.forget()
    if writers:
        run.add_to_summary({"open_writers": writers})
        warnings = [*([writers["note"]] if writers["effect"] else []), *warnings]
    return _result(run, receipt, warnings)


def _writers(run: _PublishRun, publication: Publication) -> dict[str, Any]:
    """Describe the running jobs that may have the replaced buckets open: for a plan, and where a job will restart."""
    schema, buckets = publication.target.schema(), publication.buckets
    if not buckets or (remembers_replaced_rows(schema) and not run.request.dry_run):
        return {}  # such a publish is refused
    return describe_writers(publication.target, schema, buckets, publication.head, run.context.now_ms)


def _finish(run: _PublishRun, committed: Snapshot, *, was_finished: bool = False) -> list[str]:
    """Let the staged tags of a committed publish become what its properties name, and do what follows it. Returns
    warnings.

    A retry with the same operation id does the same. ``was_finished``: no staged tag was left: what is missing now was
    taken away since.

    Raises:
        OutcomeUnknownError: something failed, but the publish is durable.
    """
    target = run.target
    try:
        kept = [keep_record] if is_read_with_main(target) else []
        run_parallel(target.store, [partial(f, target, committed) for f in (protect_published, restore_schema, *kept)])
        steps = () if was_finished else (follow_replacement, set_branch_tags)
        warnings = [w for step in steps for w in step(run.context, target, committed)]
        delete_staged_tags(target, committed)
        if run.tried.retried:
            drop_holds_of(target, run.identity.user)
    except PaimonError as error:
        raise OutcomeUnknownError(
            f"{target.label}: snapshot {committed.id} was committed, but not all that has to follow it could be done "
            f"({error.message}). Run it again with the same operation id, or run repair_table, before anything expires",
            details={"snapshot": committed.id, "uuid": committed.uuid},
        ) from error
    return warnings


def _commit(run: _PublishRun, draft: MakeDraft) -> Receipt:
    try:
        options = CommitOptions(identity=run.identity, writers_stopped=run.request.writers_stopped)
        return commit_at(run.target, draft, options)
    except OutcomeUnknownError:
        raise
    except PaimonError as error:
        if COMMITTED not in error.details:
            run.leave_nothing()
            if isinstance(error, FormatError):
                run.tried.forget()
        raise


def _result(run: _PublishRun, receipt: Receipt, warnings: Sequence[str]) -> OperationResult:
    assert run.planned is not None
    details, plan = dict(run.planned.summary), run.planned.plan
    publication = run.planned.publication
    before = receipt.before.id if receipt.before else None
    after, changed = before, run.request.dry_run and publication.changes_anything
    if receipt.snapshot is not None:
        after, changed = receipt.snapshot.id, True
        details |= {"undo_tag": run.undo_tag, "attempts": receipt.attempts}
    if later := [*([] if receipt.warning is None else [receipt.warning]), *warnings]:
        details["warnings"] = [*details.get("warnings", ()), *later]
    branch = run.target.branch_name
    return run.context.result(plan, branch=branch, changed=changed, before=before, after=after, details=details)


def _held_draft(run: _PublishRun, planned: PlannedPublication, conditions: Sequence[Condition]) -> Draft:
    """Hold what the publish stands on, check that every file exists, and return the snapshot's content."""
    publication = planned.publication
    if run.hold_path is None:
        source, snapshot = publication.source, publication.source_snapshot
        if publication.is_rollback:
            run.hold_path = put_hold(source, snapshot)
        else:
            schema = publication.target.schema_ids()[-1]
            run.hold_path = put_hold(source, snapshot, run.identity.user, publication.scope, schema)
    draft = run.files.draft(planned, run.properties)
    if draft.changelog is not None:
        rows = sum(e.file.row_count for e in draft.changelog)
        counts = {"changelog_files": len(draft.changelog), "changelog_rows": rows}
        run.add_to_summary({"streaming_readers": {**planned.summary["streaming_readers"], **counts}})
    tags = (*map(keep_tag, planned.kept_snapshots), Tag(name=run.undo_tag, snapshot=publication.head))
    run_parallel(publication.target.store, [partial(run.put_staged_tag, tag) for tag in tags])
    run.delete_staged_of_expired(
        [s for s in planned.kept_snapshots if s.identity != publication.source_snapshot.identity]
    )
    check_files_exist(publication.target, draft.schema, publication.changes, planned.index or (), run.found_files)
    if remembers_replaced_rows(before := run.schema_before or publication.target.schema()):
        # Whoever commits beside a merge by key meanwhile may have its bucket open. A plan has looked as well, before
        # rows were read. Writers have the target's options, not those that a branch brings.
        gone = [e for e in draft.entries if e.kind == FileKind.DELETE]
        closed = BucketsAreClosed(replaced=gone, schema=before)
        conditions = [*conditions, closed]
    return replace(
        draft,
        prepare=partial(_put_schemas_before, run, publication, draft.schema),
        conditions=conditions,
        on_newer_head=None if publication.unchanged is None else partial(_carried_over, run),
    )


def _carried_over(run: _PublishRun, newer: Snapshot) -> Draft | None:
    """Return the last draft as it is on a newer head, which is held then; None: it has to be planned again."""
    assert run.planned is not None and run.draft is not None
    before = run.planned.publication
    publication = before.on_newer_head(newer, run.draft.schema)
    if publication is None:
        return None
    run.put_staged_tag(Tag(name=run.undo_tag, snapshot=newer))
    run.planned = replace(run.planned, publication=publication)
    on_head = {"main_snapshot": newer.id, "main_identity": newer.identity}
    on_head = {"head_snapshot": newer.id} if publication.is_rollback else on_head
    run.add_to_summary({**summarize(publication.changes), **on_head})
    run.draft = replace(run.draft, next_row_id=max(run.draft.next_row_id or 0, newer.next_row_id or 0))
    if publication.changes is not before.changes:
        entries = mapped_entries(publication.changes, publication.schemas.ids, publication.written)
        properties = {**run.draft.properties, **figures_property(publication.changes)}
        run.draft = replace(run.draft, entries=entries, properties=properties)
    return run.draft


def _put_schemas_before(run: _PublishRun, publication: Publication, schema: TableSchema) -> bool:
    """Put the schema versions of a publish, right before its snapshot of ``schema``. False: decide again."""
    new = publication.schemas.new
    if not new:  # another schema since then would be the target's instead of this one
        return publication.target.schema_ids()[-1] == schema.id
    below = new[0].id - 1
    if below not in {s.id for s in run.put_versions}:  # else it is one that was put for an earlier head
        run.schema_before = publication.target.schema(below)
    run.put_versions += new
    if put_schemas(publication.target, new, latest_first=publication.schemas.latest_first):
        return True
    run.put_versions = [s for s in run.put_versions if is_put(publication.target, s)]
    return False


def _committed_before(run: _PublishRun, committed: Snapshot) -> OperationResult:
    """Return the result of the try that was committed, and complete what it may have left if it was cut off."""
    warnings = _finish(run, committed, was_finished=not staged_tag_names(committed, run.target.tag_names()))
    details: dict[str, object] = {
        name.removeprefix("airflow-paimon.").replace("-", "_"): parse(committed.properties[name])
        for name, parse in _REPLAYED.items()
        if name in committed.properties
    }
    details |= {"replayed": True, **({"warnings": warnings} if warnings else {})}
    if committed.changelog_record_count is not None:
        details["streaming_readers"] = {"see": CHANGES, "changelog_rows": committed.changelog_record_count}
    branch, before = run.target.branch_name, committed.id - 1
    return run.context.result(None, branch=branch, changed=True, before=before, after=committed.id, details=details)


_REPLAYED: Mapping[str, Callable[[str], object]] = {
    BRANCH_PROPERTY: str,
    BRANCH_SNAPSHOT_PROPERTY: int,
    BRANCH_IDENTITY_PROPERTY: str,
    BASE_SNAPSHOT_PROPERTY: int,
    ONLY_PARTITIONS_PROPERTY: json.loads,
    LEFT_PARTITIONS_PROPERTY: int,
    TARGET_PROPERTY: int,
    KEEP_LATER_PROPERTY: "true".__eq__,
    UNDO_TAG_PROPERTY: str,
}
"""Properties that the first try's result had as well, and how its details had them."""
