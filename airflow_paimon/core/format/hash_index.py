"""Encodes and decodes hash indexes: which key hashes a dynamic bucket holds (docs/contributing/format.md, Dynamic
buckets).

The file is nothing but the hashes, each a big-endian int32; it is a set, in no order.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import IndexEntry

_Int = TypeVar("_Int", np.int32, np.int64)

Hashes = npt.NDArray[np.int32]

INDEX_TYPE = "HASH"
_STORED = np.dtype(">i4")


def read_hash_index(data: bytes, row_count: int, *, name: str) -> Hashes:
    """Decode the hashes of a bucket. ``row_count``: how many there are according to the index manifest.

    Raises:
        FormatError: truncated, or of another length than the manifest says.
    """
    if len(data) != row_count * _STORED.itemsize:
        raise FormatError(
            f"{name}: the hash index has {len(data)} bytes, but its index manifest has {row_count} hashes of 4 bytes"
        )
    return np.frombuffer(data, _STORED).astype(np.int32)


def same_hashes(one: Hashes, other: Hashes) -> bool:
    """Whether two buckets hold the same keys, as far as hashes tell, in whatever order."""
    return len(one) == len(other) and np.array_equal(np.sort(one), np.sort(other))


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
