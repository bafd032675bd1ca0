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
4. ``touched(bucket, file)`` is the message that takes the old file away.
5. ``commit_rewrite(table, messages, read=plan.scan, operation=Operation.UPDATE)`` of ``core/commit/`` commits
   the messages of all tasks. It raises ``ConflictError`` when another commit has changed one of the touched files:
   discard the new files (``discard_files(plan.write, messages)``), plan again and compute the rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.scan import BucketSplit, ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER
from airflow_paimon.data.row_columns import ROW_COLUMNS
from airflow_paimon.data.write import TableWrite, plan_write, write_rows

CHANGED = "_CHANGED"
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
    write = replace(plan.write, stores_row_ids=plan.tracks_rows, source=source)
    return write_rows(write, _stored(plan, batches))


def _stored(plan: CopyOnWrite, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = read_columns(plan)
    for batch in batches:
        if plan.tracks_rows and CHANGED in batch.schema.names:
            at = batch.schema.get_field_index(SEQUENCE_NUMBER)
            versions = pc.if_else(batch.column(CHANGED), pa.scalar(None, pa.int64()), batch.column(at))
            batch = batch.set_column(at, SEQUENCE_NUMBER, versions)
        yield batch.select(names)


def touched(bucket: BucketSplit, *files: DataFile, by: tuple[DataFile, ...] = ()) -> CommitMessage:
    """Return the message that takes these files of a bucket away; ``by``: the new ones in their place."""
    return CommitMessage(
        partition=bucket.partition,
        bucket=bucket.bucket,
        total_buckets=bucket.total_buckets,
        new_files=by,
        replaced=files,
    )
