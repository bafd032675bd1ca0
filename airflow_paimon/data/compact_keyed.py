"""Compaction of primary-key tables: the files of a bucket are merged into one sorted run on its top level.

Each key keeps its newest version, with its sequence number; deletes and expired records are dropped, deletion vectors
applied. Every part of a bucket is a task, which streams: nothing is shuffled. What writers append to the bucket
meanwhile stays above the result.

A write compacts its buckets itself where readers get its rows only from a compaction: those with deletion vectors and
first-row, and streaming readers of the changelog producers lookup and full-compaction. As Paimon's batch writers do,
it is an APPEND of level-0 files, and then a COMPACT. The rows are committed with the first; if the second does not
succeed, they wait for any later compaction of their bucket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from airflow_paimon.core.commit.committed import find_committed
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.commit.idempotency import commit_identity
from airflow_paimon.core.commit.rewrites import commit_compaction
from airflow_paimon.core.errors import OutcomeUnknownError, PaimonError
from airflow_paimon.core.format.manifest import DataFile, FileKind, FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot, SnapshotRef
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.table.features import check_mergeable
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.manifest_entries import selected_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.open_writers import OpenBucket, open_buckets
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import waits_for_compaction
from airflow_paimon.data.compact_append import wrong_count
from airflow_paimon.data.compaction_plan import FileGroup, plan_parts, sorted_runs, top_level
from airflow_paimon.data.compaction_tasks import CompactionTask, PlannedCompaction, RunTasks, TaskOutput, run_here
from airflow_paimon.data.copy_on_write import replacing_message
from airflow_paimon.data.files.arrow_types import VALUE_KIND, replaced
from airflow_paimon.data.files.pruning import value_bounds
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.versions import drop_retracts
from airflow_paimon.data.merge_changelog import Changelog, Merged, changelog_of, merged_with_changes
from airflow_paimon.data.read import deleted_rows, read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fitting_rows, plan_read
from airflow_paimon.data.record_expiry import RecordExpiry, record_expiry
from airflow_paimon.data.row_deletes import stored_partitions
from airflow_paimon.data.write import TableWrite

TASK_BYTES = 256 << 20
"""About as many bytes of rows does a task hold in memory, whatever the size of a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCompactionTask:
    """A part of a bucket, which shares no key with the rest of it."""

    write: TableWrite
    read: TableRead
    split: ReadSplit
    top: int
    keep_deletes: bool
    expiry: RecordExpiry | None = None
    changelog: Changelog | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.split.files

    def run(self) -> TaskOutput:
        """Merge the files, in bounded memory.

        Raises:
            FormatError: a file is missing or corrupt, or they have not the number of rows that the manifest says.
        """
        counted = _RowCounter(self.expiry)
        group = min(ROW_GROUP_BYTES, TASK_BYTES // 4)
        target = self.write.target(self.split.bucket, level=self.top, source=FileSource.COMPACT)
        writer = RollingWriter(target, group_bytes=group)
        changes_writer = RollingWriter(replace(target, source=FileSource.APPEND, is_changelog=True), group_bytes=group)
        rows = 0
        with abandoned_on_failure([writer, changes_writer]):
            for batch, changes in self._merged(counted):
                if batch is not None:
                    rows += batch.num_rows
                    writer.write(batch)
                if changes is not None:
                    changes_writer.write(changes)
            expected = sum(f.row_count for f in self.files) - deleted_rows(self.read.store, self.split.deletions)
            if counted.rows != expected:
                raise wrong_count(self.read.label, self.files, counted.rows, expected)
            files, changelog = writer.finish(), changes_writer.finish()
        message = replace(replacing_message(self.split.bucket, *self.files, by=files), changelog=changelog)
        deleted = sum(f.row_count for f in self.files) - rows
        return TaskOutput(messages=(message,), rows=rows, deleted_rows=deleted, expired_rows=counted.expired)

    def _merged(self, counted: _RowCounter) -> Iterator[Merged]:
        """Merge the rows; the second of a pair are the changes that they bring."""
        quiet = _RowCounter(self.expiry)
        if self.changelog is None:
            found: Iterator[Merged] = ((b, None) for b in read_versions(self.read, self.split, counted.seen))
        else:
            found = merged_with_changes(self.read, self.split, self.changelog, self.top, counted.seen, quiet.seen)
        for batch, changes in found:
            yield None if batch is None else self._stored(batch), changes

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.keep_deletes:
            return batch
        live = drop_retracts(batch)
        return replaced(live, VALUE_KIND, np.zeros(live.num_rows, np.int8))


class _RowCounter:
    """Counts the stored rows that a merge gets, and leaves out the expired ones."""

    def __init__(self, expiry: RecordExpiry | None) -> None:
        self._expiry = expiry
        self.rows = 0
        self.expired = 0

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        if self._expiry is None:
            return batch
        kept = self._expiry.kept(batch)
        self.expired += batch.num_rows - kept.num_rows
        return kept


def plan_keyed(
    table: Table, request: Compact, selection: Selection | None, began: SnapshotRef | None = None
) -> PlannedCompaction:
    """Plan the compaction of the selected partitions (None: all); see ``plan_buckets``."""
    limit = request.max_sorted_runs

    def chosen(bucket: BucketSplit) -> bool:
        return limit is None or sorted_runs(bucket.files) > limit

    return plan_buckets(table, selection, chosen, writers_stopped=request.writers_stopped, began=began)


def plan_buckets(
    table: Table,
    selection: Selection | None,
    chosen: Callable[[BucketSplit], bool],
    *,
    writers_stopped: bool = False,
    began: SnapshotRef | None = None,
    follows: Snapshot | None = None,
    new: Collection[str] = (),
) -> PlannedCompaction:
    """Plan the compaction of the chosen buckets of the selected partitions (None: all). ``follows``: the write whose
    files, the ``new`` ones, wait for it.

    Leaves out those that a running job may have open; with ``writers_stopped``, none was running at the head ``began``,
    or else is now.

    Raises:
        UnsupportedFeatureError: a feature with which this engine does not merge.
    """
    schema, head = table.schema(), table.latest_snapshot()
    check_mergeable(schema, table=table.label, branch=table.branch_name)
    options = TableOptions(schema.options)
    scan = plan_snapshot(table, head, schema, selection)
    scan = replace(scan, splits=tuple(s for s in scan.splits if chosen(s)))
    expiry = record_expiry(schema, time.time(), table.label)
    read, splits = plan_read(scan, layered=True, chained=True, whole_buckets=True)
    bucket_of = StoredPartitions(schema).bucket
    stopped_at = began or (None if head is None else SnapshotRef.of(head))
    groups, left_open = _without_open(
        scan, _groups(scan, read, splits, expiry, options), stopped_at if writers_stopped else None
    )
    write = TableWrite(store=table.store, label=table.label, schema=schema, planned_on=head)
    task = partial(
        KeyedCompactionTask,
        write=write,
        keep_deletes=options.chain_table,
        expiry=expiry,
        changelog=_changelog(schema, groups, follows, new),
    )
    whole = {bucket_of(s.bucket): s for s in splits}

    def tasks(chunk: Sequence[FileGroup]) -> list[CompactionTask]:
        """Return a task for each part of the buckets."""
        found: list[CompactionTask] = []
        for group in chunk:
            for part in group.parts:
                own = replace(whole[bucket_of(group.bucket)], bucket=replace(group.bucket, files=())).of(part)
                found.append(task(read=fitting_rows(read, own.files, TASK_BYTES), split=own, top=group.top))
        return found

    return PlannedCompaction(
        write=write,
        groups=groups,
        left_open=left_open,
        tasks=tasks,
        commit=lambda table, chunk, messages, options: commit_compaction(
            table,
            messages,
            options,
            read=replace(scan, splits=tuple(g.bucket for g in chunk)),
            operation=None if follows is None else Operation.WRITE,  # as Paimon's writers name it
        ),
    )


def _without_open(
    scan: ScanPlan, groups: Sequence[FileGroup], stopped_at: SnapshotRef | None
) -> tuple[list[FileGroup], list[OpenBucket]]:
    """Leave out the buckets that a running job may have open, and return these; ``stopped_at``: the head at which none
    was running.
    """
    if scan.snapshot is None:
        return [], []
    bucket_of = StoredPartitions(scan.schema).bucket  # remembers each partition
    places = {bucket_of(g.bucket): g for g in groups}
    now_ms = time.time_ns() // 1_000_000
    left_open = open_buckets(scan.table, scan.schema, places.keys(), scan.snapshot, now_ms, stopped_at)
    still_open = {found.bucket for found in left_open}
    return [g for place, g in places.items() if place not in still_open], left_open


def _changelog(
    schema: TableSchema, groups: Sequence[FileGroup], follows: Snapshot | None, new: Collection[str]
) -> Changelog | None:
    """Return the changelog that a compaction writes: none of what an overwrite alone has written."""
    of_overwrite = follows is not None and follows.commit_kind is CommitKind.OVERWRITE
    if of_overwrite and {f.file_name for g in groups for f in g.bucket.files} <= set(new):
        return None
    return changelog_of(schema)


def _groups(
    scan: ScanPlan, read: TableRead, splits: Sequence[ReadSplit], expiry: RecordExpiry | None, options: TableOptions
) -> list[FileGroup]:
    """Choose the files of each bucket that are to be written again."""
    forms, canonical = stored_partitions(scan, scan.splits), StoredPartitions(scan.schema).canonical
    groups = []
    for split in splits:
        files = split.bucket.files
        top = top_level(files, options.num_levels)
        marked = {d.data_file for _, d in split.deletions} | _with_expired(read, files, expiry)
        own = {f.file_name: forms.get(f.file_name, split.bucket.partition) for f in files}
        # of several forms one is left; a single one stays, as the engine that writes there goes on with it
        form = canonical(split.bucket.partition) if len({*own.values()}) > 1 else split.bucket.partition
        marked |= {name for name, stored in own.items() if stored != form}
        parts = plan_parts(
            split.sections,
            top=top,
            target=options.target_file_size,
            marked=marked,
            keep_deletes=options.chain_table,
        )
        if parts:
            groups.append(FileGroup(replace(split.bucket, partition=form), parts, top))
    return groups


def _with_expired(read: TableRead, files: Sequence[DataFile], expiry: RecordExpiry | None) -> set[str]:
    if expiry is None:
        return set()
    bounds = {f.file_name: value_bounds(f, read.schemas[f.schema_id], read.schema) for f in files}
    return {name for name, found in bounds.items() if expiry.column in found and expiry.may_be_in(found[expiry.column])}


log = logging.getLogger(__name__)

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Compacted:
    """``snapshot``: the id of the compaction's, also of an earlier try's; None: there was nothing to compact.
    ``warning``: the rows wait for a later compaction.
    """

    snapshot: int | None = None
    warning: str | None = None


def compact_written(
    table: Table, committed: Snapshot | None, run: RunTasks = run_here, *, writers_stopped: bool = False
) -> Compacted:
    """Compact the buckets in which a write has added files of level 0, if its readers wait for that.

    ``committed``: the snapshot of the write, or of an earlier try of it; None = it has written nothing. A bucket that
    has been compacted since is left alone. What an overwrite has written is no change that a changelog tells.

    Raises:
        PaimonError: why the files could not be merged; ``details["done"]`` is the snapshot that holds the rows.
    """
    if committed is None or not waits_for_compaction(table.schema(), table.branch_name):
        return Compacted()
    try:
        return _compact(table, committed, run, writers_stopped=writers_stopped)
    except PaimonError as error:
        error.details.setdefault("done", [committed.id])
        raise


def _compact(table: Table, committed: Snapshot, run: RunTasks, *, writers_stopped: bool) -> Compacted:
    delta = selected_entries(table, read_delta_lists(table, [committed]), None)
    new = [e for e in delta if e.kind == FileKind.ADD and e.file.level == 0]
    if not new:
        return Compacted()
    began = SnapshotRef.of(committed)
    identity = replace(
        commit_identity(committed.commit_user, table.branch_name, f"compact {committed.id}"), began=began
    )
    names = {e.file.file_name for e in new}
    selection = StoredPartitions(table.schema()).those({e.partition for e in new})
    for _ in range(_TRIES):
        planned = plan_buckets(
            table,
            selection,
            lambda bucket: any(f.level == 0 and f.file_name in names for f in bucket.files),
            writers_stopped=writers_stopped,
            began=began,
            follows=committed,
            new=names,
        )
        if not planned.groups and planned.left_open:
            warning = (
                f"the rows are committed (snapshot {committed.id}), but a running job (commit user "
                f"{planned.left_open[0].user}) may have their buckets open: readers get them from its next compaction"
            )
            return Compacted(warning=warning)
        if not planned.groups:
            return Compacted(snapshot=_earlier(table, identity, committed))
        options = CommitOptions(
            identity=identity, properties={OPERATION_PROPERTY: "compact"}, writers_stopped=writers_stopped
        )
        messages = [m for o in planned.run(run, planned.groups) for m in o.messages]
        receipt = planned.commit_or_discard(table, planned.groups, messages, options)
        if receipt is not None:
            return Compacted(snapshot=None if receipt.snapshot is None else receipt.snapshot.id)
    warning = (
        f"the rows are committed (snapshot {committed.id}), but other commits changed their buckets in all {_TRIES} "
        "attempts to compact them: readers get them from the next compaction (compact)"
    )
    log.warning("%s: %s", table.label, warning)
    return Compacted(warning=warning)


def _earlier(table: Table, identity: CommitIdentity, committed: Snapshot) -> int | None:
    """Return the compaction of an earlier try; None: somebody else's, or it has expired."""
    try:
        found = find_committed(table, identity, SnapshotRef.of(committed))
    except OutcomeUnknownError:
        return None
    return None if found is None else found.id
