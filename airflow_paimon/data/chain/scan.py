"""Reads the three branches of a chain table, each at one snapshot, and plans which files make which rows.

Partitions of main and of the snapshot branch are read directly, the others are merged (``splits``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow.compute as pc

from airflow_paimon.core.chain.layout import GapPolicy, Values
from airflow_paimon.core.chain.read_plan import (
    ChainReadMode,
    Choose,
    PartitionRead,
    Source,
    every_partition,
    plan_reads,
)
from airflow_paimon.core.chain.state import ChainState, chain_views, heads_together
from airflow_paimon.core.check.live_states import LiveStates, live_states_for_read
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.requests import GAP_POLICIES
from airflow_paimon.core.table.features import is_chain_main
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import (
    BucketSplit,
    ScanPlan,
    choose_state,
    count_live,
    plan_state,
    with_schemas_of_branch,
)
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.data.chain.splits import ChainSplit, chain_splits
from airflow_paimon.data.files.pruning import Filter, bind_where, keep, partition_bounds
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.layers import FEW_FILES, Layer, check_types, none_as_early, read_as_one, snapshot_at_time_of
from airflow_paimon.data.scan import TableRead, plan_read


class Inputs(NamedTuple):
    """The common parameters of all tasks that merge chains. ``main`` defines the output. Picklable."""

    main: TableRead
    anchors: TableRead
    deltas: TableRead


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRead:
    """A planned read. ``layers``: partitions read as they are stored; ``splits``: chains, read with ``inputs``.

    ``snapshots``: the snapshot that each branch is read at, by branch name; None = it has none.
    """

    inputs: Inputs
    layers: tuple[Layer, ...]
    splits: tuple[ChainSplit, ...]
    partitions: tuple[PartitionRead, ...]
    snapshots: Mapping[str, int | None]


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


def plan_chain(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    mode: ChainReadMode = "full",
    gap_policy: GapPolicy = "empty",
    batch_rows: int = BATCH_ROWS,
) -> ChainRead:
    """Plan a read of a chain table. ``version`` and ``timestamp`` select a time of main, at which the other branches
    are read too. ``predicate`` only prunes. ``mode``: the full partitions, the changes, or both.

    Raises:
        NotFoundError: no such branch, snapshot or tag. InvalidInputError: the branches don't form a chain table, or
            a partition that belongs to a chain is without a partition time.
        UnsupportedFeatureError: a feature that this engine does not read.
    """
    with reading_once():
        return plan_chosen_chain(
            choose_chain(table, version, timestamp),
            columns=columns,
            where=where,
            predicate=predicate,
            mode=mode,
            gap_policy=gap_policy,
            batch_rows=batch_rows,
        )


Counts = Mapping[Values, Mapping[int, int]]
"""How many files the buckets of partitions have."""


@dataclass(frozen=True, slots=True)
class PinnedChain:
    """The three branches at one time, from which any number of reads can be planned. ``travels``: an earlier one.
    ``counts``: of each branch, where its files aren't planned: a read plans those of its partitions.
    """

    state: ChainState
    travels: bool
    counts: tuple[Counts, Counts, Counts] | None = None

    @property
    def has_files(self) -> bool:
        return self.counts is None


@dataclass(frozen=True, slots=True)
class ChosenChain:
    """The same, of which neither files nor partitions are planned yet."""

    state: ChainState
    travels: bool

    def planned(self, plan: Callable[[ScanPlan], ScanPlan]) -> PinnedChain:
        """Plan the files of each branch."""
        main, snapshot, delta = map(plan, self.state.plans)
        return PinnedChain(replace(self.state, main=main, snapshot=snapshot, delta=delta), self.travels)

    def partitions_only(self) -> PinnedChain:
        """Plan the partitions and buckets of each branch, without their files."""
        known = live_states_for_read(self.state.main.table)
        found = [_partitions_only(known, with_schemas_of_branch(plan)) for plan in self.state.plans]
        (main, of_main), (snapshot, of_snapshot), (delta, of_delta) = found
        state = replace(self.state, main=main, snapshot=snapshot, delta=delta)
        return PinnedChain(state, self.travels, (of_main, of_snapshot, of_delta))


def choose_chain(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> ChosenChain:
    """Choose the state of a chain table.

    Raises:
        PaimonError: as ``plan_chain``.
    """
    layout, *others = chain_views(table)
    travels = version is not None or timestamp is not None
    pinned = _pinned(table, others, version, timestamp)
    main, snapshot, delta = read_as_one(pinned, newest=timestamp is not None) if travels else pinned
    for plan in (snapshot, delta):
        check_types(table.label, plan.table.label, main.schema, plan.schema)
    return ChosenChain(ChainState(layout=layout, main=main, snapshot=snapshot, delta=delta), travels)


def plan_chosen_chain(
    chosen: ChosenChain,
    *,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    **asked: Any,
) -> ChainRead:
    """Plan a read of what ``choose_chain`` gave; the arguments are those of ``plan_chain``, and so are the errors."""
    has_filter = where is not None or predicate is not None
    if has_filter and sum(count_live(p.table, p.snapshot) for p in chosen.state.plans) > FEW_FILES:
        pinned = chosen.partitions_only()
    else:
        pinned = chosen.planned(partial(plan_state, statistics=has_filter))
    return plan_pinned_chain(pinned, where=where, predicate=predicate, **asked)


def plan_pinned_chain(
    pinned: PinnedChain,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    mode: ChainReadMode = "full",
    gap_policy: GapPolicy = "empty",
    batch_rows: int = BATCH_ROWS,
) -> ChainRead:
    """Plan a read of a pinned state; the arguments are those of ``plan_chain``, and so are the errors."""
    reads = partition_reads(pinned, where, predicate, mode=mode, gap_policy=gap_policy)
    return plan_partitions(
        with_files(pinned, reads, statistics=where is not None or predicate is not None),
        reads,
        columns=columns,
        where=where,
        predicate=predicate,
        time_travel=pinned.travels,
        batch_rows=batch_rows,
    )


def plan_chain_columns(pinned: PinnedChain, **asked: Any) -> TableRead:
    """Plan what defines the output, without files; ``asked``: the columns and the filter of ``plan_pinned_chain``."""
    bare = replace(pinned.state.main, splits=(), index_entries=())
    return plan_read(bare, **asked, time_travel=pinned.travels, chained=True)[0]


def partition_reads(
    pinned: PinnedChain,
    where: pc.Expression | None,
    predicate: Predicate | None,
    *,
    mode: ChainReadMode,
    gap_policy: GapPolicy,
) -> list[PartitionRead]:
    """Plan which partitions are read, and how; raises as ``plan_chain``."""
    state, schema = pinned.state, pinned.state.main.schema
    rows = bind_where(where, predicate, schema.fields, state.main.table.label)
    return plan_reads(state.layout, state.partitions, _wanted(rows, schema), mode=mode, gap_policy=gap_policy)


def plan_partitions(
    state: ChainState,
    reads: Sequence[PartitionRead],
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    time_travel: bool = False,
    batch_rows: int = BATCH_ROWS,
) -> ChainRead:
    """Plan the files of these partitions; others are not read.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not read.
        InvalidInputError: an unknown column, or partitions of one chain have different numbers of buckets.
    """
    label = state.main.table.label
    rows = bind_where(where, predicate, state.main.schema.fields, label)

    def stored(plan: ScanPlan, source: Source) -> Layer:
        part = _only(plan, {r.target for r in reads if r.source == source})
        return plan_read(
            part,
            columns=columns,
            where=where,
            predicate=predicate,
            time_travel=time_travel,
            chained=True,
            batch_rows=batch_rows,
        )

    main, snapshot = stored(state.main, Source.MAIN), stored(state.snapshot, Source.SNAPSHOT)
    changes = stored(state.delta, Source.DELTA)
    chains = [r for r in reads if r.source in (Source.CHAIN, Source.CARRIED)]
    inner = _inner_columns(state.main.schema, main[0].columns, rows)

    def part(plan: ScanPlan, values: set[Values]) -> TableRead:
        # without the filter, which would let older versions win
        return plan_read(
            _only(plan, values),
            columns=inner,
            time_travel=time_travel,
            chained=True,
            batch_rows=batch_rows,
        )[0]

    anchors = part(state.snapshot, {r.anchor for r in chains if r.anchor is not None})
    deltas = part(state.delta, {d for r in chains for d in r.deltas})
    return ChainRead(
        inputs=Inputs(main[0], anchors, deltas),
        layers=(main, snapshot, changes),
        splits=tuple(chain_splits(state.layout, chains, state.snapshot, state.delta, rows)),
        partitions=tuple(reads),
        snapshots=state.snapshot_ids,
    )


def _only(plan: ScanPlan, values: set[Values]) -> ScanPlan:
    return replace(plan, splits=tuple(s for s in plan.splits if s.values in values))


def _pinned(
    table: Table, others: Sequence[Table], version: int | str | None, timestamp: int | str | None
) -> list[ScanPlan]:
    if timestamp is not None:
        plans = [_state_or_nothing(t, timestamp) for t in (table, *others)]
        if all(p.snapshot is None for p in plans):
            raise none_as_early(table, timestamp)
        return plans
    if version is None:
        return heads_together((table, *others))
    main = choose_state(table, version)
    if main.snapshot is None:
        return [main, *heads_together(others)]
    return [main, *(_state_then(t, main.snapshot) for t in others)]


def _state_or_nothing(table: Table, timestamp: int | str) -> ScanPlan:
    """Choose the state of a branch that may be newer than that time, or empty, as main often is."""
    try:
        return choose_state(table, timestamp=timestamp)
    except NotFoundError:
        return ScanPlan(table, None, table.schema())


def _state_then(table: Table, snapshot: Snapshot) -> ScanPlan:
    found = snapshot_at_time_of(table, snapshot)
    return ScanPlan(table, None, table.schema()) if found is None else choose_state(table, found)


def _partitions_only(known: LiveStates, state: ScanPlan) -> tuple[ScanPlan, Counts]:
    if state.snapshot is None:
        return state, {}
    values, splits = StoredPartitions(state.schema).values, []
    counts: dict[Values, Counter[int]] = {}
    for (partition, bucket), files in known.live_buckets(state.table, state.snapshot).items():
        splits.append(BucketSplit(partition, values(partition), bucket, next(iter(files)), ()))
        counts.setdefault(values(partition), Counter())[bucket] += sum(files.values())
    return replace(state, splits=tuple(splits)), counts


def with_files(pinned: PinnedChain, reads: Sequence[PartitionRead], *, statistics: bool) -> ChainState:
    """Plan the files of the partitions that are read. ``statistics``: see ``live_entries``."""
    if pinned.has_files:
        return pinned.state
    state = pinned.state
    chosen = zip(state.plans, partitions_of(reads), strict=True)
    main, snapshot, delta = (
        plan_state(plan, stored_in(plan, values), statistics=statistics) for plan, values in chosen
    )
    return ChainState(layout=state.layout, main=main, snapshot=snapshot, delta=delta)


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


def _inner_columns(schema: TableSchema, columns: Sequence[str], rows: Filter) -> tuple[str, ...]:
    """Return the columns to read of a chain: the output, those of the filter, and those that decide the merge."""
    needed = {*columns, *rows.columns, *schema.trimmed_primary_keys, *TableOptions(schema.options).sequence_fields}
    return tuple(n for n in schema.field_names if n in needed and n not in schema.partition_keys)
