"""erase_rows: rows of a condition go from every branch, then, if asked for, from what old snapshots and tags reach.

No step remembers what was done: each looks at what is stored, so a run after a kill goes on where that one stopped. It
ends with the search of ``find_rows``, whose result is the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.chain.guard import chain_part
from airflow_paimon.core.chain.state import ChainState, gather_chain
from airflow_paimon.core.chain.write_plan import CHECKED_BY_CALLER
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.idempotency import Attempt, attempt_of, commit_identity, digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.erasure.proofs import keep_proof
from airflow_paimon.core.erasure.reach_plan import PROTECTIVE_TAG, ReachingRoots
from airflow_paimon.core.errors import (
    ConflictError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedCatalogError,
)
from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.metadata_expiry.ages import grace_millis
from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import expire_snapshots, select_tags
from airflow_paimon.core.metadata_expiry.expiry_run import ExpirySelection, run_expiry
from airflow_paimon.core.metadata_expiry.remove_orphan_files import age_millis, remove_orphan_files
from airflow_paimon.core.metadata_expiry.root_values import TAG, TRASH, Roots
from airflow_paimon.core.metadata_expiry.storage_usage_plan import NEWEST, SNAPSHOTS
from airflow_paimon.core.plan import HeadIs, Plan
from airflow_paimon.core.publish.approval import approval_properties, check_four_eyes, needs_four_eyes
from airflow_paimon.core.publish.audit_properties import keep_record
from airflow_paimon.core.publish.required_checks import refuse_without_checks, unchecked_properties
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import EraseRows, ExpireSnapshots, RemoveOrphanFiles
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, protects
from airflow_paimon.core.table.properties import (
    CONDITION_PROPERTY,
    OPERATION_ID_PROPERTY,
    OPERATION_PROPERTY,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_tasks import HERE, Workers
from airflow_paimon.data.erasure.chain import ChainErasure, check_condition, plan_chain_erasure
from airflow_paimon.data.erasure.find_rows import FoundRows, condition_digest, search_of, search_table
from airflow_paimon.data.erasure.rewrite import check_erasable, erase_from_branch
from airflow_paimon.data.erasure.search import Search

log = logging.getLogger(__name__)

_ROUNDS = 5
"""How often the branches are searched again because other writers have changed their files."""


def erase_rows(context: Context, request: EraseRows, workers: Workers = HERE) -> OperationResult:
    """Erase rows, or plan it (a dry run): see the module's text.

    Raises:
        InvalidInputError: the condition, the grace time or the age of orphans is none; nothing was changed.
        UnsafeOperationError: a tag under a legal hold reaches such rows, four eyes are asked for and nobody else has
            approved it, or the table requires checks; nothing was changed.
        UnsupportedFeatureError: a table, branch or feature from which rows are not erased here.
        ConflictError: other writers kept changing the files; ``details["done"]`` are the commits that stand.
    """
    table = context.table
    search = check_erasure(table, request)
    if request.dry_run:
        return _planned(context, request, search, _scan(table, search))
    require_committable(table)
    with attempt_of(context, commits=False) as tried:
        return _Erasure(context, request, search, workers, tried).execute()


def check_erasure(table: Table, request: EraseRows) -> Search:
    """Check all that is asked for, also what only the last steps use, since the first ones can't be taken back.

    Raises:
        PaimonError: as ``erase_rows`` does.
    """
    check_four_eyes(request, table, "erased")
    refuse_without_checks(request, table, "erased")
    search = search_of(table, request.where)
    _check_table(table, search)
    grace_millis(table, request)
    age_millis(request, "orphans_older_than")
    return search


def _check_table(table: Table, search: Search) -> None:
    """Refuse what is not erased here; ``find_rows`` reads it all the same."""
    schema = table.branch(MAIN).schema()
    if TableOptions(schema.options).chain_table:
        check_condition(table.name, schema, search)
    if table.store.keeper is not None:
        raise UnsupportedCatalogError(
            f"{table.name}: erase_rows needs the table's own metadata files, and those are kept by "
            f"{table.store.keeper}; use what that server offers for it"
        )


def _refuse_holds(table: Table, references: Sequence[ReachingRoots]) -> None:
    under_hold = [h for h in references if h.tag_under_legal_hold is not None]
    for holder in under_hold:
        tag = holder.tag_under_legal_hold
        assert tag is not None
        raise UnsafeOperationError(
            f"{table.name}: tag {holder.name!r} of {holder.branch} {tag.legal_hold_text}, and reaches "
            f"{len(holder.files)} files with such rows; nothing was erased. delete_tag with release_hold "
            f"(--release-hold) ends the hold",
            details={"holds": [h.to_json() for h in under_hold]},
        )


@dataclass(frozen=True, slots=True)
class _ErasureScan:
    """``chain``: of a chain table, what its branches held before the search."""

    found: FoundRows
    chain: ChainState | None

    @property
    def newest(self) -> list[ReachingRoots]:
        """The branches whose newest snapshot reaches such rows."""
        return [h for h in self.found.references if h.kind == NEWEST]

    def names(self, table: Table) -> list[tuple[Table, set[str]]]:
        """These branches, with their files."""
        return [(table.branch(h.branch), {self.found.matching[at].file.name for at in h.files}) for h in self.newest]

    def planned(self) -> ChainErasure | None:
        """Plan what a chain table needs beside; raises as ``plan_chain_erasure``."""
        return None if self.chain is None else plan_chain_erasure(self.chain, self.found)


def _scan(table: Table, search: Search) -> _ErasureScan:
    main = table.branch(MAIN)
    chain = gather_chain(main) if TableOptions(main.schema().options).chain_table else None
    return _ErasureScan(search_table(table, search), chain)


def _planned(context: Context, request: EraseRows, search: Search, look: _ErasureScan) -> OperationResult:
    """What a run would do, and what would still hold such rows after it; what it would refuse is refused."""
    found = look.found
    look.planned()
    for view, files in look.names(context.table):
        check_erasable(view, search, files)
    ended: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    for holder in found.references:
        if holder.kind != NEWEST:
            goes = (holder.kind == TAG and request.expire_tags and holder.tag_under_legal_hold is None) or (
                holder.kind == SNAPSHOTS and request.expire_history
            )
            (ended if goes or holder.kind == TRASH else left).append(holder.to_json())
    shown = found.to_json(request.limit)
    summary = {
        "branches": shown["branches"],
        "ends": ended,
        "stays": left,
        "conflicts": _conflicts(context.table, look),
    }
    newest = [h.roots[-1] for h in look.newest]
    fences = tuple(HeadIs.of(r.branch, r.snapshot, r.snapshot.schema_id) for r in newest)
    plan = Plan(operation=request.operation, table=context.table.name, preconditions=fences, summary=summary)
    head = context.table.latest_snapshot_id()
    details = {**_stamp(context, request), "complete": found.proven, **summary, **shown}
    changed = bool(newest or ended or shown["files"]["unreached"])
    return context.result(plan, branch=MAIN, changed=changed, before=head, after=head, details=details)


def _conflicts(table: Table, look: _ErasureScan) -> list[dict[str, str]]:
    """The open branches whose publish the erasure makes a conflict, and the way out."""
    sharing = {protects(h.name or "") for h in look.found.references if h.kind == PROTECTIVE_TAG}
    open_ones = sorted(({h.branch for h in look.newest} | {name for name in sharing if name}) - {MAIN})
    return [
        {
            "branch": name,
            "why": "it and main both get other files for the partitions with such rows",
            "way": f"publish it before the erasure (merge_branch --branch {name}), or delete it (delete_branch "
            f"--branch {name}) and correct a new branch after it",
        }
        for name in open_ones
        if chain_part(table.branch(name)) is None
    ]


def _stamp(context: Context, request: EraseRows) -> dict[str, Any]:
    return {"time": context.now_iso, "condition_sha256": condition_digest(request.where)}


def _operation_properties(request: EraseRows, table: Table) -> dict[str, str]:
    """What an erasure's snapshots and the audit say of it."""
    return {
        OPERATION_PROPERTY: request.operation,
        CONDITION_PROPERTY: condition_digest(request.where),
        **({OPERATION_ID_PROPERTY: request.operation_id} if request.operation_id else {}),
        **approval_properties(request, four_eyes=needs_four_eyes(request, table)),
        **unchecked_properties(table),
    }


@dataclass(slots=True)
class _Erasure:
    """One run, and what it has done so far."""

    context: Context
    request: EraseRows
    search: Search
    workers: Workers
    tried: Attempt
    erased: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    began: dict[str, SnapshotRef] = field(default_factory=dict)
    """With ``writers_stopped``, the heads of the branches."""
    refused: str = ""
    """Why the last commit was not made, of those that are tried again."""

    def execute(self) -> OperationResult:
        table = self.context.table
        before = table.latest_snapshot_id()
        try:
            found = self._from_branches()
            self._end(found)
            unread = (one.file for one in found.searched if one.problem is not None)
            if any(not by for by in found.reached) or any(file.number is None for file in unread):
                self.steps["orphan_files"] = self._remove_orphans()
            found = search_table(table, self.search)
        except PaimonError as error:
            if self.erased:
                error.details.setdefault("done", self.erased)
            raise
        details = {
            **_stamp(self.context, self.request),
            "complete": found.proven,
            "erased": self.erased,
            **self.steps,
            **found.to_json(self.request.limit),
        }
        changed = bool(self.erased) or any(step["changed"] for step in self.steps.values())
        if found.proven:
            details["proof"] = keep_proof(
                table, details, _operation_properties(self.request, self.context.table), changed=changed
            )
        after = table.latest_snapshot_id()
        return self.context.result(None, branch=MAIN, changed=changed, before=before, after=after, details=details)

    def _from_branches(self) -> FoundRows:
        """Erase from every branch, one commit each, until no newest snapshot reaches such rows."""
        table = self.context.table
        if self.request.writers_stopped:
            self.began = {b: SnapshotRef.of(table.branch(b).latest_snapshot()) for b in (MAIN, *table.branch_names())}
        for _ in range(_ROUNDS):
            look = _scan(table, self.search)
            if not self.erased:  # one that is set later keeps its tag, which is among what stays
                _refuse_holds(table, look.found.references)
            chain, names = look.planned(), look.names(table)
            if not names:
                if chain is not None:
                    chain.finish(table.branch(MAIN))
                return look.found
            for view, files in names if not self.erased else ():  # all or none
                check_erasable(view, self.search, files)
            for view, files in sorted(names, key=lambda one: 0 if chain is None else chain.order(one[0])):
                self._from_branch(view, files, chain)
        raise ConflictError(
            f"{table.name}: rows are left after {_ROUNDS} attempts to erase them from all branches. "
            + (
                f"The last commit was refused ({self.refused}): run it again when there are fewer writers"
                if self.refused
                else "A writer keeps writing such rows: stop it first, then run it again"
            )
        )

    def _from_branch(self, view: Table, names: set[str], chain: ChainErasure | None) -> None:
        identity = commit_identity(self.tried.operation_id, view.branch_name, digest_of(sorted(names)))
        guard_options = None if chain is None else CHECKED_BY_CALLER
        options = CommitOptions(
            identity=replace(identity, began=self.began.get(view.branch_name)),
            properties=_operation_properties(self.request, self.context.table),
            guard_options=guard_options,
            writers_stopped=self.request.writers_stopped,
        )
        before = None if chain is None else chain.before_commit
        try:
            done = erase_from_branch(view, self.search, names, self.workers, options, before)
        except ConflictError as error:
            self.refused = error.message
            log.warning("%s; its files are checked again", error.message)
            return
        self.refused = ""
        if done.snapshot is not None:
            one = {"branch": view.branch_name, "snapshot": done.snapshot, "files": done.files, "rows": done.rows}
            self.erased.append(one)
            keep_record(view, done.snapshot)
            log.info("%s: erased %s rows from %s files", view.label, done.rows, done.files)

    def _end(self, found: FoundRows) -> None:
        """End the tags and snapshots that still reach the rows, as far as asked for, and what is due in the trash."""
        tags = [h for h in found.references if h.kind == TAG] if self.request.expire_tags else []
        if tags or any(h.kind == TRASH for h in found.references):
            paths = {r.path for h in tags for r in h.roots}
            ended = self._expire_tags(paths)
            self.steps["expired_tags"] = {**ended, "changed": bool(ended["expired"]) or _has_deleted(ended)}
        for holder in found.references if self.request.expire_history else ():
            if holder.kind == SNAPSHOTS:
                expired = self._expire_snapshots(holder)
                self.steps.setdefault("expired_snapshots", {"changed": False, "branches": {}})
                self.steps["expired_snapshots"]["branches"][holder.branch] = expired
                self.steps["expired_snapshots"]["changed"] |= bool(expired["expired"]) or _has_deleted(expired)

    def _expire_tags(self, paths: Collection[str]) -> Mapping[str, Any]:
        """Expire the tags at these paths, but for those that are needed; also what is due in the trash goes."""
        context = self._expiring(MAIN, max_deletes=1)
        table = context.table.with_cached_tags()

        def choose(roots: Roots) -> ExpirySelection:
            due = [r for r in roots.roots if r.kind == TAG and r.path in paths]
            return select_tags(table, due, "it reaches rows that are erased", of_sets=True)

        return run_expiry(context, choose, operations_since_ms=context.now_ms).details

    def _expire_snapshots(self, holder: ReachingRoots) -> Mapping[str, Any]:
        """Expire a branch's snapshots up to the last that reaches the rows; no later one."""
        last = max(r.snapshot.id for r in holder.roots)
        ids = self.context.table.branch(holder.branch).snapshot_ids()
        old = sum(number <= last for number in ids)
        if not 0 < old < len(ids):
            return {"expired": {}, "deleted": {}}
        context = self._expiring(holder.branch, max_deletes=old, retain=len(ids) - old)
        assert isinstance(context.request, ExpireSnapshots)
        return expire_snapshots(context, context.request).details

    def _expiring(self, branch: str, *, max_deletes: int, retain: int = 1) -> Context:
        request = ExpireSnapshots(
            warehouse=self.request.warehouse,
            table=self.request.table,
            storage_options=self.request.storage_options,
            now=self.request.now,
            branch=branch,
            retain_min=retain,
            retain_max=retain,
            max_deletes=max_deletes,
            keep_undo=not self.request.expire_tags,
            grace=self.request.grace,
            writers_stopped=self.request.writers_stopped,
        )
        return replace(self.context, request=request)

    def _remove_orphans(self) -> Mapping[str, Any]:
        request = RemoveOrphanFiles(
            warehouse=self.request.warehouse,
            table=self.request.table,
            storage_options=self.request.storage_options,
            older_than=self.request.orphans_older_than,
        )
        result = remove_orphan_files(replace(self.context, request=request), request)
        return {**result.details, "changed": result.changed}


def _has_deleted(details: Mapping[str, Any]) -> bool:
    return any(details["deleted"].values())
