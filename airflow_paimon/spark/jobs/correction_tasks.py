"""What the tasks of ``correct_branch`` do: check the rows of their buckets, and rewrite each bucket whole."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.requests.partitions import PartitionChoice, partition_text
from airflow_paimon.core.table.scan import BucketKey, BucketSplit, partition_types
from airflow_paimon.data.arrow_write import discard_files
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.data.rewrite import NEW_BUCKET, rewrite_bucket
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.data.write import UNAWARE_TOTAL, BucketRows, TableWrite, distribute, write_rows
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
    """Take all rows of some buckets, and write what those buckets shall hold.

    Raises:
        InvalidInputError: a row lies outside the chosen partitions, or a key comes twice.
    """
    write = correction.write
    conformed = (conform(without_group(b), write.schema, write.label) for b in batches)
    if not write.is_keyed and not correction.dry_run:
        yield from _write_plain(correction, conformed)
        return
    gathered: dict[BucketKey, list[BucketRows]] = {}
    for batch in conformed:
        for part in distribute(write, batch):
            check_partition(correction, part.values)
            gathered.setdefault(BucketKey(part.partition, part.bucket), []).append(part)
    changes = {key: [p.rows for p in parts] for key, parts in gathered.items()}
    if write.is_keyed:
        for rows in changes.values():
            _check_unique(write, rows)
    for key, parts in gathered.items():
        message = None if correction.dry_run else _rewrite(correction, key, parts[0].values, changes[key])
        yield BucketResult(key=key, values=parts[0].values, rows=sum(r.num_rows for r in changes[key]), message=message)


def _write_plain(correction: Correction, batches: Iterator[pa.RecordBatch]) -> Iterator[BucketResult]:
    """Without keys nothing has to be held back: rows go to the files as they come."""
    write = correction.write
    messages = write_rows(write, batches)
    types = partition_types(write.schema)
    results = [
        BucketResult(
            key=m.key, values=decode_row(m.partition, types), rows=sum(f.row_count for f in m.new_files), message=m
        )
        for m in messages
    ]
    try:
        for result in results:
            check_partition(correction, result.values)
    except InvalidInputError:
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


def _check_unique(write: TableWrite, changes: Sequence[pa.RecordBatch]) -> None:
    """Two rows with one key: which of them is right nobody can tell."""
    names = write.schema.trimmed_primary_keys
    rows = pa.Table.from_batches(changes)
    columns = [_whole(rows.column(n)) for n in names]
    keys = sort_keys([columns])[0]
    order = np.argsort(keys, kind="stable")
    twins = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(twins):
        row = int(order[twins[0]])
        named = ", ".join(f"{n} = {c[row].as_py()!r}" for n, c in zip(names, columns, strict=True))
        raise InvalidInputError(
            f"{write.label}: the rows hold {len(twins)} primary keys of a bucket more than once, such as {named}: each "
            f"key must come once, for which row is right can't be told"
        )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _rewrite(
    correction: Correction, key: BucketKey, values: tuple[Any, ...], changes: Sequence[pa.RecordBatch]
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
