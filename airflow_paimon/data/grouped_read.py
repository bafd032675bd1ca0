"""Reads of many files that one process plans: it sorts their entries into groups, in about 40 bytes each, and plans
one group after the other, so that no more than one has objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import pyarrow.compute as pc

from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import each_entries, without_collecting
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.whole_table.sorted_runs import Kept, SortedRuns
from airflow_paimon.data.layers import Layer, PinnedLayers, first_state, plan_pinned, plan_state_read
from airflow_paimon.data.scan import TableRead
from airflow_paimon.data.whole_read import GroupRead, WholeRead, entries_of, large_read, plan_group, sort_out

MANY_ENTRIES = 50_000
"""Entries of manifests above which one process plans group by group: as objects with their splits they take 1 kB each,
and 0.4 kB more where a filter needs their statistics.
"""
_FILES, _MOST_GROUPS = 2000, 20_000
"""Files of a group, about."""
_SAMPLE = 1000
_MEMORY_BYTES = 64 << 20
"""What is kept in memory of the files of a read that this process plans; the rest lies in a temporary file."""


class PlannedRead(NamedTuple):
    """What to read. ``read``: the common parameters, without the files' schemas. ``layers`` can be taken once."""

    read: TableRead
    layers: Iterable[Layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRead:
    """The files of a read in groups, none of which is empty, each in parts for ``plan_group``."""

    of: GroupRead
    read: TableRead
    groups: Sequence[Sequence[Kept]]

    def layers(self) -> Iterator[Layer]:
        """Plan one group after the other; raises as ``plan_group``."""
        return (plan_group(self.of, bytes_of(parts)) for parts in self.groups)


def bytes_of(parts: Sequence[Kept]) -> list[bytes]:
    """Return the parts of a group as ``plan_group`` takes them."""
    return [bytes(part.read()) for part in parts]


def plan_by_groups(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
) -> PlannedRead:
    """Plan a read as ``layers.plan_table_read`` does. The files are chosen now; what is wrong with one of very many is
    raised when its group is planned.
    """
    found = group_or_plan(
        *(table, version, timestamp), columns=columns, where=where, predicate=predicate, memory_bytes=_MEMORY_BYTES
    )
    return _planned(found)


def group_or_plan(
    table: Table,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    memory_bytes: int | None = None,
    files: int = _FILES,
    most_bytes: int | None = None,
) -> GroupedRead | list[Layer]:
    """Sort the files of a read into groups where they are very many, else plan it as ``layers.plan_table_read`` does.

    ``memory_bytes``: what is kept in memory of them; None: all. A group has about so many ``files``, or fewer if they
    are so large that it has ``most_bytes``, but whole buckets where rows of several files are merged.
    """
    with reading_once():
        state = first_state(table, version, timestamp)
        travels = version is not None or timestamp is not None
        whole = large_read(state, travels, columns, where, predicate, more_than=MANY_ENTRIES)
        if whole is not None:
            return _grouped(whole, memory_bytes, files, most_bytes)
        return plan_state_read(
            *(state,), version=version, timestamp=timestamp, columns=columns, where=where, predicate=predicate
        )


def plan_pinned_by_groups(
    pinned: PinnedLayers,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
) -> PlannedRead:
    """Plan a read of a pinned state, as ``plan_by_groups``."""
    with reading_once():
        if pinned.whole is None and len(pinned.states) == 1:
            [state] = pinned.states
            whole = large_read(state, pinned.travels, columns, where, predicate, more_than=MANY_ENTRIES)
            if whole is not None:
                return _planned(_grouped(whole, _MEMORY_BYTES, _FILES, None))
        return _planned(plan_pinned(pinned, columns=columns, where=where, predicate=predicate))


def _planned(found: GroupedRead | list[Layer]) -> PlannedRead:
    if isinstance(found, GroupedRead):
        return PlannedRead(found.read, found.layers())
    return PlannedRead(found[0][0], found)


def _grouped(whole: WholeRead, memory_bytes: int | None, files: int, most_bytes: int | None) -> GroupedRead:
    if most_bytes is not None:
        files = max(1, min(files, int(most_bytes / (_size_of_files(whole) or 1))))
    number = max(1, min(_MOST_GROUPS, -(-whole.files // files)))
    kept = SortedRuns((1 << 63) if memory_bytes is None else memory_bytes)
    groups: dict[int, list[tuple[int, Kept]]] = {}
    with without_collecting():
        for group, place, data in sort_out(whole.of, whole.listed, number):
            groups.setdefault(group, []).append((place, kept.keep(data)))
    in_order = [[part for _, part in sorted(groups[g], key=lambda one: one[0])] for g in sorted(groups)]
    return GroupedRead(of=whole.of, read=whole.read, groups=in_order)


def _size_of_files(whole: WholeRead) -> float:
    """Return the size of a file, as it is on average at the beginning of the largest manifest."""
    largest = max((m for _, m in whole.listed if m is not None), key=entries_of)
    for _, entries in islice(each_entries(whole.of.state.table, [largest]), 1):
        return fmean(entry.file.file_size for entry in entries[:_SAMPLE])
    return 0.0
