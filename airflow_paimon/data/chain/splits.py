"""The files that a task merges: chains that share an anchor are one ``ChainSplit`` per bucket.

Its files are read once, for any number of resulting partitions. A large bucket is divided by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.read_plan import PartitionRead
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.reachability import DeletionVectorPlace, find_deletion_vectors
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.files.pruning import Filter, keep, key_bounds
from airflow_paimon.data.merge.sections import Run, key_ranges, plan_sections
from airflow_paimon.data.read_splits import TableRead, deletions_of


class Inputs(NamedTuple):
    """The common parameters of all tasks that merge chains. ``main`` defines the output. Picklable."""

    main: TableRead
    anchors: TableRead
    deltas: TableRead


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPart:
    """One partition of a chain. ``is_anchor``: it belongs to the snapshot branch, otherwise to the delta branch."""

    values: Values
    is_anchor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTarget:
    """A resulting partition: the first ``parts`` parts of its chain, merged, under its own values."""

    values: Values
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSection:
    """Files of a chain whose keys no other section has.

    ``base``: runs of the anchor, which then holds no deletes, so that changes are looked up in it. ``numbered``:
    several rows of one part may have one key, so their sequence numbers decide too.
    """

    base: tuple[Run, ...]
    changes: tuple[Run, ...]
    numbered: bool

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for run in (*self.base, *self.changes) for f in run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSplit:
    """One bucket of a chain and all targets that share its anchor. ``part_of``: each file's part, by file name.

    ``low`` and ``high``: keys from ``low`` on and below ``high`` only; other splits have the rest of the bucket.
    """

    bucket: int
    parts: tuple[ChainPart, ...]
    targets: tuple[ChainTarget, ...]
    sections: tuple[ChainSection, ...]
    part_of: Mapping[str, int]
    deletions: tuple[DeletionVectorPlace, ...] = ()
    low: Values | None = None
    high: Values | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for s in self.sections for f in s.files)


def chain_splits(
    layout: ChainLayout, chains: Sequence[PartitionRead], snapshot: ScanPlan, delta: ScanPlan, rows: Filter
) -> list[ChainSplit]:
    """Plan the merges of these chains. Files are pruned only by key bounds, as a losing version must not let another
    win.

    Raises:
        InvalidInputError: partitions of one chain have different numbers of buckets.
    """
    deletions = (*(d for part in (snapshot, delta) for d in find_deletion_vectors(part.index_entries, part.schema)),)
    splits = []
    for parts, targets, buckets in _chains(layout, chains, snapshot, delta):
        for bucket in sorted({b for held in buckets for b in held}):
            files = [(at, f) for at, held in enumerate(buckets) if bucket in held for f in held[bucket].files]
            files = _visible(files, delta.schema, rows)
            if files:
                splits.append(_one_split(bucket, parts, targets, files, delta.schema, deletions))
    return splits


def check_chains(layout: ChainLayout, chains: Sequence[PartitionRead], snapshot: ScanPlan, delta: ScanPlan) -> None:
    """Check partitions whose buckets are planned apart, without files; raises as ``chain_splits``."""
    for _ in _chains(layout, chains, snapshot, delta):
        pass


_Buckets = Mapping[int, BucketSplit]


def _chains(
    layout: ChainLayout, chains: Sequence[PartitionRead], snapshot: ScanPlan, delta: ScanPlan
) -> Iterator[tuple[list[ChainPart], list[ChainTarget], list[_Buckets]]]:
    """Yield what begins with one anchor: its parts, its targets, and the buckets of each part."""
    by_anchor: dict[tuple[Values, Values | None], list[PartitionRead]] = {}
    for read in chains:
        by_anchor.setdefault((layout.group_of(read.target), read.anchor), []).append(read)
    stored = {True: _by_values(snapshot), False: _by_values(delta)}
    for (_, anchor), reads in by_anchor.items():
        longest = max(reads, key=lambda r: len(r.deltas))
        parts = [ChainPart(values=anchor, is_anchor=True)] if anchor is not None else []
        parts += [ChainPart(values=d, is_anchor=False) for d in longest.deltas]
        targets = [ChainTarget(values=r.target, parts=len(parts) - len(longest.deltas) + len(r.deltas)) for r in reads]
        # a partition may have no file in the buckets that are planned
        buckets: list[_Buckets] = [stored[p.is_anchor].get(p.values, {}) for p in parts]
        _check_bucket_counts(layout, parts, buckets)
        yield parts, targets, buckets


def _by_values(plan: ScanPlan) -> dict[Values, dict[int, BucketSplit]]:
    out: dict[Values, dict[int, BucketSplit]] = {}
    for split in plan.splits:
        out.setdefault(split.values, {})[split.bucket] = split
    return out


def _check_bucket_counts(layout: ChainLayout, parts: Sequence[ChainPart], buckets: Sequence[_Buckets]) -> None:
    counts = {s.total_buckets: p for p, held in zip(parts, buckets, strict=True) for s in held.values()}
    if len(counts) > 1:
        where = ", ".join(
            f"{c} in {layout.text_of(p.values)} of branch "
            f"{layout.snapshot_branch if p.is_anchor else layout.delta_branch}"
            for c, p in sorted(counts.items(), key=lambda item: item[0])
        )
        raise InvalidInputError(
            f"{layout.label}: partitions of one chain have different numbers of buckets ({where}): write them again "
            f"with one number of buckets"
        )


_Placed = tuple[int, DataFile]
"""A file and the number of its part."""


def _visible(files: Sequence[_Placed], schema: TableSchema, rows: Filter) -> list[_Placed]:
    if TableOptions(schema.options).deletion_vectors:
        # files not compacted yet have no deletion vectors; Paimon's batch readers skip them as well
        files = [(at, f) for at, f in files if f.level > 0]
    if rows.where is None and rows.predicate is None:
        return list(files)
    known: list[dict[str, Any]] = [key_bounds(f, schema) for _, f in files]
    return [pair for pair, kept in zip(files, keep(rows, known, schema), strict=True) if kept]


def _one_split(
    bucket: int,
    parts: Sequence[ChainPart],
    targets: Sequence[ChainTarget],
    files: Sequence[_Placed],
    schema: TableSchema,
    deletions: Sequence[DeletionVectorPlace],
) -> ChainSplit:
    part_of, found = {f.file_name: at for at, f in files}, [f for _, f in files]
    own = deletions_of(deletions, found)
    deleted = frozenset(where.data_file for _, where in own)
    folds = TableOptions(schema.options).merge_engine != "deduplicate"
    anchored = {f for f, at in part_of.items() if parts[at].is_anchor and not folds}
    return ChainSplit(
        bucket=bucket,
        parts=tuple(parts),
        targets=tuple(targets),
        sections=tuple(_section(s.files, schema, part_of, anchored, deleted) for s in plan_sections(found, schema)),
        part_of=part_of,
        deletions=own,
    )


def _section(
    files: Sequence[DataFile],
    schema: TableSchema,
    part_of: Mapping[str, int],
    anchored: Iterable[str],
    deleted: frozenset[str],
) -> ChainSection:
    base = [f for f in files if f.file_name in anchored]
    if any(f.delete_row_count != 0 or f.file_name in deleted for f in base):
        base = []
    taken = {f.file_name for f in base}
    changes = _runs([f for f in files if f.file_name not in taken], schema)
    places = [{part_of[f.file_name] for f in run} for run in changes]
    numbered = sum(map(len, places)) > len(set().union(*places))
    return ChainSection(base=_runs(base, schema), changes=changes, numbered=numbered)


def _runs(files: Sequence[DataFile], schema: TableSchema) -> tuple[Run, ...]:
    """Arrange files in as few sorted runs as possible."""
    if not files:
        return ()
    sections = plan_sections(files, schema)
    widest = max(len(s.runs) for s in sections)
    return tuple(tuple(f for s in sections if at < len(s.runs) for f in s.runs[at]) for at in range(widest))


def divide_split(split: ChainSplit, schema: TableSchema, target_bytes: int) -> list[ChainSplit]:
    """Divide a split into parts of about ``target_bytes`` of its largest run, which other tasks can read.

    Files across a boundary are read by both sides.
    """
    types = [f.type for f in schema.key_fields]
    out: list[ChainSplit] = []
    for section in split.sections:
        own = replace(split, sections=(section,), deletions=deletions_of(split.deletions, section.files))
        ranges = {f.file_name: (low, high) for low, high, f in key_ranges(section.files, schema) or ()}
        cuts = _cuts(section, target_bytes) if ranges else []
        if not cuts:
            out.append(own)
            continue
        for first, end in zip([None, *cuts], [*cuts, None], strict=True):
            low = None if first is None else ranges[first.file_name][0]
            high = None if end is None else ranges[end.file_name][0]
            inside = frozenset(
                n for n, (a, b) in ranges.items() if (low is None or b >= low) and (high is None or a < high)
            )
            part = replace(section, base=_only(section.base, inside), changes=_only(section.changes, inside))
            out.append(
                replace(
                    own,
                    sections=(part,),
                    low=None if first is None else decode_row(first.min_key, types),
                    high=None if end is None else decode_row(end.min_key, types),
                )
            )
    return out


def _cuts(section: ChainSection, target_bytes: int) -> list[DataFile]:
    """Return the files of the largest run that begin another part."""
    if sum(f.file_size for f in section.files) <= target_bytes:
        return []
    largest = max((*section.base, *section.changes), key=lambda run: sum(f.file_size for f in run))
    cuts, filled = [], 0
    for file in largest:
        if filled and filled + file.file_size > target_bytes:
            cuts.append(file)
            filled = 0
        filled += file.file_size
    return cuts


def _only(runs: Sequence[Run], names: frozenset[str]) -> tuple[Run, ...]:
    cut = (tuple(f for f in run if f.file_name in names) for run in runs)
    return tuple(run for run in cut if run)
