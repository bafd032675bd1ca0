"""Reads of many files that one process plans: it sorts their entries into groups, in about 40 bytes each, and plans
one group after the other, so that no more than one has objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow.compute as pc

from airflow_paimon.core.parallel.sorted_runs import Kept, SortedRuns
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import with_schemas
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.layers import Layer, PinnedLayers
from airflow_paimon.data.scan import TableRead
from airflow_paimon.data.whole_read import (
    GroupRead,
    WholeRead,
    bytes_of,
    plan_group,
    plan_or_whole,
    plan_pinned_or_whole,
    sort_out,
)

MANY_ENTRIES = 50_000
"""Entries of manifests above which one process plans group by group: as objects with their splits they take 1 kB each,
and 0.4 kB more where a filter needs their statistics.
"""
_FILES, _MOST_GROUPS = 2000, 20_000
"""Files of a group, about."""
_LARGE = 2
_MEMORY_BYTES = 64 << 20
"""What is kept in memory of the files of a read that this process plans; the rest lies in a temporary file."""


class PlannedRead(NamedTuple):
    """What to read. ``read``: the common parameters, without the files' schemas. ``layers`` can be taken once."""

    read: TableRead
    layers: Iterable[Layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Files in parts for ``plan_group``. ``files`` and ``size``: how many, and their bytes. ``is_large``: they are more
    than twice as many, or as large, as was asked for, like those of a table with few buckets, which can't be divided
    without a plan.
    """

    parts: Sequence[Kept]
    files: int
    size: int
    is_large: bool

    def read(self) -> list[bytes]:
        """Return the parts as ``plan_group`` takes them."""
        return [bytes(part.read()) for part in self.parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRead:
    """The files of a read in groups, none of which is empty."""

    of: GroupRead
    groups: Sequence[Group]

    def layers(self, groups: Sequence[Group] | None = None) -> Iterator[Layer]:
        """Plan one group after the other, of all (None) or of some; raises as ``plan_group``."""
        return (plan_group(self.of, group.read()) for group in (self.groups if groups is None else groups))


def plan_by_groups(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> PlannedRead:
    """Plan a read as ``layers.plan_table_read`` does. The files are chosen now; what is wrong with one of very many is
    raised when its group is planned.
    """
    return by_groups(
        plan_or_whole(table, version=version, timestamp=timestamp, columns=columns, where=where, more_than=MANY_ENTRIES)
    )


def plan_pinned_by_groups(
    pinned: PinnedLayers, *, columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> PlannedRead:
    """Plan a read of a pinned state, as ``plan_by_groups``."""
    return by_groups(plan_pinned_or_whole(pinned, columns=columns, where=where, more_than=MANY_ENTRIES))


def by_groups(found: WholeRead | list[Layer]) -> PlannedRead:
    """Return what was planned, or what this process plans group by group."""
    if isinstance(found, WholeRead):
        branches = [grouped(branch, memory_bytes=_MEMORY_BYTES // len(found.branches)) for branch in found.branches]
        return PlannedRead(found.read, (layer for branch in branches for layer in branch.layers()))
    return PlannedRead(found[0][0], found)


def grouped(
    whole: WholeRead, *, memory_bytes: int | None = None, files: int | None = None, most_bytes: int | None = None
) -> GroupedRead:
    """Sort the files of a read of one branch into groups.

    ``memory_bytes``: what is kept in memory of them; None: all. A group has about so many ``files``, or fewer if they
    are so large that it has ``most_bytes``, but whole buckets where rows of several files are merged.

    Raises:
        FormatError: a manifest is missing or corrupt. UnsupportedFeatureError: an index file that is not read here.
        StorageError: the disk of temporary files is full.
    """
    each = _FILES if files is None else files
    with reading_once():
        if most_bytes is not None:
            each = max(1, min(each, most_bytes * whole.files // (bytes_of(whole) or 1)))
        number = max(1, min(_MOST_GROUPS, -(-whole.files // each)))
        kept = SortedRuns((1 << 63) if memory_bytes is None else memory_bytes)
        groups: dict[int, list[tuple[int, Kept]]] = {}
        files_of, size_of = [0] * number, [0] * number
        schema_ids: set[int] = set()
        for one in sort_out(whole, whole.listed, number):
            groups.setdefault(one.group, []).append((one.place, kept.keep(one.data)))
            files_of[one.group] += one.files
            size_of[one.group] += one.size
            schema_ids |= one.schema_ids
    most_files = _LARGE * max(each, sum(files_of) / number)
    most_size = _LARGE * max(most_bytes or 0, sum(size_of) / number)
    found = [
        Group(
            parts=[part for _, part in sorted(groups[g], key=lambda one: one[0])],
            files=files_of[g],
            size=size_of[g],
            is_large=files_of[g] > most_files or size_of[g] > most_size,
        )
        for g in sorted(groups)
    ]
    of = replace(whole.of, state=with_schemas(whole.of.state, schema_ids))
    return GroupedRead(of=of, groups=found)
