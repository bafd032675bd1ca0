"""Findings about the hash indexes of dynamic buckets: missing, double, damaged, or with a hash in two buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_paimon.core.commit.since import has_dynamic_buckets, has_moving_keys
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, read_hash_index
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.requests.findings import ERROR, Finding
from airflow_paimon.core.table.dynamic_buckets_plan import pack
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


def hash_index_findings(view: Table, *, verify_files: bool) -> Iterator[Finding]:
    """Check the head of a branch. Without ``verify_files`` the index files are not read, only their list."""
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not has_dynamic_buckets(schema) or has_moving_keys(schema) or options.chain_table:
        return
    stored = StoredPartitions(schema)
    buckets: dict[bytes, set[int]] = {}
    for file in live_entries(view, head).values():
        buckets.setdefault(stored.canonical(file.partition), set()).add(file.bucket)
    indexes: dict[bytes, list[IndexEntry]] = {p: [] for p in buckets}
    for entry in read_index(view, head):
        if entry.index_type == INDEX_TYPE:
            indexes.setdefault(stored.canonical(entry.partition), []).append(entry)
    wrong = {
        stored.text(partition): why
        for partition, entries in indexes.items()
        if (why := _fault(view, buckets.get(partition, set()), entries, verify_files)) is not None
    }
    if wrong:
        name, why = min(wrong.items())
        yield Finding(
            kind="hash-index",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: the hash indexes of {len(wrong)} partitions don't fit their dynamic buckets, e.g. "
            f"of {name or '()'}: {why}",
            at_risk="writes here refuse these partitions, those of other engines may put a key into a second bucket; "
            "INSERT OVERWRITE of their rows makes new indexes",
        )


def _fault(view: Table, buckets: set[int], entries: Sequence[IndexEntry], verify_files: bool) -> str | None:
    indexed = [e.bucket for e in entries]
    if len(set(indexed)) < len(indexed):
        return "a bucket has several"
    lacking = buckets - set(indexed)
    if lacking:
        return f"bucket {min(lacking)} has none"
    if not verify_files:
        return None
    try:
        blobs = view.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])
        pack(
            (entry.bucket, read_hash_index(data, entry.row_count, name=entry.file_name))
            for entry, data in zip(entries, blobs, strict=True)
        )
    except NotFoundError:
        return None  # one of the missing files, a finding of its own
    except FormatError as error:
        return error.message
    return None
