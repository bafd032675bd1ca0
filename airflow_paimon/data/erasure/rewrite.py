"""Writes the files of a branch again without some rows, as one commit: afterwards its newest snapshot has none of them,
but for what writers have added meanwhile, which stays above.

Not only visible rows count: a file that holds such a row behind a deletion vector, or a bucket that holds one as an old
version of a key, is written again as well. In a chain table the deletes of other keys stay, as they hide rows of
earlier partitions. No changelog tells that they go, as it would hold the very rows; of main's
other rows it tells those that wait for a compaction, which this commit is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.conditions import KEYS_STAY, has_moving_keys
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.rewrites import commit_compaction, commit_rewrite
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.schema.columns_plan import ids_on_main
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Predicate
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot, with_schemas
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_plan import top_level
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput, Workers, outputs_of
from airflow_paimon.data.copy_on_write import (
    CopyOnWrite,
    plan_copy_on_write,
    read_columns,
    replacing_message,
    write_kept,
)
from airflow_paimon.data.erasure.search import Search
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, replaced
from airflow_paimon.data.files.write import RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.versions import drop_retracts, is_retract
from airflow_paimon.data.merge_changelog import changelog_of
from airflow_paimon.data.net_changelog import with_net_changelog
from airflow_paimon.data.read import filtered, read_split, read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read
from airflow_paimon.data.rewrite import live_bucket
from airflow_paimon.data.where import to_expression
from airflow_paimon.data.write import TableWrite, commit_or_discard, discard_files, plan_write

BeforeCommit = Callable[[ScanPlan, Sequence[CommitMessage]], None]
"""Gets what the branch held and what is about to be committed; what it raises stops that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """``files``: that were written again; ``rows``: visible ones that are gone; ``snapshot``: which did that."""

    files: int
    rows: int
    snapshot: int | None


def erase_from_branch(
    view: Table,
    search: Search,
    names: Collection[str],
    workers: Workers,
    options: CommitOptions,
    before_commit: BeforeCommit | None = None,
) -> Erased:
    """Write files of the newest snapshot again without the rows. ``names``: the files that hold some, of this branch.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not write, or columns that the branch hasn't.
        ConflictError: another commit changed the files; nothing was written.
    """
    planned = _plan(view, search, names)
    outputs = outputs_of(planned.write, workers.run(planned.tasks))
    messages = [m for o in outputs for m in o.messages]

    def commit() -> Receipt:
        if before_commit is not None:
            before_commit(planned.scan, messages)
        return planned.commit(view, messages, options)

    receipt = commit_or_discard(planned.write, messages, commit)
    return Erased(
        files=sum(len(w.files) for w in planned.tasks),
        rows=sum(o.deleted_rows for o in outputs),
        snapshot=None if receipt.snapshot is None else receipt.snapshot.id,
    )


def check_erasable(view: Table, search: Search, names: Collection[str]) -> None:
    """Refuse a branch from which rows are not erased, by metadata alone; raises as ``erase_from_branch``."""
    _plan(view, search, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedErasure:
    scan: ScanPlan
    write: TableWrite
    tasks: Sequence[CompactionTask]

    def commit(self, view: Table, messages: Sequence[CommitMessage], options: CommitOptions) -> Receipt:
        if not self.write.is_keyed:
            return commit_rewrite(view, messages, options, read=self.scan, operation=Operation.DELETE)
        if has_moving_keys(self.write.schema):
            options = replace(options, properties={**options.properties, **KEYS_STAY})
        rewritten = {(w.bucket.partition, w.bucket.bucket) for w in self.tasks if isinstance(w, BucketErasure)}
        splits = tuple(s for s in self.scan.splits if (s.partition, s.bucket) in rewritten)
        return commit_compaction(
            view,
            messages,
            options,
            read=replace(self.scan, splits=splits),
            kind=CommitKind.OVERWRITE,
            operation=Operation.DELETE,
        )


def _plan(view: Table, search: Search, names: Collection[str]) -> _PlannedErasure:
    keyed = bool(view.schema().primary_keys)
    return _plan_buckets(view, search, names) if keyed else _plan_files(view, search, names)


def _plan_files(view: Table, search: Search, names: Collection[str]) -> _PlannedErasure:
    plan = plan_copy_on_write(view)
    where = _where(view, search, plan.write.schema)
    splits = tuple(replace(s, files=files) for s in plan.scan.splits if (files := _chosen(s.files, names)))
    read, found = plan_read(replace(plan.scan, splits=splits), columns=read_columns(plan))
    slim = plan.for_tasks()
    tasks = [FileErasure(plan=slim, read=read, split=one, where=where) for split in found for one in split.divided()]
    return _PlannedErasure(scan=plan.scan, write=plan.write, tasks=tasks)


def _plan_buckets(view: Table, search: Search, names: Collection[str]) -> _PlannedErasure:
    chained = TableOptions(view.schema().options).chain_table
    write = plan_write(view, by_buckets=True, chained=chained)
    where = _where(view, search, write.schema)
    scan = with_schemas(plan_snapshot(view, write.planned_on, write.schema))
    # rows stay in their buckets, so that tasks need no more of the write
    for_tasks = TableWrite(store=write.store, label=write.label, schema=write.schema, planned_on=write.planned_on)
    tasks = []
    for split in scan.splits:
        if not _chosen(split.files, names):
            continue
        if split.bucket < 0:
            raise UnsupportedFeatureError(
                f"{view.label}: rows wait in bucket-postpone until another engine has moved them into their buckets; "
                f"compact the table with Paimon, then run it again"
            )
        read, live = live_bucket(scan, split, chained=chained)
        tasks.append(
            BucketErasure(
                write=for_tasks,
                bucket=split,
                read=read,
                split=live,
                where=where,
                keeps_deletes=chained,
                writes_changelog=_waits(view, write.schema, split.files),
            )
        )
    return _PlannedErasure(scan=scan, write=write, tasks=tasks)


def _waits(view: Table, schema: TableSchema, files: Sequence[DataFile]) -> bool:
    """Whether streaming readers have yet to get rows of a bucket, from its next compaction."""
    changelog = changelog_of(schema) if view.branch_name == MAIN else None
    top = top_level(files, TableOptions(schema.options).num_levels)
    return changelog is not None and not all(changelog.known(f, top) for f in files)


def _chosen(files: Sequence[DataFile], names: Collection[str]) -> tuple[DataFile, ...]:
    return tuple(f for f in files if f.file_name in names)


def _where(view: Table, search: Search, schema: TableSchema) -> pc.Expression:
    """Return the condition on the columns of a branch, which may have other names there.

    Raises:
        UnsupportedFeatureError: the branch lacks a column, or has it in another type.
    """
    ids = ids_on_main(view.branch(MAIN).schemas(), view.schemas()) if view.branch_name != MAIN else {}
    by_id = {ids.get(f.id, f.id): f for f in schema.fields}
    renamed: dict[str, str] = {}
    for field in search.fields:
        own = by_id.get(field.id)
        if own is None or own.type.root != field.type.root:
            raise UnsupportedFeatureError(
                f"{view.label} has no column {field.name!r} of type {field.type.root}, by which main's rows are "
                f"erased; alter the branch, or delete it"
            )
        renamed[field.name] = own.name
    return to_expression(_renamed(search.condition, renamed), schema)


def _renamed(condition: Predicate, names: dict[str, str]) -> Predicate:
    if isinstance(condition, Condition):
        return replace(condition, column=names[condition.column])
    parts = tuple(_renamed(p, names) for p in condition.parts)
    return AllOf(parts) if isinstance(condition, AllOf) else AnyOf(parts)


def _not(where: pc.Expression) -> pc.Expression:
    """True where the condition isn't: a row of which that is unknown stays, as with DELETE."""
    return ~pc.coalesce(where, pc.scalar(False))


def _inserts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Let rows that are no deletes be inserts."""
    kinds = rows.column(VALUE_KIND)
    return replaced(rows, VALUE_KIND, np.where(is_retract(kinds), kinds.to_numpy(zero_copy_only=False), 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileErasure:
    """A file of a table without keys. Picklable."""

    plan: CopyOnWrite
    read: TableRead
    split: ReadSplit
    where: pc.Expression

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.split.files

    def run(self) -> TaskOutput:
        """Write the rows that stay; deletion vectors are applied."""
        counts = [0, 0]

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in read_split(self.read, self.split):
                left = filtered(batch, _not(self.where)) if batch.num_rows else batch
                counts[0] += batch.num_rows
                counts[1] += left.num_rows
                yield left

        messages = write_kept(self.plan, kept())
        gone = replacing_message(self.split.bucket, *self.files)
        return TaskOutput(messages=(*messages, gone), rows=counts[1], deleted_rows=counts[0] - counts[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketErasure:
    """A bucket of a table with keys, with all its files: one version of each key is left. Picklable."""

    write: TableWrite
    bucket: BucketSplit
    read: TableRead
    split: ReadSplit
    where: pc.Expression
    keeps_deletes: bool = False
    writes_changelog: bool = False

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.bucket.files

    def run(self) -> TaskOutput:
        """Write the bucket again, merged, without the keys whose row is to go. Numbers of rows stay."""
        options = TableOptions(self.write.schema.options)
        level, highest = top_level(self.files, options.num_levels), highest_sequence(self.files)
        target = self.write.target(self.bucket, level=level, max_sequence=highest)
        writer, counts = RollingWriter(target), [0, 0]
        names = [*self.write.schema.field_names, VALUE_KIND, SEQUENCE_NUMBER]
        with abandoned_on_failure([writer]):
            for batch in read_versions(self.read, self.split):
                rows = drop_retracts(batch)
                left = self._kept(batch if self.keeps_deletes else rows)
                counts[0] += rows.num_rows
                counts[1] += drop_retracts(left).num_rows
                writer.write(_inserts(left).select(names))
            files = writer.finish()
        message = self._with_changelog(replacing_message(self.bucket, *self.files, by=files))
        return TaskOutput(messages=(message,), rows=counts[1], deleted_rows=counts[0] - counts[1])

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return filtered(batch, _not(self.where)) if batch.num_rows else batch

    def _with_changelog(self, message: CommitMessage) -> CommitMessage:
        if not self.writes_changelog:
            return message
        try:
            return with_net_changelog(self.write, message, (self.read, self.split), self._kept)
        except BaseException:
            discard_files(self.write, [message])
            raise
