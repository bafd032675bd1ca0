"""Which dropped files come back by reference, with their deletion vectors and hash indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitOptions, Draft, Receipt
from airflow_paimon.core.errors import ConflictError, LostMetadataError, NotFoundError
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries, selected_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table


def restore_partitions(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    options: CommitOptions | None = None,
    *,
    beside_appends: bool,
) -> Receipt:
    """Add again, by reference, files that the snapshot ``dropped`` took from ``before``, of the chosen partitions.

    A partition that is not empty any more is skipped, unless it was only appended to and ``beside_appends`` says that
    its old rows belong beside the new ones.

    Raises:
        ConflictError: what was appended to a partition has deletion vectors or hash indexes where its old rows have.
    """
    return commit(table, partial(_draft, table, before, dropped, chosen, beside_appends), options)


def _draft(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    beside_appends: bool,
    head: Snapshot | None,
) -> Draft | None:
    if head is None:
        return None
    schema = table.schema()
    form = StoredPartitions(schema).canonical
    live = live_entries(table, head, chosen)
    held = live_entries(table, before, chosen).values()
    doubtful = {form(e.partition) for e in held} & {form(e.partition) for e in live.values()}
    kept = _not_only_appended(table, dropped, head, doubtful, form) if beside_appends else doubtful
    missing = [e for e in held if e.identifier not in live and form(e.partition) not in kept]
    if not missing:
        return None
    index = None
    if before is not None and before.index_manifest:
        now = read_index_entries(table, head)
        names = {i.file_name for i in now}
        wanted = {form(e.partition) for e in missing}
        back = [
            i for i in read_index_entries(table, before) if form(i.partition) in wanted and i.file_name not in names
        ]
        _refuse_second_index(table, now, back, form)
        index = [*now, *back]
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=missing,
        index_entries=index,
        schema=schema,
        operation=Operation.OVERWRITE,
        brings_back=True,
        restores_own_files=True,
    )


def _refuse_second_index(
    table: Table, now: Sequence[IndexEntry], back: Sequence[IndexEntry], form: Callable[[bytes], bytes]
) -> None:
    """A bucket has one file of a type. Of a partition's hash indexes, two buckets could claim the same key."""

    def place(entry: IndexEntry) -> tuple[bytes, str, int | None]:
        return form(entry.partition), entry.index_type, None if entry.index_type == INDEX_TYPE else entry.bucket

    twice = {place(i) for i in now} & {place(i) for i in back}
    if twice:
        what = ", ".join(sorted({kind for _, kind, _ in twice}))
        raise ConflictError(
            f"{table.label}: {len({p for p, _, _ in twice})} of the partitions to restore got a new index ({what}), "
            "which their old one contradicts; nothing was restored"
        )


def _not_only_appended(
    table: Table, dropped: Snapshot, head: Snapshot, partitions: set[bytes], form: Callable[[bytes], bytes]
) -> set[bytes]:
    """The non-empty partitions whose files were not only appended, or whose history has expired."""
    if not partitions:
        return set()
    try:
        since = table.snapshots(list(range(dropped.id + 1, head.id + 1)))
    except NotFoundError:
        return partitions
    try:
        deltas = read_delta_lists(table, [s for s in since if s.commit_kind == CommitKind.OVERWRITE])
        written = list(selected_entries(table, deltas, None))
    except LostMetadataError:
        return partitions
    return partitions & {form(e.partition) for e in written if e.kind == FileKind.ADD}
