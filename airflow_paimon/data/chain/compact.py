"""compact_chain_table: plans, lets tasks merge the buckets, and commits each partition separately, with fences.

Before each attempt to commit a partition, and after the commit, anchor and deltas must still hold the planned files. If
they changed before, the partition is planned again; if after, it is rebuilt. The number of rounds is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.chain.compaction_plan import (
    ChainTargets,
    CompactionAction,
    PartitionCompaction,
    parse_targets,
    plan_compaction,
)
from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.provenance import find_stale, gather_provenances, read_staleness
from airflow_paimon.core.chain.state import ChainState, chain_views, gather_chain
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.chain.compact_bucket import plan_buckets
from airflow_paimon.data.chain.compaction_commit import CompactionCommits, CompactionInputs, plan_row
from airflow_paimon.data.compaction_tasks import (
    HERE,
    TaskOutput,
    Workers,
    committed_earlier,
    in_chunks,
    outputs_of,
)

log = logging.getLogger(__name__)

MAX_ROUNDS = 5
"""How often partitions are planned again because their inputs changed."""


def compact_chain_table(
    context: Context,
    request: CompactChainTable,
    workers: Workers = HERE,
) -> OperationResult:
    """Make partitions of the snapshot branch full. What one call of the workers has written is committed before the
    next call.

    Raises:
        InvalidInputError: the request does not fit the table. UnsupportedFeatureError: see ``plan_buckets``.
        ConflictError: inputs kept changing; ``details["done"]`` lists the partitions that were committed nevertheless.
    """
    layout, snapshot_view, _ = chain_views(context.table)
    targets = parse_targets(layout, request)
    if request.dry_run:
        return _dry_run(context, targets)
    require_committable(snapshot_view)
    before = snapshot_view.latest_snapshot_id()
    compaction = _ChainCompaction(context, request, snapshot_view, targets, workers, before)
    with attempt_of(context, layout.snapshot_branch) as tried:
        try:
            return compaction.run_rounds(list(committed_earlier(snapshot_view, tried)))
        except PaimonError as error:
            if compaction.done:
                error.details.setdefault("done", compaction.done)
            raise


def check_compaction(context: Context, request: CompactChainTable) -> None:
    """Check everything that can be checked without reading rows, before a session is started.

    Raises:
        InvalidInputError: the table is not a chain table, or the request does not fit it.
    """
    layout, snapshot_view, _ = chain_views(context.table)
    parse_targets(layout, request)
    if not request.dry_run:
        require_committable(snapshot_view)


def _plans(
    table: Table, state: ChainState, targets: ChainTargets
) -> tuple[list[PartitionCompaction], CompactionInputs]:
    """Plan, and read provenance records only where they can matter."""
    inputs = CompactionInputs(state)
    needs_provenance = targets.overwrite or targets.max_chain_length is not None or targets.rebuild
    if not needs_provenance:
        plans = plan_compaction(state.layout, state.partitions, targets)
        if all(p.action != CompactionAction.EXISTS for p in plans):
            return plans, inputs
    inputs.provenances, known = read_staleness(table, state, targets)
    return plan_compaction(state.layout, state.partitions, targets, known), inputs


def _dry_run(context: Context, targets: ChainTargets) -> OperationResult:
    state = gather_chain(context.table)
    plans, inputs = _plans(context.table, state, targets)
    head = state.snapshot.snapshot.id if state.snapshot.snapshot else None
    return context.result(
        _as_plan(context, state, inputs, plans),
        branch=state.layout.snapshot_branch,
        changed=any(p.action.writes for p in plans),
        before=head,
        after=head,
        details={"counts": _counts([p.action.value for p in plans]), "snapshots": state.snapshot_ids},
    )


def _as_plan(
    context: Context, state: ChainState, inputs: CompactionInputs, plans: Sequence[PartitionCompaction]
) -> Plan:
    rows = [plan_row(inputs, p) | {"action": p.action.value} for p in plans]
    return Plan(
        operation=context.request.operation,
        table=context.table.name,
        preconditions=state.preconditions,
        summary={"partitions": rows},
    )


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


@dataclass(slots=True)
class _ChainCompaction:
    """One try of the operation: the results so far, and the partitions to plan again."""

    _context: Context
    _request: CompactChainTable
    _snapshot_view: Table
    _targets: ChainTargets
    _workers: Workers
    _before: int | None
    _results: dict[Values, dict[str, Any]] = field(default_factory=dict)
    _deferred: dict[Values, PartitionCompaction] = field(default_factory=dict)
    _rebuild: set[Values] = field(default_factory=set)
    _plan: Plan | None = None
    _snapshots: dict[str, int | None] = field(default_factory=dict)

    @property
    def done(self) -> list[str]:
        """The partitions that this operation has committed."""
        return [r["partition"] for r in self._results.values() if "snapshot" in r]

    def run_rounds(self, committed: Sequence[tuple[Snapshot, dict[str, Any]]]) -> OperationResult:
        for number in range(1, MAX_ROUNDS + 1):
            state = gather_chain(self._context.table)
            if number == 1:
                self._count_earlier_commits(state, committed)
            self._round(state, number)
            if not self._deferred:
                return self._result()
            log.info(
                "%s: %d partitions changed meanwhile: planned again",
                self._context.table.label,
                len(self._deferred),
            )
        texts = [state.layout.text_of(v) for v in self._deferred]
        raise ConflictError(
            f"{self._context.table.label}: anchor or deltas of {', '.join(texts[:5])} changed in each of {MAX_ROUNDS} "
            "attempts while they were compacted; run it again when there are fewer writers",
            details={"partitions": texts},
        )

    def _count_earlier_commits(self, state: ChainState, committed: Sequence[tuple[Snapshot, dict[str, Any]]]) -> None:
        """Count an earlier try's commits as done, except those whose inputs have changed since they were read. Expired
        ones don't matter: repeating them is safe.
        """
        by_text = {state.layout.text_of(v): v for v in state.partitions.snapshot | state.partitions.delta}
        for snapshot, row in committed:
            values = by_text.get(row["partition"])
            if values is not None:
                self._results[values] = row | {"snapshot": snapshot.id, "replayed": True}
                self._before = min(self._before or snapshot.id - 1, snapshot.id - 1) or None
        if self._results:
            built = gather_provenances(self._context.table, state.layout, state.snapshot, self._results.keys())
            self._rebuild |= {s.values for s in find_stale(state, built) if not s.lost}

    def _round(self, state: ChainState, number: int) -> None:
        finished = frozenset(v for v in self._results if v not in self._rebuild)
        targets = replace(self._targets, finished=finished, rebuild=frozenset(self._rebuild))
        plans, inputs = _plans(self._context.table, state, targets)
        waited, self._deferred = self._deferred, {}
        todo = []
        for plan in plans:
            if number > 1 and plan.action.writes and inputs.is_built_of(plan):
                plan = replace(plan, action=CompactionAction.EXISTS, reason="another compaction has built it meanwhile")
            if plan.action.writes:
                todo.append(plan)
            elif plan.target not in self._results:
                self._results[plan.target] = plan_row(inputs, plan) | {"outcome": plan.action.value}
        for values in waited.keys() - {p.target for p in plans} - self._results.keys():
            there = values in state.partitions.snapshot
            plan = replace(
                waited[values],
                action=CompactionAction.EXISTS if there else CompactionAction.NOTHING_TO_DO,
                reason="another compaction has built it meanwhile" if there else "it is no longer requested",
            )
            self._results[values] = plan_row(inputs, plan) | {"outcome": plan.action.value}
        if self._plan is None:
            self._snapshots = state.snapshot_ids
            self._plan = _as_plan(self._context, state, inputs, plans)
        self._execute(inputs, todo, number)

    def _execute(self, inputs: CompactionInputs, todo: Sequence[PartitionCompaction], number: int) -> None:
        """Run tasks for the partitions whose anchors exist, commit them, then continue with those that waited."""
        commits = CompactionCommits(self._context, self._request, inputs, number)
        waiting = {p.target: p for p in todo}
        while waiting:
            ready = [p for p in waiting.values() if not (p.anchor_in_run and p.anchor in waiting)]
            for chunk in in_chunks(ready, inputs.cost, self._workers):
                usable = []
                for plan in chunk:
                    del waiting[plan.target]
                    in_run = plan.anchor if plan.anchor_in_run else None
                    if in_run is None or (in_run not in self._deferred and "snapshot" in self._results.get(in_run, {})):
                        usable.append(plan)
                    else:
                        self._defer(plan)
                if usable:
                    self._compact(inputs, commits, usable)

    def _compact(
        self, inputs: CompactionInputs, commits: CompactionCommits, chunk: Sequence[PartitionCompaction]
    ) -> None:
        chains = [(p.target, p.anchor, p.deltas) for p in chunk]
        tasks = plan_buckets(inputs.narrowed(chunk), chains, self._request.task_memory_mb << 20)
        outputs: dict[Values, list[TaskOutput]] = {p.target: [] for p in chunk}
        for output in outputs_of(commits.write, self._workers.run(tasks)):
            (message,) = output.messages
            outputs[decode_row(message.partition, inputs.layout.partition_types)].append(output)
        for position, plan in enumerate(chunk):
            try:
                committed = commits.commit(plan, outputs[plan.target])
            except PaimonError:
                # these were not committed
                commits.discard([o for p in chunk[position + 1 :] for o in outputs[p.target]])
                raise
            if committed is None:
                self._defer(plan)
                continue
            self._results[plan.target] = committed.row
            self._rebuild.discard(plan.target)
            if committed.is_stale:
                self._rebuild.add(plan.target)
                self._deferred[plan.target] = plan

    def _defer(self, plan: PartitionCompaction) -> None:
        self._deferred[plan.target] = plan
        if plan.replaces:
            self._rebuild.add(plan.target)

    def _result(self) -> OperationResult:
        ordered = sorted(self._results.values(), key=lambda r: str(r["partition"]))
        done = [r["snapshot"] for r in ordered if "snapshot" in r]
        return self._context.result(
            self._plan,
            branch=self._snapshot_view.branch_name,
            changed=bool(done),
            before=self._before,
            after=max(done, default=self._before),
            details={
                "counts": _counts([str(r["outcome"]) for r in ordered]),
                "partitions": ordered,
                "snapshots": self._snapshots,
            },
        )
