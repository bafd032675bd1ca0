"""Runs an expiry plan: one commit per branch, in order, each only if the partitions are as planned.

A killed run goes on with the recorded plan: a step that was committed is found by its identity, one whose partitions
are all gone is done, whoever did it. Where somebody changed what is to go, it is planned again, for the same cutoff.

The plan is written to ``_airflow_paimon/expiry_plans/<hash of id>-<round>.json`` before its first commit, so that a
killed run goes on, hours later too, with what was planned. Each round of planning has a file of its own; none is ever
changed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from airflow_paimon.core.commit.committed import find_committed
from airflow_paimon.core.commit.conditions import Condition
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.commit.files import drop_if_unchanged
from airflow_paimon.core.commit.idempotency import attempt_of, commit_identity, name_of_try
from airflow_paimon.core.commit.partition_contents import PartitionContent
from airflow_paimon.core.commit.put import execute, put_new, require_committable
from airflow_paimon.core.commit.restore import restore_partitions
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.plan import DropPartition, HeadIs, Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import CUTOFF_PROPERTY, OPERATION_ID_PROPERTY, OPERATION_PROPERTY
from airflow_paimon.core.table.record_kinds import EXPIRY_PLANS
from airflow_paimon.core.table.success_files import plan_unmark
from airflow_paimon.core.table.table import Table

MAX_ROUNDS = 10
"""How often one try plans again because partitions to drop were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrop:
    """A partition to drop if ``digest`` is still that of its files; ``key`` as in ``PartitionContent``."""

    key: str
    text: str
    files: int
    rows: int
    bytes: int
    digest: str
    reason: str

    @classmethod
    def of(cls, held: PartitionContent, reason: str) -> PartitionDrop:
        same = {name: getattr(held, name) for name in ("key", "text", "files", "rows", "bytes", "digest")}
        return cls(**same, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep:
    """The partitions that one commit drops from one branch."""

    branch: str
    drops: tuple[PartitionDrop, ...]

    @property
    def expected(self) -> dict[str, str]:
        return {d.key: d.digest for d in self.drops}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan(Record):
    """Commits in order. ``cutoff``: the local time before which partitions expire. ``report``: JSON values.

    ``anchors``: partitions that must stay, each with the digest of its files by its key, in the last step's branch.
    ``operation_id``: of the operation that planned it.
    """

    cutoff: datetime
    preconditions: tuple[HeadIs, ...]
    steps: tuple[DropStep, ...]
    report: Mapping[str, Any] = field(default_factory=dict)
    anchors: Mapping[str, str] = field(default_factory=dict)
    operation_id: str | None = None
    KIND = EXPIRY_PLANS

    def keys(self, branch: str) -> frozenset[str]:
        return frozenset(d.key for s in self.steps if s.branch == branch for d in s.drops)

    def head(self, branch: str) -> SnapshotRef:
        """The branch's newest snapshot when this was planned."""
        heads = (SnapshotRef(p.snapshot_id or 0, p.identity or "") for p in self.preconditions if p.branch == branch)
        return next(heads, SnapshotRef())

    def to_plan(self, operation: str, table: str) -> Plan:
        """Return the printable plan: an action for each partition, in the order of execution."""
        actions = tuple(
            DropPartition(path=f"{s.branch}: {d.text}", reason=d.reason) for s in self.steps for d in s.drops
        )
        summary = dict(self.report)
        return Plan(
            operation=operation, table=table, preconditions=self.preconditions, actions=actions, summary=summary
        )


def save_plan(table: Table, operation_id: str, number: int, plan: ExpiryPlan) -> ExpiryPlan:
    """Record a round's plan and return it, or the plan of a faster process of the same operation."""
    plan = dataclasses.replace(plan, operation_id=operation_id)
    try:
        put_new(table, _path(operation_id, number), plan.to_bytes())
    except AlreadyExistsError:
        return _read(table, operation_id, number)
    return plan


def load_plans(table: Table, operation_id: str) -> list[ExpiryPlan]:
    """Read the plans of earlier tries of an operation, by round.

    Raises:
        FormatError: one is unreadable.
    """
    plans: list[ExpiryPlan] = []
    while table.store.exists(_path(operation_id, len(plans))):
        plans.append(_read(table, operation_id, len(plans)))
    return plans


def _read(table: Table, operation_id: str, number: int) -> ExpiryPlan:
    path = _path(operation_id, number)
    return ExpiryPlan.parse(table.store.read(path), f"{table.name}: {path}")


def _path(operation_id: str, number: int) -> str:
    return EXPIRY_PLANS.path(name_of_try(operation_id, number))


log = logging.getLogger(__name__)

_LISTED = 1000
FILES_STAY = "dropped partitions are invisible immediately; their data files are deleted when their snapshots expire"


class ExpirySource(Protocol):
    """The source of an expiry: an ordinary table's partitions, or a chain table's segments."""

    @property
    def branch(self) -> str: ...

    @property
    def cutoff(self) -> datetime: ...

    @property
    def guard_options(self) -> object:
        """``CommitOptions.guard_options`` of its commits."""

    def plan(self, cutoff: datetime) -> ExpiryPlan:
        """Read the table and plan. Steps without partitions to drop are left out."""

    def conditions(self, plan: ExpiryPlan, step: DropStep) -> Sequence[Condition]:
        """Return what must hold for ``step``, beside the files of its partitions."""

    def needed_again(self, plan: ExpiryPlan, step: DropStep) -> frozenset[str]:
        """Return the dropped partitions, by key, that must be restored, as another branch changed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DoneStep:
    """A finished step. ``snapshot`` None: its partitions were gone already, or their commit can't be determined."""

    step: DropStep
    before: int | None
    snapshot: int | None

    def to_json(self) -> dict[str, Any]:
        return {"branch": self.step.branch, "before": self.before, "snapshot": self.snapshot, **totals([self.step])}


def totals(steps: Sequence[DropStep]) -> dict[str, int]:
    """Return the totals over some steps."""
    drops = [d for s in steps for d in s.drops]
    return {
        "partitions": len(drops),
        "files": sum(d.files for d in drops),
        "rows": sum(d.rows for d in drops),
        "bytes": sum(d.bytes for d in drops),
    }


def run_drops(context: Context, source: ExpirySource, properties: Mapping[str, str]) -> OperationResult:
    """Plan, or continue the plan of an earlier try, and execute it. ``properties``: of its snapshots, besides.

    Raises:
        ConflictError: the partitions to drop kept changing; ``details.done`` lists the commits that were made.
    """
    if context.request.dry_run:
        plan = source.plan(source.cutoff)
        return _result(context, source, plan, [], changed=bool(plan.steps))
    require_committable(context.table)
    with attempt_of(context, source.branch):
        return _run(context, source, properties)


def _run(context: Context, source: ExpirySource, properties: Mapping[str, str]) -> OperationResult:
    operation_id = context.request.operation_id
    earlier = load_plans(context.table, operation_id) if operation_id else []
    done: list[_DoneStep] = []
    for number, plan in enumerate(earlier):
        done += [c for s in plan.steps if (c := _committed(context, plan, s, number)) is not None]
    latest = earlier[-1] if earlier else None
    cutoff = latest.cutoff if latest is not None else source.cutoff
    moved: ConflictError | None = None
    first = max(0, len(earlier) - 1)
    for number in range(first, first + MAX_ROUNDS):
        plan = latest or source.plan(cutoff)
        if not plan.steps:
            _unmark(context, done)
            return _result(context, source, plan, done, replayed=bool(earlier))
        if operation_id and latest is None:
            plan = save_plan(context.table, operation_id, number, plan)
        latest = None
        try:
            for step in plan.steps:
                commit = next((c for c in done if c.step is step), None)
                if commit is None:
                    commit = _execute(context, source, plan, step, number, properties)
                    done.append(commit)
                _look_again(context, source, plan, commit, done)
            _unmark(context, done)
            return _result(context, source, plan, done, replayed=bool(earlier))
        except ConflictError as error:
            moved = _undone(context, source, plan, done) or error
            log.info("%s; planning again", moved.message)
    raise ConflictError(
        f"{context.table.name}: what is to expire kept changing while it was dropped ({MAX_ROUNDS} plans); run it "
        f"again when fewer writers touch old partitions. The last change: {moved.message if moved else ''}",
        details={"done": [c.to_json() for c in done]},
    )


def _step_identity(context: Context, step: DropStep, number: int) -> CommitIdentity:
    return commit_identity(context.request.operation_id, step.branch, f"{context.request.operation}:{number}")


def _committed(context: Context, plan: ExpiryPlan, step: DropStep, number: int) -> _DoneStep | None:
    """Find the commit of a step by an earlier try; None also when the snapshots to search are expired."""
    view = context.table.branch(step.branch)
    try:
        found = find_committed(view, _step_identity(context, step, number), plan.head(step.branch))
    except OutcomeUnknownError:
        return None
    return _DoneStep(step=step, before=found.id - 1, snapshot=found.id) if found is not None else None


def _execute(
    context: Context, source: ExpirySource, plan: ExpiryPlan, step: DropStep, number: int, said: Mapping[str, str]
) -> _DoneStep:
    view = context.table.branch(step.branch)
    properties = {
        **said,
        OPERATION_PROPERTY: context.request.operation,
        CUTOFF_PROPERTY: plan.cutoff.isoformat(),
    }
    if context.request.operation_id:
        properties[OPERATION_ID_PROPERTY] = context.request.operation_id
    options = CommitOptions(
        identity=dataclasses.replace(_step_identity(context, step, number), since=_since(view, plan)),
        properties=properties,
        guard_options=source.guard_options,
    )
    receipt = drop_if_unchanged(
        view,
        step.expected,
        options,
        conditions=source.conditions(plan, step),
    )
    before = receipt.before.id if receipt.before else None
    return _DoneStep(step=step, before=before, snapshot=receipt.snapshot.id if receipt.snapshot else None)


def _since(view: Table, plan: ExpiryPlan) -> SnapshotRef | None:
    """Where to look for another living try's commit; None where the head of that time has expired, or another engine
    has rolled the branch back below it: the drop compares files.
    """
    head = plan.head(view.branch_name)
    now = view.find_snapshot(head.id)
    return head if now is not None and now.identity == head.identity else None


def _undone(context: Context, source: ExpirySource, plan: ExpiryPlan, done: list[_DoneStep]) -> ConflictError | None:
    """Check committed steps again when a later one is refused: the change may need the partitions that they dropped."""
    for commit in [c for c in done if any(c.step is s for s in plan.steps)]:
        try:
            _look_again(context, source, plan, commit, done)
        except ConflictError as error:
            return error
    return None


def _look_again(
    context: Context, source: ExpirySource, plan: ExpiryPlan, commit: _DoneStep, done: list[_DoneStep]
) -> None:
    """Undo a step where another branch changed between its check and its commit: nothing locks two branches together.

    Raises:
        ConflictError: its files are back, and it is to be planned again. UnsafeOperationError: they can't be put back.
    """
    if commit.snapshot is None:
        return
    keys = source.needed_again(plan, commit.step)
    if not keys:
        return
    view = context.table.branch(commit.step.branch)
    try:
        before, dropped = view.snapshot(commit.before or 0), view.snapshot(commit.snapshot)
        chosen = StoredPartitions(view.schema()).those(map(bytes.fromhex, keys))
        options = CommitOptions(
            properties={OPERATION_PROPERTY: context.request.operation}, guard_options=source.guard_options
        )
        receipt = restore_partitions(view, before, dropped, chosen, options, beside_appends=True)
    except (ConflictError, NotFoundError) as error:
        raise UnsafeOperationError(
            f"{view.label}: the anchor of partitions changed while they were dropped, and their files can't "
            f"be put back ({error.message}): run rollback_to --branch {view.branch_name} --snapshot {commit.before}",
            details={"snapshot": commit.before, "branch": view.branch_name},
        ) from error
    left = tuple(d for d in commit.step.drops if d.key not in keys)
    narrowed = dataclasses.replace(commit, step=dataclasses.replace(commit.step, drops=left))
    done[done.index(commit)] = narrowed
    if not left:
        done.remove(narrowed)
    put = f", and are back with snapshot {receipt.snapshot.id}" if receipt.snapshot is not None else ""
    raise ConflictError(f"{view.label}: the anchor of {len(keys)} partitions changed while they were dropped{put}")


def _unmark(context: Context, done: Sequence[_DoneStep]) -> None:
    """Delete the success files of the partitions that main has dropped; a branch shares the folders with main.

    A chain table's partitions expire in two branches, and its marks stay.
    """
    table = context.table
    for commit in done:
        committed = None if commit.snapshot is None else table.find_snapshot(commit.snapshot)
        if commit.step.branch == MAIN and committed is not None:
            keys = [bytes.fromhex(d.key) for d in commit.step.drops]
            execute(table, plan_unmark(table, keys, committed.time_millis))


def _result(
    context: Context,
    source: ExpirySource,
    plan: ExpiryPlan,
    done: Sequence[_DoneStep],
    *,
    changed: bool = False,
    replayed: bool = False,
) -> OperationResult:
    made = [c for c in done if c.snapshot is not None]
    steps = plan.steps if context.request.dry_run else [c.step for c in made]
    details = {
        **plan.report,
        "cutoff": plan.cutoff.isoformat(sep=" "),
        "expired": {
            b: [d.text for s in steps if s.branch == b for d in s.drops][:_LISTED]
            for b in dict.fromkeys(s.branch for s in steps)
        },
        **totals(steps),
        "commits": [c.to_json() for c in made],
        "note": FILES_STAY,
    }
    if replayed:
        details["replayed"] = True
    own = [c for c in made if c.step.branch == source.branch]
    head = plan.head(source.branch).id or None
    return context.result(
        plan.to_plan(context.request.operation, context.table.name),
        branch=source.branch,
        changed=changed or bool(made),
        before=own[0].before if own else head,
        after=own[-1].snapshot if own else head,
        details=details,
    )
