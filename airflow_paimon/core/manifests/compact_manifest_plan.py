"""Which manifests of a snapshot to merge. Pure.

A manifest that is large and has only additions stays as it is, unless an entry of another one deletes what it adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_paimon.core.commit.manifest_merge_plan import is_small
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.types import DataType


def choose_manifests(
    rows: Sequence[ManifestFile], target_bytes: int, partition_types: Sequence[DataType] | None
) -> list[ManifestFile]:
    """Choose those to merge, in their order: with deletions and the small ones, if there are several.

    ``partition_types``: choose those, too, whose ranges of the first partition column overlap; None = leave them.
    """
    chosen = {m.file_name for m in rows if m.num_deleted_files or is_small(m, target_bytes)}
    if partition_types:
        chosen |= _overlapping([m for m in rows if m.file_name not in chosen], partition_types)
    rewritten = [m for m in rows if m.file_name in chosen]
    return rewritten if len(rewritten) != 1 or rewritten[0].num_deleted_files else []


def _overlapping(rows: Iterable[ManifestFile], types: Sequence[DataType]) -> set[str]:
    """Return those that share more than one value of the first column with another: a read of it reads both."""
    spans = [(*span, m.file_name) for m in rows if (span := _span(m, types)) is not None]
    found: set[str] = set()
    widest: tuple[Any, Any, str] | None = None  # that with the highest value so far
    for low, high, name in sorted(spans):
        if widest is not None and low < widest[1] and widest[0] < high:
            found |= {name, widest[2]}
        if widest is None or high > widest[1]:
            widest = low, high, name
    return found


def _span(manifest: ManifestFile, types: Sequence[DataType]) -> tuple[Any, Any] | None:
    try:
        low = decode_row(manifest.partition_stats.min_values, types)[0]
        high = decode_row(manifest.partition_stats.max_values, types)[0]
    except PaimonError:
        return None
    return None if low is None or high is None else (low, high)
