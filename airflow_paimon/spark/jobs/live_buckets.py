"""The planned buckets that rows go to, and what the tasks that write them again have to know of each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.rewrite import NEW_BUCKET
from airflow_paimon.data.scan import ReadSplit
from airflow_paimon.data.write import TableWrite, distribute
from airflow_paimon.spark.jobs.correction_tasks import LiveBucket
from airflow_paimon.spark.rows_in import conform
from airflow_paimon.spark.shares import slim_split


def bucket_keys(schema: TableSchema) -> Callable[[BucketSplit], BucketKey]:
    """Return what gives a bucket's key by the form in which we write partitions (Paimon had others before 1.1)."""
    bucket_of = StoredPartitions(schema).bucket
    return lambda split: bucket_of(split)


def live_buckets(
    plan: ScanPlan, write: TableWrite, splits: Iterable[ReadSplit], limits: Mapping[BucketKey, int] | None
) -> dict[BucketKey, bytes]:
    """Return the pickled ``LiveBucket`` of each bucket with planned files, and of each that has a limit.

    ``splits``: of the buckets whose rows are kept. ``limits``: the sequence numbers that rows of main may have had
    when the branch began; None: those of the planned files count.
    """
    key_of = bucket_keys(plan.schema)
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


def touched_files(plan: ScanPlan, write: TableWrite, rows: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Return the planned files of the buckets that rows go to."""
    assigners, key_of = Assigners(write.dynamic), bucket_keys(plan.schema)
    conformed = (conform(batch, write.schema, write.label) for batch in rows)
    touched = {BucketKey(p.partition, p.bucket) for b in conformed for p in distribute(write, b, assigners)}
    return (f for s in plan.splits if key_of(s) in touched for f in s.files)
