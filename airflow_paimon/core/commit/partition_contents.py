"""The contents of a snapshot's partitions, for expiry and for drops that compare. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.partitions import StoredPartitions

if TYPE_CHECKING:
    from airflow_paimon.core.table.scan import ScanPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContent:
    """The content of a partition in one snapshot. ``key``: its canonical stored form in hex, also of recorded plans.

    ``digest`` identifies its files; file names are never reused. ``updated``: the newest file's creation, local time as
    stored.
    """

    key: str
    values: tuple[Any, ...]
    text: str
    files: int
    rows: int
    bytes: int
    digest: str
    updated: datetime | None


def partition_contents(plan: ScanPlan) -> list[PartitionContent]:
    """Return every partition that has a live file, in the order of their texts."""
    stored = StoredPartitions(plan.schema)
    files: dict[str, list[DataFile]] = {}
    values: dict[str, tuple[Any, ...]] = {}
    for split in plan.splits:
        key = stored.canonical(split.partition).hex()
        files.setdefault(key, []).extend(split.files)
        values[key] = split.values
    held = (_held(k, values[k], stored.text(bytes.fromhex(k)), found) for k, found in files.items())
    return sorted(held, key=lambda h: (h.text, h.key))


def _held(key: str, values: tuple[Any, ...], text: str, files: Sequence[DataFile]) -> PartitionContent:
    times = [f.creation_time_ms for f in files]
    known = [t for t in times if t is not None]
    newest = datetime.fromtimestamp(max(known) / 1000, UTC).replace(tzinfo=None) if len(known) == len(times) else None
    return PartitionContent(
        key=key,
        values=values,
        text=text,
        files=len(files),
        rows=sum(f.row_count for f in files),
        bytes=sum(f.file_size for f in files),
        digest=names_digest(f.file_name for f in files),
        updated=newest,
    )


def names_digest(names: Iterable[str]) -> str:
    """Identify files by their names, which never recur."""
    return hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:32]
