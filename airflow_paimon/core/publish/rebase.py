"""rebase_branch: a branch's changes on a new branch that begins with main's head.

The new branch is made like any other one: its first snapshot is main's head, and a tag protects that. One commit puts
the changes on top, files by reference, as a merge would onto main. So the branch point of the new branch is its first
snapshot, by its uuid, and needs no record. The old branch stays as it is (docs/contributing/publishing.md,
Rebasing is a new branch).
"""

from __future__ import annotations

import logging
from dataclasses import replace
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
from airflow_paimon.core.plan import Delete, HeadIs, Plan
from airflow_paimon.core.publish.bucket_merge_plan import summarize
from airflow_paimon.core.publish.compare import Comparison
from airflow_paimon.core.publish.hold import conflict_if_gone, drop_hold, put_hold, unfinished_publishes
from airflow_paimon.core.publish.planners import MergePlanner, SchemaLogs
from airflow_paimon.core.publish.publication import Publication, plan_publication
from airflow_paimon.core.publish.publish_branch import branch_head, compare_on_head, plan_checked
from airflow_paimon.core.publish.publish_schemas import put_schemas
from airflow_paimon.core.publish.row_functions import NO_ROW_FUNCTIONS, RowFunctions
from airflow_paimon.core.publish.written_files import WrittenFiles, check_files_exist
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CreateBranch, MergeBranch, RebaseBranch
from airflow_paimon.core.table.branch_record import READY, BranchRecord, read_branch_record
from airflow_paimon.core.table.features import check_known, is_chain_part
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.made_by import made_by_properties
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, check_branch_name
from airflow_paimon.core.table.properties import (
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
    REBASED_BRANCH_PROPERTY,
    REBASED_SNAPSHOT_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


def rebase_branch(context: Context, request: RebaseBranch, rows: RowFunctions = NO_ROW_FUNCTIONS) -> OperationResult:
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
    with attempt_of(context, name, commits=False), conflict_if_gone(branch, theirs):
        return _Rebase(context, request, branch, theirs, WrittenFiles(replace(rows, write_changelog=None))).run()


class _Rebase:
    """One rebase."""

    def __init__(
        self, context: Context, request: RebaseBranch, branch: Table, theirs: Snapshot, files: WrittenFiles
    ) -> None:
        self.context, self.request, self.branch, self.theirs = context, request, branch, theirs
        self.main, self.target = context.table, context.table.branch(request.to_branch)
        self.files = files
        self.merge = MergeBranch(
            table=request.table,
            branch=request.branch,
            keep_appended=request.keep_appended,
            on_overlap=request.on_overlap,
            writers_stopped=True,
            force=True,
            skip_checks=True,
            changelog="none",
        )

    def run(self) -> OperationResult:
        record = self._record()
        committed = None if record is None else self.target.find_snapshot((record.snapshot_id or 0) + 1)
        if record is not None and committed is not None and committed.commit_user == self.request.operation_id:
            return self._result(None, committed, {"replayed": True, "base_snapshot": record.snapshot_id})
        head = self.main.latest_snapshot() if record is None else self._recorded(record)
        planner = MergePlanner(self.context, self.merge, self.branch)
        compared, logs = compare_on_head(planner, self.theirs, head, unfinished_publishes(self.branch))
        first = plan_checked(planner, compared, logs)
        check_known([compared.head, self.theirs], table=self.main.name)
        try:
            return self._on(planner, compared, first, record)
        except OutcomeUnknownError:
            raise
        except PaimonError:
            self.files.discard(self.main)
            raise

    def _on(
        self, planner: MergePlanner, compared: Comparison, first: Publication, record: BranchRecord | None
    ) -> OperationResult:
        if not self.request.dry_run:
            first = self.files.merge_by_key(first, writers_stopped=True)
        plan_publication(self.merge, first, writes_rows=False)  # refuses, before there is a branch, what it can't do
        details = self._details(compared, first)
        plan = Plan(operation=self.request.operation, table=self.main.name, summary=details,
                    preconditions=first.preconditions)  # fmt: skip
        if self.request.dry_run or not first.changes_anything:
            return self.context.result(plan, branch=self.request.to_branch, changed=first.changes_anything,
                                       details=details)  # fmt: skip
        committed = self._make(planner, compared, first, is_made=record is not None and record.state == READY)
        return self._result(plan, committed, details)

    def _record(self) -> BranchRecord | None:
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

    def _recorded(self, record: BranchRecord) -> Snapshot:
        """Return main's head as an earlier try has taken it.

        Raises:
            ConflictError: it is gone.
        """
        tags = (t.snapshot for t in self.main.tags() if t.snapshot.id == record.snapshot_id)
        found = (self.target.find_snapshot(record.snapshot_id or 0), self.main.find_snapshot(record.snapshot_id or 0))
        for snapshot in (*found, *tags):
            if snapshot is not None and snapshot.identity == record.identity:
                return snapshot
        raise ConflictError(
            f"{self.main.name}: branch {record.branch!r} was begun on snapshot {record.snapshot_id} of main, which no "
            "longer exists; delete it and run the rebase again, with another operation id"
        )

    def _make(self, planner: MergePlanner, compared: Comparison, first: Publication, *, is_made: bool) -> Snapshot:
        tags = missing_tags_of_copy(self.main, self.request.branch, self.request.to_branch)
        execute(self.main, tags)
        hold: str | None = None
        try:
            hold = put_hold(self.branch, self.theirs)  # it is there, so its tags were, when they were copied
            if not is_made:
                self._create(compared.head)
            # A repair may have taken the tags for those of a branch that is gone, before there was a branch; the second
            # hold is a conflict if the old branch has been deleted meanwhile.
            execute(self.main, missing_tags_of_copy(self.main, self.request.branch, self.request.to_branch))
            drop_hold(self.branch, put_hold(self.branch, self.theirs))
            return self._commit(planner, compared)
        except OutcomeUnknownError:
            raise
        except PaimonError:
            if self.request.to_branch not in self.main.branch_names():
                reason = "the branch was not made"
                execute(self.main, [Delete(path=tag.path, expected=tag.data, reason=reason) for tag in tags])
            raise
        finally:
            if hold is not None:
                drop_hold(self.branch, hold)

    def _create(self, head: Snapshot) -> None:
        record = read_branch_record(self.main, self.request.branch)
        request = CreateBranch(
            table=self.request.table,
            warehouse=self.request.warehouse,
            branch=self.request.to_branch,
            snapshot=head.id,
            owner=record.owner if record is not None else None,
            reason=record.reason if record is not None else None,
            retention=record.retention if record is not None else None,
            protected=record is not None and record.protected,
            operation_id=self.request.operation_id,
        )
        make_branch(replace(self.context, request=request), request, Parent(record, self.theirs))

    def _commit(self, planner: MergePlanner, compared: Comparison) -> Snapshot:
        schemas = self.target.schemas()
        logs = SchemaLogs(main=schemas, branch=self.branch.schemas())
        publication = replace(
            plan_checked(planner, replace(compared, schema=schemas[-1]), logs), target=self.target, properties={}
        )
        publication = self.files.merge_by_key(publication, writers_stopped=True)
        planned = plan_publication(self.merge, publication, writes_rows=False)
        published = planned.publication
        content = self.files.draft(planned, self._properties(compared))
        if published.file_merge is not None and not published.file_merge.replaced:
            # Else a later merge would take it for one that replaces whole partitions.
            content = replace(content, operation=Operation.UPDATE)

        why = "it was written before the rebase had put its commit on it; delete it and run the rebase again"
        content = replace(
            content,
            prepare=partial(put_schemas, self.target, published.schemas.new),
            conditions=[HeadIs.of(self.target.branch_name, compared.head, why=why)],
        )
        check_files_exist(self.target, content.schema, published.changes, planned.index or (), set())
        identity = commit_identity(self.request.operation_id, self.request.to_branch, self.request.operation)
        receipt = commit(self.target, lambda head: content, CommitOptions(identity=identity))
        self.files.discard(self.target, self.files.used)
        assert receipt.snapshot is not None
        return receipt.snapshot

    def _properties(self, compared: Comparison) -> dict[str, str]:
        out = {
            OPERATION_PROPERTY: self.request.operation,
            REBASED_BRANCH_PROPERTY: self.request.branch,
            REBASED_SNAPSHOT_PROPERTY: str(self.theirs.id),
        }
        if self.request.operation_id:
            out[OPERATION_ID_PROPERTY] = self.request.operation_id
        ids = (i for i in reversed(self.branch.snapshot_ids()) if compared.base.id < i <= self.theirs.id)
        found = (made_by_properties(s.properties) for i in ids if (s := self.branch.find_snapshot(i)) is not None)
        return out | next((said for said in found if said), {})

    def _details(self, compared: Comparison, publication: Publication) -> dict[str, Any]:
        return {
            "from_branch": self.request.branch,
            "branch_snapshot": self.theirs.id,
            "base_snapshot": compared.head.id,
            "previous_base_snapshot": compared.base.id,
            **summarize(publication.changes),
            **{k: v for k, v in publication.summary.items() if k == "merged_by_key"},
        }

    def _result(self, plan: Plan | None, committed: Snapshot, details: dict[str, Any]) -> OperationResult:
        name, before = self.request.to_branch, committed.id - 1
        return self.context.result(plan, branch=name, changed=True, before=before, after=committed.id, details=details)
