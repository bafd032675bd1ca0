"""What ``correct_branch`` does in tasks, or in its own process: check the rows of buckets, and rewrite each bucket."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.partitions import PartitionChoice, partition_text
from airflow_paimon.core.table.scan import BucketKey, BucketSplit
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.data.arrow_write import discard_files
from airflow_paimon.data.merge.row_sorter import RowSorter
from airflow_paimon.data.rewrite import NEW_BUCKET, rewrite_bucket
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.data.write import UNAWARE_TOTAL, TableWrite, distribute, write_rows
from airflow_paimon.spark.rows_in import conform, without_group


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBucket:
    """What a task has to know of a bucket. ``split`` None: nothing in it is to be kept."""

    bucket: BucketSplit
    split: ReadSplit | None
    max_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What all tasks of a correction have in common. Picklable.

    ``live`` holds pickled ``LiveBucket``s under the partition's bytes as we write them, and the bucket; a task
    unpickles those that it has rows for. ``read`` reads them.
    """

    write: TableWrite
    choice: PartitionChoice
    live: Mapping[BucketKey, bytes]
    read: TableRead | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """``rows``: how many rows of the user came to the bucket. ``message`` None in a dry run."""

    key: BucketKey
    values: tuple[Any, ...]
    rows: int
    message: CommitMessage | None


def correct_buckets(correction: Correction, batches: Iterable[pa.RecordBatch]) -> Iterator[BucketResult]:
    """Take all rows of some buckets, and write what those buckets shall hold, in bounded memory.

    Raises:
        InvalidInputError: a row lies outside the chosen partitions, or a key comes twice.
    """
    write = correction.write
    conformed = (conform(without_group(b), write.schema, write.label) for b in batches)
    if not write.is_keyed and not correction.dry_run:
        yield from _write_plain(correction, conformed)
        return
    values: dict[BucketKey, tuple[Any, ...]] = {}
    rows: Counter[BucketKey] = Counter()
    with RowSorter(write.schema, write.label) as sorter:
        for batch in conformed:
            for part in distribute(write, batch):
                check_partition(correction, part.values)
                key = BucketKey(part.partition, part.bucket)
                values.setdefault(key, part.values)
                rows[key] += part.num_rows
                if write.is_keyed:
                    sorter.add(key, part.batch, part.indices)
        messages = _check_keys(sorter, values) if correction.dry_run else _rewrite_all(correction, sorter, values)
    for key, found in values.items():
        yield BucketResult(key=key, values=found, rows=rows[key], message=messages.get(key))


def _check_keys(sorter: RowSorter, buckets: Iterable[BucketKey]) -> dict[BucketKey, CommitMessage]:
    """See that each key comes once, and write nothing."""
    for key in buckets:
        deque(sorter.rows(key), maxlen=0)
    return {}


def _rewrite_all(
    correction: Correction, sorter: RowSorter, buckets: Mapping[BucketKey, tuple[Any, ...]]
) -> dict[BucketKey, CommitMessage]:
    messages: dict[BucketKey, CommitMessage] = {}
    try:
        for key, values in buckets.items():
            messages[key] = _rewrite(correction, key, values, sorter.rows(key))
    except BaseException:  # such as a key that comes twice in a later bucket
        discard_files(correction.write, messages.values())
        raise
    return messages


def _write_plain(correction: Correction, batches: Iterator[pa.RecordBatch]) -> Iterator[BucketResult]:
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


def check_partition(correction: Correction, values: Sequence[Any]) -> None:
    """Refuse rows of a partition that was not chosen."""
    if not correction.choice.matches(values):
        schema = correction.write.schema
        raise InvalidInputError(
            f"{correction.write.label}: the rows hold partition {partition_text(schema, values)}, which is not among "
            f"those to correct: name it with --partitions, or filter it out"
        )


def _rewrite(
    correction: Correction, key: BucketKey, values: tuple[Any, ...], changes: Iterable[pa.RecordBatch]
) -> CommitMessage:
    write = correction.write
    known = correction.live.get(key)
    if known is None:
        total = write.buckets_of(key.partition) if write.default_buckets > 0 else UNAWARE_TOTAL
        fresh = BucketSplit(key.partition, values, key.bucket, total, ())
        return rewrite_bucket(write, fresh, None, changes, NEW_BUCKET)
    live: LiveBucket = pickle.loads(known)
    kept = None if live.split is None or correction.read is None else (correction.read, live.split)
    return rewrite_bucket(write, replace(live.bucket, values=values), kept, changes, live.max_sequence)
