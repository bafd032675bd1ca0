"""rebase_branch: a branch's changes on a new branch that begins with main's head.

The new branch is made like any other one: its first snapshot is main's head, and a tag protects that. One commit puts
the changes on top, files by reference, as a merge would onto main. So the branch point of the new branch is its first
snapshot, by its uuid, and needs no record. The old branch stays as it is (docs/contributing/publishing.md,
Rebasing is a new branch).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_paimon.core.branches.branch_plan import Parent
from airflow_paimon.core.branches.create import make_branch
from airflow_paimon.core.branches.retention_tags import missing_tags_of_copy
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.idempotency import attempt_of, commit_identity
from airflow_paimon.core.commit.put import execute, require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import Operation, Snapshot
from airflow_paimon.core.plan import HeadIs, Plan
from airflow_paimon.core.publish.bucket_merge_plan import summarize
from airflow_paimon.core.publish.checks import plan_checked
from airflow_paimon.core.publish.compare import Comparison
from airflow_paimon.core.publish.hold import conflict_if_gone, drop_hold, put_hold, unfinished_publishes
from airflow_paimon.core.publish.planners import MergePlanner
from airflow_paimon.core.publish.publication import PlannedPublication, plan_publication
from airflow_paimon.core.publish.publish_branch import branch_head
from airflow_paimon.core.publish.publish_schemas import put_schemas
from airflow_paimon.core.publish.row_functions import NO_ROWS, RowFunctions
from airflow_paimon.core.publish.written_files import WrittenFiles, check_files_exist
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CreateBranch, MergeBranch, RebaseBranch
from airflow_paimon.core.table.branch_record import READY, BranchRecord, read_branch_record
from airflow_paimon.core.table.features import check_known, is_chain_part
from airflow_paimon.core.table.history import find_retained, publish_target
from airflow_paimon.core.table.made_by import made_by_properties
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, check_branch_name
from airflow_paimon.core.table.properties import (
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
    REBASED_BRANCH_PROPERTY,
)
from airflow_paimon.core.table.table import Table


def rebase_branch(context: Context, request: RebaseBranch, rows: RowFunctions = NO_ROWS) -> OperationResult:
    """Put what a branch has and main lacks on a new branch of main's head. Both stay as they are.

    Raises:
        ConflictError: both sides changed a key, a bucket that can't be merged by key, a file (tables without keys) or
            the columns; nothing was made. Or somebody has written the new branch before its commit.
        AlreadyExistsError: the new branch exists. UnsafeOperationError: the two share no history.
    """
    context = replace(context, table=context.table.with_cached_tags())
    main, branch, name = context.table, context.table.branch(request.branch), check_branch_name(request.to_branch)
    if request.branch in (MAIN, name):
        raise InvalidInputError(f"{main.name}: branch {request.branch!r} can't be rebased onto {name!r}")
    branch.require()
    require_committable(main)
    is_part = is_chain_part(TableOptions(branch.schema().options), branch.branch_name)
    if is_part or publish_target(main, branch).branch_name != MAIN:
        raise UnsupportedFeatureError(
            f"{branch.label} is a branch of a chain table, or began with one, and can't be rebased; make a new branch "
            f"and correct it again"
        )
    theirs = branch_head(branch, request.expected_branch_snapshot)
    merge = MergeBranch(
        table=request.table,
        branch=request.branch,
        keep_appended=request.keep_appended,
        on_overlap=request.on_overlap,
        writers_stopped=True,
        force=True,
        skip_checks=True,
        changelog="none",
    )
    files = WrittenFiles(rows)
    rebase = _Rebase(request=request, planner=MergePlanner(context, merge, branch), theirs=theirs, files=files)
    with attempt_of(context, name, commits=False), conflict_if_gone(branch, theirs):
        try:
            return rebase.run()
        except OutcomeUnknownError:
            raise
        except PaimonError:
            files.discard(main)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rebase:
    """One rebase of ``theirs``, the newest snapshot of a branch. ``planner``: of its merge onto main."""

    request: RebaseBranch
    planner: MergePlanner
    theirs: Snapshot
    files: WrittenFiles

    @property
    def main(self) -> Table:
        return self.planner.main

    @property
    def branch(self) -> Table:
        return self.planner.branch

    @property
    def target(self) -> Table:
        return self.main.branch(self.request.to_branch)

    def run(self) -> OperationResult:
        request, context, record = self.request, self.planner.context, self._own_record()
        committed = None if record is None else self.target.find_snapshot((record.snapshot_id or 0) + 1)
        if record is not None and committed is not None and committed.commit_user == request.operation_id:
            return self._result(None, committed, {"replayed": True, "base_snapshot": record.snapshot_id})
        head = self.main.latest_snapshot() if record is None else self._head_of_record(record)
        compared = self.planner.compare(self.theirs, head, unfinished_publishes(self.branch))
        planned = self._plan(self.main, compared)  # refuses what it can't do before there is a branch
        details = self._details(compared, planned)
        changes, conditions = planned.publication.changes_anything, planned.publication.preconditions
        plan = Plan(operation=request.operation, table=self.main.name, summary=details, preconditions=conditions)
        if request.dry_run or not changes:
            return context.result(plan, branch=request.to_branch, changed=changes, details=details)
        hold = put_hold(self.branch, self.theirs)
        try:
            if record is None or record.state != READY:
                self._create_branch(compared.head)
            execute(self.main, missing_tags_of_copy(self.main, request.branch, request.to_branch))
            drop_hold(self.branch, put_hold(self.branch, self.theirs))  # so its tags were there when they were copied
            return self._result(plan, self._commit(compared), details)
        finally:
            drop_hold(self.branch, hold)

    def _own_record(self) -> BranchRecord | None:
        """Return the record of the new branch, if an earlier try of this operation has made it, or begun to.

        Raises:
            AlreadyExistsError: there is another branch of that name.
        """
        name, own = self.request.to_branch, self.request.operation_id
        record = read_branch_record(self.main, name)
        is_own = own is not None and record is not None and record.operation_id == own
        if not is_own and name in self.main.branch_names():
            raise AlreadyExistsError(f"{self.main.name}: branch {name!r} exists; choose another name")
        return record if is_own else None

    def _head_of_record(self, record: BranchRecord) -> Snapshot:
        """Return main's head as an earlier try has taken it.

        Raises:
            ConflictError: it is gone.
        """
        number = record.snapshot_id or 0
        for snapshot in (self.target.find_snapshot(number), find_retained(self.main, number)):
            if snapshot is not None and snapshot.identity == record.identity:
                return snapshot
        raise ConflictError(
            f"{self.main.name}: branch {record.branch!r} was begun on snapshot {number} of main, which no longer "
            "exists; delete it and run the rebase again, with another operation id"
        )

    def _plan(self, target: Table, compared: Comparison) -> PlannedPublication:
        """Plan what main's head gets of the branch, as a commit on ``target``, which has that head."""
        request = self.planner.request
        check_known([compared.head, self.theirs], table=self.main.name)
        publication = replace(plan_checked(self.planner, compared, self.files.rows), target=target, properties={})
        if not self.request.dry_run:
            publication = self.files.merge_by_key(publication, writers_stopped=True)
        return plan_publication(request, publication)

    def _create_branch(self, head: Snapshot) -> None:
        old = read_branch_record(self.main, self.request.branch)
        request = CreateBranch(
            table=self.request.table,
            warehouse=self.request.warehouse,
            branch=self.request.to_branch,
            snapshot=head.id,
            owner=old.owner if old is not None else None,
            reason=old.reason if old is not None else None,
            retention=old.retention if old is not None else None,
            protected=old is not None and old.protected,
            operation_id=self.request.operation_id,
        )
        make_branch(replace(self.planner.context, request=request), request, Parent(old, self.theirs))

    def _commit(self, compared: Comparison) -> Snapshot:
        target, request, schemas = self.target, self.request, self.target.schemas()
        compared = replace(compared, schema=schemas[-1], logs=replace(compared.logs, main=schemas))
        planned = self._plan(target, compared)
        published = planned.publication
        draft = self.files.draft(planned, self._properties(compared))
        check_files_exist(target, draft.schema, published.changes, planned.index or (), set())
        merge = published.file_merge
        why = "it was written before the rebase had put its commit on it; delete it and run the rebase again"
        draft = replace(
            draft,
            # Else a later merge would take it for one that replaces whole partitions.
            operation=Operation.UPDATE if merge is not None and not merge.replaced else draft.operation,
            prepare=partial(put_schemas, target, published.schemas.new),
            conditions=[HeadIs.of(target.branch_name, compared.head, why=why)],
        )
        identity = commit_identity(request.operation_id, request.to_branch, request.operation)
        receipt = commit(target, lambda head: draft, CommitOptions(identity=identity))
        self.files.discard(target, draft)
        assert receipt.snapshot is not None
        return receipt.snapshot

    def _properties(self, compared: Comparison) -> dict[str, str]:
        out = {OPERATION_PROPERTY: self.request.operation, REBASED_BRANCH_PROPERTY: self.request.branch}
        if self.request.operation_id:
            out[OPERATION_ID_PROPERTY] = self.request.operation_id
        ids = (i for i in reversed(self.branch.snapshot_ids()) if compared.base.id < i <= self.theirs.id)
        found = (made_by_properties(s.properties) for i in ids if (s := self.branch.find_snapshot(i)) is not None)
        return out | next((said for said in found if said), {})

    def _details(self, compared: Comparison, planned: PlannedPublication) -> dict[str, Any]:
        return {
            "from_branch": self.request.branch,
            "branch_snapshot": self.theirs.id,
            "base_snapshot": compared.head.id,
            "previous_base_snapshot": compared.base.id,
            **summarize(planned.publication.changes),
            **{k: v for k, v in planned.summary.items() if k == "merged_by_key"},
        }

    def _result(self, plan: Plan | None, committed: Snapshot, details: dict[str, Any]) -> OperationResult:
        name, before, after = self.request.to_branch, committed.id - 1, committed.id
        return self.planner.context.result(plan, branch=name, changed=True, before=before, after=after, details=details)
