"""Gathers the three branches of a chain table, each at one pinned snapshot, and plans which files make which rows.

Partitions of main and of the snapshot branch are ordinary reads. Chains that share an anchor are one ``ChainSplit`` per
bucket: its files are read once, whatever the number of partitions that come out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from airflow_paimon.core.chain import ChainLayout, GapPolicy, PartitionRead, Partitions, Source, Values, plan_chain_read
from airflow_paimon.core.chain_schema import check_chain_branches
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.features import is_chain_main
from airflow_paimon.core.manifest import DataFile
from airflow_paimon.core.options import TableOptions
from airflow_paimon.core.scan import BucketSplit, ScanPlan, plan_scan
from airflow_paimon.core.schema import TableSchema
from airflow_paimon.core.snapshot import Snapshot
from airflow_paimon.core.table import Table, resolve_version
from airflow_paimon.data.arrow_types import arrow_schema
from airflow_paimon.data.files import BATCH_ROWS
from airflow_paimon.data.layers import Layer, check_types, snapshot_at_time_of
from airflow_paimon.data.pruning import Filter, bind_where, keep, key_bounds, partition_bounds
from airflow_paimon.data.read_plan import TableRead, plan_read
from airflow_paimon.data.sections import Section, plan_sections


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPart:
    """One partition of a chain. ``is_anchor`` says that it is of the snapshot branch, otherwise of the delta branch."""

    values: Values
    is_anchor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTarget:
    """A partition that comes out: the first ``parts`` parts of its chain, merged, under its own values."""

    values: Values
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSplit:
    """One bucket of a chain and all targets that begin with its anchor. ``part_of``: each file's part, by file name."""

    bucket: int
    parts: tuple[ChainPart, ...]
    targets: tuple[ChainTarget, ...]
    sections: tuple[Section, ...]
    part_of: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRead:
    """A planned read. ``layers`` are partitions as they are stored, ``splits`` chains of ``anchors`` and ``deltas``.

    ``snapshots``: the snapshot that each branch is read at, by branch name; None = it has none.
    """

    main: TableRead
    layers: tuple[Layer, ...]
    anchors: TableRead
    deltas: TableRead
    splits: tuple[ChainSplit, ...]
    partitions: tuple[PartitionRead, ...]
    snapshots: Mapping[str, int | None]


def is_chain_read(table: Table, version: int | str | None = None) -> bool:
    """Tell whether this view is read through a chain; a version that names another branch's snapshot is not."""
    if not is_chain_main(TableOptions(table.schema().options), table.branch_name):
        return False
    return not isinstance(version, str) or resolve_version(table, version)[0].branch_name == table.branch_name


def plan_chain(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    gap_policy: GapPolicy = "empty",
    batch_rows: int = BATCH_ROWS,
) -> ChainRead:
    """Plan a read of a chain table (chain-tables 2). ``version`` and ``timestamp`` name a moment of main; the other
    branches are read as they were then.

    Raises:
        NotFoundError: no such branch, snapshot or tag. InvalidInputError: the branches are no chain table together, or
            a partition that belongs to a chain has no place in time.
        UnsupportedFeatureError: a feature that this engine does not read.
    """
    latest = table.schema()
    options = TableOptions(latest.options)
    others = [table.branch(options.snapshot_branch or ""), table.branch(options.delta_branch or "")]
    found = [b.schema() if b.exists() else None for b in others]
    layout = check_chain_branches(table.label, latest, *found)
    if options.deletion_vectors:
        raise UnsupportedFeatureError(
            f"{table.label}: the embedded engine does not read chains of branches with deletion-vectors.enabled; "
            f"use Paimon's own Spark connector",
            table=table.name,
        )
    plans = _pinned(table, others, version, timestamp)
    for plan in plans[1:]:
        check_types(table.label, plan.table.label, plans[0].schema, plan.schema)
    rows = bind_where(where, None, arrow_schema(plans[0].schema.fields), table.label)
    partitions = Partitions(**{n: _held(p) for n, p in zip(("main", "snapshot", "delta"), plans, strict=True)})
    wanted = _wanted(rows, plans[0].schema)
    reads = plan_chain_read(layout, partitions, wanted, gap_policy=gap_policy)

    travels = version is not None or timestamp is not None

    def stored(plan: ScanPlan, source: Source) -> Layer:
        mine = {r.target for r in reads if r.source == source}
        part = replace(plan, splits=tuple(s for s in plan.splits if s.values in mine))
        return plan_read(part, columns=columns, where=where, time_travel=travels, chained=True, batch_rows=batch_rows)

    main, snapshot = stored(plans[0], Source.MAIN), stored(plans[1], Source.SNAPSHOT)
    chains = [r for r in reads if r.source in (Source.CHAIN, Source.CARRIED)]
    inner = _inner_columns(plans[0].schema, main[0].columns, rows)
    anchors = _part_read(plans[1], {r.anchor for r in chains if r.anchor}, inner, travels, batch_rows)
    deltas = _part_read(plans[2], {d for r in chains for d in r.deltas}, inner, travels, batch_rows)
    return ChainRead(
        main=main[0],
        layers=(main, snapshot),
        anchors=anchors,
        deltas=deltas,
        splits=tuple(_chain_splits(layout, chains, plans[1], plans[2], rows)),
        partitions=tuple(reads),
        snapshots={p.table.branch_name: None if p.snapshot is None else p.snapshot.id for p in plans},
    )


def _held(plan: ScanPlan) -> frozenset[Values]:
    return frozenset(s.values for s in plan.splits)


def _pinned(
    table: Table, others: Sequence[Table], version: int | str | None, timestamp: int | str | None
) -> list[ScanPlan]:
    if timestamp is not None:
        plans = [_plan_or_nothing(t, timestamp) for t in (table, *others)]
        if all(p.snapshot is None for p in plans):
            raise NotFoundError(f"No branch of {table.label} has a snapshot as early as {timestamp}", table=table.name)
        return plans
    main = plan_scan(table, version=version)
    if version is None or main.snapshot is None:
        return [main, *(plan_scan(t) for t in others)]
    return [main, *(_plan_then(t, main.snapshot) for t in others)]


def _plan_or_nothing(table: Table, timestamp: int | str) -> ScanPlan:
    """Plan a branch that may have begun later, or be empty as main often is."""
    try:
        return plan_scan(table, timestamp=timestamp)
    except NotFoundError:
        return ScanPlan(table, None, table.schema())


def _plan_then(table: Table, snapshot: Snapshot) -> ScanPlan:
    found = snapshot_at_time_of(table, snapshot)
    return ScanPlan(table, None, table.schema()) if found is None else plan_scan(table, version=found)


def _wanted(rows: Filter, schema: TableSchema) -> Callable[[Values], bool]:
    return lambda values: rows.where is None or keep(rows, [partition_bounds(schema, values)], schema)[0]


def _inner_columns(schema: TableSchema, columns: Sequence[str], rows: Filter) -> tuple[str, ...]:
    """Name what has to be read of a chain: what comes out, what the filter looks at, and what decides the merge."""
    needed = {*columns, *rows.columns, *schema.trimmed_primary_keys, *TableOptions(schema.options).sequence_fields}
    return tuple(n for n in schema.field_names if n in needed and n not in schema.partition_keys)


def _part_read(
    plan: ScanPlan, parts: set[Values], columns: tuple[str, ...], travels: bool, batch_rows: int
) -> TableRead:
    """Check the files of these partitions; the filter is not applied, it would let older versions win."""
    some = replace(plan, splits=tuple(s for s in plan.splits if s.values in parts))
    return plan_read(some, columns=columns, time_travel=travels, chained=True, batch_rows=batch_rows)[0]


_ChainKey = tuple[Values, Values | None]
"""Group and anchor."""


def _chain_splits(
    layout: ChainLayout, chains: Sequence[PartitionRead], snapshot: ScanPlan, delta: ScanPlan, rows: Filter
) -> list[ChainSplit]:
    by_anchor: dict[_ChainKey, list[PartitionRead]] = {}
    for read in chains:
        by_anchor.setdefault((layout.group_of(read.target), read.anchor), []).append(read)
    stored = {True: _by_values(snapshot), False: _by_values(delta)}
    splits = []
    for (_, anchor), reads in by_anchor.items():
        longest = max(reads, key=lambda r: len(r.deltas))
        parts = [ChainPart(values=anchor, is_anchor=True)] if anchor is not None else []
        parts += [ChainPart(values=d, is_anchor=False) for d in longest.deltas]
        targets = [ChainTarget(values=r.target, parts=len(parts) - len(longest.deltas) + len(r.deltas)) for r in reads]
        buckets = [stored[p.is_anchor][p.values] for p in parts]
        _check_bucket_counts(layout, parts, buckets)
        for bucket in sorted({b for held in buckets for b in held}):
            split = _one_split(bucket, parts, targets, buckets, delta.schema, rows)
            if split.sections:
                splits.append(split)
    return splits


def _by_values(plan: ScanPlan) -> dict[Values, dict[int, BucketSplit]]:
    out: dict[Values, dict[int, BucketSplit]] = {}
    for split in plan.splits:
        out.setdefault(split.values, {})[split.bucket] = split
    return out


def _check_bucket_counts(
    layout: ChainLayout, parts: Sequence[ChainPart], buckets: Sequence[Mapping[int, BucketSplit]]
) -> None:
    counts = {s.total_buckets: p for p, held in zip(parts, buckets, strict=True) for s in held.values()}
    if len(counts) > 1:
        where = ", ".join(
            f"{c} in {layout.text_of(p.values)} of branch "
            f"{layout.snapshot_branch if p.is_anchor else layout.delta_branch}"
            for c, p in sorted(counts.items(), key=lambda item: item[0])
        )
        raise InvalidInputError(
            f"{layout.label}: partitions of one chain have different numbers of buckets ({where}): write them again "
            f"with one number of buckets",
            table=layout.label,
        )


def _one_split(
    bucket: int,
    parts: Sequence[ChainPart],
    targets: Sequence[ChainTarget],
    buckets: Sequence[Mapping[int, BucketSplit]],
    schema: TableSchema,
    rows: Filter,
) -> ChainSplit:
    files: list[tuple[int, DataFile]] = [
        (at, file) for at, held in enumerate(buckets) if bucket in held for file in held[bucket].files
    ]
    if rows.where is not None:
        # only bounds of the key: a value that loses must not make another one win
        known: list[dict[str, Any]] = [key_bounds(f, schema) for _, f in files]
        files = [pair for pair, kept in zip(files, keep(rows, known, schema), strict=True) if kept]
    found = [f for _, f in files]
    return ChainSplit(
        bucket=bucket,
        parts=tuple(parts),
        targets=tuple(targets),
        sections=tuple(plan_sections(found, [f.type for f in schema.key_fields])) if found else (),
        part_of={f.file_name: at for at, f in files},
    )
