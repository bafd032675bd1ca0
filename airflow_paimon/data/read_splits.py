"""Plans a read: checks the table's features, prunes by the filter, and divides the rest into splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.features import check_file, check_index, check_numbered, check_readable
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.reachability import DeletionVectorPlace, find_deletion_vectors
from airflow_paimon.core.table.scan import ScanPlan, with_schemas
from airflow_paimon.core.table.visibility import has_unique_keys, is_clustered, shown_files
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.files.key_lookup import buckets_of_points, key_points
from airflow_paimon.data.files.pruning import (
    NO_FILTER,
    Filter,
    bind_where,
    keep,
    key_bounds,
    partition_bounds,
    value_bounds,
)
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.merge.column_files import plan_column_files
from airflow_paimon.data.merge.sections import Section, plan_sections, unmerged
from airflow_paimon.data.row_columns import POSITION_COLUMNS, ROW_COLUMNS, check_row_ids, row_bounds, with_row_columns

KIND_FIELD = DataField(2147483646, "rowkind", AtomicType("STRING", (), False))
"""The first column of ``$audit_log``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """The common parameters of all splits of a read. Picklable, for tasks on other machines.

    ``schema``: the schema of the read; ``schemas``: those of the files, by id. ``kinds``: deletes are rows as well, and
    ``columns`` may name ``KIND_FIELD`` and, of a primary-key table, ``_SEQUENCE_NUMBER``. ``fills_chars``: CHARs are
    read filled up (``char_values``), not as they are stored; with a filter they always are.
    """

    store: Store
    label: str
    schema: TableSchema
    schemas: Mapping[int, TableSchema]
    columns: tuple[str, ...]
    rows: Filter = NO_FILTER
    batch_rows: int = BATCH_ROWS
    kinds: bool = False
    fills_chars: bool = False

    @property
    def fields(self) -> tuple[DataField, ...]:
        """The output columns, in order."""
        by_name = {**ROW_COLUMNS, **POSITION_COLUMNS, KIND_FIELD.name: KIND_FIELD}
        by_name |= {f.name: f for f in self.schema.fields}
        return tuple(by_name[name] for name in self.columns)

    @property
    def output_schema(self) -> pa.Schema:
        return arrow_schema(self.fields)

    @property
    def is_keyed(self) -> bool:
        return bool(self.schema.primary_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSplit:
    """Files of one bucket that one task reads. ``deletions``: the locations of their deletion vectors."""

    bucket: BucketSplit
    sections: tuple[Section, ...]
    deletions: tuple[DeletionVectorPlace, ...] = field(default=())

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for s in self.sections for f in s.files)

    @property
    def is_raw(self) -> bool:
        """Whether the files' rows are exactly the table's rows: nothing to merge, drop or delete."""
        return not self.deletions and all(s.is_raw for s in self.sections)

    def of(self, sections: Sequence[Section]) -> ReadSplit:
        """Return the split with these sections in the place of its own, and the deletion vectors of their files."""
        deletions = deletions_of(self.deletions, [f for s in sections for f in s.files])
        return replace(self, sections=tuple(sections), deletions=deletions)

    def divided(self) -> list[ReadSplit]:
        """Divide into splits of one section each, which share no key and which other tasks can read."""
        return [self.of([s]) for s in self.sections]


def deletions_of(
    deletions: Sequence[DeletionVectorPlace], files: Sequence[DataFile]
) -> tuple[DeletionVectorPlace, ...]:
    """Return the deletion vectors of these files."""
    names = {f.file_name for f in files}
    return tuple(d for d in deletions if d[1].data_file in names)


def plan_read(
    plan: ScanPlan,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    layered: bool = False,
    chained: bool = False,
    whole_buckets: bool = False,
    in_key_order: bool = False,
) -> tuple[TableRead, list[ReadSplit]]:
    """Check that this snapshot can be read correctly, prune, and divide the rest into splits.

    ``predicate`` only prunes; ``where`` filters the rows. ``layered``, ``chained``: see ``check_readable``.
    ``whole_buckets``: read all files of a primary-key table, as a full compaction does, also those that batch reads
    leave out until a compaction (``core/table/visibility.py``): whoever replaces a bucket has to. ``in_key_order``:
    each split of a primary-key table is read in key order, as with ``whole_buckets``.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not read. InvalidInputError: an unknown column.
        ConflictError: the branch was deleted or made anew meanwhile.
    """
    schema, label = plan.schema, plan.table.label
    check_readable(
        schema,
        table=label,
        time_travel=True,
        layered=layered,
        chained=chained,
        branch=plan.table.branch_name,
    )
    check_index(plan.index_entries, table=label)
    ids = sorted({f.schema_id for s in plan.splits for f in s.files})
    known = with_schemas(plan, ids).schemas
    read = TableRead(
        store=plan.table.store,
        label=label,
        schema=schema,
        schemas={i: known.get(i) or plan.table.schema(i) for i in ids},
        columns=_checked_columns(schema, columns, label),
        rows=_bound_filter(schema, where, predicate, label),
    )
    for split in plan.splits:
        for file in split.files:
            check_file(file, read.schemas[file.schema_id], table=label)
        check_numbered(split.files, schema, table=label)
    splits = _plan_splits(read, plan, whole_buckets=whole_buckets, in_key_order=in_key_order)
    if not read.is_keyed and ROW_COLUMNS.keys() & {*read.columns, *read.rows.columns}:
        check_row_ids((f for s in splits for f in s.files), label)
    return read, splits


_INFLATION = 6
"""Estimated ratio of the rows' size in memory to that in files."""
_LEAST_BATCH_ROWS = 1024
_RUNS_AT_ONCE = 8


def fitting_rows(read: TableRead, files: Sequence[DataFile], memory_bytes: int) -> TableRead:
    """Return the read in batches so small that a merge of these files takes about so much memory."""
    rows = sum(f.row_count for f in files)
    width = _INFLATION * sum(f.file_size for f in files) // max(rows, 1) + 16
    batch_rows = max(_LEAST_BATCH_ROWS, min(BATCH_ROWS, memory_bytes // 4 // _RUNS_AT_ONCE // width))
    return replace(read, batch_rows=batch_rows)


def with_positions(read: TableRead) -> TableRead:
    """Return the read with the columns of ``POSITION_COLUMNS`` before its own."""
    return replace(read, columns=(*POSITION_COLUMNS, *read.columns))


def _bound_filter(schema: TableSchema, where: pc.Expression | None, predicate: Predicate | None, label: str) -> Filter:
    rows = bind_where(where, predicate, with_row_columns(schema).fields, label)
    if where is None and predicate is None:
        return rows
    return replace(rows, points=key_points(where, rows.columns, predicate, schema))


def _checked_columns(schema: TableSchema, columns: Sequence[str] | None, label: str) -> tuple[str, ...]:
    if columns is None:
        return schema.field_names
    known = with_row_columns(schema).field_names
    unknown = [c for c in columns if c not in known]
    if unknown or len(set(columns)) != len(columns) or not columns:
        what = f"no column {unknown[0]!r}" if unknown else "its columns one by one: ask for at least one, none twice"
        raise InvalidInputError(f"{label} has {what} (columns: {', '.join(schema.field_names)})")
    return tuple(columns)


def _plan_splits(read: TableRead, plan: ScanPlan, *, whole_buckets: bool, in_key_order: bool) -> list[ReadSplit]:
    # bucket -2 holds postponed rows, invisible until another engine moves them into real buckets
    points, totals = read.rows.points, {s.total_buckets for s in plan.splits}
    wanted = {total: buckets_of_points(points, read.schema, total) if points else None for total in totals}
    visible = [s for s in plan.splits if s.bucket >= 0 and _may_hold(read, s, wanted[s.total_buckets])]
    kept = keep(read.rows, [partition_bounds(read.schema, s.values) for s in visible], read.schema)
    deletions = tuple(find_deletion_vectors(plan.index_entries, read.schema))
    splits = []
    for split in (s for s, k in zip(visible, kept, strict=True) if k):
        files = split.files if whole_buckets else shown_files(split.files, read.schema)
        sections = _sections(read, files, merge=whole_buckets or in_key_order)
        sections = _prune_sections(read, split, sections)
        if sections:
            splits.append(ReadSplit(bucket=split, sections=(), deletions=deletions).of(sections))
    return splits


def _may_hold(read: TableRead, split: BucketSplit, wanted: frozenset[int] | None) -> bool:
    """Return whether the bucket can hold a filter's values of the bucket key; ``wanted``: their buckets, None = all."""
    schema = read.schema
    if wanted is None or split.bucket in wanted or TableOptions(schema.options).bucket <= 0:
        return True
    keys = [schema.field(name) for name in schema.bucket_keys]
    stored = [{f.id: f.type.root for f in read.schemas[i].fields} for i in {f.schema_id for f in split.files}]
    return any(types.get(key.id) != key.type.root for types in stored for key in keys)  # it may have another hash


def _sections(read: TableRead, files: Sequence[DataFile], *, merge: bool) -> list[Section]:
    if not files:
        return []
    if read.is_keyed and not is_clustered(read.schema) and (merge or not has_unique_keys(files, read.schema)):
        return plan_sections(files, read.schema)
    if TableOptions(read.schema.options).data_evolution:
        return plan_column_files(files, read.label)
    return unmerged(files)


def _prune_sections(read: TableRead, split: BucketSplit, sections: list[Section]) -> list[Section]:
    """Leave out files whose statistics exclude every row.

    If a key may have several versions, only key bounds are used: a losing version must not make another one win.
    """
    if read.rows.where is None and read.rows.predicate is None:
        return sections
    fixed = partition_bounds(read.schema, split.values)
    files = [(s, f) for s in sections for f in s.files]
    known = []
    for section, file in files:
        bounds = key_bounds(file, read.schema) if read.is_keyed and not is_clustered(read.schema) else {}
        if not section.needs_merge:
            bounds = {**value_bounds(file, read.schemas[file.schema_id], read.schema), **bounds}
            bounds |= {} if read.is_keyed else row_bounds(file)
        known.append({**bounds, **fixed})
    may_match = keep(read.rows, known, with_row_columns(read.schema))
    kept = {f.file_name for (_, f), k in zip(files, may_match, strict=True) if k}
    out = []
    for section in sections:
        runs = tuple(run for r in section.runs if (run := tuple(f for f in r if f.file_name in kept)))
        if runs:
            out.append(replace(section, runs=runs))
    return out


LIMIT_BYTES = 32 << 20
"""Bytes that one process reads in about a second and can hold in memory several times over."""
OPEN_BYTES = 128 << 10
"""The cost of opening a file, in bytes: an object store answers 256 requests in a few seconds."""
LIMIT_ROWS = 2_000_000
"""A limit on rows too, as files that compress well hold many rows in few bytes."""


def fits_in_process(files: Iterable[DataFile], limit: int | None = None) -> bool:
    """Whether the files are few and small enough to be read sequentially in this process."""
    size = rows = 0
    for file in files:
        size, rows = size + file.file_size + OPEN_BYTES, rows + file.row_count
    return size <= (LIMIT_BYTES if limit is None else limit) and rows <= LIMIT_ROWS
