"""The adversary: expiry as Paimon's engines do it (docs/contributing/format.md, Who deletes files), written from the
rules alone.

It deletes the files that an expiring snapshot's deletions name unless the nearest earlier tag of *main* holds them, and
looks at no other branch. What is left afterwards is what our safety rules must have kept.
"""

from __future__ import annotations

from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_both_manifest_lists
from airflow_paimon.core.table.table import Table


def expire_snapshots(main: Table, retain_last: int) -> int:
    """Expire all but the last ``retain_last`` snapshots of main; gives how many data files were deleted."""
    ids = main.snapshot_ids()
    expiring = ids[:-retain_last]
    if not expiring:
        return 0
    end = ids[len(expiring)]
    tags = [t.snapshot for t in main.tags()]
    deleted = 0
    for snapshot_id in [*expiring[1:], end]:
        deleted += _delete_data(main, main.snapshot(snapshot_id), tags)
    _delete_manifests(main, [main.snapshot(i) for i in expiring], main.snapshot(end), tags)
    for snapshot_id in expiring:
        main.store.delete(main.paths.snapshot(snapshot_id))
    main.store.replace(main.paths.earliest_hint, str(end).encode())
    return deleted


def delete_tag(main: Table, name: str) -> None:
    """Delete a tag as Paimon does: files of an expired snapshot go unless a neighbour refers to them."""
    tag = main.tag(name)
    main.store.delete(main.paths.tag(name))
    others = main.tags()
    if tag.snapshot.id in main.snapshot_ids() or any(t.snapshot.id == tag.snapshot.id for t in others):
        return
    left = [t.snapshot for t in others if t.snapshot.id < tag.snapshot.id][-1:]
    later = [t.snapshot for t in others if t.snapshot.id > tag.snapshot.id][:1]
    earliest = [main.snapshot(main.snapshot_ids()[0])]
    right = sorted(later + earliest, key=lambda s: s.id)[:1]
    kept = {e.file.file_name for s in left + right for e in live_entries(main, s).values()}
    for entry in live_entries(main, tag.snapshot).values():
        if entry.file.file_name not in kept:
            main.store.delete(_path(main, entry))


def _delete_data(main: Table, snapshot: Snapshot, tags: list[Snapshot]) -> int:
    earlier = [t for t in tags if t.id < snapshot.id]
    kept = {e.file.file_name for e in live_entries(main, earlier[-1]).values()} if earlier else set()
    delta = [e for part in read_entries(main, read_both_manifest_lists(main, snapshot)[1]) for e in part]
    again = {e.file.file_name for e in delta if e.kind == FileKind.ADD}
    gone = [e for e in delta if e.kind == FileKind.DELETE and e.file.file_name not in kept | again]
    for entry in gone:
        main.store.delete(_path(main, entry))
    return len(gone)


def _delete_manifests(main: Table, expiring: list[Snapshot], end: Snapshot, tags: list[Snapshot]) -> None:
    keep = [end, *tags]
    kept = {m.file_name for s in keep for m in all_manifests(main, s)} | {n for s in keep for n in _lists(s)}
    for snapshot in expiring:
        names = {m.file_name for m in all_manifests(main, snapshot)}
        for name in names - kept:
            main.store.delete(f"manifest/{name}")
    for snapshot in expiring:
        for name in set(_lists(snapshot)) - kept:
            main.store.delete(f"manifest/{name}")


def _path(main: Table, entry: ManifestEntry) -> str:
    schema = main.schema()
    return data_file_path(schema, decode_row(entry.partition, schema.partition_types), entry.bucket, entry.file)


def _lists(snapshot: Snapshot) -> tuple[str, ...]:
    lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list)
    return tuple(name for name in lists if name)
