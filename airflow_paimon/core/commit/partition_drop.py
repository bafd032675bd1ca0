"""What partitions hold, and the commit that drops them only while they still hold it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.commit.committer import CommitIdentity, Draft, Receipt, commit
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.scan import ScanPlan, live_entries, read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table

_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """What a partition holds in one snapshot. ``key``: its canonical stored form in hex, here and in a journal.

    ``digest`` identifies its files; names never recur. ``updated``: the newest file's creation, local time as stored.
    """

    key: str
    values: tuple[Any, ...]
    text: str
    files: int
    rows: int
    bytes: int
    digest: str
    updated: datetime | None


def held_partitions(plan: ScanPlan) -> list[HeldPartition]:
    """Give every partition that has a live file, in the order of their texts."""
    stored = StoredPartitions(plan.schema)
    files: dict[str, list[DataFile]] = {}
    values: dict[str, tuple[Any, ...]] = {}
    for split in plan.splits:
        key = stored.canonical(split.partition).hex()
        files.setdefault(key, []).extend(split.files)
        values[key] = split.values
    held = (_held(k, values[k], stored.text(bytes.fromhex(k)), found) for k, found in files.items())
    return sorted(held, key=lambda h: (h.text, h.key))


def _held(key: str, values: tuple[Any, ...], text: str, files: Sequence[DataFile]) -> HeldPartition:
    times = [f.creation_time_ms for f in files]
    known = [t for t in times if t is not None]
    newest = datetime.fromtimestamp(max(known) / 1000, UTC).replace(tzinfo=None) if len(known) == len(times) else None
    return HeldPartition(
        key=key,
        values=values,
        text=text,
        files=len(files),
        rows=sum(f.row_count for f in files),
        bytes=sum(f.file_size for f in files),
        digest=_digest(f.file_name for f in files),
        updated=newest,
    )


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:32]


def drop_held(
    view: Table,
    expected: Mapping[str, str],
    *,
    check: Callable[[Snapshot | None], None],
    identity: CommitIdentity | None = None,
    properties: Mapping[str, str] | None = None,
    guard_options: object = None,
) -> Receipt:
    """Drop partitions in one OVERWRITE snapshot: ``expected`` gives each one's ``digest`` by its ``key``.

    One that is gone already is passed over; are all gone, nothing is committed. ``check`` is called with every head
    that the commit may go on top of, unless all are gone, and may raise. ``guard_options``: see ``Draft``.

    Raises:
        ConflictError: a partition holds other files than expected.
    """

    def draft(head: Snapshot | None) -> Draft | None:
        schema = view.schema()
        stored = StoredPartitions(schema)
        asked = stored.those(map(bytes.fromhex, expected))
        found: dict[str, list[ManifestEntry]] = {}
        for entry in live_entries(view, head, asked).values():
            found.setdefault(stored.canonical(entry.partition).hex(), []).append(entry)
        if not found:
            return None
        check(head)
        _check_unchanged(view, stored, found, expected)
        index = None
        if head is not None and head.index_manifest:
            index = [i for i in read_index(view, head) if stored.canonical(i.partition).hex() not in found]
        return Draft(
            kind=CommitKind.OVERWRITE,
            entries=[e.deleted() for entries in found.values() for e in entries],
            index_entries=index,
            schema=schema,
            properties=properties or {},
            operation="OVERWRITE",
            guard_options=guard_options,
        )

    return commit(view, draft, identity)


def _check_unchanged(
    view: Table, stored: StoredPartitions, found: Mapping[str, Sequence[ManifestEntry]], expected: Mapping[str, str]
) -> None:
    changed = sorted(
        stored.text(entries[0].partition)
        for key, entries in found.items()
        if _digest(e.file.file_name for e in entries) != expected[key]
    )
    if changed:
        raise ConflictError(
            f"{view.label}: {len(changed)} partitions changed since they were planned to be dropped: "
            f"{', '.join(changed[:_LISTED])}; plan again",
            table=view.name,
            details={"partitions": changed[:_LISTED]},
        )
