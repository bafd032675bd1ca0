"""Hash indexes of dynamic buckets, of the head of a branch: those that are missing, double, damaged, without keys of
their bucket, or with a hash in two buckets. They are built anew from the keys of the files.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from airflow_paimon.core.check.row_checks import ReadKeyHashes
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.conditions import has_dynamic_buckets, has_moving_keys
from airflow_paimon.core.commit.draft import Draft, Receipt
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.hash_index import (
    INDEX_TYPE,
    Hashes,
    hash_index_entry,
    read_hash_index,
    write_hash_index,
)
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import Delete, RebuildIndexes
from airflow_paimon.core.requests.findings import ERROR, Finding
from airflow_paimon.core.table.dynamic_buckets_plan import ByBucket, check_hashes
from airflow_paimon.core.table.live_entries import live_buckets
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table

HASH_INDEX = "hash-index"


def hash_index_findings(
    view: Table, *, verify_files: bool, key_hashes: ReadKeyHashes | None = None
) -> Iterator[Finding]:
    """Check the head of a branch. Without ``verify_files`` the index files are not read, only their list; without
    ``key_hashes`` they are not compared with the rows.
    """
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not has_dynamic_buckets(schema) or has_moving_keys(schema) or options.chain_table:
        return
    stored = StoredPartitions(schema)
    buckets: dict[bytes, set[int]] = {}
    for partition, bucket in live_buckets(view, head):
        buckets.setdefault(stored.canonical(partition), set()).add(bucket)
    indexes: dict[bytes, list[IndexEntry]] = {p: [] for p in buckets}
    for entry in read_index_entries(view, head):
        if entry.index_type == INDEX_TYPE:
            indexes.setdefault(stored.canonical(entry.partition), []).append(entry)
    wrong = {
        partition: why
        for partition, entries in indexes.items()
        if (why := _index_fault(view, buckets.get(partition, set()), entries, verify_files)) is not None
    }
    rows = key_hashes(view, head, None) if key_hashes is not None else ()
    twice, lacking = _compare_with_rows(view, rows, {p: some for p, some in indexes.items() if p not in wrong})
    wrong |= lacking
    if wrong:
        rebuilt = {p: stored.text(p) for p in sorted(wrong) if p in buckets and p not in twice}
        yield _wrong_indexes(view, {stored.text(p): why for p, why in wrong.items()}, rebuilt)
    if twice:
        name, why = min((stored.text(p), why) for p, why in twice.items())
        yield Finding(
            kind="keys-in-two-buckets",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: keys of {len(twice)} partitions are in two dynamic buckets, e.g. of "
            f"{name or '()'}: {why}",
            at_risk="reads return such a key twice; INSERT OVERWRITE of the partition's rows, each key once, helps",
        )


def _wrong_indexes(view: Table, wrong: Mapping[str, str], rebuilt: Mapping[bytes, str]) -> Finding:
    name, why = min(wrong.items())
    where = f"{view.branch_name}: "
    return Finding(
        kind=HASH_INDEX,
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: the hash indexes of {len(wrong)} partitions don't fit their dynamic buckets, e.g. "
        f"of {name or '()'}: {why}",
        at_risk="writes here refuse these partitions, those of other engines may put a key into a second bucket",
        repair="stop the table's writers, then rebuild the indexes from the keys of the files" if rebuilt else None,
        actions=tuple(
            RebuildIndexes(
                path=where + text, branch=view.branch_name, partition=partition, reason=f"{text or '()'}: {wrong[text]}"
            )
            for partition, text in rebuilt.items()
        ),
        by_name_only=True,
    )


def _index_fault(view: Table, buckets: set[int], entries: Sequence[IndexEntry], verify_files: bool) -> str | None:
    indexed = [e.bucket for e in entries]
    if len(set(indexed)) < len(indexed):
        return "a bucket has several"
    lacking = buckets - set(indexed)
    if lacking:
        return f"bucket {min(lacking)} has none"
    if not verify_files:
        return None
    try:
        found = zip(entries, _index_data(view, entries), strict=True)
        read = ((e.bucket, read_hash_index(data, e.row_count, name=e.file_name)) for e, data in found)
        check_hashes(ByBucket.of(read))
    except NotFoundError:
        return "an index file is missing"
    except FormatError as error:
        return error.message
    return None


def _compare_with_rows(
    view: Table, rows: Iterable[tuple[bytes, Mapping[int, Hashes]]], indexes: Mapping[bytes, Sequence[IndexEntry]]
) -> tuple[dict[bytes, str], dict[bytes, str]]:
    """Return the partitions with keys in two buckets, and those with an index that lacks keys, each with an example."""
    twice, lacking = dict[bytes, str](), dict[bytes, str]()
    for partition, hashes in rows:
        try:
            check_hashes(ByBucket.of(hashes.items()))
        except FormatError as error:
            twice[partition] = error.message.replace("in the index of two buckets", "in files of two buckets")
            continue
        for entry in indexes.get(partition, ()):
            of_rows = hashes.get(entry.bucket)
            if of_rows is not None and partition not in lacking:
                indexed = read_hash_index(_index_data(view, [entry])[0], entry.row_count, name=entry.file_name)
                if number := int((~np.isin(of_rows, indexed)).sum()):
                    lacking[partition] = (
                        f"that of bucket {entry.bucket} lacks {number} of its {len(of_rows)} key hashes"
                    )
    return twice, lacking


def _index_data(view: Table, entries: Sequence[IndexEntry]) -> Sequence[bytes]:
    return view.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])


def rebuild_hash_indexes(view: Table, partitions: Collection[bytes], key_hashes: ReadKeyHashes) -> Receipt:
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
        kept = [
            i
            for i in read_index_entries(view, now)
            if i.index_type != INDEX_TYPE or form(i.partition) not in partitions
        ]
        return Draft(
            kind=CommitKind.APPEND,
            entries=(),
            index_entries=[*kept, *new],
            schema=schema,
            properties={OPERATION_PROPERTY: "repair_table"},
            operation=Operation.WRITE,
        )

    try:
        stamp = uuid.uuid4()
        for partition, buckets in key_hashes(view, head, partitions):
            try:
                check_hashes(ByBucket.of(buckets.items()))
            except FormatError as error:
                where = StoredPartitions(view.schema()).text(partition) or "()"
                raise UnsafeOperationError(
                    f"{view.label}: the rows of partition {where} are in the wrong buckets ({error.message}), so no "
                    f"index can be made. Read its rows and write them with mode=overwrite",
                    details={"partition": where},
                ) from None
            for bucket, hashes in sorted(buckets.items()):
                data = write_hash_index(hashes)
                name = f"index-{stamp}-{len(new)}"
                put_new(view, f"{INDEX_DIR}/{name}", data)
                new.append(hash_index_entry(partition, bucket, name, data))
        return commit(view, draft)
    except REFUSALS:
        unused = tuple(Delete(path=f"{INDEX_DIR}/{e.file_name}", reason="not committed") for e in new)
        execute(view, unused)
        raise
