"""Commits of compactions of primary-key tables: some files of a bucket become files of its top level."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import (
    HeadState,
    RunsAreAsRead,
    SchemaIs,
    VectorsAreAsRead,
    file_and_level,
)
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Draft, Receipt
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table

_HASH = "HASH"


def commit_compaction(
    table: Table,
    messages: Sequence[CommitMessage],
    options: CommitOptions | None = None,
    *,
    read: ScanPlan,
    operation: Operation | None = None,
) -> Receipt:
    """Replace files of some buckets by the rows that are left of them, in one COMPACT snapshot.

    ``read``: the scan of these buckets, with all their live files. Files that writers have added to level 0 since stay
    above the new ones. All deletion vectors of the buckets go: the new files are without their rows. The hash index
    stays, as it may name keys that are gone. ``operation``: of the write that the compaction follows.

    Raises:
        ConflictError: another commit has replaced files of a bucket or deleted rows of it, or changed the columns:
            plan the compaction again.
    """

    def draft(at: HeadState) -> Draft | None:
        if not messages:
            return None
        places = {at.place(s.partition, s.bucket) for s in read.splits}
        live = at.buckets(s.partition for s in read.splits)
        files = {place: {file_and_level(e.file): e for e in live.get(place, ())} for place in places}
        taken = [(at.place(m.partition, m.bucket), file_and_level(f)) for m in messages for f in m.replaced]
        kept = [i for i in at.index if at.place(i.partition, i.bucket) not in places or i.index_type.upper() == _HASH]
        return Draft(
            kind=CommitKind.COMPACT,
            entries=[
                *(files[place][file].deleted() for place, file in taken if file in files[place]),
                *(e for m in messages for e in m.entries()),
            ],
            changelog=[e for m in messages for e in m.changelog_entries()] or None,
            index_entries=kept if len(kept) < len(at.index) else None,
            schema=at.schema,
            operation=operation,
            conditions=(
                SchemaIs(schema_id=read.schema.id, why="the table was altered while it was compacted"),
                RunsAreAsRead(read=read),
                VectorsAreAsRead(places=places, read=read.index_entries),
            ),
        )

    return commit_at(table, draft, options)
