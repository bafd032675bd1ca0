"""merge_branch, fast_forward, replace_main: a branch becomes one OVERWRITE snapshot on main, files by reference.

See docs/contributing/publishing.md, Publishing is one snapshot, forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_paimon.core.branches.ownership import publish_properties, refuse_protected
from airflow_paimon.core.branches.tags import expire_undo_tags
from airflow_paimon.core.chain.guard import check_chain_publish, refuse_chain_branch, report_write
from airflow_paimon.core.commit.idempotency import branch_of_attempt
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.publish.audit_properties import changes_property
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, bucket_names
from airflow_paimon.core.publish.checks import buckets_to_fold, check_approved, plan_checked
from airflow_paimon.core.publish.diff_record import diff_properties
from airflow_paimon.core.publish.fold import fold_branch, is_folded
from airflow_paimon.core.publish.hold import Hold, conflict_if_gone, unfinished_publishes
from airflow_paimon.core.publish.planners import FastForwardPlanner, MergePlanner, PublishPlanner
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.replace_main import ReplaceMainPlanner
from airflow_paimon.core.publish.required_checks import RequiredChecks, read_required_checks
from airflow_paimon.core.publish.row_functions import NO_ROWS, RowFunctions
from airflow_paimon.core.publish.run import PlanOnHead, run_publication
from airflow_paimon.core.publish.written_files import WrittenFiles
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import FastForward, MergeBranch, PublishBranch, ReplaceMain
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

_SPARE_IDS = 100_000


def publish_branch(
    context: Context,
    request: PublishBranch,
    rows: RowFunctions = NO_ROWS,
) -> OperationResult:
    """Publish a branch onto main; one that began with a chain table's snapshot or delta branch onto that.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns; or an
            ``expected_*`` does not hold.
        UnsafeOperationError: no shared history; main would lose commits; sequence numbers too high.
    """
    context = replace(context, table=context.table.with_cached_tags())
    main, branch = context.table, context.table.branch(request.branch)
    looks: list[Callable[[], Any]] = [branch.exists, partial(publish_target, main, branch)]
    there, target = run_parallel(main.store, looks)
    if not there:  # deleted since, perhaps, what an earlier try has published
        target = main.branch(branch_of_attempt(main, request.operation_id) or MAIN)
    if target.branch_name != MAIN:
        context = replace(context, table=target)
    warnings: list[str] = []
    files = WrittenFiles(rows)

    def make_plan_on_head() -> PlanOnHead:
        nonlocal warnings
        reads: list[Callable[[], Any]] = [
            partial(_check_branch, main, branch, target, request.operation),
            partial(branch_head, branch, request.expected_branch_snapshot),
            partial(_planner, context, request, branch),
        ]
        _, branch_snapshot, planner = run_parallel(target.store, reads)
        taken.enter_context(conflict_if_gone(branch, branch_snapshot))
        diff, warnings = diff_properties(request, branch, branch_snapshot)
        looks: list[Callable[[], Any]] = [
            partial(refuse_protected, target, branch.branch_name, "publish", force=request.force),
            partial(read_required_checks, request, target, branch, branch_snapshot),
            planner.check,
            partial(unfinished_publishes, branch),
        ]
        record, required_checks, _, unfinished = run_parallel(target.store, looks)
        return _BranchPublisher(
            planner=planner,
            branch_snapshot=branch_snapshot,
            unfinished=unfinished,
            required_checks=required_checks,
            properties={**publish_properties(record), **diff},
            files=files,
        ).plan_on_head

    with ExitStack() as taken:
        result = run_publication(context, target, make_plan_on_head, files)
    if request.dry_run or not result.changed:
        return result
    expire_undo_tags(context)
    details = dict(result.details)
    if warnings and not details.get("replayed"):
        details["warnings"] = [*details.get("warnings", ()), *warnings]
    if target.branch_name != MAIN:
        details |= report_write(target, result.snapshot_after)
    return replace(result, details=details)


def _planner(context: Context, request: PublishBranch, branch: Table) -> PublishPlanner:
    """Return the planner of a request.

    Raises:
        InvalidInputError: a partition to publish is malformed, or is none of the table.
    """
    if isinstance(request, ReplaceMain):
        return ReplaceMainPlanner(context, request, branch)
    if isinstance(request, FastForward):
        return FastForwardPlanner(context, request, branch)
    assert isinstance(request, MergeBranch)
    scope = choose_partitions(context.table.schema(), request.partitions, context.table.name)
    return MergePlanner(context, request, branch, scope)


def _check_branch(main: Table, branch: Table, target: Table, operation: str) -> None:
    """Refuse a branch that can't be published, whatever has changed.

    Raises:
        InvalidInputError: it is main. NotFoundError: it doesn't exist. UnsafeOperationError: it is a part of a chain
            table, or the storage can't commit.
    """
    if branch.branch_name == MAIN:
        raise InvalidInputError(f"{main.name}: branch main can't be published onto itself")
    branch.require()
    refuse_chain_branch(branch)
    require_committable(main)
    if target.branch_name != MAIN:
        check_chain_publish(target, branch, operation)


@dataclass(slots=True, kw_only=True)
class _BranchPublisher:
    """Decides on heads of main. Where it isn't refused otherwise, it folds the branch first, once, and merges by key
    what both sides changed.

    ``unfinished``: as they were before the first head: what was committed since is in main's history. ``properties``:
    what the snapshot says of the branch. ``first_free_ids``:
    main's, at each try.
    """

    planner: PublishPlanner
    branch_snapshot: Snapshot
    unfinished: Sequence[Hold]
    required_checks: RequiredChecks
    properties: Mapping[str, str]
    files: WrittenFiles
    first_free_ids: list[int] = field(default_factory=list)

    def plan_on_head(self, head: Snapshot | None, put_schema_ids: Collection[int]) -> Publication:
        """Plan; may write: rows merged by key, and on the branch the commit that folds it."""
        planner, request, rows = self.planner, self.planner.request, self.files.rows
        compared = planner.compare(self.branch_snapshot, head, self.unfinished, put_schema_ids)
        publication = plan_checked(planner, compared, rows, spare_ids=self._spare_ids(compared.head))
        against = compared.head if planner.discards_main else compared.base
        publication = self.required_checks.checked(publication, against, is_main=planner.discards_main)
        high = buckets_to_fold(planner, compared, publication.changes)
        if request.dry_run:
            folds = bucket_names(compared.schema, high)[:MAX_LISTED]
            return replace(publication, summary={**publication.summary, **({"folds": folds} if folds else {})})
        if high:
            self.branch_snapshot = fold_branch(planner.branch, self.branch_snapshot, high, rows)
            return self.plan_on_head(head, put_schema_ids)
        properties = {**self.properties, **publication.properties}
        if publication.changes_anything:
            properties |= changes_property(planner.branch, compared.base, compared.branch_snapshot)
        publication = replace(publication, properties=properties)
        publication = self.files.merge_by_key(publication, writers_stopped=request.writers_stopped)
        result = publication.key_merge_result
        if result is not None and result.overlapping:  # some may be replaced: see ``on_overlap``
            replaced = [c for c in publication.changes if c.bucket in result.files]
            check_approved(planner, compared, replace(publication, changes=replaced))
        return publication

    def _spare_ids(self, head: Snapshot) -> int:
        """Return how many row ids to leave to main, for rows that it gets while files are written again with later ids:
        0 at first; once other commits were faster twice, far more than main has given out meanwhile.
        """
        self.first_free_ids.append(head.next_row_id or 0)
        seen = self.first_free_ids
        return 0 if len(seen) < 3 else max(_SPARE_IDS, 100 * (seen[-1] - seen[-2]))


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
