"""Expiry of chain tables: whole segments per group, first their deltas, then their full partitions.

Inputs stay from which a stale partition that stays is to be rebuilt. See docs/howto/chain-maintenance.md, Expiry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_paimon.core.chain.chain_expiry_plan import GroupExpiry, keep_inputs, plan_chain_expiry
from airflow_paimon.core.chain.layout import ChainLayout, Partitions, TimeLines, Values
from airflow_paimon.core.chain.provenance import StalePartition, find_stale, gather_provenances
from airflow_paimon.core.chain.state import ChainState, chain_views
from airflow_paimon.core.chain.write_plan import CHECKED_BY_CALLER, ChainOptions
from airflow_paimon.core.commit.conditions import Condition, HeadState
from airflow_paimon.core.commit.partition_contents import PartitionContent, partition_contents
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.partition_expiry.drop_run import DropStep, ExpiryPlan, PartitionDrop
from airflow_paimon.core.partition_expiry.partition_expiry_plan import cutoff_at, expiry_age, expiry_limit
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import VALUES_TIME, ExpirePartitions
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table


def stale_needs(main: Table, state: ChainState) -> dict[Values, dict[Values, datetime]]:
    """Return, by group, each stale snapshot partition that can be rebuilt, with the time of the one before it, from
    which a rebuild starts.
    """
    layout, held = state.layout, state.partitions
    stale = find_stale(state, gather_provenances(main, layout, state.snapshot))
    snapshots = TimeLines(layout, held.snapshot)
    out: dict[Values, dict[Values, datetime]] = {}
    for one in _to_rebuild(layout, stale, held.delta):
        group = layout.group_of(one.values)
        start, _ = snapshots.of(group).before(layout.time_of(one.values))
        if start is not None:
            out.setdefault(group, {})[one.values] = start
    return out


def _to_rebuild(
    layout: ChainLayout, stale: Sequence[StalePartition], deltas: frozenset[Values]
) -> list[StalePartition]:
    """Leave out partitions that are stale only because inputs are gone: they can't be rebuilt.

    Between the two commits of an expiry that includes every partition of an expiring segment.
    """
    by_values = {s.values: s for s in stale}
    found: dict[Values, StalePartition] = {}
    for one in sorted(stale, key=lambda s: layout.time_of(s.values)):
        rest = set(one.because) - set(one.lost)
        if one.cascade:
            rest &= found.keys()
        else:
            rest = {v for v in rest if v in found or v not in by_values or v in deltas}
        if rest:
            found[one.values] = one
    return list(found.values())


_LISTED = 1000
_Held = Mapping[Values, PartitionContent]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChainExpiry:
    """``limit`` counts segments per group."""

    layout: ChainLayout
    snapshot: Table
    delta: Table
    cutoff: datetime
    limit: int
    min_full_partitions: int
    guard_options: ChainOptions = CHECKED_BY_CALLER

    @property
    def branch(self) -> str:
        """The branch whose readers see the change: the table as a whole."""
        return MAIN

    def plan(self, cutoff: datetime) -> ExpiryPlan:
        return self.plan_on(cutoff, self.snapshot.latest_snapshot(), self.delta.latest_snapshot())

    def conditions(self, plan: ExpiryPlan, step: DropStep) -> Sequence[Condition]:
        return (_PlanHolds(expiry=self, plan=plan, is_delta=step.branch == self.delta.branch_name),)

    def needed_again(self, plan: ExpiryPlan, step: DropStep) -> frozenset[str]:
        """Return the dropped deltas, by key, that are needed again because the anchor was dropped or replaced.

        They are also needed where an older full partition was replaced: the anchor may be stale now, and is rebuilt
        from both. A group without old full partitions needs none: without their base they would give wrong rows.
        """
        if step.branch != self.delta.branch_name or not plan.anchors:
            return frozenset()
        schema = self.snapshot.schema()
        head = self.snapshot.latest_snapshot()
        now = {h.key: h.digest for h in partition_contents(plan_snapshot(self.snapshot, head, schema))}

        def group_of(key: str) -> Values:
            return self.layout.group_of(decode_row(bytes.fromhex(key), self.layout.partition_types))

        bases = {d.key: d.digest for s in plan.steps if s.branch == self.snapshot.branch_name for d in s.drops}
        moved = {group_of(key) for key, digest in plan.anchors.items() if now.get(key) != digest}
        moved |= {group_of(key) for key, digest in bases.items() if now.get(key, digest) != digest}
        moved -= {group_of(key) for key in bases.keys() - now.keys()}
        return frozenset(d.key for d in step.drops if group_of(d.key) in moved) if moved else frozenset()

    def plan_on(self, cutoff: datetime, snapshot_head: Snapshot | None, delta_head: Snapshot | None) -> ExpiryPlan:
        heads = ((self.snapshot, snapshot_head), (self.delta, delta_head))
        plans = [plan_snapshot(view, head, view.schema()) for view, head in heads]
        held = [{h.values: h for h in partition_contents(plan)} for plan in plans]
        snapshots, deltas = held
        groups = plan_chain_expiry(
            self.layout,
            Partitions(snapshot=frozenset(snapshots), delta=frozenset(deltas)),
            cutoff,
            max_segments=self.limit,
            min_full_partitions=self.min_full_partitions,
        )
        groups = self._without_inputs(groups, *plans)
        steps = (
            DropStep(branch=self.delta.branch_name, drops=tuple(_delta_drops(self.layout, groups, deltas))),
            DropStep(branch=self.snapshot.branch_name, drops=tuple(_snapshot_drops(self.layout, groups, snapshots))),
        )
        return ExpiryPlan(
            cutoff=cutoff,
            preconditions=tuple(p.precondition for p in plans),
            steps=tuple(s for s in steps if s.drops),
            report=_report(self.layout, groups, snapshots, deltas),
            anchors={(a := snapshots[g.anchor]).key: a.digest for g in groups if g.segments and g.anchor is not None},
        )

    def _without_inputs(self, groups: list[GroupExpiry], snapshot: ScanPlan, delta: ScanPlan) -> list[GroupExpiry]:
        """Keep the inputs of remaining stale partitions, without which these could not be rebuilt."""
        going = {g.group for g in groups if g.segments}
        if not going:
            return groups
        own = [
            replace(p, splits=tuple(s for s in p.splits if self.layout.group_of(s.values) in going))
            for p in (snapshot, delta)
        ]
        main = self.snapshot.branch(MAIN)
        state = ChainState(
            layout=self.layout, main=ScanPlan(main, None, snapshot.schema), snapshot=own[0], delta=own[1]
        )
        needs = stale_needs(main, state)
        return [keep_inputs(self.layout, g, needs.get(g.group, {})) for g in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanHolds:
    """Planned again on the current heads, the result is the rest of the plan. ``is_delta``: the step to commit is the
    delta branch's.

    A new or lost anchor, or late deltas between old anchors, result in another plan.
    """

    expiry: _ChainExpiry
    plan: ExpiryPlan
    is_delta: bool

    def check(self, at: HeadState) -> None:
        snapshot, delta = self.expiry.snapshot, self.expiry.delta
        other = (snapshot if self.is_delta else delta).latest_snapshot()
        now = self.expiry.plan_on(self.plan.cutoff, *((other, at.head) if self.is_delta else (at.head, other)))
        deltas = self.plan.keys(delta.branch_name) if self.is_delta else frozenset()
        wanted = (deltas, self.plan.keys(snapshot.branch_name))
        if (now.keys(delta.branch_name), now.keys(snapshot.branch_name)) != wanted:
            raise ConflictError(
                f"{self.expiry.layout.label}: the branches changed since the expiry was planned; nothing was dropped"
            )


def chain_expiry(context: Context, request: ExpirePartitions) -> _ChainExpiry:
    """Check a request to expire partitions of a chain table.

    Raises:
        InvalidInputError: it names a branch, or another strategy or time pattern than the table's own.
    """
    label = context.table.label
    if request.branch != MAIN:
        raise InvalidInputError(
            f"{label} is a chain table, which expires as a whole, by segments: leave branch {request.branch!r} out"
        )
    if request.strategy not in (None, VALUES_TIME):
        raise InvalidInputError(f"{label}: chain tables expire by {VALUES_TIME} only, not by {request.strategy}")
    if request.timestamp_pattern or request.timestamp_formatter:
        raise InvalidInputError(
            f"{label}: the time of a chain table's partitions is that of its options; leave timestamp_pattern and "
            f"timestamp_formatter out"
        )
    layout, snapshot, delta = chain_views(context.table)
    options = TableOptions(context.table.schema().options)
    age = expiry_age(request.expiration_time, options, label)
    if request.min_full_partitions < 1:
        raise InvalidInputError(f"{label}: min_full_partitions must be at least 1, not {request.min_full_partitions}")
    return _ChainExpiry(
        layout=layout,
        snapshot=snapshot,
        delta=delta,
        cutoff=cutoff_at(context.now_local, age, label),
        limit=expiry_limit(request.limit, options, label),
        min_full_partitions=request.min_full_partitions,
    )


def _delta_drops(layout: ChainLayout, groups: Sequence[GroupExpiry], held: _Held) -> Iterator[PartitionDrop]:
    for group in groups:
        for values in group.orphans:
            yield PartitionDrop.of(held[values], "older than the group's first full partition, which expires")
        for segment in group.segments:
            why = f"in the expired segment of {layout.text_of(segment.snapshot)}"
            yield from (PartitionDrop.of(held[values], why) for values in segment.deltas)


def _snapshot_drops(layout: ChainLayout, groups: Sequence[GroupExpiry], held: _Held) -> Iterator[PartitionDrop]:
    for group in groups:
        for segment in group.segments:
            assert group.anchor is not None
            why = f"its segment expired; the group's anchor is {layout.text_of(group.anchor)} now"
            yield PartitionDrop.of(held[segment.snapshot], why)


def _report(layout: ChainLayout, groups: Sequence[GroupExpiry], snapshots: _Held, deltas: _Held) -> dict[str, Any]:
    unreadable = [layout.text_of(v) for g in groups for v in g.without_time]
    ordered = sorted(
        groups, key=lambda g: not g.segments
    )  # groups with expiring segments first, otherwise in their order
    warnings = []
    if unreadable:
        warnings.append(
            f"{len(unreadable)} partitions are without a partition time and stay (details.unreadable): drop them, or "
            f"write their rows to partitions that partition.timestamp-formatter can read"
        )
    waiting = [layout.text_of(v) for g in groups for v in g.waits_for]
    if waiting:
        warnings.append(
            f"old segments stay, because {len(waiting)} partitions that stay are stale and are rebuilt from "
            f"them (details.waits_for): rebuild those (compact_chain_table --pending) or reload them, then expire"
        )
    return {
        "strategy": VALUES_TIME,
        "segments": sum(len(g.segments) for g in groups),
        "groups": [_group_report(layout, g, snapshots, deltas) for g in ordered[:_LISTED]],
        "groups_total": len(groups),
        "groups_expiring": sum(bool(g.segments) for g in groups),
        "unreadable": unreadable[:_LISTED],
        "waits_for": waiting[:_LISTED],
        "warnings": warnings,
    }


def _group_report(layout: ChainLayout, group: GroupExpiry, snapshots: _Held, deltas: _Held) -> dict[str, Any]:
    def segment(snapshot: Values | None, own: Sequence[Values]) -> dict[str, Any]:
        held = [deltas[v] for v in own] + ([snapshots[snapshot]] if snapshot is not None else [])
        return {
            "snapshot": layout.text_of(snapshot) if snapshot is not None else None,
            "deltas": [layout.text_of(v) for v in own],
            "files": sum(h.files for h in held),
            "rows": sum(h.rows for h in held),
            "bytes": sum(h.bytes for h in held),
        }

    orphans = [segment(None, group.orphans)] if group.orphans else []
    return {
        "group": layout.group_text(group.group),
        "reason": group.reason,
        "anchor": layout.text_of(group.anchor) if group.anchor is not None else None,
        "segments": orphans + [segment(s.snapshot, s.deltas) for s in group.segments],
    }
