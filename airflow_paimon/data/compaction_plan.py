"""Chooses what compaction writes together (pure): small files of an append table, sections of a primary-key bucket.

The result of a primary-key bucket is one sorted run on its top level. Large files that are already part of it, and
whose keys no other file has, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.live_files import SMALL_FILE_RATIO, BucketSplit, count_sorted_runs
from airflow_paimon.data.merge.sections import Section


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one bucket that are replaced by one commit.

    Without a primary key ``bucket`` holds only them, and they become one file of about the target size. With one, it
    holds all live files; of these the sections of ``parts`` are written again, each part by a task of its own, to the
    level ``top``.
    """

    bucket: BucketSplit
    parts: tuple[tuple[Section, ...], ...] = ()
    top: int = 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        if not self.parts:
            return self.bucket.files
        return tuple(f for part in self.parts for section in part for f in section.files)

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)


def plan_bins(splits: Sequence[BucketSplit], deleted: Collection[str], target: int, min_files: int) -> list[FileGroup]:
    """Group files by bucket, old ones first. ``deleted``: the names of files with deleted rows.

    Those are always written again; small ones only in buckets with at least ``min_files`` of them. In a fixed bucket
    only neighbours in the order of their sequence numbers become one file, as readers rely on that order.
    """
    bins: list[FileGroup] = []
    for split in splits:
        ordered = split.total_buckets > 0
        small = [f for f in split.files if f.file_name in deleted or f.file_size < SMALL_FILE_RATIO * target]
        if len(small) < min_files:
            small = [f for f in small if f.file_name in deleted]
        runs = _neighbours(split.files, small) if ordered else [sorted(small, key=_age)]
        for group in (g for run in runs for g in _packed(run, target)):
            if len(group) > 1 or group[0].file_name in deleted:
                bins.append(FileGroup(replace(split, files=tuple(group))))
    return bins


def _age(file: DataFile) -> tuple[int, str]:
    return file.max_sequence_number, file.file_name


def _neighbours(files: Sequence[DataFile], chosen: Sequence[DataFile]) -> list[list[DataFile]]:
    """Divide the chosen ones of a bucket's files into runs with no other file in between."""
    names = {f.file_name for f in chosen}
    in_order = sorted(files, key=lambda f: (f.min_sequence_number, *_age(f)))
    runs = groupby(in_order, key=lambda f: f.file_name in names)
    return [list(run) for is_chosen, run in runs if is_chosen]


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


def sorted_runs(files: Sequence[DataFile]) -> int:
    """Count the runs of a bucket as Paimon does: each file of level 0, and each higher level."""
    return count_sorted_runs(f.level for f in files)


def top_level(files: Sequence[DataFile], num_levels: int) -> int:
    """Return the highest level; a bucket that holds a file above the table's levels keeps that as its top."""
    return max(num_levels - 1, *(f.level for f in files))


def plan_parts(
    sections: Sequence[Section], *, top: int, target: int, marked: Collection[str], keep_deletes: bool = False
) -> tuple[tuple[Section, ...], ...]:
    """Divide the sections of a bucket, in key order, into parts to write again; those between parts stay.

    ``marked``: names of files that are written again in any case (deleted or expired rows). ``keep_deletes``: files
    with deletes may stay, as the result keeps them.
    """
    parts: list[tuple[Section, ...]] = []
    pending: list[Section] = []
    is_due = False
    for section in sections:
        due = section.needs_merge or any(
            f.level != top or f.file_name in marked or (f.delete_row_count != 0 and not keep_deletes)
            for f in section.files
        )
        if not due and section.files[0].file_size >= SMALL_FILE_RATIO * target:
            if is_due or len(pending) > 1:
                parts.append(tuple(pending))
            pending, is_due = [], False
            continue
        pending.append(section)
        is_due = is_due or due
    if is_due or len(pending) > 1:
        parts.append(tuple(pending))
    return tuple(parts)
