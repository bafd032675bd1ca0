"""Names of files as numbers of 64 bits, so that millions of them fit in memory: 8 bytes each, not 100. Pure.

Two names have the same digest with a chance of one in 10^19 (10^7 names: any two of them, one in 10^5). Who looks for
files that nothing names takes such a file for one that is named, and keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]

ANY_NAME = "surrogatepass"
"""How names are encoded: those of a disk need not be UTF-8."""
_FACTOR, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)


def digests_of(names: Sequence[str]) -> Digests:
    """Return the digest of each name, the same in every process."""
    return digests_of_bytes([name.encode(errors=ANY_NAME) for name in names])


def digests_of_bytes(stored: Sequence[bytes]) -> Digests:
    """Return the digest of each value, the same in every process."""
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    out = np.zeros(len(stored), np.uint64)
    for size in np.unique(sizes).tolist():
        where = (sizes == size).nonzero()[0]
        same = stored if len(where) == len(stored) else [stored[at] for at in where.tolist()]
        out[where] = _of_one_size(b"".join(same), len(where), size)
    return out


def _of_one_size(joined: bytes, number: int, size: int) -> Digests:
    wide = -(-size // 8)
    padded = np.zeros((number, wide * 8), np.uint8)
    padded[:, :size] = np.frombuffer(joined, np.uint8).reshape(number, size)
    words = padded.view("<u8")
    found = np.full(number, size + 1, np.uint64) * _OTHER
    for at in range(wide):
        found ^= words[:, at]
        found *= _FACTOR
        found ^= found >> _HALF
    found *= _OTHER
    return found ^ (found >> _HALF)


def places_in(known: Digests, digests: Digests) -> npt.NDArray[np.int32]:
    """Return the place of each digest in sorted ones, -1 for one that is not there."""
    at = np.searchsorted(known, digests)
    at[at == len(known)] = 0
    there = known[at] == digests if len(known) else np.zeros(len(digests), bool)
    return np.where(there, at, -1).astype(np.int32)
