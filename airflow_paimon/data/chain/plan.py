"""Plans reads of chain tables: partitions of main and of the snapshot branch are read as they are stored, the others
are merged (``splits``). Of many files those are planned together that are merged (``groups``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.features import check_readable
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.scan import ScanPlan, with_planned_files, with_schemas_of_branch
from airflow_paimon.data.chain.branch_states import (
    chain_state,
    partition_reads,
    partitions_of,
    stored_in,
    with_bare_buckets,
)
from airflow_paimon.data.chain.groups import ChainGroups, count_files, divide_chain
from airflow_paimon.data.chain.splits import Inputs, chain_splits, check_chains
from airflow_paimon.data.fallback_branches import PinnedState
from airflow_paimon.data.files.pruning import Filter, bind_where
from airflow_paimon.data.read_groups import (
    IN_PROCESS,
    BranchFiles,
    GroupOf,
    GroupPlan,
    GroupSizes,
    Layer,
    ReadPlan,
    manifests_of,
    sort_files,
)
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import TableRead, plan_read


def plan_chain(pinned: PinnedState, request: ReadRequest, sizes: GroupSizes = IN_PROCESS) -> ReadPlan:
    """Plan a read of a state of a chain table: first the partitions, then the files of those that are read.

    Raises:
        NotFoundError: no such branch, snapshot or tag. InvalidInputError: the branches don't form a chain table, a
            partition that belongs to a chain is without a partition time, or partitions of one chain have different
            numbers of buckets.
        UnsupportedFeatureError: a feature that this engine does not read.
    """
    assert pinned.chain is not None
    layout, states = pinned.chain, pinned.states
    plan = partial(with_planned_files, statistics=request.has_filter)
    with cached_reads():
        found = list(map(with_bare_buckets, states))
        state, counts = chain_state(layout, (s for s, _ in found)), [count for _, count in found]
        reads = partition_reads(state, request)
        files = count_files(reads, counts)
        if files > sizes.entries:
            groups = divide_chain(reads, counts, sizes.each(files))
            state = chain_state(layout, map(with_schemas_of_branch, state.plans))
            return _by_groups(state, reads, groups, request, sizes, travels=pinned.travels)
        chosen = zip(state.plans, partitions_of(reads), strict=True)
        state = chain_state(layout, (plan(p, stored_in(p, values)) for p, values in chosen))
        group = plan_partitions(state, reads, request, travels=pinned.travels)
        return ReadPlan(read=main_of(group), groups=[group])


def main_of(group: GroupPlan) -> TableRead:
    """Return what defines the output of a group of a chain table."""
    return group.layers[0][0]


def plan_chain_columns(pinned: PinnedState) -> TableRead:
    """Plan what defines the output, without files."""
    assert pinned.chain is not None
    return main_of(plan_partitions(chain_state(pinned.chain, pinned.states), (), ReadRequest(), travels=pinned.travels))


def _by_groups(
    state: ChainState,
    reads: Sequence[PartitionRead],
    groups: ChainGroups,
    request: ReadRequest,
    sizes: GroupSizes,
    *,
    travels: bool,
) -> ReadPlan:
    """Sort the files into groups. ``state``: with bare buckets."""
    chains = [r for r in reads if r.source in (Source.CHAIN, Source.CARRIED)]
    check_chains(state.layout, chains, state.snapshot, state.delta)
    bare = [replace(plan, splits=()) for plan in state.plans]
    branches = []
    for branch, (plan, values) in enumerate(zip(state.plans, partitions_of(reads), strict=True)):
        selection = stored_in(plan, values)
        manifests = [m for m in manifests_of(plan) if selection.may_be_in(m)]
        branches.append(BranchFiles(bare[branch], manifests, _group_of(groups, branch, plan.schema)))
    plan_group = partial(plan_partitions, request=request, travels=travels)
    base = plan_group(chain_state(state.layout, bare), ())
    found = sort_files(branches, sizes, statistics=request.has_filter)

    def each() -> Iterator[GroupPlan]:
        for group in range(len(groups)):
            yield plan_group(chain_state(state.layout, found.plans(group)), groups.reads(group))

    return ReadPlan(read=main_of(base), groups=each(), is_large=True)


def _group_of(groups: ChainGroups, branch: int, schema: TableSchema) -> GroupOf:
    values = StoredPartitions(schema).values
    find = cache(lambda partition, bucket: groups.find(branch, values(partition), bucket))
    return lambda partition, bucket, *_: find(partition, bucket)


def plan_partitions(
    state: ChainState, reads: Sequence[PartitionRead], request: ReadRequest, *, travels: bool
) -> GroupPlan:
    """Plan the files of these partitions; others are not read. The layers are those of main, of the snapshot branch
    and, of an incremental read, of the delta branch.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not read.
        InvalidInputError: an unknown column, or partitions of one chain have different numbers of buckets.
    """
    rows = bind_where(request.where, request.predicate, state.main.schema.fields, state.main.table.label)
    if not travels:
        for plan in (state.main, state.snapshot, state.delta):
            check_readable(plan.schema, table=plan.table.label, chained=True, branch=plan.table.branch_name)

    def read(plan: ScanPlan, **how: Any) -> Layer:
        found, splits = plan_read(plan, chained=True, **how)
        return replace(found, batch_rows=request.batch_rows), splits

    def stored(plan: ScanPlan, source: Source) -> Layer:
        part = _only(plan, {r.target for r in reads if r.source == source})
        return read(part, columns=request.columns, where=request.where, predicate=request.predicate)

    main, snapshot = stored(state.main, Source.MAIN), stored(state.snapshot, Source.SNAPSHOT)
    changes = stored(state.delta, Source.DELTA)
    chains = [r for r in reads if r.source in (Source.CHAIN, Source.CARRIED)]
    inner = _inner_columns(state.main.schema, main[0].columns, rows)
    # without the filter, which would let older versions win
    anchors, _ = read(_only(state.snapshot, {r.anchor for r in chains if r.anchor is not None}), columns=inner)
    deltas, _ = read(_only(state.delta, {d for r in chains for d in r.deltas}), columns=inner)
    return GroupPlan(
        layers=(main, snapshot, changes),
        inputs=Inputs(main[0], anchors, deltas),
        chains=tuple(chain_splits(state.layout, chains, state.snapshot, state.delta, rows)),
    )


def _only(plan: ScanPlan, values: set[Values]) -> ScanPlan:
    return replace(plan, splits=tuple(s for s in plan.splits if s.values in values))


def _inner_columns(schema: TableSchema, columns: Sequence[str], rows: Filter) -> tuple[str, ...]:
    """Return the columns to read of a chain: the output, those of the filter, and those that decide the merge."""
    needed = {*columns, *rows.columns, *schema.trimmed_primary_keys, *TableOptions(schema.options).sequence_fields}
    return tuple(n for n in schema.field_names if n in needed and n not in schema.partition_keys)
