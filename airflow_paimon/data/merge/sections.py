"""Divides a bucket's files into sections that share no key, so that only overlapping files are merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema

Run = tuple[DataFile, ...]
"""A sorted run: files in key order that share no key."""


@dataclass(frozen=True, slots=True)
class Section:
    """Files whose keys no other section has. With one run nothing has to be merged.

    ``side_by_side``: the runs are column files of the same rows (``column_files``).
    """

    runs: tuple[Run, ...]
    side_by_side: bool = False

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for run in self.runs for f in run)

    @property
    def needs_merge(self) -> bool:
        return len(self.runs) > 1

    @property
    def may_hold_deletes(self) -> bool:
        """Whether it may contain -U or -D rows; for files of Paimon 0.7 and earlier that is unknown."""
        return any(f.delete_row_count != 0 for f in self.files)

    @property
    def in_order(self) -> bool:
        """Whether, by sequence numbers, every row of a later run is newer than every row of an earlier one."""
        ranges = [(min(f.min_sequence_number for f in r), max(f.max_sequence_number for f in r)) for r in self.runs]
        return all(before[1] < after[0] for before, after in pairwise(ranges))

    @property
    def is_raw(self) -> bool:
        """Whether the files' rows are exactly the table's rows."""
        return not self.needs_merge and not self.may_hold_deletes


def unmerged(files: Sequence[DataFile]) -> list[Section]:
    """Return a section for each file, whose rows are read as they are stored."""
    return [Section(((f,),)) for f in files]


def plan_sections(files: Sequence[DataFile], schema: TableSchema) -> list[Section]:
    """Group files by overlapping key ranges and arrange each group in as few sorted runs as possible.

    Runs of one section are ordered from the oldest to the newest, by the highest sequence number in them.
    """
    if len(files) == 1:
        return [Section((tuple(files),))]
    ranged = key_ranges(files, schema)
    if ranged is None:  # a range is unknown, so everything may overlap
        return [Section(_by_age([(f,) for f in files]))]
    sections: list[Section] = []
    group: list[tuple[Any, Any, DataFile]] = []
    reach: Any = None
    for item in sorted(ranged, key=lambda r: (r[0], r[1])):
        if group and item[0] > reach:
            sections.append(_section(group))
            group, reach = [], None
        group.append(item)
        reach = item[1] if reach is None else max(reach, item[1])
    if group:
        sections.append(_section(group))
    return sections


def _section(group: Sequence[tuple[Any, Any, DataFile]]) -> Section:
    """Put each file, by lowest key, after the first run that ends before it."""
    runs: list[tuple[Any, list[DataFile]]] = []
    for low, high, file in group:
        at = next((i for i, (end, _) in enumerate(runs) if end < low), None)
        if at is None:
            runs.append((high, [file]))
        else:
            runs[at][1].append(file)
            runs[at] = (high, runs[at][1])
    return Section(_by_age([tuple(r) for _, r in runs]))


def _by_age(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: max(f.max_sequence_number for f in run)))


def key_ranges(files: Sequence[DataFile], schema: TableSchema) -> list[tuple[Any, Any, DataFile]] | None:
    """Return the lowest and highest key of each file, comparable as keys; None: unknown for a file."""
    key_types = [f.type for f in schema.key_fields]
    orders = [_ORDERS.get(t.root, _as_is) for t in key_types]
    out = []
    for file in files:
        try:
            low, high = decode_row(file.min_key, key_types), decode_row(file.max_key, key_types)
        except FormatError:
            return None
        if None in low or None in high:
            return None
        out.append((_order(low, orders), _order(high, orders), file))
    return out


def _order(values: Sequence[Any], orders: Sequence[Callable[[Any], Any]]) -> tuple[Any, ...]:
    return tuple(order(value) for value, order in zip(values, orders, strict=True))


def _as_is(value: Any) -> Any:
    return value


def _float_order(value: float) -> tuple[bool, float]:
    """Order as ``sort_keys`` does: -0.0 is 0.0, NaN is above everything and equal to itself."""
    return (True, 0.0) if math.isnan(value) else (False, value)


_ORDERS: dict[str, Callable[[Any], Any]] = {"FLOAT": _float_order, "DOUBLE": _float_order}
