"""What ``correct_branch`` does in tasks, or in its own process: check the rows of buckets, and rewrite each bucket."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.partitions import PartitionChoice, StoredPartitions, shown_partition
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.data.merge.sorted_runs import RowSorter
from airflow_paimon.data.merge.versions import UPDATE_BEFORE, Indices
from airflow_paimon.data.net_changelog import BucketState, with_net_changelog
from airflow_paimon.data.rewrite import NEW_BUCKET, rewrite_bucket
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.data.write import UNAWARE_TOTAL, TableWrite, discard_files, distribute, write_rows
from airflow_paimon.spark.rows_in import conform, without_group


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
    choice: PartitionChoice
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


def _without_matches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.not_equal(batch.column(VALUE_KIND), UPDATE_BEFORE))


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
            changes = _without_matches(changes) if correction.drops_matches else changes
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
