"""The base manifest list of a new snapshot: the previous manifests, small ones merged if there are many; and how the
entries of a manifest are ordered (pure).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_paimon.core.format.manifest import ManifestEntry, ManifestFile
from airflow_paimon.core.format.stats import order_key
from airflow_paimon.core.table.live_files import net_change
from airflow_paimon.core.table.partitions import StoredPartitions


def is_small(manifest: ManifestFile, target_bytes: int) -> bool:
    """Whether to merge a manifest with others. Half of the target, as manifests of about that size come out smaller:
    merging them again would write the same ones each time.
    """
    return 2 * manifest.file_size < target_bytes


def plan_manifest_merge(rows: Sequence[ManifestFile], *, min_count: int, target_bytes: int) -> slice | None:
    """Choose the contiguous run of small manifests of a base list to merge into one, None while there are fewer than
    ``min_count`` of them.

    Only a contiguous run: moving a DELETE past the ADD that it cancels would bring a deleted file back. Manifests at
    its beginning with more entries than all after them together stay as they are: so an entry is merged again only when
    the manifest that it is in at least doubles, and a small commit costs the same, however many there were.
    """
    best: slice | None = None
    start = 0
    while start < len(rows):
        stop = start
        while stop < len(rows) and is_small(rows[stop], target_bytes):
            stop += 1
        start = _first_to_merge(rows, start, stop)
        if stop - start >= min_count and (best is None or stop - start > best.stop - best.start):
            best = slice(start, stop)
        start = stop + 1
    return best


def _first_to_merge(rows: Sequence[ManifestFile], start: int, stop: int) -> int:
    first, after = stop, 0
    for at in range(stop - 1, start - 1, -1):
        entries = rows[at].num_added_files + rows[at].num_deleted_files
        if entries <= after or at == stop - 1:
            first = at
        after += entries
    return first


def merged_entries(parts: Iterable[Sequence[ManifestEntry]]) -> list[ManifestEntry]:
    """Merge the entries of consecutive manifests: pairs cancel, a DELETE of a file added before them stays.

    A DELETE followed by an ADD of the same file cancels out too: the file stays live through the ADD before them.
    """
    change = net_change((entry for part in parts for entry in part), "manifest merge")
    both = change.deleted.keys() & change.added.keys()
    deleted = (e for k, e in change.deleted.items() if k not in both)
    added = (e for k, e in change.added.items() if k not in both)
    return [*deleted, *added]


def in_order(entries: Iterable[ManifestEntry], stored: StoredPartitions) -> list[ManifestEntry]:
    """Order entries by partition (nulls first) and bucket, so that a part of a manifest holds few of them.

    Within a bucket they stay as they are: an ADD and a DELETE of one file are of one stored partition and bucket.
    """
    groups: dict[bytes, dict[int, list[ManifestEntry]]] = {}
    for entry in entries:
        groups.setdefault(entry.partition, {}).setdefault(entry.bucket, []).append(entry)

    def place(partition: bytes) -> tuple[tuple[bool, Any], ...]:
        return tuple((v is not None, order_key(v)) for v in stored.values(partition))

    return [e for p in sorted(groups, key=place) for b in sorted(groups[p]) for e in groups[p][b]]
