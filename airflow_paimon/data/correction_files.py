"""Which files a correction will read, replace and write: by its condition, the manifests and their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.errors import InvalidInputError, UnsupportedError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.sql_text.statement import (
    DELETE,
    FUNCTION,
    INSERT,
    INSERT_OVERWRITE,
    MERGE,
    SELECT,
    UPDATE,
    StatementScope,
)
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.partition_scope import PartitionScope, choose_partitions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import Selection, StoredPartitions, partitions_where
from airflow_paimon.core.table.predicate import Predicate, columns_of, may_match
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.files.pruning import partition_bounds
from airflow_paimon.data.read_splits import plan_read

_OF_ROWS = (UPDATE, DELETE, MERGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotals:
    """Data files. ``rows``: as files count them, before any merge."""

    files: int = 0
    bytes: int = 0
    rows: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(files=self.files + other.files, bytes=self.bytes + other.bytes, rows=self.rows + other.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionFiles:
    """``reads``: files of the branch that may hold a row that is asked for. ``replaces``: live files that new ones take
    the place of, with their ``partitions``, ``buckets`` in canonical form and ``names``; ``writes``: the new ones,
    without ``files``. ``at_most``: which of these really hold such rows is known when they are read.
    """

    reads: FileTotals
    replaces: FileTotals
    writes: FileTotals
    partitions: Mapping[str, FileTotals] = field(default_factory=dict)
    buckets: frozenset[BucketKey] = frozenset()
    names: frozenset[str] = frozenset()
    at_most: bool = True
    notes: tuple[str, ...] = ()


def selection_for(scope: StatementScope, mode: str, choice: PartitionScope, schema: TableSchema) -> Selection | None:
    """Return the partitions that matter, None: all. Values that the condition names let whole manifests be skipped."""
    if scope.kind in (SELECT, FUNCTION) and choice.specs:
        return choice.selection(schema)
    if scope.kind == INSERT_OVERWRITE:
        return _overwritten(scope, schema).selection(schema) if scope.partition else None
    if scope.kind in (SELECT, FUNCTION) and mode == "overwrite":
        return None
    return partitions_where(scope.predicate, schema)


def correction_files(scan: ScanPlan, scope: StatementScope, *, mode: str, choice: PartitionScope) -> CorrectionFiles:
    """Plan what a correction of the branch does, of the live files in ``scan``; no file is read.

    ``mode`` and ``choice``: of a SELECT or function, how and where its rows are written.
    """
    schema = scan.schema
    found = _MatchingFiles(scan, scope)
    if scope.kind in _OF_ROWS:
        return _of_rows(scan, scope, found)
    if scope.kind == INSERT:
        keyed = bool(schema.primary_keys)
        note = "which buckets have the inserted keys, and so are rewritten, is known when the rows are computed"
        return CorrectionFiles(
            reads=FileTotals(), replaces=FileTotals(), writes=FileTotals(), notes=(note,) if keyed else ()
        )
    if mode == "upsert" and scope.kind != INSERT_OVERWRITE:
        splits = [s for s in found.splits if choice.matches(s.values)]
        return _replacing(schema, found.reads, splits, at_most=True)
    taken = choice if scope.kind != INSERT_OVERWRITE else _overwritten(scope, schema)
    splits = [s for s in scan.splits if taken.matches(s.values)]
    return _replacing(schema, found.reads, splits, at_most=scope.kind == INSERT_OVERWRITE)


def combined(works: Sequence[CorrectionFiles]) -> CorrectionFiles:
    """Return the work of several statements, each on the live files of now: at most what they do one after another."""
    partitions: dict[str, FileTotals] = {}
    for name, amount in (item for work in works for item in work.partitions.items()):
        partitions[name] = partitions.get(name, FileTotals()) + amount
    note = f"{len(works)} statements: a file that several of them touch counts for each"
    return CorrectionFiles(
        reads=sum((work.reads for work in works), FileTotals()),
        replaces=sum((work.replaces for work in works), FileTotals()),
        writes=sum((work.writes for work in works), FileTotals()),
        partitions=dict(sorted(partitions.items())),
        buckets=frozenset(bucket for work in works for bucket in work.buckets),
        names=frozenset(name for work in works for name in work.names),
        notes=(note, *dict.fromkeys(text for work in works for text in work.notes)),
    )


def _of_rows(scan: ScanPlan, scope: StatementScope, found: _MatchingFiles) -> CorrectionFiles:
    """UPDATE, DELETE and MERGE: whole buckets of a table with keys, else single files, are written again."""
    schema = scan.schema
    if scope.kind == DELETE and scope.whole and _is_of_partitions(scope.predicate, schema):
        dropped = _replacing(schema, FileTotals(), found.splits, at_most=False)
        note = "the DELETE takes whole partitions: their files are dropped, and none is read"
        return replace(dropped, writes=FileTotals(), notes=(note,))
    notes = ("rows that a MERGE inserts come on top",) if scope.kind == MERGE else ()
    splits = found.splits if schema.primary_keys else found.pruned
    return _replacing(schema, found.reads, splits, at_most=True, notes=notes)


def _is_of_partitions(predicate: Predicate | None, schema: TableSchema) -> bool:
    return predicate is None or columns_of(predicate) <= frozenset(schema.partition_keys)


def _overwritten(scope: StatementScope, schema: TableSchema) -> PartitionScope:
    """Return what an INSERT OVERWRITE replaces; at most everything, where only Spark can tell what PARTITION means."""
    try:
        return choose_partitions(schema, (scope.partition,) if scope.partition else (), "PARTITION")
    except InvalidInputError:
        return choose_partitions(schema, (), "PARTITION")


class _MatchingFiles:
    """The buckets that may hold rows of the condition: with all their files, and with those that may hold such rows."""

    def __init__(self, scan: ScanPlan, scope: StatementScope) -> None:
        keyed = bool(scan.schema.primary_keys)
        try:
            _, read = plan_read(scan, predicate=scope.predicate, layered=True, chained=True, whole_buckets=keyed)
        except UnsupportedError:
            types = {f.name: f.type for f in scan.schema.partition_fields}
            self.splits = [s for s in scan.splits if may_match(
                scope.predicate, partition_bounds(scan.schema, s.values), types)]  # fmt: skip
            self.pruned = self.splits
        else:
            self.splits = [s.bucket for s in read]
            self.pruned = [s.bucket if len(s.files) == len(s.bucket.files) else replace(s.bucket, files=s.files)
                           for s in read]  # fmt: skip
        self.reads = _totals(f for s in self.pruned for f in s.files)


def _replacing(
    schema: TableSchema,
    reads: FileTotals,
    splits: Iterable[BucketSplit],
    *,
    at_most: bool,
    notes: tuple[str, ...] = (),
) -> CorrectionFiles:
    """Replace these files by new ones with about as many rows and bytes."""
    stored, splits = StoredPartitions(schema), list(splits)
    partitions: dict[str, FileTotals] = {}
    for split in splits:
        name = shown_partition(schema, split.values)
        partitions[name] = partitions.get(name, FileTotals()) + _totals(split.files)
    total = sum(partitions.values(), FileTotals())
    return CorrectionFiles(
        reads=reads,
        replaces=total,
        writes=FileTotals(bytes=total.bytes, rows=total.rows),
        partitions=dict(sorted(partitions.items())),
        buckets=frozenset(stored.bucket(s) for s in splits),
        names=frozenset(f.file_name for s in splits for f in s.files),
        at_most=at_most,
        notes=notes,
    )


def _totals(files: Iterable[DataFile]) -> FileTotals:
    found = list(files)
    return FileTotals(files=len(found), bytes=sum(f.file_size for f in found), rows=sum(f.row_count for f in found))
