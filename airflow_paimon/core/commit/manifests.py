"""The manifests and manifest lists of a commit, as files by their names, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.commit.cache import CommitCache
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.manifest_merge_plan import in_order, merged_entries, plan_manifest_merge
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry, ManifestFile
from airflow_paimon.core.format.manifest_io import (
    describe_manifest,
    written_manifests,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_files import net_change
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table


def add_file(files: dict[str, bytes], name: str, data: bytes) -> tuple[str, int]:
    """Add a file by its name; return the name and the size."""
    files[name] = data
    return name, len(data)


def add_manifests(
    files: dict[str, bytes], prefix: str, entries: Sequence[ManifestEntry], schema: TableSchema, options: TableOptions
) -> list[ManifestFile]:
    """Add manifests with these entries, those of a partition together; return the rows of their list."""
    types = schema.partition_types
    rows = []
    ordered = in_order(entries, StoredPartitions(schema))
    for number, (part, data) in enumerate(written_manifests(ordered, types, options.manifest_target_size)):
        name = f"{prefix}-{number}"
        files[name] = data
        rows.append(describe_manifest(name, len(data), part, types))
    return rows


def base_rows(
    cache: CommitCache, head: Snapshot | None, files: dict[str, bytes], stamp: str, draft: Draft, options: TableOptions
) -> list[ManifestFile]:
    """Return the new base list: all manifests of the head, a run of many small ones merged into few."""
    if head is None:
        return []
    prefix = f"manifest-{stamp}-base"
    if draft.base is not None:
        return [*draft.base, *add_manifests(files, prefix, draft.base_entries, draft.schema, options)]
    rows = cache.manifests(head)
    if draft.brings_back:
        written = _without_returning(cache.table, rows, files, prefix, draft, options)
        if written:
            return [row for at, one in enumerate(rows) for row in written.get(at, [one])]
    group = plan_manifest_merge(
        rows, min_count=options.manifest_merge_min_count, target_bytes=options.manifest_target_size
    )
    if group is None:
        return rows
    entries = merged_entries(read_entries(cache.table, rows[group]))
    merged = add_manifests(files, prefix, entries, draft.schema, options)
    return [*rows[: group.start], *merged, *rows[group.stop :]]


def _without_returning(
    table: Table,
    rows: Sequence[ManifestFile],
    files: dict[str, bytes],
    prefix: str,
    draft: Draft,
    options: TableOptions,
) -> dict[int, list[ManifestFile]]:
    """Write the manifests again that name a file which comes back, without it; return the new ones by the position of
    the old one. Empty: no DELETE of such a file is left.

    Neither may it be named on another level, on which it is not live: a later compaction may move it there.
    """
    back = {e.file.file_name for e in draft.entries if e.kind == FileKind.ADD}
    chosen = StoredPartitions(draft.schema).those({e.partition for e in draft.entries})
    near = [at for at, row in enumerate(rows) if chosen.may_be_in(row)]
    deleting = _read(table, rows, [at for at in near if rows[at].num_deleted_files], chosen)
    if not any(e.kind == FileKind.DELETE and e.file.file_name in back for part in deleting for e in part):
        return {}
    parts = [[e for e in part if e.file.file_name in back] for part in _read(table, rows, near, chosen)]
    gone = {e.identifier for part in parts for e in part} - net_change(e for part in parts for e in part).added.keys()
    named = [at for at, part in zip(near, parts, strict=True) if any(e.identifier in gone for e in part)]
    return {
        at: add_manifests(
            files,
            f"{prefix}-{at}",
            [e for e in entries if e.identifier not in gone],
            schema=draft.schema,
            options=options,
        )
        for at, entries in zip(named, _read(table, rows, named), strict=True)
    }


def _read(
    table: Table, rows: Sequence[ManifestFile], places: Sequence[int], selection: Selection | None = None
) -> list[list[ManifestEntry]]:
    return read_entries(table, [rows[at] for at in places], selection)
