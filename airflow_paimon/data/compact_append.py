"""Compaction of append tables: small files become large ones, and deleted rows go; row ids and versions stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.commit.committer import Receipt
from airflow_paimon.core.commit.copy_on_write import commit_rewrite
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.table.features import check_unclustered
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.open_writers import OpenBucket
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_plan import Bin, plan_bins
from airflow_paimon.data.compaction_tasks import CompactionGroup, CompactionTask, TaskOutput
from airflow_paimon.data.copy_on_write import (
    CopyOnWrite,
    plan_copy_on_write,
    read_columns,
    replacing_message,
    write_kept,
)
from airflow_paimon.data.read import deleted_rows, read_split
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read
from airflow_paimon.data.write import TableWrite, discard_files


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCompaction:
    """A ``Planned`` of an append table."""

    plan: CopyOnWrite
    groups: Sequence[Bin]
    left_open: Sequence[OpenBucket] = ()
    """None: nothing merges in an append table."""

    @property
    def write(self) -> TableWrite:
        return self.plan.write

    def tasks(self, chunk: Sequence[CompactionGroup]) -> list[CompactionTask]:
        """Return a task for each group of files."""
        chosen = replace(self.plan.scan, splits=tuple(b.bucket for b in chunk))
        read, splits = plan_read(chosen, columns=read_columns(self.plan))
        slim = self.plan.for_tasks()
        return [
            AppendCompactionTask(
                plan=_in_place(slim, s.bucket),
                read=read,
                split=s,
                deleted_rows=deleted_rows(read.store, s.deletions),
            )
            for s in splits
        ]

    def commit(
        self, table: Table, chunk: Sequence[CompactionGroup], messages: Sequence[CommitMessage], options: CommitOptions
    ) -> Receipt:
        """Commit it; see ``commit_rewrite``."""
        return commit_rewrite(table, messages, options, read=self.plan.scan, kind=CommitKind.COMPACT, operation=None)


def plan_append(table: Table, request: Compact, selection: Selection | None) -> AppendCompaction:
    """Plan the compaction of the selected partitions (None: all).

    Raises:
        UnsupportedFeatureError: a feature that this engine does not write.
    """
    check_unclustered(table.schema(), table=table.label)
    plan = plan_copy_on_write(table, selection)
    marked = {where.data_file for _, where in find_deletion_vectors(plan.scan.index_entries, plan.scan.schema)}
    target = TableOptions(plan.write.schema.options).target_file_size
    return AppendCompaction(plan=plan, groups=plan_bins(plan.scan.splits, marked, target, request.min_files))


def _in_place(plan: CopyOnWrite, group: BucketSplit) -> CopyOnWrite:
    """Let the rows of a fixed bucket keep the place of the group's files in the order of the bucket."""
    if group.total_buckets <= 0:
        return plan
    bucket_of = StoredPartitions(plan.write.schema).bucket
    first = min(f.min_sequence_number for f in group.files)
    return replace(plan, write=replace(plan.write, next_sequence={bucket_of(group): first}))
