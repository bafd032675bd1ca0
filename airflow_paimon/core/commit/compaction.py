"""Commits of compactions of primary-key tables: some files of a bucket become files of its top level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_paimon.core.commit.bucket_vectors import Place, check_vectors
from airflow_paimon.core.commit.committer import CommitIdentity, Draft, Receipt, RetryPolicy, commit
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.table.scan import ScanPlan, live_entries, read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

_File = tuple[str, int]
"""A file's name and level: Paimon moves a file to another level under its name."""
_HASH = "HASH"


def commit_compaction(
    table: Table,
    messages: Sequence[CommitMessage],
    *,
    read: ScanPlan,
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    operation: Operation | None = None,
    retry: RetryPolicy | None = None,
) -> Receipt:
    """Replace files of some buckets by the rows that are left of them, in one COMPACT snapshot.

    ``read``: the scan of these buckets, with all their live files. Files that writers have added to level 0 since stay
    above the new ones. All deletion vectors of the buckets go: the new files are without their rows. The hash index
    stays, as it may name keys that are gone. ``operation``: of the write that the compaction follows.

    Raises:
        ConflictError: another commit has replaced files of a bucket or deleted rows of it, or changed the columns:
            plan the compaction again.
    """

    def draft(head: Snapshot | None) -> Draft | None:
        if not messages:
            return None
        schema = table.schema()
        if schema.id != read.schema.id:
            raise ConflictError(f"{table.label}: the table was altered while it was compacted", table=table.name)
        values = StoredPartitions(schema).identity
        places = {(values(s.partition), s.bucket): set(map(_file, s.files)) for s in read.splits}
        live = live_entries(table, head, StoredPartitions(schema).those(s.partition for s in read.splits)).values()
        found: dict[Place, dict[_File, ManifestEntry]] = {place: {} for place in places}
        for entry in live:
            place = (values(entry.partition), entry.bucket)
            if place in found:
                found[place][_file(entry.file)] = entry
        index = read_index(table, head)
        _check(table, places, found)
        check_vectors(table, StoredPartitions(schema), places, read.index_entries, index)
        kept = [i for i in index if (values(i.partition), i.bucket) not in places or i.index_type.upper() == _HASH]
        gone = [found[values(m.partition), m.bucket][_file(f)].deleted() for m in messages for f in m.replaced]
        return Draft(
            kind=CommitKind.COMPACT,
            entries=[*gone, *(e for m in messages for e in m.entries())],
            changelog=[e for m in messages for e in m.changelog_entries()] or None,
            index_entries=kept if len(kept) < len(index) else None,
            schema=schema,
            properties=properties or {},
            operation=operation,
        )

    return commit(table, draft, identity, retry)


def _check(
    table: Table, places: Mapping[Place, set[_File]], found: Mapping[Place, Mapping[_File, ManifestEntry]]
) -> None:
    for place, files in places.items():
        now = found[place].keys()
        if not files <= now:
            raise _moved(table, "its files were replaced")
        if any(level > 0 for _, level in now - files):
            raise _moved(table, "it got other files than new rows")


def _file(file: DataFile) -> _File:
    return file.file_name, file.level


def _moved(table: Table, why: str) -> ConflictError:
    return ConflictError(
        f"{table.label}: another commit changed a bucket while it was compacted: {why}; run it again", table=table.name
    )
