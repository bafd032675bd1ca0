"""Commits of files that replace some files of a bucket, row by row: UPDATE, DELETE, MERGE, compaction.

Everything else in the bucket stays, so two of them that touch different files both land.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.commit.committer import CommitIdentity, Draft, Receipt, RetryPolicy, commit
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.table.scan import ScanPlan, live_entries, read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

FileKey = tuple[Any, int, str]
"""A live file: its partition's identity, bucket and name."""

_LISTED = 5


def commit_rewrite(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    read: ScanPlan,
    kind: CommitKind = CommitKind.OVERWRITE,
    operation: Operation | None,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    retry: RetryPolicy | None = None,
) -> Receipt:
    """Add ``new_files`` and delete ``replaced`` of the messages, in one snapshot; nothing else changes.

    ``read``: the scan that the replaced files and their deletion vectors were read from. ``operation``: UPDATE, DELETE,
    MERGE, or None for a compaction. Without replaced files the snapshot is an APPEND.

    Raises:
        ConflictError: another commit has replaced one of these files, or deleted rows of it, or changed the columns:
            read the new head and compute the rows again.
    """
    added = [e for m in messages for e in m.entries()]
    replaced = [(m, f) for m in messages for f in m.replaced]

    def draft(head: Snapshot | None) -> Draft | None:
        if not added and not replaced:
            return None
        schema = table.schema()
        if schema.id != read.schema.id:
            raise _conflict(table, "the table was altered while its rows were computed", ())
        identity_of = StoredPartitions(schema).identity
        files = {(identity_of(m.partition), m.bucket, f.file_name) for m, f in replaced}
        selection = StoredPartitions(schema).those(m.partition for m, _ in replaced)
        live = live_entries(table, head, selection).values() if files else ()
        found: dict[FileKey, ManifestEntry] = {_key(identity_of(e.partition), e): e for e in live}
        index, vectors = _without(read_index(table, head), files, identity_of)
        gone = files - found.keys()
        if not gone and vectors != _without(read.index_entries, files, identity_of)[1]:
            gone = files & vectors.keys() or files
        if gone:
            raise _conflict(table, "another commit changed files that were being rewritten", [k[2] for k in gone])
        return Draft(
            kind=kind if files else CommitKind.APPEND,
            entries=[*(found[k].deleted() for k in sorted(files, key=lambda k: k[1:])), *added],
            index_entries=index if vectors else None,
            schema=schema,
            properties=properties or {},
            operation=operation,
        )

    return commit(table, draft, identity, retry)


def _key(partition: Any, entry: ManifestEntry) -> FileKey:
    return partition, entry.bucket, entry.file.file_name


def _without(
    index: Sequence[IndexEntry], files: set[FileKey], identity_of: Any
) -> tuple[list[IndexEntry], dict[FileKey, tuple[str, DeletionVectorRange]]]:
    """Return the index entries without the deletion vectors of these files, and those vectors."""
    kept: list[IndexEntry] = []
    taken: dict[FileKey, tuple[str, DeletionVectorRange]] = {}
    for entry in index:
        ranges = entry.deletion_vector_ranges
        if not ranges:
            kept.append(entry)
            continue
        partition = identity_of(entry.partition)
        own = {r.data_file: r for r in ranges if r is not None and (partition, entry.bucket, r.data_file) in files}
        taken |= {(partition, entry.bucket, name): (entry.file_name, r) for name, r in own.items()}
        left = tuple(r for r in ranges if r is None or r.data_file not in own)
        if own and left:
            kept.append(entry._replace(deletion_vector_ranges=left, row_count=len(left)))
        elif left:
            kept.append(entry)
    return kept, taken


def _conflict(table: Table, why: str, files: Sequence[str]) -> ConflictError:
    named = f" ({', '.join(sorted(files)[:_LISTED])})" if files else ""
    return ConflictError(
        f"{table.label}: {why}{named}; nothing was written. Run it again",
        table=table.name,
        details={"files": sorted(files)[:_LISTED]},
    )
