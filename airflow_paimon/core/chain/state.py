"""Reads the three branches of a chain table, each at one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.chain.layout import Branch, ChainLayout, Partitions, Values, check_chain_branches
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import Precondition
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import BucketSplit, ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table

_MAX_LOOKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The branches of one chain table. Each plan's ``snapshot`` is None for a branch without commits."""

    layout: ChainLayout
    main: ScanPlan
    snapshot: ScanPlan
    delta: ScanPlan

    def plan(self, branch: Branch) -> ScanPlan:
        return {Branch.MAIN: self.main, Branch.SNAPSHOT: self.snapshot, Branch.DELTA: self.delta}[branch]

    @property
    def plans(self) -> tuple[ScanPlan, ScanPlan, ScanPlan]:
        return self.main, self.snapshot, self.delta

    @property
    def partitions(self) -> Partitions:
        main, snapshot, delta = map(partitions_in, self.plans)
        return Partitions(main=main, snapshot=snapshot, delta=delta)

    @property
    def snapshot_ids(self) -> dict[str, int | None]:
        """The snapshot id at which each branch was read, by branch name."""
        return {p.table.branch_name: p.snapshot.id if p.snapshot else None for p in self.plans}

    @property
    def identities(self) -> dict[str, str]:
        """The identity of the snapshot at which each branch was read, by branch name."""
        return {p.table.branch_name: p.snapshot.identity for p in self.plans if p.snapshot is not None}

    @property
    def preconditions(self) -> tuple[Precondition, ...]:
        """The preconditions of a plan made from this state."""
        return tuple(p.precondition for p in self.plans)


def partitions_in(plan: ScanPlan) -> frozenset[Values]:
    """Return the partitions that have a live file."""
    return frozenset(s.values for s in plan.splits)


def chain_views(table: Table) -> tuple[ChainLayout, Table, Table]:
    """Return the layout and the views of the snapshot and the delta branch. ``table`` is main's view.

    Raises:
        NotFoundError: a branch does not exist. InvalidInputError: the branches are not one chain table; all of it is
            named.
    """
    main = table.schema()
    options = TableOptions(main.options)
    snapshot, delta = (table.branch(name or "") for name in (options.snapshot_branch, options.delta_branch))
    schemas = [b.schema() if b.branch_name and b.exists() else None for b in (snapshot, delta)]
    return check_chain_branches(table.label, main, *schemas), snapshot, delta


def gather_chain(table: Table) -> ChainState:
    """Read the newest snapshot of each branch, consistently at one moment.

    Raises:
        ConflictError: as ``pin_together``; and what ``chain_views`` raises.
    """
    layout, *others = chain_views(table)
    main, snapshot, delta = pin_together((table, *others))
    return ChainState(layout=layout, main=main, snapshot=snapshot, delta=delta)


def pin_together(views: Sequence[Table]) -> list[ScanPlan]:
    """Plan the newest snapshots of branches such that all of them were the newest at one moment.

    Read one after the other, a branch might miss rows that another branch no longer holds.

    Raises:
        ConflictError: commits kept changing them meanwhile.
    """
    for _ in range(_MAX_LOOKS):
        heads = [view.latest_snapshot() for view in views]
        again = [view.latest_snapshot() for view in views[:-1]]
        if [_identity(h) for h in again] == [_identity(h) for h in heads[:-1]]:
            return [plan_snapshot(view, head, view.schema()) for view, head in zip(views, heads, strict=True)]
    label = views[0].label
    raise ConflictError(
        f"{label}: the branches were committed to in each of {_MAX_LOOKS} tries to read them together; run it again "
        f"when fewer writers commit at once"
    )


def _identity(head: Snapshot | None) -> str | None:
    return None if head is None else head.identity


def splits_by_partition(plan: ScanPlan) -> dict[Values, tuple[BucketSplit, ...]]:
    """Return each partition's buckets, in the order of bucket numbers."""
    out: dict[Values, list[BucketSplit]] = {}
    for split in plan.splits:
        out.setdefault(split.values, []).append(split)
    return {v: tuple(sorted(found, key=lambda s: s.bucket)) for v, found in out.items()}
