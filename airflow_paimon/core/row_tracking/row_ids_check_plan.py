"""What the manifests of a row-tracking table tell of wrong row ids (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.row_tracking.row_ids_plan import IdRange, has_row_ids, stored_ids


@dataclass(frozen=True, slots=True)
class Ranged:
    """A file and the range that its ids are in."""

    file: DataFile
    ids: IdRange


def files_without_ids(files: Sequence[DataFile]) -> list[str]:
    return [f.file_name for f in files if not has_row_ids(f)]


def ranged(files: Sequence[DataFile], next_row_id: int) -> list[Ranged]:
    """Return the files with ids and their ranges, in order; one whose statistics don't tell may hold any id."""
    found = [Ranged(f, _ids_of(f, next_row_id)) for f in files if has_row_ids(f) and f.row_count]
    return sorted(found, key=lambda r: (r.ids, r.file.file_name))


def _ids_of(file: DataFile, next_row_id: int) -> IdRange:
    if file.first_row_id is not None:
        return IdRange(file.first_row_id, file.first_row_id + file.row_count - 1)
    return stored_ids(file) or IdRange(0, max(0, next_row_id - 1))


def beyond(files: Sequence[Ranged], next_row_id: int) -> list[str]:
    """Files with ids that the table has not given out yet, so that it will give them out again."""
    return [r.file.file_name for r in files if r.ids.last >= next_row_id]


def overlapping(files: Sequence[Ranged]) -> Iterator[list[Ranged]]:
    """Group files whose ranges overlap, directly or by way of others; ``files`` as ``ranged`` returns them."""
    group: list[Ranged] = []
    reach = -1
    for one in files:
        if group and one.ids.first > reach:
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
        reach = max(reach, one.ids.last) if len(group) > 1 else one.ids.last
    if len(group) > 1:
        yield group


def torn_groups(files: Sequence[Ranged]) -> list[str]:
    """With data evolution: files that share some but not all of their ids, which no reader can lay side by side."""
    return [r.file.file_name for group in overlapping(files) for r in group if r.ids != group[0].ids]
