"""Sorted columns in memory and in a file: the same rows by ranges, whatever the memory."""

from __future__ import annotations

import errno
import os
import random
import resource
import tempfile

import numpy as np
import pytest

from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.table.spill import DigestRanges, SpillBuffer, concat_columns, cuts_for, range_bounds

TYPES = (np.uint64, np.int32, bool)


@pytest.mark.parametrize("memory_bytes", [0, 1000, 1 << 30])
@pytest.mark.parametrize("range_bytes", [50, 5000, 1 << 30])
def test_ranges_hold_all_rows_in_order(memory_bytes: int, range_bytes: int) -> None:
    chance = random.Random(memory_bytes + range_bytes)
    runs = SpillBuffer(memory_bytes)
    few = [0, (1 << 64) - 1, *(chance.getrandbits(64) for _ in range(40))]  # some are in several runs, and twice in one
    rows: list[tuple[int, int, bool]] = []
    kept = []
    for _ in range(6):
        some = [(chance.choice(few), len(rows) + n, chance.random() < 0.5) for n in range(chance.randint(0, 30))]
        rows += some
        columns = zip(*some, strict=True) if some else ((), (), ())
        kept.append(runs.add([np.array(c, kind) for c, kind in zip(columns, TYPES, strict=True)]))
    cuts = cuts_for(len(rows), 16, range_bytes)
    assert (len(cuts) > 0) == (len(rows) * 16 > range_bytes)
    ranges, borders = DigestRanges(kept, cuts), [0, *cuts.tolist(), 1 << 64]
    found: list[tuple[int, int, bool]] = []
    for at in range(len(ranges)):
        digests, numbers, flags = concat_columns(ranges.parts(at), TYPES)
        assert all(borders[at] <= d < borders[at + 1] for d in digests.tolist())
        found += zip(digests.tolist(), numbers.tolist(), flags.tolist(), strict=True)
    assert sorted(found) == sorted(rows)
    for digest in few:  # those of one digest stay in the order in which they came
        numbers = [n for d, n, _ in found if d == digest]
        assert numbers == sorted(numbers)
    some_digests = np.sort(np.array(few, np.uint64))
    edges = range_bounds(some_digests, cuts)
    assert [cut in borders or edge <= len(few) for cut, edge in zip(borders, edges, strict=True)]
    assert edges[0] == 0 and edges[-1] == len(few) and edges == sorted(edges)


def test_bytes_are_kept_in_memory_and_in_the_file() -> None:
    runs = SpillBuffer(5)
    first, second, third = runs.keep(b"12345"), runs.keep(b"abc"), runs.keep(np.arange(3, dtype=np.int64))
    assert bytes(first.read(1, 3)) == b"23" and bytes(second.read()) == b"abc"
    assert np.frombuffer(third.read(8), np.int64).tolist() == [1, 2]


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    runs = SpillBuffer(0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"No space left on device.*TMPDIR"):
        runs.keep(b"x")


def test_without_any_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # is sought again
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StorageError) as caught:
            SpillBuffer(0).keep(b"x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "to a temporary file: No usable temporary directory found" in str(caught.value)
    assert "TMPDIR" in str(caught.value)
