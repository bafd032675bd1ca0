"""Reads the three branches of a chain table, each at one snapshot; tells later whether one still holds what was read.

The files of a partition are identified by a digest of their names, which are never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Partitions, Values, check_chain_branches
from airflow_paimon.core.commit.partition_contents import names_digest
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.table.history import snapshots_between, touched_buckets
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot, with_planned_files
from airflow_paimon.core.table.table import Table

_MAX_LOOKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The branches of one chain table. Each plan's ``snapshot`` is None for a branch without commits."""

    layout: ChainLayout
    main: ScanPlan
    snapshot: ScanPlan
    delta: ScanPlan

    def plan(self, branch: ChainBranch) -> ScanPlan:
        return {ChainBranch.MAIN: self.main, ChainBranch.SNAPSHOT: self.snapshot, ChainBranch.DELTA: self.delta}[branch]

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
    def preconditions(self) -> tuple[HeadIs, ...]:
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
    snapshot, delta = map(table.branch, TableOptions(main.options).chain_branches)
    schemas = [b.schema() if b.exists() else None for b in (snapshot, delta)]
    return check_chain_branches(table.label, main, *schemas), snapshot, delta


def gather_chain(table: Table) -> ChainState:
    """Read the newest snapshot of each branch, consistently at one moment.

    Raises:
        ConflictError: as ``heads_consistently``; and what ``chain_views`` raises.
    """
    layout, *others = chain_views(table)
    main, snapshot, delta = map(with_planned_files, heads_consistently((table, *others)))
    return ChainState(layout=layout, main=main, snapshot=snapshot, delta=delta)


def heads_consistently(views: Sequence[Table]) -> list[ScanPlan]:
    """Choose the newest snapshots of branches, without their files, such that all of them were the newest at one
    moment.

    Read one after the other, a branch might miss rows that another branch no longer holds.

    Raises:
        ConflictError: commits kept changing them meanwhile.
    """
    for _ in range(_MAX_LOOKS):
        heads = [view.latest_snapshot() for view in views]
        again = [view.latest_snapshot() for view in views[:-1]]
        if list(map(SnapshotRef.of, again)) == list(map(SnapshotRef.of, heads[:-1])):
            return [ScanPlan(view, head, view.schema()) for view, head in zip(views, heads, strict=True)]
    label = views[0].label
    raise ConflictError(
        f"{label}: cannot read the branches at one point in time: other writers committed during each of {_MAX_LOOKS} "
        "attempts; run it again when fewer writers commit"
    )


def touched_since(
    table: Table,
    schema: TableSchema,
    since: int | None,
    identity: str | None,
    head: Snapshot | None,
    passed_over: Callable[[Snapshot], bool] = lambda snapshot: False,
) -> frozenset[Values] | None:
    """Return the partitions that commits after a snapshot (id and, if known, identity) changed up to ``head``, but for
    those that are passed over; None: unknown, or another snapshot has that id now. Only these commits are read.
    """
    if since is None or head is None or since > head.id:
        return None
    if identity is not None:
        read = table.find_snapshot(since)
        if read is None or read.identity != identity:
            return None  # removed by a rollback, and its id was reused
    commits = snapshots_between(table, since, head.id)
    buckets = None if commits is None else touched_buckets(table, [s for s in commits if not passed_over(s)])
    types = schema.partition_types
    return None if buckets is None else frozenset(decode_row(p, types) for p in {b.partition for b in buckets})


def splits_by_partition(plan: ScanPlan) -> dict[Values, tuple[BucketSplit, ...]]:
    """Return each partition's buckets, in the order of bucket numbers."""
    out: dict[Values, list[BucketSplit]] = {}
    for split in plan.splits:
        out.setdefault(split.values, []).append(split)
    return {v: tuple(sorted(found, key=lambda s: s.bucket)) for v, found in out.items()}


def files_digest(splits: Iterable[BucketSplit]) -> str:
    """Return a digest of the files of a partition."""
    return names_digest(f.file_name for s in splits for f in s.files)


def vectors_digests(plan: ScanPlan) -> dict[Values, str]:
    """Return a digest of each partition's deletion vectors, which delete rows without changing files."""
    types = plan.schema.partition_types
    found: dict[Values, list[str]] = {}
    for entry in plan.index_entries:
        ranges = f"{entry.bucket}/{entry.index_type}/{entry.file_name}/{entry.deletion_vector_ranges}"
        found.setdefault(decode_row(entry.partition, types), []).append(ranges)
    return {values: names_digest(ranges) for values, ranges in found.items()}


def state_digests(state: ChainState, branch: ChainBranch) -> dict[Values, str]:
    """Return a digest of each partition's files in a branch."""
    return {v: files_digest(splits) for v, splits in splits_by_partition(state.plan(branch)).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Contents of partitions of one branch at the snapshot ``seen``. ``held``: the digests of those that ``concerns``.

    A partition that ``concerns`` and that is not in ``held`` did not exist.
    """

    table: Table
    schema: TableSchema
    seen: Snapshot | None
    held: Mapping[Values, str]
    concerns: Callable[[Values], bool]

    def moved(self, head: Snapshot | None) -> list[Values]:
        """Return the partitions with other files at ``head``. No reads for an unmoved branch, few otherwise."""
        seen = self.seen
        if SnapshotRef.of(seen) == SnapshotRef.of(head):
            return []
        touched = None if seen is None else touched_since(self.table, self.schema, seen.id, seen.identity, head)
        if touched is not None and not any(map(self.concerns, touched)):
            return []
        concerned = StoredPartitions(self.schema).where(self.concerns)
        now = splits_by_partition(plan_snapshot(self.table, head, self.schema, concerned))
        digests = {v: files_digest(splits) for v, splits in now.items()}
        return sorted((v for v in {*digests, *self.held} if digests.get(v) != self.held.get(v)), key=repr)
