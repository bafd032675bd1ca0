"""Encodes and decodes hash indexes: which key hashes a dynamic bucket holds (docs/contributing/format.md, Dynamic
buckets).

The file is nothing but the hashes, each a big-endian int32; it is a set, in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import IndexEntry

_Int = TypeVar("_Int", np.int32, np.int64)

Hashes = npt.NDArray[np.int32]

INDEX_TYPE = "HASH"
_STORED = np.dtype(">i4")
_MOST_HASHES = 1 << 32
"""There are no more of 32 bits."""


def read_hash_index(data: bytes, row_count: int, *, name: str) -> Hashes:
    """Decode the hashes of a bucket. ``row_count``: how many there are according to the index manifest.

    Raises:
        FormatError: truncated, or of another length than the manifest says.
    """
    _check_size(len(data), row_count, name)
    return np.frombuffer(data, _STORED).astype(np.int32)


def same_hashes(one: Hashes, other: Hashes) -> bool:
    """Whether two buckets hold the same keys, as far as hashes tell, in whatever order."""
    return len(one) == len(other) and np.array_equal(np.sort(one), np.sort(other))


def read_hash_indexes(
    entries: Sequence[IndexEntry], read: Callable[[Sequence[memoryview]], Sequence[int]]
) -> list[Hashes]:
    """Decode the indexes of several buckets, in the memory that ``read`` fills; it returns the size of each file.

    It is one piece, which a system hands out in large pages: with millions of hashes, pages take longer than the rest.

    Raises:
        FormatError: as of ``read_hash_index``.
    """
    stored = _memory_for(entries)
    counts = [e.row_count for e in entries]
    ends = np.cumsum(counts).tolist()
    memory = stored.view(np.uint8).data
    sizes = read([memory[4 * (end - count) : 4 * end] for count, end in zip(counts, ends, strict=True)])
    for e, size in zip(entries, sizes, strict=True):
        _check_size(size, e.row_count, e.file_name)
    hashes = stored.view(np.int32)
    hashes[:] = stored
    return [hashes[end - count : end] for count, end in zip(counts, ends, strict=True)]


def released(hashes: Sequence[Hashes]) -> list[Hashes]:
    """Return hashes of buckets that were read together; copied, if less than half of what was read is left of them: a
    part of an array keeps the memory of the whole.
    """
    whole = max((h.base.nbytes for h in hashes if h.base is not None), default=0)
    return [h.copy() for h in hashes] if 2 * sum(h.nbytes for h in hashes) < whole else list(hashes)


def _memory_for(entries: Sequence[IndexEntry]) -> npt.NDArray[np.int32]:
    """Return an array for the hashes of these indexes, as they are stored.

    Raises:
        FormatError: an index manifest says nonsense. MemoryError: there really are that many.
    """
    for e in entries:
        if not 0 <= e.row_count <= _MOST_HASHES:
            raise FormatError(f"{e.file_name}: its index manifest gives it {e.row_count} hashes")
    try:
        return np.empty(sum(e.row_count for e in entries), _STORED)
    except MemoryError:
        for e in entries:
            _check_size(e.file_size, e.row_count, e.file_name)
        raise


def _check_size(size: int, row_count: int, name: str) -> None:
    if size != row_count * _STORED.itemsize:
        raise FormatError(
            f"{name}: the hash index has {size} bytes, but its index manifest has {row_count} hashes of 4 bytes"
        )


def write_hash_index(hashes: Hashes) -> bytes:
    """Encode the hashes of a bucket, each of them once."""
    return distinct(hashes).astype(_STORED).tobytes()


def extended_hash_index(known: Hashes, new: Hashes) -> bytes:
    """Encode the hashes of a bucket together with new ones, each of them once.

    What is sorted, as our own files are, is not sorted again: a stable sort merges it with the new hashes.
    """
    held = known if is_rising(known) else np.sort(known)
    merged = np.sort(np.concatenate([held, np.sort(new)]), kind="stable")
    return without_repeats(merged).astype(_STORED).tobytes()


def hash_index_entry(partition: bytes, bucket: int, file_name: str, data: bytes) -> IndexEntry:
    """Describe the file of a bucket's hashes, for the index manifest."""
    return IndexEntry(
        kind=0,
        partition=partition,
        bucket=bucket,
        index_type=INDEX_TYPE,
        file_name=file_name,
        file_size=len(data),
        row_count=len(data) // _STORED.itemsize,
    )


def distinct(numbers: npt.NDArray[_Int]) -> npt.NDArray[_Int]:
    """Sort and return each number once; many times as fast as ``numpy.unique`` of many numbers, which hashes them."""
    return without_repeats(np.sort(numbers))


def sorting_order(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the positions that sort hashes, equal ones as they come; many times as fast as ``numpy.argsort``."""
    placed = (hashes.astype(np.int64) << 32) | np.arange(len(hashes))
    placed.sort()
    return placed & 0xFFFFFFFF


def is_rising(numbers: npt.NDArray[_Int]) -> bool:
    """Return whether numbers are sorted, and each of them is there once."""
    return bool((numbers[1:] > numbers[:-1]).all())


def without_repeats(numbers: npt.NDArray[_Int]) -> npt.NDArray[_Int]:
    """Return sorted numbers each once; these themselves if they are."""
    repeats = numbers[1:] == numbers[:-1]
    return numbers[np.concatenate(([True], ~repeats))] if repeats.any() else numbers
