"""The draft that restores dropped partitions: their files are added again, by reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.scan import live_entries, read_delta_lists, read_index, selected_entries
from airflow_paimon.core.table.stored_partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table


def restoring(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    beside_appends: bool,
    properties: Mapping[str, str],
    guard_options: object,
    head: Snapshot | None,
) -> Draft | None:
    """Plan ``restore_partitions`` on top of ``head``."""
    if head is None:
        return None
    schema = table.schema()
    form = StoredPartitions(schema).canonical
    live = live_entries(table, head, chosen)
    held = live_entries(table, before, chosen).values()
    doubtful = {form(e.partition) for e in held} & {form(e.partition) for e in live.values()}
    kept = _overwritten(table, dropped, head, doubtful, form) if beside_appends else doubtful
    missing = [e for e in held if e.identifier not in live and form(e.partition) not in kept]
    if not missing:
        return None
    index = None
    if before is not None and before.index_manifest:
        now = read_index(table, head)
        names = {i.file_name for i in now}
        index = [*now]
        wanted = {form(e.partition) for e in missing}
        index += [i for i in read_index(table, before) if form(i.partition) in wanted and i.file_name not in names]
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=missing,
        index_entries=index,
        schema=schema,
        properties=properties,
        operation="OVERWRITE",
        rewrite_base=True,
        guard_options=guard_options,
    )


def _overwritten(
    table: Table, dropped: Snapshot, head: Snapshot, partitions: set[bytes], form: Callable[[bytes], bytes]
) -> set[bytes]:
    """The non-empty partitions whose files were not only appended, or whose history has expired."""
    if not partitions:
        return set()
    try:
        since = table.snapshots(list(range(dropped.id + 1, head.id + 1)))
    except NotFoundError:
        return partitions
    deltas = read_delta_lists(table, [s for s in since if s.commit_kind == CommitKind.OVERWRITE])
    written = selected_entries(table, deltas, None)
    return partitions & {form(e.partition) for e in written if e.kind == FileKind.ADD}
