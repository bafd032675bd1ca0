"""Dynamic buckets whose keys a publish or rollback would change, although writers may have them open."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.format.hash_index import INDEX_TYPE, read_hash_index, same_hashes
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange, other_keys
from airflow_paimon.core.table.live_files import Difference
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.table import Table


def check_dynamic_bucket_keys(
    target: Table,
    schema: TableSchema,
    changes: Sequence[BucketChange],
    theirs: Difference,
    head: Snapshot,
    whose: str = "the branch",
) -> None:
    """Refuse changes that give dynamic buckets other keys than they have in ``head``, the target's newest snapshot.

    ``whose``: where the changes come from, for people. Reads the hash indexes that the changes replace.

    Raises:
        UnsafeOperationError: lists the buckets.
    """
    bucket_of = StoredPartitions(schema).bucket
    mine = {bucket_of(i): i for i in read_index_entries(target, head) if i.index_type == INDEX_TYPE}
    other = []
    for bucket in {c.bucket for c in changes} & theirs.index.keys():
        new = next((i for i in theirs.index[bucket] if i.index_type == INDEX_TYPE), None)
        old = mine.get(bucket)
        if (new and new.file_name) != (old and old.file_name) and not _same_keys(target, new, old):
            other.append(bucket)
    if other:
        raise other_keys(target.label, other, schema, whose)


def _same_keys(table: Table, new: IndexEntry | None, old: IndexEntry | None) -> bool:
    if new is None or old is None or new.row_count != old.row_count:
        return False
    entries = (new, old)
    data = table.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])
    one, other = (read_hash_index(d, e.row_count, name=e.file_name) for d, e in zip(data, entries, strict=True))
    return same_hashes(one, other)
