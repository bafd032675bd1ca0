"""Plans what is read of a table: one way for few files and for many, of one branch or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import pyarrow as pa

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.features import check_readable
from airflow_paimon.core.table.live_entries import live_buckets
from airflow_paimon.core.table.name_digests import ANY_NAME
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketSelection, Selection, StoredPartitions
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.scan import ScanPlan, with_schemas_of_branch
from airflow_paimon.core.table.table import Table, resolve_version
from airflow_paimon.core.table.visibility import hides_level_zero
from airflow_paimon.data.chain.branch_states import choose_chain, is_chain_read
from airflow_paimon.data.chain.plan import plan_chain, plan_chain_columns
from airflow_paimon.data.fallback_branches import (
    PinnedState,
    choose_branches,
    files_of_filter,
    partition_key,
    plan_visible_files,
    visible_selection,
)
from airflow_paimon.data.read_groups import (
    IN_PROCESS,
    BranchFiles,
    GroupPlan,
    GroupSizes,
    Layer,
    ReadPlan,
    SortedFiles,
    entries_of,
    manifests_of,
    plan_of,
    sort_files,
)
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.data.system_tables import AUDIT_LOG, READ_OPTIMIZED, ROW_TRACKING, with_kinds


def pin(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> PinnedState:
    """Choose the state of a view for any number of reads, which a branch that is made anew meanwhile doesn't change.

    Raises:
        PaimonError: as ``plan_rows``.
    """
    choose = choose_chain if is_chain_read(table, version) else choose_branches
    with cached_reads():
        chosen = choose(table, version, timestamp)
        return replace(chosen, states=tuple(map(with_schemas_of_branch, chosen.states)))


def read_schema(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> TableSchema:
    """Return the table's latest schema, or with time travel that of the snapshot. For a ``timestamp`` it is the newest
    schema of the branches that are read together. No file is planned.

    Raises:
        NotFoundError: no such snapshot or tag, or no branch has a snapshot as early.
    """
    if timestamp is None:
        view, snapshot = resolve_version(table, version)
        return view.schema(snapshot.schema_id if version is not None and snapshot is not None else None)
    choose = choose_chain if is_chain_read(table) else choose_branches
    return choose(table, None, timestamp).states[0].schema


def plan_rows(table: Table, request: ReadRequest | None = None, sizes: GroupSizes = IN_PROCESS) -> ReadPlan:
    """Plan a read of one state of a view (None: of all that it has); raises as ``plan_branches`` and ``plan_chain``."""
    request = ReadRequest() if request is None else request
    choose = choose_branches if request.mode is None else choose_chain
    with cached_reads():
        return plan_pinned(choose(table, request.version, request.timestamp), request, sizes)


def plan_pinned(pinned: PinnedState, request: ReadRequest | None = None, sizes: GroupSizes = IN_PROCESS) -> ReadPlan:
    """Plan a read of a pinned state, as ``plan_rows``."""
    plan = plan_branches if pinned.chain is None else plan_chain
    return plan(pinned, ReadRequest() if request is None else request, sizes)


def pinned_schema(pinned: PinnedState) -> pa.Schema:
    """Return the columns of a pinned state; nothing is read. Raises as ``plan_rows``."""
    if pinned.chain is not None:
        return plan_chain_columns(pinned).output_schema
    return _plan_layer_reads(pinned, ReadRequest(), pinned.states)[0][0].output_schema


def plan_branches(pinned: PinnedState, request: ReadRequest, sizes: GroupSizes = IN_PROCESS) -> ReadPlan:
    """Plan a read of one state, of both branches if the table's options say so.

    Raises:
        NotFoundError: no such table, branch, snapshot or tag, or the other branch of a layered table is missing, where
            Paimon would return half of the rows.
        UnsupportedFeatureError: a feature that this engine does not read. InvalidInputError: an unknown column.
        FormatError: a manifest is missing or corrupt. ConflictError: the branch was deleted or made anew meanwhile.
    """
    with cached_reads():
        by_bucket = len(pinned.states) == 1
        selections = [
            files_of_filter(s.schema, by_bucket=by_bucket, where=request.where, predicate=request.predicate)
            for s in pinned.states
        ]
        if not _selects_more_than(pinned.states, selections, sizes.entries):
            plans = plan_visible_files(pinned.states, selections, statistics=request.has_filter)
            return plan_of(*_plan_layer_reads(pinned, request, plans))
        read = _plan_layer_reads(pinned, request, pinned.states)[0][0]
        found = _sort_into_groups(pinned.states, selections, request, sizes)
        groups = (GroupPlan(layers=_plan_layer_reads(pinned, request, plans)) for plans in found.each())
        return ReadPlan(read=read, groups=groups, is_large=True)


def _plan_layer_reads(pinned: PinnedState, request: ReadRequest, plans: Sequence[ScanPlan]) -> tuple[Layer, ...]:
    """Plan files of a state."""
    system, columns = request.system, request.columns
    if system == ROW_TRACKING and columns is None:
        columns = with_row_columns(plans[0].schema).field_names
    layers = []
    for plan in plans:
        if not pinned.travels:
            check_readable(plan.schema, table=plan.table.label, layered=len(plans) > 1, branch=plan.table.branch_name)
        read, splits = plan_read(
            _top_level_only(plan) if system == READ_OPTIMIZED else plan,
            columns=None if system == AUDIT_LOG else columns,
            where=request.where,
            predicate=request.predicate,
            layered=len(plans) > 1,
        )
        read = replace(read, batch_rows=request.batch_rows)
        layers.append((with_kinds(read, columns) if system == AUDIT_LOG else read, splits))
    return tuple(layers)


def _selects_more_than(states: Sequence[ScanPlan], selections: Sequence[Selection | None], entries: int) -> bool:
    """Return whether more than so many entries are selected, as far as manifests tell; buckets are part of each
    partition, for which there may be an index of blocks.
    """
    if any(isinstance(selection, BucketSelection) for selection in selections):
        return False
    return entries < sum(
        entries_of(m for m in manifests_of(state) if selection is None or _is_within(m, selection))
        for state, selection in zip(states, selections, strict=True)
    )


def _is_within(manifest: ManifestFile, selection: Selection) -> bool:
    """Whether a manifest seems to have entries of selected partitions only: its bounds are selected."""
    try:
        return selection(manifest.partition_stats.min_values) and selection(manifest.partition_stats.max_values)
    except PaimonError:
        return False  # other columns, or values that we don't know


def _sort_into_groups(
    states: Sequence[ScanPlan], selections: Sequence[Selection | None], request: ReadRequest, sizes: GroupSizes
) -> SortedFiles:
    """Sort the files that are selected into groups."""
    chosen = list(selections)
    if len(states) > 1:
        chosen[1] = visible_selection(states[1], _partitions_in(states[0]), chosen[1])
    manifests = [
        [m for m in manifests_of(state) if selection is None or selection.may_be_in(m)]
        for state, selection in zip(states, chosen, strict=True)
    ]
    files = sum(m.num_added_files - m.num_deleted_files for some in manifests for m in some)
    group_count = max(1, -(-files // sizes.each(files)))
    branches = [
        _branch_files(state, some, selection, group_count)
        for state, some, selection in zip(states, manifests, chosen, strict=True)
    ]
    return sort_files(branches, sizes, statistics=request.has_filter)


def _branch_files(
    state: ScanPlan, manifests: Sequence[ManifestFile], selection: Selection | None, groups: int
) -> BranchFiles:
    canonical = StoredPartitions(state.schema).canonical

    def by_file(partition: bytes, bucket: int, name: str) -> int | None:
        if selection is not None and not selection(partition):
            return None
        return crc32(name.encode(errors=ANY_NAME)) % groups

    @cache
    def group_of(partition: bytes, bucket: int) -> int | None:
        if selection is not None and not selection(partition):
            return None
        digest = blake2b(canonical(partition) + bucket.to_bytes(4, "big", signed=True), digest_size=8).digest()
        return int.from_bytes(digest, "big") % groups

    def by_bucket(partition: bytes, bucket: int, name: str) -> int | None:
        return group_of(partition, bucket)

    joined = state.schema.primary_keys or TableOptions(state.schema.options).data_evolution
    return BranchFiles(state, manifests, by_bucket if joined else by_file)


def _partitions_in(state: ScanPlan) -> frozenset[tuple[Any, ...]]:
    """Return the partitions with a live file, by ``partition_key``."""
    if state.snapshot is None:
        return frozenset()
    stored = {partition for partition, _ in live_buckets(state.table, state.snapshot)}
    key, values = partition_key(state.schema), StoredPartitions(state.schema).values
    return frozenset(key(values(partition)) for partition in stored)


def _top_level_only(plan: ScanPlan) -> ScanPlan:
    """Leave out the files that a read of ``$ro`` leaves out."""
    if not plan.schema.primary_keys or hides_level_zero(plan.schema):
        return plan
    top = TableOptions(plan.schema.options).num_levels - 1
    splits = (replace(s, files=tuple(f for f in s.files if f.level == top)) for s in plan.splits)
    return replace(plan, splits=tuple(s for s in splits if s.files))
