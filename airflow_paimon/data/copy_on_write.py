"""Copy-on-write of single files of an append table: UPDATE, DELETE, MERGE and compaction write through here.

Steps, the middle ones in tasks (``CopyOnWrite`` is picklable):

1. ``plan_copy_on_write(table)`` reads the head once: its ``scan`` has the files, ``write`` the parameters of the tasks.
2. Read what may be touched, with ``read_columns(plan)`` as the columns: all of the table's, and with row tracking
   ``_ROW_ID`` and ``_SEQUENCE_NUMBER``, e.g. ``plan_read(plan.scan, columns=read_columns(plan))``; each of its
   splits' ``divided()`` parts is one file.
3. ``write_kept(plan, batches)`` writes the rows of touched files that remain. A batch holds those columns and
   ``CHANGED`` (bool, not null): rows that are true get the version of the commit, the others keep theirs; all keep
   their ids, also in another partition. Rows that are left out are deleted. Without row tracking ``CHANGED`` has no
   effect, and may be missing. ``write_rows(plan.write, batches)`` writes inserted rows, which get new ids: never in a
   file with kept ones. Both take rows of any partition, as ``conform_rows`` returns them.
   Where all rows of a large file stay, ``write_columns`` writes only the columns that change, and copies the others.
4. ``replacing_message(bucket, file)`` is the message that takes the old file away.
5. ``commit_rewrite(table, messages, read=plan.scan, operation=Operation.UPDATE)`` of ``core/commit/`` commits
   the messages of all tasks. It raises ``ConflictError`` when another commit has changed one of the touched files:
   discard the new files (``discard_files(plan.write, messages)``), plan again and compute the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.stats import ColumnStats
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.row_tracking.row_ids_plan import is_stored
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.features import file_format
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import ROW_ID, SEQUENCE_NUMBER
from airflow_paimon.data.files.kept_columns import kept_columns
from airflow_paimon.data.files.pruning import value_bounds
from airflow_paimon.data.read_splits import ReadSplit
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.data.write import UNAWARE_TOTAL, TableWrite, plan_write, write_rows

CHANGED = internal_column("changed")
"""Marks kept rows whose values differ from those of the old file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOnWrite:
    """``scan``: the live files of one snapshot; ``write``: for new rows."""

    scan: ScanPlan
    write: TableWrite

    @property
    def tracks_rows(self) -> bool:
        return TableOptions(self.write.schema.options).row_tracking

    def for_tasks(self) -> CopyOnWrite:
        """Return the plan without its files, which tasks don't need."""
        return replace(self, scan=replace(self.scan, splits=(), index_entries=()))


def plan_copy_on_write(table: Table, selection: Selection | None = None) -> CopyOnWrite:
    """Read the head's files, of the selected partitions only (None: all).

    Raises:
        UnsupportedFeatureError: a primary-key table, or a feature that this engine does not write.
    """
    write = plan_write(table)
    return copy_on_write(plan_snapshot(table, write.planned_on, write.schema, selection), write)


def copy_on_write(scan: ScanPlan, write: TableWrite) -> CopyOnWrite:
    """Return the plan for files and parameters that were read from one head.

    Raises:
        UnsupportedFeatureError: a primary-key table.
    """
    if write.is_keyed:
        raise UnsupportedFeatureError(
            f"{scan.table.label} has a primary key: its files are merged, not rewritten one by one"
        )
    return CopyOnWrite(scan=scan, write=write)


def read_columns(plan: CopyOnWrite) -> list[str]:
    """Return the columns to read of rows that are written again."""
    return [*plan.write.schema.field_names, *(ROW_COLUMNS if plan.tracks_rows else ())]


def write_kept(
    plan: CopyOnWrite, batches: Iterable[pa.RecordBatch], source: FileSource = FileSource.APPEND
) -> list[CommitMessage]:
    """Write rows of touched files again; see the module's text for their columns.

    ``source``: COMPACT if no row is changed. After a failure the written files are deleted.
    """
    return write_rows(kept_write(plan, source), _stored(plan, batches))


def kept_write(plan: CopyOnWrite, source: FileSource = FileSource.APPEND) -> TableWrite:
    """Return how rows that keep their ids are written: with the columns ``read_columns``."""
    return replace(plan.write, stores_row_ids=plan.tracks_rows, source=source)


def changed_rows(plan: CopyOnWrite, rows: pa.RecordBatch, ids: pa.Array | None) -> pa.RecordBatch:
    """Return changed rows for ``kept_write``. ``ids``: with row tracking, the ids that they keep."""
    if ids is None:
        return rows
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), ROW_ID: ids}
    columns[SEQUENCE_NUMBER] = pa.nulls(rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([columns[n] for n in read_columns(plan)], read_columns(plan))


def _stored(plan: CopyOnWrite, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = read_columns(plan)
    for batch in batches:
        yield (_versioned(batch) if plan.tracks_rows else batch).select(names)


def _versioned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out the versions of changed rows, which the commit gives them."""
    if CHANGED not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index(SEQUENCE_NUMBER)
    versions = pc.if_else(batch.column(CHANGED), pa.scalar(None, pa.int64()), batch.column(at))
    return batch.set_column(at, SEQUENCE_NUMBER, versions)


COPIED_BYTES = 1 << 20
"""Smaller files are written again as a whole, several as one: there is little to copy in them."""

ColumnRows = Callable[[Sequence[DataField]], Iterator[pa.RecordBatch]]
"""Reads these columns of all rows of a file, in their order, with ``CHANGED``."""


def write_columns(
    plan: CopyOnWrite, split: ReadSplit, file: DataFile, changed: Collection[str], rows: ColumnRows
) -> CommitMessage | None:
    """Write a touched file again of which all rows stay in their partition, and only these columns have new values.

    The other columns are copied as they are stored. None: they can't be; nothing was written then, nor was ``rows``
    called. ``split``: of this file alone.
    """
    schema = plan.write.schema
    if not _has_columns_to_copy(plan, split, file, changed):
        return None
    target = plan.write.target(split.bucket, stores_row_ids=plan.tracks_rows)
    own = {*changed, *(ROW_COLUMNS if plan.tracks_rows else ())}
    if is_stored(file):
        own.discard(ROW_ID)
    try:
        source = plan.write.store.open_input(path := data_file_path(schema, split.bucket.values, target.bucket, file))
    except NotFoundError:  # another engine has put it elsewhere, which who reads it as a whole knows
        return None
    with source:
        found = kept_columns(source, path, target, own, file.row_count)
        if found is None:
            return None
        batches = rows(found.replaced)
        new = found.write(map(_versioned, batches) if plan.tracks_rows else batches, _stats_of(file, schema))
    bucket = split.bucket
    return CommitMessage(
        partition=StoredPartitions(schema).canonical(bucket.partition),
        bucket=bucket.bucket,
        total_buckets=UNAWARE_TOTAL,
        new_files=(new,),
    )


def _has_columns_to_copy(plan: CopyOnWrite, split: ReadSplit, file: DataFile, changed: Collection[str]) -> bool:
    schema = plan.write.schema
    kept = [n for n in schema.field_names if n not in changed]
    whole = not split.deletions and file.schema_id == schema.id and file_format(file.file_name) == "parquet"
    stays = not set(schema.partition_keys) & set(changed) and plan.write.default_buckets <= 0
    return bool(kept) and whole and stays and file.file_size >= COPIED_BYTES and file.external_path is None


def _stats_of(file: DataFile, schema: TableSchema) -> dict[str, ColumnStats]:
    """Return the statistics that the manifest has of a file's columns; they hold for the same values elsewhere."""
    found = value_bounds(file, schema, with_row_columns(schema))
    return {name: ColumnStats(b.low, b.high, b.nulls) for name, b in found.items()}


def replacing_message(bucket: BucketSplit, *files: DataFile, by: tuple[DataFile, ...] = ()) -> CommitMessage:
    """Return the message that takes these files of a bucket away; ``by``: the new ones in their place."""
    return CommitMessage(
        partition=bucket.partition,
        bucket=bucket.bucket,
        total_buckets=bucket.total_buckets,
        new_files=by,
        replaced=files,
    )
