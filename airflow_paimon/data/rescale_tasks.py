"""The tasks of a rescale: rows of some buckets, merged as a full compaction merges them, get into others.

Each key keeps its sequence number, so that late rows win or lose as before; deletes are dropped and deletion vectors
applied. A new bucket is one sorted run on its top level. Rows of tables without keys keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.compact_append import wrong_count
from airflow_paimon.data.compaction_plan import top_level
from airflow_paimon.data.compaction_tasks import TaskOutput
from airflow_paimon.data.files.arrow_types import VALUE_KIND, replaced
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, FileTarget, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.rules import replacing_rules
from airflow_paimon.data.merge.runs import merge_runs
from airflow_paimon.data.merge.versions import drop_retracts
from airflow_paimon.data.merge_changelog import Changelog, Merged, merged_with_changes
from airflow_paimon.data.read import deleted_rows, read_split, read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.data.rescale_plan import Share
from airflow_paimon.data.write import TableWrite, discard_files, write_rows

TASK_BYTES = 256 << 20
"""About as many bytes of rows does a task hold in memory for the files that it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleTask:
    """One share of a partition. ``splits``: of its old buckets, in their order; ``write``: knows the new count."""

    write: TableWrite
    read: TableRead
    share: Share
    splits: tuple[ReadSplit, ...]
    bucket_num: int
    changelog: Changelog | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for s in self.splits for f in s.files)

    def run(self) -> TaskOutput:
        """Write the rows of the new buckets, in bounded memory.

        Raises:
            FormatError: a file is missing or corrupt, they have not the number of rows that the manifest says, or a row
                lies in another bucket than its key's. The written files are deleted.
        """
        return _KeyedRescale(self).output() if self.write.is_keyed else _rescale_append(self)


def _rescale_append(work: RescaleTask) -> TaskOutput:
    counted = [0]

    def rows() -> Iterator[pa.RecordBatch]:
        for split in work.splits:
            for batch in read_split(work.read, split):
                counted[0] += batch.num_rows
                mask = np.isin(_buckets(work, batch), work.share.new)
                yield batch if mask.all() else batch.filter(pa.array(mask))

    messages = write_rows(work.write, (b for b in rows() if b.num_rows))
    try:
        _check_count(work, counted[0])
    except FormatError:
        discard_files(work.write, messages)
        raise
    written = sum(f.row_count for m in messages for f in m.new_files)
    return TaskOutput(messages=tuple(messages), rows=written, deleted_rows=0)


def _buckets(work: RescaleTask, batch: pa.RecordBatch) -> np.ndarray:
    """Return the new bucket of each row; all are of the share's class."""
    schema, share = work.write.schema, work.share
    fields = [schema.field(name) for name in schema.bucket_keys]
    function = TableOptions(schema.options).bucket_function
    columns, types = [batch.column(f.name) for f in fields], [f.type for f in fields]
    found = bucket_of_rows(columns, types, work.bucket_num, function)
    if (found % share.divisor != share.rest).any():
        old = ", ".join(str(b.bucket) for b in share.old)
        raise FormatError(
            f"{work.read.label}: bucket {old} has rows whose key belongs into another bucket, so it can't be rescaled; "
            "nothing was committed. Overwrite the partition with its rows"
        )
    return found


def _check_count(work: RescaleTask, counted: int) -> None:
    deleted = sum(deleted_rows(work.read.store, s.deletions) for s in work.splits)
    expected = sum(f.row_count for f in work.files) - deleted
    if counted != expected:
        raise wrong_count(work.read.label, work.files, counted, expected)


@dataclass(slots=True)
class _KeyedRescale:
    """``writers``: of each new bucket; ``changes``: of the changes of an old bucket in a new one, in key order each."""

    work: RescaleTask
    writers: dict[int, RollingWriter] = field(default_factory=dict)
    changes: dict[tuple[int, int], RollingWriter] = field(default_factory=dict)
    stored: int = 0
    merged: int = 0
    rows: int = 0

    def output(self) -> TaskOutput:
        work = self.work
        with abandoned_on_failure(self._written()):
            for batch in self._in_key_order():
                self.rows += batch.num_rows
                for bucket, part in self._divided(batch):
                    self._writer(bucket).write(part)
            _check_count(work, self.stored)
            if self.rows != self.merged:
                raise FormatError(
                    f"{work.read.label}: some keys are in two buckets, so they can't be rescaled; nothing was "
                    f"committed. Overwrite the partition with the rows that are right"
                )
            files = {bucket: writer.finish() for bucket, writer in self.writers.items()}
            changelog: dict[int, tuple[DataFile, ...]] = {}
            for (_, bucket), writer in self.changes.items():
                changelog[bucket] = (*changelog.get(bucket, ()), *writer.finish())
        messages = tuple(self._message(b, files.get(b, ()), changelog.get(b, ())) for b in sorted({*files, *changelog}))
        return TaskOutput(
            messages=messages, rows=sum(f.row_count for own in files.values() for f in own), deleted_rows=0
        )

    def _written(self) -> Iterator[RollingWriter]:
        yield from self.writers.values()
        yield from self.changes.values()

    def _message(self, bucket: int, files: tuple[DataFile, ...], changelog: tuple[DataFile, ...]) -> CommitMessage:
        return CommitMessage(
            partition=self.work.share.old[0].partition,
            bucket=bucket,
            total_buckets=self.work.bucket_num,
            new_files=files,
            changelog=changelog,
        )

    def _in_key_order(self) -> Iterator[pa.RecordBatch]:
        runs = [self._live(at, split) for at, split in enumerate(self.work.splits)]
        if len(runs) == 1:
            return runs[0]
        return merge_runs(runs, replace(replacing_rules(self.work.write.schema), keep_deletes=True))

    def _live(self, at: int, split: ReadSplit) -> Iterator[pa.RecordBatch]:
        """Merge an old bucket, and write what streaming readers have not been told of it."""
        for batch, changes in self._with_changes(split):
            if changes is not None:
                for bucket, part in self._divided(changes):
                    self._changes_writer(at, bucket).write(part)
            live = None if batch is None else drop_retracts(batch)
            if live is not None and live.num_rows:
                self.merged += live.num_rows
                yield replaced(live, VALUE_KIND, np.zeros(live.num_rows, np.int8))

    def _with_changes(self, split: ReadSplit) -> Iterator[Merged]:
        work = self.work
        if work.changelog is None:
            return ((batch, None) for batch in read_versions(work.read, split, self._seen))
        return merged_with_changes(work.read, split, work.changelog, self._top(split), self._seen, lambda b: b)

    def _seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.stored += batch.num_rows
        return batch

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        found = _buckets(self.work, batch)
        for bucket in self.work.share.new:
            mask = found == bucket
            if mask.any():
                yield bucket, batch if mask.all() else batch.filter(pa.array(mask))

    def _top(self, *splits: ReadSplit) -> int:
        levels = TableOptions(self.work.write.schema.options).num_levels
        return top_level([f for s in splits for f in s.files], levels)

    def _writer(self, bucket: int) -> RollingWriter:
        if bucket not in self.writers:
            target = replace(self._target(bucket), level=self._top(*self.work.splits), source=FileSource.COMPACT)
            group = min(ROW_GROUP_BYTES, TASK_BYTES // len(self.work.share.new))
            self.writers[bucket] = RollingWriter(target, group_bytes=group)
        return self.writers[bucket]

    def _changes_writer(self, at: int, bucket: int) -> RollingWriter:
        if (at, bucket) not in self.changes:
            group = min(ROW_GROUP_BYTES, TASK_BYTES // len(self.work.share.new))
            self.changes[at, bucket] = RollingWriter(
                replace(self._target(bucket), is_changelog=True), group_bytes=group
            )
        return self.changes[at, bucket]

    def _target(self, bucket: int) -> FileTarget:
        return self.work.write.target(replace(self.work.share.old[0], bucket=bucket))
