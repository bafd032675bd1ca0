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
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    warn_of_bucket_counts,
)
from airflow_paimon.core.publish.checks import buckets_to_fold, check_approved, check_plan
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder
from airflow_paimon.core.publish.compare import Comparison, gather_sides
from airflow_paimon.core.publish.diff_record import KeptDiff, kept_diff
from airflow_paimon.core.publish.fold import fold_branch, is_folded
from airflow_paimon.core.publish.hold import Hold, conflict_if_gone, unfinished_publishes
from airflow_paimon.core.publish.planners import FastForwardPlanner, MergePlanner, PublishPlanner, SchemaLogs
from airflow_paimon.core.publish.publication import Publication, RowIds
from airflow_paimon.core.publish.replace_main import ReplaceMainPlanner
from airflow_paimon.core.publish.required_checks import RequiredChecks, read_required_checks
from airflow_paimon.core.publish.row_functions import NO_ROWS, RowFunctions
from airflow_paimon.core.publish.run import PlanOnHead, run_publication
from airflow_paimon.core.publish.written_files import WrittenFiles
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import FastForward, MergeBranch, PublishBranch, ReplaceMain
from airflow_paimon.core.row_tracking.row_ids_plan import id_space, origin
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partitions import StoredPartitions
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
    diff, files = KeptDiff(), WrittenFiles(rows)

    def make_plan_on_head() -> PlanOnHead:
        nonlocal diff
        reads: list[Callable[[], Any]] = [
            partial(_check_branch, main, branch, target, request.operation),
            partial(branch_head, branch, request.expected_branch_snapshot),
            partial(_planner, context, request, branch),
        ]
        _, branch_snapshot, planner = run_parallel(target.store, reads)
        taken.enter_context(conflict_if_gone(branch, branch_snapshot))
        diff = kept_diff(request, branch, branch_snapshot)
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
            properties={**publish_properties(record), **diff.properties},
            files=files,
        ).plan_on_head

    with ExitStack() as taken:
        result = run_publication(context, target, make_plan_on_head, files)
    if request.dry_run or not result.changed:
        return result
    expire_undo_tags(context)
    details = dict(result.details)
    if diff.warnings and not details.get("replayed"):
        details["warnings"] = [*details.get("warnings", ()), *diff.warnings]
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
        compared, logs = compare_on_head(planner, self.branch_snapshot, head, self.unfinished, put_schema_ids)
        publication = plan_checked(planner, compared, logs, rows, spare_ids=self._spare_ids(compared.head))
        against = compared.head if planner.discards_main else compared.base
        publication = self.required_checks.checked(publication, against, is_main=planner.discards_main)
        high = buckets_to_fold(planner, compared, publication.changes)
        if request.dry_run:
            folds = sorted(map(StoredPartitions(compared.schema).bucket_text, high))[:MAX_LISTED]
            return replace(publication, summary={**publication.summary, **({"folds": folds} if folds else {})})
        if high:
            self.branch_snapshot = fold_branch(planner.branch, self.branch_snapshot, high, rows.fold)
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


def compare_on_head(
    planner: PublishPlanner,
    branch_snapshot: Snapshot,
    head: Snapshot | None,
    unfinished: Sequence[Hold],
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
        takes_all=planner.takes_all,
        unfinished=[one for one in unfinished if one.user != own],
        scope=planner.scope,
    )
    compared = replace(compared, sides=planner.adjusted_sides(base, head, compared.sides))
    were_put = bool(put_schema_ids) or any(one.user == own for one in unfinished)
    return compared, SchemaLogs(main=schemas, branch=branch.schemas(), put_schema_ids=put_schema_ids, were_put=were_put)


def plan_checked(
    planner: PublishPlanner,
    compared: Comparison,
    logs: SchemaLogs,
    rows: RowFunctions = NO_ROWS,
    *,
    spare_ids: int = 0,
) -> Publication:
    """Let the planner decide, give rows their ids, and check it all. ``spare_ids``: row ids to leave to main.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns.
    """
    publication, options = planner.plan(compared, logs), TableOptions(compared.schema.options)
    if options.row_tracking:
        publication = replace(publication, row_ids=_row_ids(compared, publication, spare_ids))
    if options.data_evolution:  # an update adds a file and removes none
        publication = replace(publication, unchanged=None)
    check_plan(planner, compared, logs, publication, rows)
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
