"""Chooses the state of the three branches of a chain table, each at one snapshot, and which partitions are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_paimon.core.chain.layout import ChainLayout, GapPolicy, Values
from airflow_paimon.core.chain.read_plan import (
    ChainReadMode,
    Choose,
    PartitionRead,
    Source,
    every_partition,
    plan_reads,
)
from airflow_paimon.core.chain.state import ChainState, chain_views, heads_consistently
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.requests.requests import GAP_POLICIES
from airflow_paimon.core.table.features import is_chain_main
from airflow_paimon.core.table.live_entries import live_buckets
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan, scan_without_files
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.data.fallback_branches import (
    PinnedState,
    check_types,
    no_snapshot_as_early,
    state_at_time_of,
    with_common_schema,
)
from airflow_paimon.data.files.pruning import Filter, bind_where, keep, partition_bounds
from airflow_paimon.data.read_request import ReadRequest


def parse_gap_policy(text: str) -> GapPolicy:
    """Check the argument ``gap_policy``."""
    if text not in GAP_POLICIES:
        raise InvalidInputError(f"gap_policy must be one of {', '.join(GAP_POLICIES)}, not {text!r}")
    return "carry_forward" if text == "carry_forward" else "empty"


def is_chain_read(table: Table, version: int | str | None = None) -> bool:
    """Return whether this view is read through a chain; a version that names another branch's snapshot is not."""
    if not is_chain_main(TableOptions(table.schema().options), table.branch_name):
        return False
    return not isinstance(version, str) or resolve_version(table, version)[0].branch_name == table.branch_name


def chain_read_mode(table: Table, version: int | str | None, chain_read: str) -> ChainReadMode | None:
    """Check the argument ``chain_read``; None: this view is not read through a chain.

    Raises:
        InvalidInputError: an unknown mode, or any but ``full`` for a view that is not read through a chain.
    """
    modes: dict[str, ChainReadMode] = {"full": "full", "incremental": "incremental", "hybrid": "hybrid"}
    if chain_read not in modes:
        raise InvalidInputError(f"chain_read must be one of {', '.join(modes)}, not {chain_read!r}")
    if is_chain_read(table, version):
        return modes[chain_read]
    if chain_read != "full":
        what = table.label if version is None else f"version {version!r} of {table.label}"
        raise InvalidInputError(
            f"chain_read={chain_read!r} needs the main view of a chain table, and {what} is read as it is stored: "
            f"leave chain_read out"
        )
    return None


Counts = Mapping[Values, Mapping[int, int]]
"""How many files the buckets of partitions have."""


def choose_chain(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> PinnedState:
    """Choose the state of a chain table: a time of main, at which the other branches are read too.

    Raises:
        NotFoundError: no such branch, snapshot or tag. InvalidInputError: the branches don't form a chain table.
    """
    layout, *others = chain_views(table)
    travels = version is not None or timestamp is not None
    pinned = _pinned(table, others, version, timestamp)
    states = with_common_schema(pinned, newest=timestamp is not None) if travels else pinned
    for state in states[1:]:
        check_types(table.label, state.table.label, states[0].schema, state.schema)
    return PinnedState(tuple(states), travels, layout)


def chain_state(layout: ChainLayout, plans: Iterable[ScanPlan]) -> ChainState:
    """Return the state of which these are main, the snapshot and the delta branch."""
    main, snapshot, delta = plans
    return ChainState(layout=layout, main=main, snapshot=snapshot, delta=delta)


def partition_reads(state: ChainState, request: ReadRequest) -> list[PartitionRead]:
    """Plan which partitions are read, and how. ``state``: with at least a split of each bucket.

    Raises:
        InvalidInputError: a partition that belongs to a chain is without a partition time, or a wrong filter.
    """
    schema = state.main.schema
    rows = bind_where(request.where, request.predicate, schema.fields, state.main.table.label)
    wanted, mode = _wanted(rows, schema), request.mode or "full"
    return plan_reads(state.layout, state.partitions, wanted, mode=mode, gap_policy=request.gap_policy)


def _pinned(
    table: Table, others: Sequence[Table], version: int | str | None, timestamp: int | str | None
) -> list[ScanPlan]:
    if timestamp is not None:
        plans = [_state_or_nothing(t, timestamp) for t in (table, *others)]
        if all(p.snapshot is None for p in plans):
            raise no_snapshot_as_early(table, timestamp)
        return plans
    if version is None:
        return heads_consistently((table, *others))
    main = scan_without_files(table, version)
    if main.snapshot is None:
        return [main, *heads_consistently(others)]
    return [main, *(state_at_time_of(t, main.snapshot) for t in others)]


def _state_or_nothing(table: Table, timestamp: int | str) -> ScanPlan:
    """Choose the state of a branch that may be newer than that time, or empty, as main often is."""
    try:
        return scan_without_files(table, timestamp=timestamp)
    except NotFoundError:
        return ScanPlan(table, None, table.schema())


def with_bare_buckets(state: ScanPlan) -> tuple[ScanPlan, Counts]:
    """Plan the partitions and buckets of a branch, without their files, and count these."""
    if state.snapshot is None:
        return state, {}
    values, splits = StoredPartitions(state.schema).values, []
    counts: dict[Values, Counter[int]] = {}
    for (partition, bucket), files in live_buckets(state.table, state.snapshot).items():
        splits.append(BucketSplit(partition, values(partition), bucket, next(iter(files)), ()))
        counts.setdefault(values(partition), Counter())[bucket] += sum(files.values())
    return replace(state, splits=tuple(splits)), counts


def partitions_of(reads: Sequence[PartitionRead]) -> tuple[set[Values], set[Values], set[Values]]:
    """Return the partitions of main, the snapshot and the delta branch that are read for these."""
    longest: dict[tuple[Values, ...], tuple[Values, ...]] = {}  # chains that begin with one delta go on with the same
    for read in reads:
        first = read.deltas[:1]
        if len(read.deltas) > len(longest.get(first, ())):
            longest[first] = read.deltas
    return (
        {r.target for r in reads if r.source == Source.MAIN},
        {r.target for r in reads if r.source == Source.SNAPSHOT} | {r.anchor for r in reads if r.anchor is not None},
        {r.target for r in reads if r.source == Source.DELTA} | {d for deltas in longest.values() for d in deltas},
    )


def stored_in(plan: ScanPlan, values: Collection[Values]) -> Selection:
    """Select some of the partitions of a plan."""
    return StoredPartitions(plan.schema).those({s.partition for s in plan.splits if s.values in values})


def _wanted(rows: Filter, schema: TableSchema) -> Choose:
    if rows.where is None and rows.predicate is None:
        return every_partition

    def choose(values: Sequence[Values]) -> Sequence[Values]:
        kept = keep(rows, [partition_bounds(schema, v) for v in values], schema)
        return [v for v, is_kept in zip(values, kept, strict=True) if is_kept]

    return choose
