"""Chooses the small files of an append table, and those with deleted rows, that compaction writes together (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.live_files import BucketSplit

MIN_FILES = 5
"""Paimon's default of ``compaction.min.file-num``."""

SMALL = 0.7
"""A file is small below this part of the target size, as for Paimon (``compaction.small-file-ratio``)."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition that become one file of about the target size; ``bucket`` holds only them."""

    bucket: BucketSplit

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.bucket.files

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)


def plan_bins(splits: Sequence[BucketSplit], deleted: Collection[str], target: int, min_files: int) -> list[Bin]:
    """Group files by partition, old ones first. ``deleted``: the names of files with deleted rows.

    Those are always written again; small ones only in partitions with at least ``min_files`` of them.
    """
    bins: list[Bin] = []
    for split in splits:
        small = [f for f in split.files if f.file_name in deleted or f.file_size < SMALL * target]
        if len(small) < min_files:
            small = [f for f in small if f.file_name in deleted]
        for group in _packed(sorted(small, key=lambda f: (f.max_sequence_number, f.file_name)), target):
            if len(group) > 1 or group[0].file_name in deleted:
                bins.append(Bin(replace(split, files=tuple(group))))
    return bins


def _packed(files: Sequence[DataFile], target: int) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = []
    filled = 0
    for file in files:
        if not groups or filled + file.file_size > target:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += file.file_size
    return groups
