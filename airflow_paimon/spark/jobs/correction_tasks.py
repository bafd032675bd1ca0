"""Buckets are written again by rows for them, in tasks or in this process: by ``correct_branch`` and by statements.

Each task checks the rows of its buckets, and rewrites each bucket.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.partition_scope import PartitionScope
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.merge.sorted_runs import RowSorter
from airflow_paimon.data.merge.versions import UPDATE_BEFORE, Indices
from airflow_paimon.data.net_changelog import BucketState, with_net_changelog
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fits_in_process
from airflow_paimon.data.rewrite import NEW_BUCKET, rewrite_bucket
from airflow_paimon.data.write import UNAWARE_TOTAL, TableWrite, discard_files, distribute, write_rows
from airflow_paimon.spark.arrow_frames import frame_of_arrow
from airflow_paimon.spark.jvm import nullable_schema
from airflow_paimon.spark.rows_in import conform, distributed, without_group
from airflow_paimon.spark.shares import slim_split
from airflow_paimon.spark.tasks import SCHEMA, collect, map_in_arrow, ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBucket:
    """What a task has to know of a bucket. ``split`` None: nothing in it is to be kept."""

    bucket: BucketSplit
    split: ReadSplit | None
    max_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCorrection:
    """What all tasks of a correction have in common. Picklable.

    ``live`` holds pickled ``LiveBucket``s under the partition's bytes as we write them, and the bucket; a task
    unpickles those that it has rows for. ``read`` reads them. ``drops_matches``: rows of kind ``-U`` only count: a
    statement matched them and leaves them as they are. ``merges``: see ``rewrite_bucket``. ``writes_changelog``: the
    changes are written for streaming readers, if the table has a changelog producer; ``live`` then has the rows of
    every bucket with files. ``new_bucket``: the sequence number of the rows of a bucket without files.
    """

    write: TableWrite
    choice: PartitionScope
    live: Mapping[BucketKey, bytes]
    read: TableRead | None = None
    dry_run: bool = False
    drops_matches: bool = False
    merges: bool = False
    writes_changelog: bool = False
    new_bucket: int = NEW_BUCKET


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """``rows``: how many rows of the user came to the bucket; ``kinds``: how many of each ``_row_kind``, with a primary
    key. ``message`` None in a dry run, and where nothing changes.
    """

    key: BucketKey
    values: tuple[Any, ...]
    rows: int
    message: CommitMessage | None
    kinds: Mapping[str, int] = field(default_factory=dict)


def correct_buckets(correction: BucketCorrection, batches: Iterable[pa.RecordBatch]) -> Iterator[BucketResult]:
    """Take all rows of some buckets, and write what those buckets shall hold, in bounded memory.

    Raises:
        InvalidInputError: a row lies outside the chosen partitions, or a key comes twice and its rows are not combined.
    """
    write = correction.write
    assigners = Assigners(write.dynamic)
    placed = (without_group(write, b) for b in batches)
    conformed = ((conform(rows, write.schema, write.label), known) for rows, known in placed)
    if not write.is_keyed and not correction.dry_run:
        yield from _write_plain(correction, (rows for rows, _ in conformed))
        return
    values: dict[BucketKey, tuple[Any, ...]] = {}
    kinds: dict[BucketKey, Counter[str]] = {}
    with RowSorter(write.schema, write.label, combines=correction.merges and combines_rows(write.schema)) as sorter:
        for batch, known in conformed:
            for part in distribute(write, batch, assigners, known):
                check_partition(correction, part.values)
                key = BucketKey(part.partition, part.bucket)
                values.setdefault(key, part.values)
                kinds.setdefault(key, Counter()).update(_kinds(part.batch, part.indices))
                if write.is_keyed:
                    sorter.add(key, part.batch, part.indices)
        if correction.dry_run:
            messages = _check_keys(sorter, values)
        else:
            still = {k for k, found in kinds.items() if correction.drops_matches and not found.keys() - {"-U"}}
            _check_keys(sorter, still)
            written = _rewrite_all(correction, sorter, {k: v for k, v in values.items() if k not in still})
            messages = {m.key: m for m in assigners.with_hashes(written.values())}
    for key, found in values.items():
        total = sum(kinds[key].values())
        yield BucketResult(key=key, values=found, rows=total, message=messages.get(key), kinds=dict(kinds[key]))


def _kinds(batch: pa.RecordBatch, indices: Indices | None) -> dict[str, int]:
    """Count the rows of each kind."""
    kinds = np.asarray(batch.column(VALUE_KIND).to_numpy())
    counts = np.bincount(kinds if indices is None else kinds[indices], minlength=len(ROW_KINDS))
    return {kind: int(n) for kind, n in zip(ROW_KINDS, counts, strict=True) if n}


def _check_keys(sorter: RowSorter, buckets: Iterable[BucketKey]) -> dict[BucketKey, CommitMessage]:
    """See that each key comes once, and write nothing."""
    for key in buckets:
        deque(sorter.rows(key), maxlen=0)
    return {}


def _rewrite_all(
    correction: BucketCorrection, sorter: RowSorter, buckets: Mapping[BucketKey, tuple[Any, ...]]
) -> dict[BucketKey, CommitMessage]:
    messages: dict[BucketKey, CommitMessage] = {}
    try:
        for key, values in buckets.items():
            changes = sorter.rows(key)
            if correction.drops_matches:
                changes = (b.filter(pc.not_equal(b.column(VALUE_KIND), UPDATE_BEFORE)) for b in changes)
            messages[key] = _rewrite(correction, key, values, changes)
    except BaseException:  # such as a key that comes twice in a later bucket
        discard_files(correction.write, messages.values())
        raise
    return messages


def _write_plain(correction: BucketCorrection, batches: Iterator[pa.RecordBatch]) -> Iterator[BucketResult]:
    """Write rows of a table without primary key as they arrive."""
    write = correction.write
    messages = write_rows(write, batches)
    values = StoredPartitions(write.schema).values
    try:
        results = [
            BucketResult(key=m.key, values=values(m.partition), rows=sum(f.row_count for f in m.new_files), message=m)
            for m in messages
        ]
        for result in results:
            check_partition(correction, result.values)
    except BaseException:
        discard_files(write, messages)
        raise
    yield from results


def check_partition(correction: BucketCorrection, values: Sequence[Any]) -> None:
    """Refuse rows of a partition that was not chosen."""
    if not correction.choice.matches(values):
        schema = correction.write.schema
        raise InvalidInputError(
            f"{correction.write.label}: the rows have partition {shown_partition(schema, values)}, which is not among "
            "those to correct: name it in partitions (--partitions), or filter it out"
        )


def _rewrite(
    correction: BucketCorrection, key: BucketKey, values: tuple[Any, ...], changes: Iterable[pa.RecordBatch]
) -> CommitMessage:
    write = correction.write
    if write.only is not None and key.partition not in write.only:  # what is live there was not read
        raise AssertionError(f"{write.label}: rows came for a partition that the correction was not planned for")
    known = correction.live.get(key)
    if known is None:
        total = write.buckets_of(key.partition) if write.default_buckets > 0 else UNAWARE_TOTAL
        fresh = BucketSplit(key.partition, values, key.bucket, total, ())
        new = rewrite_bucket(write, fresh, None, changes, correction.new_bucket, merges=correction.merges)
        return _with_changelog(correction, new, None)
    live: LiveBucket = pickle.loads(known)
    kept = None if live.split is None or correction.read is None else (correction.read, live.split)
    bucket = replace(live.bucket, values=values)
    message = rewrite_bucket(write, bucket, kept, changes, live.max_sequence, merges=correction.merges)
    return _with_changelog(correction, message, kept)


def _with_changelog(correction: BucketCorrection, message: CommitMessage, before: BucketState | None) -> CommitMessage:
    """Add the changelog, against all files of the bucket, which the driver names as replaced."""
    if not correction.writes_changelog:
        return message
    replaced = () if before is None else before[1].files
    try:
        found = with_net_changelog(correction.write, replace(message, replaced=replaced), before)
    except BaseException:
        discard_files(correction.write, [message])
        raise
    return replace(found, replaced=message.replaced)


def live_buckets(
    plan: ScanPlan, write: TableWrite, splits: Iterable[ReadSplit], limits: Mapping[BucketKey, int] | None
) -> dict[BucketKey, bytes]:
    """Return the pickled ``LiveBucket`` of each bucket with planned files, and of each that has a limit.

    ``splits``: of the buckets whose rows are kept. ``limits``: the sequence numbers that rows of main may have had
    when the branch began; None: those of the planned files count.
    """
    key_of = StoredPartitions(plan.schema).bucket
    kept = {key_of(s.bucket): slim_split(s) for s in splits}
    found: dict[BucketKey, LiveBucket] = {}
    for split in plan.splits:
        key = key_of(split)
        slim = BucketSplit(split.partition, split.values, split.bucket, split.total_buckets, ())
        limit = highest_sequence(split.files) if limits is None else limits.get(key, NEW_BUCKET)
        found[key] = LiveBucket(bucket=slim, split=kept.get(key), max_sequence=limit)
    for key, limit in (limits or {}).items():
        if key not in found:  # emptied on the branch since
            gone = BucketSplit(key.partition, (), key.bucket, write.buckets_of(key.partition), ())
            found[key] = LiveBucket(bucket=gone, split=None, max_sequence=limit)
    return {key: pickle.dumps(live, pickle.HIGHEST_PROTOCOL) for key, live in found.items()}


def _touched_files(plan: ScanPlan, write: TableWrite, rows: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Return the planned files of the buckets that rows go to."""
    assigners, key_of = Assigners(write.dynamic), StoredPartitions(plan.schema).bucket
    conformed = (conform(batch, write.schema, write.label) for batch in rows)
    touched = {BucketKey(p.partition, p.bucket) for b in conformed for p in distribute(write, b, assigners)}
    return (f for s in plan.splits if key_of(s) in touched for f in s.files)


def run_buckets(
    rows: DataFrame, few: pa.Table | None, plan: ScanPlan, correction: BucketCorrection
) -> list[BucketResult]:
    """Bring rows to the tasks that write their buckets again. ``few``: the rows, if they are few enough to be here.

    Where what they are merged with is little, too, this process does it. ``plan``: with the files of these buckets.
    """
    write = correction.write
    placed = replace(correction, write=write.after_look_up())

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: correct_buckets(placed, batches))

    def discard(results: Sequence[BucketResult]) -> None:
        """Delete what the other tasks wrote when one of them refuses."""
        discard_files(write, [r.message for r in results if r.message is not None])

    if few is not None:
        if correction.read is None or fits_in_process(_touched_files(plan, write, few.to_batches())):
            return list(correct_buckets(correction, few.to_batches(BATCH_ROWS)))
        # Not evaluated twice. All is nullable: Arrow takes no null of a struct whose fields can't be null.
        rows = frame_of_arrow(rows.sparkSession, few, nullable_schema(rows))
    return collect(map_in_arrow(distributed(rows, write), work, SCHEMA), refused=discard)
