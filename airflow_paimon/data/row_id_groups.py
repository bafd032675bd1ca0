"""Where the row ids of a table with data evolution may be divided: files whose ranges overlap stay together.

A plan of the files between two divisions gives the same sections, and finds the same damage, as one of all files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind

_MOST = 20_000
_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowIdDivisions:
    """``starts``: row ids at which a part of the files begins; the parts have about equally many. ``marked``: the first
    row ids of files that have a deletion vector.
    """

    starts: Sequence[int]
    marked: Mapping[str, int]

    def group(self, first_row_id: int, groups: int) -> int:
        """Return the group of a file, of so many."""
        return bisect_right(self.starts, first_row_id) * groups // (len(self.starts) + 1)


def divide_row_ids(parts: Iterable[EntryColumns], marked: Collection[str], most: int = _MOST) -> RowIdDivisions:
    """Divide the row ids of all entries of a table, those of deleted files as well, as these keep their places in the
    order of entries, at ``most`` so many times. ``marked``: see ``RowIdDivisions``. Takes about 40 bytes an entry.
    """
    firsts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    found: dict[str, int] = {}
    for part in parts:
        ids = part.first_row_ids
        sized = zip(ids, part.row_counts, strict=True)
        ranges = [(first, first + max(count, 1)) for first, count in sized if first is not None]
        firsts.append(np.array([first for first, _ in ranges], np.int64))
        ends.append(np.array([end for _, end in ranges], np.int64))
        for kind, name, first in zip(part.kinds, part.file_names, ids, strict=True) if marked else ():
            if name in marked and kind == FileKind.ADD and first is not None:
                found[name] = first
    return RowIdDivisions(_starts(np.concatenate(firsts), np.concatenate(ends), most).tolist(), found)


def _starts(firsts: _Longs, ends: _Longs, most: int) -> _Longs:
    """Return row ids that begin a range which no earlier one reaches, at about equal distances."""
    order = np.argsort(firsts, kind="stable")
    firsts = firsts[order]
    begins = np.flatnonzero(firsts[1:] >= np.maximum.accumulate(ends[order])[:-1]) + 1
    parts = min(most, len(begins) + 1)
    wanted = np.searchsorted(begins, np.arange(1, parts) * len(firsts) // parts)
    return firsts[begins[np.unique(wanted[wanted < len(begins)])]]
