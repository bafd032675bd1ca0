"""Builds the hash indexes of dynamic buckets anew from the keys of their files: one snapshot, without a changed row."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from airflow_paimon.core.check.check_hash_indexes import KeyHashes
from airflow_paimon.core.commit.committer import Draft, Receipt, commit, execute, put_new
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.errors import ConflictError, FormatError, UnsafeOperationError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, write_hash_index
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.table.dynamic_buckets_plan import pack
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


def rebuild_hash_indexes(view: Table, partitions: Collection[bytes], keys: KeyHashes) -> Receipt:
    """Replace the hash indexes of these partitions (in canonical form). Writers of other engines must be stopped: they
    remember what they have read.

    Raises:
        ConflictError: somebody has committed meanwhile; nothing was changed. UnsafeOperationError: keys with one hash
            are in two buckets, which no index can express.
    """
    schema, head = view.schema(), view.latest_snapshot()
    assert head is not None, "a finding names live files"
    new: list[IndexEntry] = []

    def draft(now: Snapshot | None) -> Draft:
        if now is None or now.identity != head.identity or view.schema().id != schema.id:
            raise ConflictError(
                f"{view.label}: another commit came while hash indexes were built; stop the writers, then run it again"
            )
        form = StoredPartitions(schema).canonical
        kept = [i for i in read_index(view, now) if i.index_type != INDEX_TYPE or form(i.partition) not in partitions]
        return Draft(
            kind=CommitKind.APPEND,
            entries=(),
            index_entries=[*kept, *new],
            schema=schema,
            properties={"airflow-paimon.operation": "repair_table"},
            operation=Operation.WRITE,
        )

    try:
        _write(view, head, partitions, keys, new)
        return commit(view, draft)
    except REFUSALS:
        unused = tuple(Delete(path=f"{INDEX_DIR}/{e.file_name}", reason="not committed") for e in new)
        execute(view, Plan(operation="repair_table", table=view.name, actions=unused))
        raise


def _write(
    view: Table, head: Snapshot, partitions: Collection[bytes], keys: KeyHashes, written: list[IndexEntry]
) -> None:
    stamp = uuid.uuid4()
    for partition, buckets in keys(view, head, partitions):
        try:
            pack(buckets.items())
        except FormatError as error:
            where = StoredPartitions(view.schema()).text(partition) or "()"
            raise UnsafeOperationError(
                f"{view.label}: the rows of partition {where} are in the wrong buckets ({error.message}), so no index "
                f"can be made. Read its rows and write them with mode=overwrite",
                details={"partition": where},
            ) from None
        for bucket, hashes in sorted(buckets.items()):
            data = write_hash_index(hashes)
            name = f"index-{stamp}-{len(written)}"
            entry = IndexEntry(
                kind=0,
                partition=partition,
                bucket=bucket,
                index_type=INDEX_TYPE,
                file_name=name,
                file_size=len(data),
                row_count=len(data) // 4,
            )
            put_new(view, f"{INDEX_DIR}/{name}", data)
            written.append(entry)
