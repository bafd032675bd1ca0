"""Chooses what compaction of a primary-key table merges: which buckets, and which sections of a bucket (pure).

The result of a bucket is one sorted run on its top level. Large files that are already part of it, and whose keys no
other file has, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.data.compaction_plan import SMALL
from airflow_paimon.data.merge.sections import Section


@dataclass(frozen=True, slots=True)
class BucketMerge:
    """``bucket``: all live files; ``parts``: the sections that are written again, each part by a task of its own."""

    bucket: BucketSplit
    parts: tuple[tuple[Section, ...], ...]
    top: int

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that are replaced."""
        return tuple(f for part in self.parts for section in part for f in section.files)

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)


def sorted_runs(files: Sequence[DataFile]) -> int:
    """Count the runs of a bucket as Paimon does: each file of level 0, and each higher level."""
    return sum(f.level == 0 for f in files) + len({f.level for f in files} - {0})


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
        if not due and section.files[0].file_size >= SMALL * target:
            if is_due or len(pending) > 1:
                parts.append(tuple(pending))
            pending, is_due = [], False
            continue
        pending.append(section)
        is_due = is_due or due
    if is_due or len(pending) > 1:
        parts.append(tuple(pending))
    return tuple(parts)
