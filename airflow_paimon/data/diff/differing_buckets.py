"""Plans a diff: the two snapshots, and the buckets in which their live files differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.manifest import DataFile, DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.file_sides import appended_on_main
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.row_tracking.row_ids_plan import has_row_ids
from airflow_paimon.core.table.history import branch_point, difference
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit, Difference
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import PartitionScope, choose_partitions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import ScanPlan, with_schemas_of_branch
from airflow_paimon.core.table.table import Table, resolve_version, split_version
from airflow_paimon.core.table.visibility import hides_level_zero, invisible_files, is_clustered
from airflow_paimon.data.files.arrow_types import ROW_ID, arrow_type
from airflow_paimon.data.merge.sections import plan_sections

BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSide:
    """One side: what it is called, and the scan of its differing buckets, with the schema to read it with."""

    name: str
    scan: ScanPlan


@dataclass(frozen=True, slots=True)
class DifferingUnit:
    """Numbers of splits in each side's ``scan`` that are compared with each other."""

    values: tuple[Any, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Rows in buckets that are not read. ``exact``: none of these rows is hidden by another one."""

    rows: int = 0
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Files of one side only whose rows neither batch reads nor diffs show before a compaction."""

    files: int = 0
    rows: int = 0
    partitions: frozenset[tuple[Any, ...]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPlan:
    """``after`` is the branch, ``before`` the other side. ``keys`` is empty without a primary key.

    ``skipped`` and ``rows_before`` go by canonical partition: equal values can be two partitions (0.0 and -0.0).
    ``rows_before``: of an append table, the rows in the differing buckets of ``before``. ``shared_row_ids``: of a
    row-tracking table, the first ``_ROW_ID`` that means different rows on the two sides; 0: rows can't be paired by id.
    ``rest``: rows of a large table that ``skipped`` leaves out, in partitions without a difference: nobody has counted
    these partitions and their buckets, so ``skipped_buckets`` is None then.
    ``hidden_before``, ``hidden_after``: differing files that are not shown. ``partitions_absent``: partitions that were
    asked for and that neither side has. ``appended_on_main``: see the function.
    """

    before: DiffSide
    after: DiffSide
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    columns_before_only: tuple[str, ...]
    columns_after_only: tuple[str, ...]
    differing: tuple[DifferingUnit, ...]
    skipped: Mapping[bytes, Skipped] = field(default_factory=dict)
    skipped_buckets: int | None = 0
    rest: Skipped | None = None
    rows_before: Mapping[bytes, int] = field(default_factory=dict)
    hidden_before: Hidden = Hidden()
    hidden_after: Hidden = Hidden()
    main_head: Snapshot | None = None
    partitions_absent: tuple[str, ...] = ()
    appended_on_main: Mapping[str, Any] | None = None
    shared_row_ids: int = 0

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns to read: those that are compared, and the row ids where they pair the rows."""
        return (*self.columns, ROW_ID) if self.shared_row_ids else self.columns


def plan_diff(context: Context, request: DiffBranches, version: Snapshot | None = None) -> DiffPlan:
    """Read the newest snapshots of both sides and find the buckets that differ.

    ``version``: compare this snapshot of the branch instead, as it is in the branch's schema of now.

    Raises:
        NotFoundError: no such branch. UnsafeOperationError: there is no base. InvalidInputError: other keys.
    """
    main = context.table
    branch, after, schema = _version_of(main, request.branch)
    after = version or after
    other, before, other_schema = _other_side(main, branch, schema, request)
    _check_keys(branch, schema, other, other_schema)
    choice = choose_partitions(schema, request.partitions, context.table.name)
    state_before, state_after = ScanPlan(other, before, other_schema), ScanPlan(branch, after, schema)
    state_after = with_schemas_of_branch(state_after)
    known = state_after.schemas if other == branch else {}
    state_before = with_schemas_of_branch(replace(state_before, schemas=known))
    found = _Buckets(branch, schema, (other, before, other_schema), after, choice)
    columns, only_before, only_after = _columns(schema, other_schema)
    head = main.latest_snapshot()
    return DiffPlan(
        before=DiffSide(
            name=request.against,
            scan=replace(state_before, splits=tuple(found.before), index_entries=tuple(found.index_before)),
        ),
        after=DiffSide(
            name=request.branch,
            scan=replace(state_after, splits=tuple(found.after), index_entries=tuple(found.index_after)),
        ),
        keys=schema.primary_keys,
        columns=columns,
        columns_before_only=only_before,
        columns_after_only=only_after,
        differing=tuple(found.units()),
        skipped=found.skipped,
        skipped_buckets=found.skipped_buckets if found.rest is None else None,
        rest=found.rest,
        rows_before=found.rows_before,
        hidden_before=_hidden(found.hidden_before),
        hidden_after=_hidden(found.hidden_after),
        main_head=head,
        partitions_absent=tuple(t for t in request.partitions if not found.has(choose_partitions(schema, [t], t))),
        appended_on_main=appended_on_main(main, branch, before if request.against == BASE else None, after, head)
        if after and head and branch.branch_name != MAIN
        else None,
        shared_row_ids=_shared_row_ids(main, branch, other, before, (schema, other_schema), found),
    )


def _shared_row_ids(
    main: Table,
    branch: Table,
    other: Table,
    before: Snapshot | None,
    schemas: Sequence[TableSchema],
    found: _Buckets,
) -> int:
    """Return the number of row ids that both sides had when they were one, 0 if that can't be known."""
    files = [f for splits in (found.before, found.after) for s in splits for f in s.files]
    tracked = all(TableOptions(s.options).row_tracking and not s.primary_keys for s in schemas)
    if not tracked or not files or not all(map(has_row_ids, files)):
        return 0
    if other == branch:
        return (before and before.next_row_id) or 0
    points = [branch_point(main, view) for view in (branch, other) if view.branch_name != MAIN]
    return min(((point and point.next_row_id) or 0 for point in points), default=0)


def _other_side(
    main: Table, branch: Table, schema: TableSchema, request: DiffBranches
) -> tuple[Table, Snapshot | None, TableSchema]:
    if request.against == request.branch:
        raise InvalidInputError(
            f"{branch.label} can't be compared with itself; give another branch, an earlier version "
            f"of it ({request.branch}@VERSION), or {BASE!r}"
        )
    if request.against != BASE:
        return _version_of(main, request.against)
    base = branch_point(main, branch)
    if base is None:
        raise UnsafeOperationError(
            f"{branch.label} shares no snapshot with main (created empty, or the history is expired), so it has no "
            "base; compare it with a branch, such as main, in against (--against)"
        )
    return branch, base, schema


def _version_of(main: Table, text: str) -> tuple[Table, Snapshot | None, TableSchema]:
    """Find a branch as it is, or, of ``BRANCH@VERSION``, as it was."""
    name, version = split_version(text)
    branch = main.branch(name).require()
    if version is None:
        return branch, branch.latest_snapshot(), branch.schema()
    view, snapshot = resolve_version(branch, version)
    assert snapshot is not None, "a version is one of a snapshot"
    return branch, snapshot, view.schema(snapshot.schema_id)


def _check_keys(branch: Table, schema: TableSchema, other: Table, other_schema: TableSchema) -> None:
    ours, theirs = (
        (schema.primary_keys, schema.partition_keys),
        (other_schema.primary_keys, other_schema.partition_keys),
    )
    kept = set(schema.primary_keys) | set(schema.partition_keys)
    types = [{f.name: arrow_type(f.type) for f in s.fields if f.name in kept} for s in (schema, other_schema)]
    if ours != theirs or types[0] != types[1]:
        raise InvalidInputError(
            f"{branch.label} and {other.label} have different primary keys or partition columns, so their rows can't "
            f"be matched"
        )


def _columns(schema: TableSchema, other: TableSchema) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the columns that both sides have with the same type, and the others."""
    theirs = {f.name: arrow_type(f.type) for f in other.fields}
    common = tuple(f.name for f in schema.fields if theirs.get(f.name) == arrow_type(f.type))
    only_before = tuple(n for n in other.field_names if n not in common)
    return common, only_before, tuple(n for n in schema.field_names if n not in common)


COUNTED_FILES = 20_000
"""Of a table with more live files, only the partitions that differ are read; the rows of the others are known from the
snapshot, but not how many partitions and buckets they are."""


class _Buckets:
    """The live files of both sides by bucket: differing ones as splits, the others only counted."""

    def __init__(
        self,
        branch: Table,
        schema: TableSchema,
        other: tuple[Table, Snapshot | None, TableSchema],
        after: Snapshot | None,
        choice: PartitionScope,
    ) -> None:
        view, before, schema_before = other
        self._schema = schema
        self._stored = StoredPartitions(schema)
        self._schema_before = schema_before
        self._hides_new = hides_level_zero(schema)
        self._column_files = TableOptions(schema.options).data_evolution
        self.index_before, self.index_after = read_index_entries(branch, before), read_index_entries(branch, after)
        diff = difference(branch, before, after)
        self._deleted_before, self._deleted_after = _deleted(self.index_before), _deleted(self.index_after)
        vectors = _vectors(self.index_before) ^ _vectors(self.index_after)
        self._marked = {where.data_file for _, _, where in vectors}
        moved = diff.buckets | {self._stored.bucket(key) for key, _, _ in vectors}  # rows can go without their files
        changed = self._stored.those({key.partition for key in moved})
        counted = None if choice.specs else self._counted_rows(branch, after, changed)
        chosen = choice.selection(schema) if choice.specs else changed if counted is not None else None
        live = self._stored.by_bucket(live_entries(branch, after, chosen).values())
        self.rest: Skipped | None = None
        if counted is not None:
            read = sum(e.file.row_count for entries in live.values() for e in entries)
            self.rest = Skipped(rows=max(counted - read, 0), exact=not schema.primary_keys and counted >= read)
        theirs = None
        if view != branch:  # the same file may have another schema id in another branch
            theirs = self._stored.by_bucket(live_entries(view, before, changed).values())
        self.before: list[BucketSplit] = []
        self.after: list[BucketSplit] = []
        self.rows_before: dict[bytes, int] = {}
        self.skipped: dict[bytes, Skipped] = {}
        self.skipped_buckets = 0
        self.hidden_before: list[_InPartition] = []
        self.hidden_after: list[_InPartition] = []
        self._partitions = {key.partition for key in (*moved, *live)}
        for key in sorted(moved):
            if choice.matches(self._values(key)):
                now = live.get(key, [])
                then = theirs.get(key, []) if theirs is not None else _before(diff, key, now)
                self._differs(key, then, now)
        for key, entries in live.items():
            if key not in moved and choice.matches(self._values(key)):
                self._skip(key, entries)

    def has(self, choice: PartitionScope) -> bool:
        """Whether either side has such a partition."""
        return any(choice.matches(self._stored.values(partition)) for partition in self._partitions)

    def _counted_rows(self, branch: Table, after: Snapshot | None, changed: Selection) -> int | None:
        """Return the rows of all files, without those deleted by vectors in partitions that haven't ``changed``; None:
        the table is small, or only its files tell.
        """
        if after is None or after.total_record_count is None or self._column_files:
            return None
        if count_live_files(branch, after) <= COUNTED_FILES:
            return None
        rest = (e for e in self.index_after if not changed(e.partition))
        deleted = [r.cardinality for e in rest for r in e.deletion_vector_ranges or () if r is not None]
        known = [number for number in deleted if number is not None]
        # releases before 1.0 don't say how many rows a vector deletes
        return after.total_record_count - sum(known) if len(known) == len(deleted) else None

    def _values(self, key: BucketKey) -> tuple[Any, ...]:
        return self._stored.values(key.partition)

    def _differs(self, key: BucketKey, then: Sequence[ManifestEntry], now: Sequence[ManifestEntry]) -> None:
        values = self._values(key)
        self._note_hidden(values, then, now)
        if not self._schema.primary_keys:
            known = self.rows_before.get(key.partition, 0)
            self.rows_before[key.partition] = known + _rows(then, self._deleted_before)
            if not self._column_files:  # these are read in groups, of which one file alone may have changed
                same = {e.file.file_name for e in then} & {e.file.file_name for e in now} - self._marked
                then, now = ([e for e in side if e.file.file_name not in same] for side in (then, now))
        for side, entries in ((self.before, then), (self.after, now)):
            if entries:
                files = tuple(e.file for e in entries)
                side.append(BucketSplit(key.partition, values, key.bucket, entries[0].total_buckets, files))

    def _note_hidden(
        self, values: tuple[Any, ...], then: Sequence[ManifestEntry], now: Sequence[ManifestEntry]
    ) -> None:
        both = {e.file.file_name for e in then} & {e.file.file_name for e in now}
        for entries, schema, found in (
            (then, self._schema_before, self.hidden_before),
            (now, self._schema, self.hidden_after),
        ):
            found += [(values, e.file) for e in invisible_files(entries, schema) if e.file.file_name not in both]

    def _skip(self, key: BucketKey, entries: Sequence[ManifestEntry]) -> None:
        self.skipped_buckets += 1
        known = self.skipped.get(key.partition, Skipped())
        exact = not self._schema.primary_keys or self._count_is_exact([e.file for e in entries])
        exact = exact and all(self._deleted_after.get(e.file.file_name, 0) is not None for e in entries)
        rows = known.rows + _rows(entries, self._deleted_after)
        self.skipped[key.partition] = Skipped(rows=rows, exact=known.exact and exact)

    def _count_is_exact(self, files: Sequence[DataFile]) -> bool:
        """Whether readers see all rows of the files: no key occurs twice, no row waits for a compaction."""
        if self._hides_new and not all(f.level for f in files):
            return False
        if is_clustered(self._schema):
            return all(f.delete_row_count == 0 for f in files)
        return all(s.is_raw for s in plan_sections(files, self._schema))

    def units(self) -> list[DifferingUnit]:
        """Pair the splits: bucket by bucket, or by partition where the number of buckets changed."""
        bucket_of = self._stored.compared_by((*self.before, *self.after))
        pairs: dict[BucketKey, tuple[list[int], list[int]]] = {}
        values: dict[BucketKey, tuple[Any, ...]] = {}
        for side, splits in enumerate((self.before, self.after)):
            for i, split in enumerate(splits):
                key = bucket_of(split)
                pairs.setdefault(key, ([], []))[side].append(i)
                values[key] = split.values
        return [DifferingUnit(values[k], tuple(old), tuple(new)) for k, (old, new) in pairs.items()]


_InPartition = tuple[tuple[Any, ...], DataFile]


def _hidden(found: Sequence[_InPartition]) -> Hidden:
    return Hidden(
        files=len(found), rows=sum(f.row_count for _, f in found), partitions=frozenset(values for values, _ in found)
    )


def _before(diff: Difference, key: BucketKey, now: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    added, removed = diff.added.get(key, {}), diff.removed.get(key, {})
    return [*(e for e in now if e.identifier not in added), *removed.values()]


def _vectors(entries: Iterable[IndexEntry]) -> set[tuple[BucketKey, str, DeletionVectorRange]]:
    return {
        (BucketKey(e.partition, e.bucket), e.file_name, where)
        for e in entries
        for where in e.deletion_vector_ranges or ()
        if where is not None
    }


def _deleted(entries: Iterable[IndexEntry]) -> dict[str, int | None]:
    """Return how many rows of each file are deleted by a vector; None: an early release didn't say it."""
    return {where.data_file: where.cardinality for _, _, where in _vectors(entries)}


def _rows(entries: Sequence[ManifestEntry], deleted: Mapping[str, int | None]) -> int:
    gone = sum(deleted.get(e.file.file_name) or 0 for e in entries)
    # column files of the same row ids (data evolution) hold the same rows
    ids = {e.file.first_row_id: e.file.row_count for e in entries if e.file.first_row_id is not None}
    return sum(ids.values()) + sum(e.file.row_count for e in entries if e.file.first_row_id is None) - gone
