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
)
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.publish.audit_properties import changes_property
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    bucket_namer,
    check_deletion_vectors,
    sequences_too_high,
    warn_of_bucket_counts,
)
from airflow_paimon.core.publish.checks import PUBLISH_CHECKS, buckets_to_fold, check_approved, check_data_evolution
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder
from airflow_paimon.core.publish.compare import Comparison, gather_sides
from airflow_paimon.core.publish.diff_record import kept_diff
from airflow_paimon.core.publish.duplicate_rows import DuplicateRowCheck
from airflow_paimon.core.publish.fold import fold_branch, is_folded
from airflow_paimon.core.publish.hold import UnfinishedPublish, conflict_if_gone, unfinished_publishes
from airflow_paimon.core.publish.partial_publish import check_changed
from airflow_paimon.core.publish.planners import MergePlanner, SchemaLogs, planner_of
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.related_publishes import family_properties
from airflow_paimon.core.publish.required_checks import RequiredChecks, read_required_checks
from airflow_paimon.core.publish.row_functions import NO_ROW_FUNCTIONS, FoldBuckets, RowFunctions
from airflow_paimon.core.publish.run import PlanOnHead, run_publication
from airflow_paimon.core.publish.staged_files import KeyMergeFiles
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import PublishBranch
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, PublishedVersion, id_space, origin
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.history import (
    publish_target,
)
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

_SPARE_IDS = 100_000


@dataclass(slots=True)
class _SpareIds:
    """How many row ids to leave to main, for rows that it gets while files are written again with later ids."""

    seen: list[int] = field(default_factory=list)

    def count_try(self, head: Snapshot) -> None:
        """Take note of a try on this head."""
        self.seen.append(head.next_row_id or 0)

    @property
    def number(self) -> int:
        """0 at first; once other commits were faster twice, far more than main has given out meanwhile."""
        return 0 if len(self.seen) < 3 else max(_SPARE_IDS, 100 * (self.seen[-1] - self.seen[-2]))


def publish_branch(
    context: Context,
    request: PublishBranch,
    rows: RowFunctions = NO_ROW_FUNCTIONS,
) -> OperationResult:
    """Publish a branch onto main; one that began with a chain table's snapshot or delta branch onto that.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns; or an
            ``expected_*`` does not hold.
        UnsafeOperationError: no shared history; main would lose commits; sequence numbers too high.
    """
    context = replace(context, table=context.table.with_cached_tags())
    main, branch = context.table, context.table.branch(request.branch)
    if request.branch == MAIN:
        raise InvalidInputError(f"{main.name}: branch main can't be published onto itself")
    first: list[Callable[[], Any]] = [partial(_refuse_branch, main, branch), partial(publish_target, main, branch)]
    _, target = run_parallel(main.store, first)
    if target.branch_name != MAIN:
        context = replace(context, table=target)
        check_chain_publish(target, branch, request.operation)
    reads: list[Callable[[], Any]] = [
        partial(branch_head, branch, request.expected_branch_snapshot),
        partial(planner_of, context, request, branch),
    ]
    branch_snapshot, planner = run_parallel(target.store, reads)
    diff, key_merge_files = kept_diff(request, branch, branch_snapshot), KeyMergeFiles(rows.merge_by_key)

    def make_plan_on_head() -> PlanOnHead:
        looks: list[Callable[[], Any]] = [
            partial(refuse_protected, target, branch.branch_name, "publish", force=request.force),
            partial(read_required_checks, request, target, branch, branch_snapshot),
            planner.check,
            partial(unfinished_publishes, branch),
        ]
        record, required_checks, _, unfinished = run_parallel(target.store, looks)
        branch_properties = {**publish_properties(record), **family_properties(record), **diff.properties}
        return _BranchPublisher(
            planner,
            branch_snapshot,
            unfinished,
            required_checks,
            branch_properties,
            rows.fold,
            DuplicateRowCheck(rows.find_shared_id),
            key_merge_files,
        ).plan_on_head

    with conflict_if_gone(branch, branch_snapshot):
        result = run_publication(context, target, make_plan_on_head, rows, key_merge_files)
    if request.dry_run or not result.changed:
        return result
    expire_undo_tags(context)
    details = dict(result.details)
    if diff.warnings and not details.get("replayed"):
        details["warnings"] = [*details.get("warnings", ()), *diff.warnings]
    if target.branch_name != MAIN:
        details |= report_write(target, result.snapshot_after)
    return replace(result, details=details)


def _refuse_branch(main: Table, branch: Table) -> None:
    branch.require()
    refuse_chain_branch(branch)
    require_committable(main)


@dataclass(slots=True)
class _BranchPublisher:
    """Decides on heads of main. Where it isn't refused otherwise, it folds the branch first, once, and merges by key
    what both sides changed.

    ``branch_properties``: what the snapshot says of the branch. ``commit_properties``: its commits, once they were
    read.
    """

    planner: MergePlanner
    branch_snapshot: Snapshot
    unfinished: Sequence[UnfinishedPublish]
    required_checks: RequiredChecks
    branch_properties: Mapping[str, str]
    fold: FoldBuckets | None
    duplicate_row_check: DuplicateRowCheck
    key_merge_files: KeyMergeFiles
    spare: _SpareIds = field(default_factory=_SpareIds)
    commit_properties: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)

    def plan_on_head(self, head: Snapshot | None, put_schema_ids: Collection[int]) -> Publication:
        planner, whole = self.planner, self.planner.replaced_whole()
        target, branch, request = planner.main, planner.branch, planner.request
        compared, logs = gather_merge(planner, self.branch_snapshot, head, self.unfinished, put_schema_ids)
        checked = self.required_checks.check_against(compared.head if whole else compared.base, is_main=whole)
        publication = _plan(planner, compared, logs, self.spare)
        self.duplicate_row_check.check(target, branch, compared, publication)
        high = buckets_to_fold(planner, compared, publication.changes)
        folds = {"folds": sorted(map(bucket_namer(compared.schema), high))[:MAX_LISTED]} if high else {}
        publication = replace(publication, summary={**publication.summary, **folds, **checked.summary})
        if request.dry_run:
            return publication
        if high:
            if self.fold is None or self.branch_snapshot is not self.required_checks.snapshot:
                raise sequences_too_high(target.name, high, compared.schema)
            self.branch_snapshot = fold_branch(branch, self.branch_snapshot, high, self.fold)
            return self.plan_on_head(head, put_schema_ids)
        properties = {
            **self.branch_properties,
            **publication.properties,
            **checked.properties,
            **self._commits(compared, publication),
        }
        return _merged_by_key(planner, compared, replace(publication, properties=properties), self.key_merge_files)

    def _commits(self, compared: Comparison, publication: Publication) -> Mapping[str, str]:
        """Describe the commits that come to main, for audits."""
        key = compared.base.id, compared.branch_snapshot.id
        if key not in self.commit_properties and publication.changes_anything:
            self.commit_properties[key] = changes_property(self.planner.branch, compared.base, compared.branch_snapshot)
        return self.commit_properties.get(key, {})


def _merged_by_key(
    planner: MergePlanner, compared: Comparison, publication: Publication, key_merge_files: KeyMergeFiles
) -> Publication:
    """Merge by key what is left to that.

    Raises:
        ConflictError: see ``KeyMergeFiles.into``; or rows of main would go that the approver has not seen.
    """
    publication = key_merge_files.into(publication, writers_stopped=planner.request.writers_stopped)
    result = publication.key_merge_result
    if result is not None and result.overlapping:  # some may be replaced: see ``on_overlap``
        replaced = [c for c in publication.changes if c.bucket in result.files]
        check_approved(planner, compared, replace(publication, changes=replaced))
    return publication


def branch_head(branch: Table, expected: int | str | None) -> Snapshot:
    """Return the newest snapshot of a branch.

    Raises:
        UnsafeOperationError: it has none. ConflictError: it is another one than ``expected``, and not that one folded.
    """
    branch_snapshot = branch.latest_snapshot()
    if branch_snapshot is None:
        raise UnsafeOperationError(
            f"{branch.label} is empty: it has no snapshot to publish. Write rows into it; or, if it should have begun "
            "with main's, delete it and create it from a tag or snapshot of main"
        )
    known = None if expected is None else SnapshotRef.named(expected)
    if known is not None and not known.is_of(branch_snapshot) and not is_folded(branch, branch_snapshot, known):
        raise ConflictError(
            f"{branch.label} is at snapshot {branch_snapshot.id}, not at {known.beside(branch_snapshot.id)} as "
            "approved; review the new diff and approve again",
            code="approval-outdated",
            details={"expected_branch_snapshot": expected, "branch_snapshot": branch_snapshot.id},
        )
    return branch_snapshot


def gather_merge(
    planner: MergePlanner,
    branch_snapshot: Snapshot,
    head: Snapshot | None,
    unfinished: Sequence[UnfinishedPublish],
    put_schema_ids: Collection[int] = (),
) -> tuple[Comparison, SchemaLogs]:
    """Compare the branch with a head of main, and read the schema versions of both.

    Raises:
        UnsafeOperationError: they share no history.
    """
    target, branch = planner.main, planner.branch
    reads: list[Callable[[], Any]] = [planner.base, *([] if head is None else [target.schemas])]
    base, *logs = run_parallel(target.store, reads)
    onto = target.branch_name
    if base is None or head is None:
        instead = ", or let the branch take main's place with replace_main --discard-main if it was created empty"
        instead = instead if onto == MAIN else ""
        raise UnsafeOperationError(
            f"{branch.label} shares no snapshot with {onto} (created empty, or the history and tags of {onto} were "
            f"expired), so there is nothing to compare with. Write its rows to {onto}{instead}"
        )
    own, schemas = planner.request.operation_id, logs[0]
    compared = gather_sides(
        target,
        branch,
        base=base,
        head=head,
        theirs=branch_snapshot,
        schema=schemas[-1],
        whole=planner.takes_all,
        unfinished=[one for one in unfinished if one.user != own],
        scope=planner.scope,
    )
    check_changed(target, branch, compared)
    compared = replace(compared, sides=planner.adjusted_sides(base, head, compared.sides))
    of_this = [one.schema for one in unfinished if one.schema is not None and one.user == own]
    of_this += [min(put_schema_ids) - 1] if put_schema_ids else []
    return compared, SchemaLogs(
        main=schemas,
        branch=branch.schemas(),
        put_schema_ids=put_schema_ids,
        newest_before_try=min(of_this, default=None),
    )


def plan_merge(planner: MergePlanner, compared: Comparison, logs: SchemaLogs) -> Publication:
    """Plan a merge that nothing has to be folded for.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns.
    """
    return _plan(planner, compared, logs, _SpareIds())


def _plan(planner: MergePlanner, compared: Comparison, logs: SchemaLogs, spare: _SpareIds) -> Publication:
    """Let the planner decide, give rows their ids, and check it all."""
    options = TableOptions(compared.schema.options)
    check_deletion_vectors(planner.main.name, theirs=logs.branch[-1], ours=compared.schema)
    planned = planner.plan(compared, logs)
    removed = {
        i for d in (compared.theirs_since_base, compared.ours_since_base) for group in d.removed.values() for i in group
    }
    publication = replace(
        planned,
        renamed_files={
            origin(i): i for group in compared.ours_since_base.added.values() for i in group if origin(i) != i
        },
        known=removed | (planned.file_merge.restored_files if planned.file_merge is not None else frozenset()),
    )
    if options.row_tracking:
        spared = 0
        if planned.file_merge is not None:
            spare.count_try(compared.head)
            spared = spare.number
        publication = replace(publication, id_space=_id_space(compared, planned, spare=spared))
    if options.data_evolution:  # an update adds a file and removes none
        publication = replace(publication, column_order=_column_order(compared), reach=None)
        check_data_evolution(planner, compared, logs, publication)
    for check in PUBLISH_CHECKS:
        check(planner, compared, publication)
    if warned := warn_of_bucket_counts(planned.changes, compared.schema):
        publication = replace(publication, summary={**publication.summary, "warnings": warned})
    return publication


def _column_order(compared: Comparison) -> ColumnOrder:
    if compared.last is None:
        return ColumnOrder(known=compared.base.next_row_id or 0, floor=compared.base.id)
    known = max(compared.base.next_row_id or 0, compared.last.branch.next_row_id or 0)
    return ColumnOrder(known=known, floor=max(compared.base.id, compared.last.main.id))


def _id_space(compared: Comparison, planned: Publication, *, spare: int) -> IdSpace:
    """After a publish, main knows all ids that the branch had assigned until then, shifted as its snapshot says.

    It knows the versions as well, unless rows of that publish come back now: those are changed by this one.
    """
    shifts = compared.last.shifts if compared.last is not None else ()
    known = compared.last.branch if compared.last is not None and shifts else compared.base
    return id_space(
        planned.target.name,
        earlier=shifts,
        shared=known.next_row_id or 0,
        target=(compared.head.next_row_id or 0) + spare,
        source=compared.branch_snapshot.next_row_id or 0,
        base=compared.base.id,
        published=_published_versions(compared, planned.changes, by_file=planned.file_merge is not None),
    )


def _published_versions(
    compared: Comparison, changes: Sequence[BucketChange], *, by_file: bool
) -> Sequence[PublishedVersion]:
    if compared.last is None:
        return ()
    comes_back = compared.branch_rolled_back or (
        not by_file and any(c.bucket in compared.sides.ours_changed for c in changes)
    )
    return () if comes_back else compared.on_main.versions
