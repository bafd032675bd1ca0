"""Commits compacted partitions of a chain table, with fences on their inputs and a provenance record."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.chain.compaction_plan import CompactionAction, PartitionCompaction
from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Values
from airflow_paimon.core.chain.provenance import LiveParts, record_provenance
from airflow_paimon.core.chain.provenance_plan import Part, Provenance
from airflow_paimon.core.chain.state import ChainState, Fence, files_digest, splits_by_partition
from airflow_paimon.core.chain.write_plan import CHECKED_BY_CALLER
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import CommitOptions, Receipt
from airflow_paimon.core.commit.files import commit_partition
from airflow_paimon.core.commit.idempotency import commit_identity
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import quoted_partition
from airflow_paimon.core.table.partition_values import partition_texts
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_ID_PROPERTY, OPERATION_PROPERTY
from airflow_paimon.data.compaction_tasks import TaskOutput
from airflow_paimon.data.write import TableWrite, commit_or_discard, discard_files

log = logging.getLogger(__name__)

OPEN_COST_BYTES = 1 << 20
"""What opening a file counts as."""

OUTCOMES = {CompactionAction.COMPACT: "compacted", CompactionAction.STALE_REBUILD: "stale-rebuilt"}


class CompactionInputs:
    """The branches' content on which a run is planned, updated with the partitions that it commits.

    The splits of ``state`` itself are not updated.
    """

    def __init__(self, state: ChainState) -> None:
        self.state = state
        self.provenances: Mapping[Values, Provenance] = {}
        self._parts = {b: dict(splits_by_partition(state.plan(b))) for b in (ChainBranch.SNAPSHOT, ChainBranch.DELTA)}
        self._live = LiveParts(state)

    def narrowed(self, plans: Sequence[PartitionCompaction]) -> ChainState:
        """Return the state reduced to the inputs of these partitions."""
        anchors = {p.anchor for p in plans}
        deltas = {d for p in plans for d in p.deltas}
        snapshot = tuple(s for a in anchors for s in self.splits(ChainBranch.SNAPSHOT, a))
        delta = tuple(s for d in deltas for s in self.splits(ChainBranch.DELTA, d))
        return replace(
            self.state,
            snapshot=replace(self.state.snapshot, splits=snapshot),
            delta=replace(self.state.delta, splits=delta),
        )

    @property
    def layout(self) -> ChainLayout:
        return self.state.layout

    def cost(self, plan: PartitionCompaction) -> tuple[int, int]:
        """Return how many tasks compact a partition, and the bytes that they read."""
        files = (f for s in self.buckets_of(plan) for f in s.files)
        return TableOptions(self.state.snapshot.schema.options).bucket, sum(
            f.file_size + OPEN_COST_BYTES for f in files
        )

    def splits(self, branch: ChainBranch, values: Values | None) -> tuple[BucketSplit, ...]:
        return () if values is None else self._parts[branch].get(values, ())

    def buckets_of(self, plan: PartitionCompaction) -> list[BucketSplit]:
        """Return the input buckets of a partition, as far as they exist yet."""
        deltas = (s for d in plan.deltas for s in self.splits(ChainBranch.DELTA, d))
        return [*self.splits(ChainBranch.SNAPSHOT, plan.anchor), *deltas] if plan.action.writes else []

    def part(self, branch: ChainBranch, values: Values) -> Part:
        return self._live.part(branch, values)

    def is_built_of(self, plan: PartitionCompaction) -> bool:
        """Return whether the existing partition is recorded as built from exactly the planned inputs."""
        built = self.provenances.get(plan.target)
        if built is None or plan.anchor_in_run:
            return False
        anchor = None if plan.anchor is None else self.part(ChainBranch.SNAPSHOT, plan.anchor)
        return built.anchor == anchor and built.deltas == tuple(self.part(ChainBranch.DELTA, d) for d in plan.deltas)

    def fences(self, plan: PartitionCompaction) -> tuple[Fence, Fence]:
        """Return the fences on the snapshot and the delta branch for the partition's commit."""
        group, last = self.layout.group_of(plan.target), self.layout.time_of(plan.target)
        first = None if plan.anchor is None else self.layout.time_of(plan.anchor)

        def is_between(values: Values) -> bool:
            moment = self.layout.parsed_time(values) if self.layout.group_of(values) == group else None
            return moment is not None and moment <= last and (first is None or first < moment)

        own = {v for v in (plan.anchor, plan.target) if v is not None}

        def is_anchor(values: Values) -> bool:
            return values in own or is_between(values)  # a nearer one would have been the anchor

        fences = []
        for branch, values, concerns in (
            (ChainBranch.SNAPSHOT, own, is_anchor),
            (ChainBranch.DELTA, set(plan.deltas), is_between),
        ):
            pinned = self.state.plan(branch)
            held = {v: files for v in values if (files := self._live.files[branch].get(v)) is not None}
            fences.append(
                Fence(table=pinned.table, schema=pinned.schema, seen=pinned.snapshot, held=held, concerns=concerns)
            )
        return fences[0], fences[1]

    def put(self, values: Values, splits: Sequence[BucketSplit], before: Snapshot | None, after: Snapshot) -> None:
        """Add a commit of this run. The branch counts as read up to it only if it is the next one."""
        self._parts[ChainBranch.SNAPSHOT][values] = tuple(splits)
        self._live.files[ChainBranch.SNAPSHOT][values] = files_digest(splits)
        self._live.vectors[ChainBranch.SNAPSHOT].pop(values, None)
        seen = self.state.snapshot.snapshot
        is_next = (seen is None and before is None) or (
            seen is not None and before is not None and seen.identity == before.identity
        )
        if is_next:
            self.state = replace(self.state, snapshot=replace(self.state.snapshot, snapshot=after))


def plan_row(inputs: CompactionInputs, plan: PartitionCompaction) -> dict[str, Any]:
    """Return the plan for a partition as plain JSON values."""
    layout, text = inputs.layout, inputs.layout.text_of
    values = layout.spec_of(plan.target)
    row: dict[str, Any] = {
        "partition": text(plan.target),
        "group": dict(list(values.items())[: layout.group_width]),
        "spec": quoted_partition(partition_texts(plan.target, layout.partition_keys, layout.partition_types)),
        "reason": plan.reason,
    }
    if plan.action.writes:
        held = inputs.buckets_of(plan)
        row |= {
            "anchor": None if plan.anchor is None else text(plan.anchor),
            "anchor_in_run": plan.anchor_in_run,
            "deltas": [text(d) for d in plan.deltas],
            "overwrites": plan.replaces,
            **{f"{name}_in": count for name, count in _sizes(held).items()},
        }
    return row


def _sizes(splits: Sequence[BucketSplit]) -> dict[str, int]:
    files = [f for s in splits for f in s.files]
    rows = sum(f.row_count - (f.delete_row_count or 0) for f in files)
    return {"rows": rows, "files": len(files), "bytes": sum(f.file_size for f in files)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """``snapshot`` None: nothing to commit. ``is_stale``: an input changed right after the commit."""

    row: dict[str, Any]
    snapshot: Snapshot | None
    is_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputsStand:
    """What a partition was compacted from is unchanged. ``fences``: of the snapshot branch, which is committed to, and
    of the delta branch.
    """

    layout: ChainLayout
    fences: tuple[Fence, Fence]
    plan: PartitionCompaction

    def check(self, at: HeadState) -> None:
        own, delta = self.fences
        moved = [*own.moved(at.head), *delta.moved(delta.table.latest_snapshot())]
        if moved:
            text = self.layout.text_of
            names = ", ".join(map(text, moved))
            raise ConflictError(f"{self.layout.label}: {names} changed while {text(self.plan.target)} was compacted")


@dataclass(frozen=True, slots=True)
class CompactionCommits:
    """Commits the partitions of the round with this number."""

    _context: Context
    _request: Request
    _inputs: CompactionInputs
    _number: int

    def commit(self, plan: PartitionCompaction, outputs: Sequence[TaskOutput]) -> Committed | None:
        """Commit one partition; None: it is planned again, as an input has changed, or as another try of the operation
        was faster.

        Raises:
            OutcomeUnknownError: it may have been committed.
        """
        inputs = self._inputs
        chosen = [o for o in outputs if o.rows]
        if not chosen:  # one tombstone
            chosen = [o for o in outputs if o.messages[0].new_files][:1]
        self.discard([o for o in outputs if o not in chosen])
        row = plan_row(inputs, plan) | {"outcome": OUTCOMES[plan.action], "snapshots": inputs.state.snapshot_ids}
        messages = [m for o in chosen for m in o.messages]
        splits = tuple(BucketSplit(m.partition, plan.target, m.bucket, m.total_buckets, m.new_files) for m in messages)
        row |= {f"{name}_out": count for name, count in _sizes(splits).items()}
        if not chosen:
            return Committed(
                row=row | {"outcome": CompactionAction.NOTHING_TO_DO.value, "reason": "no rows"}, snapshot=None
            )
        self._record(plan, splits)
        replaced = inputs.splits(ChainBranch.SNAPSHOT, plan.target)
        fences = inputs.fences(plan)
        identity = commit_identity(
            self._request.operation_id,
            inputs.layout.snapshot_branch,
            f"{self._request.operation}-{self._number}",
            str(row["partition"]),
        )
        options = CommitOptions(
            identity=identity,
            properties=self._properties(row),
            guard_options=None if replaced else CHECKED_BY_CALLER,
        )
        inputs_stand = _InputsStand(layout=inputs.layout, fences=fences, plan=plan)

        def commit() -> Receipt:
            table = inputs.state.snapshot.table
            return commit_partition(table, messages, options, replaced=replaced, conditions=(inputs_stand,))

        try:
            receipt = commit_or_discard(self.write, messages, commit)
        except ConflictError as error:
            log.info("%s", error.message)
            return None
        if receipt.replayed:
            return None
        assert receipt.snapshot is not None
        inputs.put(plan.target, splits, receipt.before, receipt.snapshot)
        moved = fences[1].moved(fences[1].table.latest_snapshot())
        return Committed(row=row | {"snapshot": receipt.snapshot.id}, snapshot=receipt.snapshot, is_stale=bool(moved))

    @property
    def write(self) -> TableWrite:
        pinned = self._inputs.state.snapshot
        return TableWrite(store=pinned.table.store, label=pinned.table.label, schema=pinned.schema, planned_on=None)

    def discard(self, outputs: Sequence[TaskOutput]) -> None:
        discard_files(self.write, [m for o in outputs for m in o.messages])

    def _record(self, plan: PartitionCompaction, splits: Sequence[BucketSplit]) -> None:
        inputs = self._inputs
        record = Provenance(
            values=plan.target,
            files=files_digest(splits),
            anchor=None if plan.anchor is None else inputs.part(ChainBranch.SNAPSHOT, plan.anchor),
            deltas=tuple(inputs.part(ChainBranch.DELTA, d) for d in plan.deltas),
            snapshots=inputs.state.snapshot_ids,
            identities=inputs.state.identities,
            origin=self._request.operation_id or self._request.operation,
            created_at=self._context.now_iso,
        )
        record_provenance(self._context.table, inputs.layout, record)

    def _properties(self, row: Mapping[str, Any]) -> dict[str, str]:
        properties = {OPERATION_PROPERTY: self._request.operation, DETAILS_PROPERTY: json.dumps(row)}
        if self._request.operation_id:
            properties[OPERATION_ID_PROPERTY] = self._request.operation_id
        return properties
