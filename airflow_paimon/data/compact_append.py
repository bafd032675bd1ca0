"""Compaction of append tables: small files become large ones, and deleted rows go; row ids and versions stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.table.features import check_unclustered
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_plan import FileGroup, plan_bins
from airflow_paimon.data.compaction_tasks import CompactionTask, PlannedCompaction, TaskOutput
from airflow_paimon.data.copy_on_write import (
    CopyOnWrite,
    plan_copy_on_write,
    read_columns,
    replacing_message,
    write_kept,
)
from airflow_paimon.data.read import deleted_rows, read_split
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read
from airflow_paimon.data.write import discard_files


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCompactionTask:
    """Files that a task writes together."""

    plan: CopyOnWrite
    read: TableRead
    split: ReadSplit
    deleted_rows: int

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.split.files

    def run(self) -> TaskOutput:
        """Write the rows of the files together, in bounded memory.

        Raises:
            FormatError: they have not the number of rows that the manifest says.
        """
        counted = [0]

        def rows() -> Iterator[Any]:
            for batch in read_split(self.read, self.split):
                counted[0] += batch.num_rows
                yield batch

        messages = write_kept(self.plan, rows(), FileSource.COMPACT)
        expected = sum(f.row_count for f in self.files) - self.deleted_rows
        if counted[0] != expected:
            discard_files(self.plan.write, messages)
            raise wrong_count(self.read.label, self.files, counted[0], expected)
        done = (*messages, replacing_message(self.split.bucket, *self.files))
        return TaskOutput(messages=done, rows=counted[0], deleted_rows=self.deleted_rows)


def wrong_count(label: str, files: Sequence[DataFile], found: int, expected: int) -> FormatError:
    """Return the error for files whose manifest says another number of rows."""
    return FormatError(
        f"{label}: files to compact, {files[0].file_name} among them, have {found} rows instead of the {expected} in "
        "their manifest; nothing was committed. Run check_table"
    )


def plan_append(table: Table, request: Compact, selection: Selection | None) -> PlannedCompaction:
    """Plan the compaction of the selected partitions (None: all).

    Raises:
        UnsupportedFeatureError: a feature that this engine does not write.
    """
    check_unclustered(table.schema(), table=table.label)
    plan = plan_copy_on_write(table, selection)
    marked = {where.data_file for _, where in find_deletion_vectors(plan.scan.index_entries, plan.scan.schema)}
    target = TableOptions(plan.write.schema.options).target_file_size

    def tasks(chunk: Sequence[FileGroup]) -> list[CompactionTask]:
        """Return a task for each group of files."""
        read, splits = plan_read(replace(plan.scan, splits=tuple(g.bucket for g in chunk)), columns=read_columns(plan))
        return [
            AppendCompactionTask(
                plan=_in_place(plan.for_tasks(), s.bucket),
                read=read,
                split=s,
                deleted_rows=deleted_rows(read.store, s.deletions),
            )
            for s in splits
        ]

    return PlannedCompaction(
        write=plan.write,
        groups=plan_bins(plan.scan.splits, marked, target, request.min_files),
        tasks=tasks,
        commit=lambda table, _, messages, options: commit_rewrite(
            table, messages, options, read=plan.scan, kind=CommitKind.COMPACT, operation=None
        ),
    )


def _in_place(plan: CopyOnWrite, group: BucketSplit) -> CopyOnWrite:
    """Let the rows of a fixed bucket keep the place of the group's files in the order of the bucket."""
    if group.total_buckets <= 0:
        return plan
    bucket_of = StoredPartitions(plan.write.schema).bucket
    first = min(f.min_sequence_number for f in group.files)
    return replace(plan, write=replace(plan.write, next_sequence={bucket_of(group): first}))
