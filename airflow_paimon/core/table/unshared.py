"""In which partitions two states of a table differ, by digests of the entries that they don't share: for manifests
that one side has merged, so that they name the whole table under other names. About 40 bytes for an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.format.manifest import EntryColumns, FileKind, ManifestFile
from airflow_paimon.core.table.manifest_entries import each_columns
from airflow_paimon.core.table.name_digests import Digests, digests_of
from airflow_paimon.core.table.table import Table

_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD))
_STEP = np.uint64(32)


class _ComparedEntries(NamedTuple):
    """Entries of one manifest: two digests of each file, 1 for an addition or -1 for a deletion, and a partition."""

    first: Digests
    second: Digests
    signs: npt.NDArray[np.int8]
    partitions: npt.NDArray[np.int32]


def differing_partitions(table: Table, old: Sequence[ManifestFile], new: Sequence[ManifestFile]) -> list[bytes]:
    """Return the partitions, as stored, in which the net changes of two groups of manifests differ.

    A file is live by its additions less its deletions, whatever their order, and manifests that both states share add
    the same to both. A partition in which an entry is there twice is among those returned: reading it says so.
    Two different files have the same 128 bits with a chance of one in 10^38.
    """
    numbers: dict[bytes, int] = {}
    sides = [[_entries(columns, numbers) for _, columns in each_columns(table, manifests)] for manifests in (old, new)]
    if not any(sides):
        return []
    joined = [np.concatenate(some) for some in zip(*sides[0], *sides[1], strict=True)]
    first, second, signs, partitions = joined
    later = np.arange(len(first)) >= sum(len(e.first) for e in sides[0])
    order = np.lexsort((second, first))
    starts = _starts(first[order], second[order])
    of_old, of_new = (
        np.add.reduceat(np.where(later == is_new, signs, 0)[order].astype(np.int64), starts) for is_new in (False, True)
    )
    differs = (of_old != of_new) | (abs(of_old) > 1) | (abs(of_new) > 1)
    names = list(numbers)
    return [names[at] for at in np.unique(partitions[order][starts][differs]).tolist()]


def _starts(first: Digests, second: Digests) -> npt.NDArray[np.int64]:
    """Where a file begins among sorted digests."""
    changes = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    starts: npt.NDArray[np.int64] = np.r_[True, changes][: len(first)].nonzero()[0]
    return starts


def _entries(c: EntryColumns, numbers: dict[bytes, int]) -> _ComparedEntries:
    partitions = np.fromiter((numbers.setdefault(p, len(numbers)) for p in c.partitions), np.int32, len(c.partitions))
    beside = [
        "" if not extra and index is None and path is None else repr((extra, index, path))
        for extra, index, path in zip(c.extra_files, c.embedded_file_indexes, c.external_paths, strict=True)
    ]
    parts = [digests_of(c.file_names), *(np.array(n, np.int64).astype(np.uint64) for n in (c.buckets, c.levels))]
    parts += [partitions.astype(np.uint64)]
    if any(beside):
        parts.append(digests_of(beside))
    names = [name[::-1] for name in c.file_names]
    first, second = (
        _mixed([start, *parts[1:]], factor)
        for start, factor in zip((parts[0], digests_of(names)), _FACTORS, strict=True)
    )
    signs = np.where(np.array(c.kinds, np.int8) == FileKind.ADD, 1, -1).astype(np.int8)
    return _ComparedEntries(first, second, signs, partitions)


def _mixed(parts: Sequence[Digests], factor: np.uint64) -> Digests:
    found = parts[0] * factor
    for part in parts[1:]:
        found = (found ^ (found >> _STEP) ^ (part + np.uint64(1))) * factor
    return found ^ (found >> _STEP)
