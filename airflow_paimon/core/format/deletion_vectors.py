"""Encodes and decodes deletion vectors: which row positions of a data file are deleted (docs/contributing/format.md).

An index file is a version byte and then, for each data file, a size, a bin (magic number and roaring bitmap) and a CRC.
Bitmaps are in the portable roaring format, with 32-bit keys or with 64-bit keys on top.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DeletionVectorRange

Positions = npt.NDArray[np.uint64]

FILE_VERSION = 1
MAGIC_32 = 1581511376
"""Stored big-endian; the range's length excludes size and CRC."""
MAGIC_64 = 1681511377
"""Stored little-endian; the range's length includes size and CRC."""

_COOKIE_RUNS = 12347
_COOKIE_NO_RUNS = 12346
_NO_OFFSETS_BELOW = 4
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
MOST_POSITIONS = 1 << 28
"""Deleted rows of one file: a few bytes can stand for many more."""
_OTHER_NUMBER = "a container of its bitmap does not have the number of values in its header"
MAX_POSITION_32 = 2**31 - 1
"""Paimon's vectors with 32-bit keys hold positions up to this one."""


def read_deletion_vectors(
    data: bytes, ranges: Iterable[DeletionVectorRange], *, name: str | None = None
) -> dict[str, Positions]:
    """Return the deleted positions (from 0, ascending) of each data file that ``ranges`` names.

    Raises:
        FormatError: truncated, corrupt, a wrong checksum, or another cardinality than the range says.
        UnsupportedFeatureError: a later version of the format.
    """
    prefix = f"{name}: " if name else ""
    if not data:
        raise FormatError(f"{prefix}the deletion vector file is empty")
    if data[0] != FILE_VERSION:
        raise UnsupportedFeatureError(f"{prefix}deletion vectors of version {data[0]}, only {FILE_VERSION} is known")
    out: dict[str, Positions] = {}
    for entry in ranges:
        try:
            positions = _read_bin(data, entry.offset, entry.length)
        except (struct.error, ValueError, IndexError) as e:
            raise FormatError(f"{prefix}the deletion vector of {entry.data_file} is truncated: {e}") from None
        except FormatError as e:
            raise FormatError(f"{prefix}the deletion vector of {entry.data_file} is corrupt: {e.message}") from None
        if entry.cardinality is not None and entry.cardinality != len(positions):
            raise FormatError(
                f"{prefix}the deletion vector of {entry.data_file} has {len(positions)} positions instead of the "
                f"{entry.cardinality} in its index manifest"
            )
        out[entry.data_file] = positions
    return out


def write_deletion_vectors(
    vectors: Mapping[str, Positions], *, bits64: bool
) -> tuple[bytes, tuple[DeletionVectorRange, ...]]:
    """Encode an index file with the deleted positions (ascending, each once) of data files; returns where each lies.

    ``bits64``: with 64-bit keys (``deletion-vectors.bitmap64``).
    """
    out = bytearray([FILE_VERSION])
    ranges = []
    for data_file, positions in vectors.items():
        stored = _bin_64(positions) if bits64 else struct.pack(">i", MAGIC_32) + write_bitmap(positions)
        length = len(stored) + 8 if bits64 else len(stored)
        ranges.append(DeletionVectorRange(data_file, len(out), length, len(positions)))
        out += struct.pack(">i", len(stored)) + stored + struct.pack(">I", zlib.crc32(stored))
    return bytes(out), tuple(ranges)


def _bin_64(positions: Positions) -> bytes:
    highs = (positions >> np.uint64(32)).astype(np.uint32)
    keys = np.unique(highs)
    parts = [struct.pack("<iq", MAGIC_64, len(keys))]
    for key in keys.tolist():
        parts.append(struct.pack("<I", key) + write_bitmap(positions[highs == key] & np.uint64(0xFFFFFFFF)))
    return b"".join(parts)


def write_bitmap(positions: Positions) -> bytes:
    """Encode positions below 2**32, ascending and each once, as a portable roaring bitmap."""
    highs = (positions >> np.uint64(16)).astype(np.uint32)
    keys, starts = np.unique(highs, return_index=True)
    lows = (positions & np.uint64(0xFFFF)).astype("<u2")
    containers = [_container(part) for part in np.split(lows, starts[1:])] if len(keys) else []
    counts = np.diff([*starts.tolist(), len(positions)])
    header = np.empty((len(keys), 2), "<u2")
    header[:, 0], header[:, 1] = keys, counts - 1
    first = 8 + 8 * len(keys)
    offsets = first + np.cumsum([0, *map(len, containers)])[:-1] if len(keys) else np.empty(0)
    return b"".join(
        (struct.pack("<II", _COOKIE_NO_RUNS, len(keys)), header.tobytes(), offsets.astype("<u4").tobytes(), *containers)
    )


def read_bitmap(data: bytes) -> Positions:
    """Decode what ``write_bitmap`` has encoded."""
    return _read_bitmap(data, 0)[0].astype(np.uint64)


def _container(lows: npt.NDArray[np.uint16]) -> bytes:
    if len(lows) <= _ARRAY_MAX:
        return lows.tobytes()
    bits = np.zeros(_BITMAP_BYTES * 8, np.uint8)
    bits[lows] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _read_bin(data: bytes, offset: int, length: int) -> Positions:
    if offset < 1:
        raise FormatError("its offset is wrong")
    (size,) = struct.unpack_from(">i", data, offset)
    start, end = offset + 4, offset + 4 + size
    if size < 4 or end + 4 > len(data):
        raise FormatError("it lies beyond the end of the file")
    stored = data[start:end]
    if zlib.crc32(stored) != struct.unpack_from(">I", data, end)[0]:
        raise FormatError("its checksum is wrong")
    if struct.unpack_from(">i", stored)[0] == MAGIC_32:
        expected = size
        positions, stop = _read_bitmap(stored, 4)
        high = positions.astype(np.uint64)
    elif struct.unpack_from("<i", stored)[0] == MAGIC_64:
        expected = size + 8
        high, stop = _read_bitmap_64(stored, 4)
    else:
        raise FormatError(f"its magic number {stored[:4].hex()} is unknown")
    if length != expected:
        raise FormatError(f"it has {expected} bytes instead of the {length} in the index manifest")
    if stop != len(stored):
        raise FormatError("its bitmap ends too early")
    return high


def _read_bitmap_64(data: bytes, position: int) -> tuple[Positions, int]:
    (number,) = struct.unpack_from("<q", data, position)
    position += 8
    if not 0 <= number <= len(data):
        raise FormatError("its number of bitmaps is wrong")
    parts: list[Positions] = []
    for _ in range(number):
        (key,) = struct.unpack_from("<I", data, position)
        low, position = _read_bitmap(data, position + 4)
        parts.append(low.astype(np.uint64) | np.uint64(key << 32))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64), position


def _read_bitmap(data: bytes, position: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Read a portable roaring bitmap; returns its values and the position after it."""
    (cookie,) = struct.unpack_from("<I", data, position)
    position += 4
    runs: npt.NDArray[np.bool_]
    if cookie & 0xFFFF == _COOKIE_RUNS:
        number = (cookie >> 16) + 1
        flags = np.frombuffer(data, np.uint8, (number + 7) // 8, position)
        runs = np.unpackbits(flags, bitorder="little")[:number].astype(bool)
        position += len(flags)
    elif cookie == _COOKIE_NO_RUNS:
        (number,) = struct.unpack_from("<I", data, position)
        position += 4
        if number > 1 << 16:
            raise FormatError("its number of containers is wrong")
        runs = np.zeros(number, bool)
    else:
        raise FormatError("its bitmap has an unknown roaring format")
    header = np.frombuffer(data, "<u2", 2 * number, position).reshape(number, 2)
    if int(header[:, 1].sum(dtype=np.uint64)) + number > MOST_POSITIONS:
        raise FormatError(f"its bitmap has more than {MOST_POSITIONS:,} positions, which no real file has")
    position += 4 * number
    if cookie == _COOKIE_NO_RUNS or number >= _NO_OFFSETS_BELOW:
        position += 4 * number
    parts: list[npt.NDArray[np.uint32]] = []
    for (key, last), is_run in zip(header.tolist(), runs.tolist(), strict=True):
        values, position = _read_container(data, position, last + 1, is_run)
        parts.append(values | np.uint32(key << 16))
    return np.concatenate(parts) if parts else np.empty(0, np.uint32), position


def _read_container(data: bytes, position: int, number: int, is_run: bool) -> tuple[npt.NDArray[np.uint32], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, position)
        pairs = np.frombuffer(data, "<u2", 2 * count, position + 2).reshape(count, 2).astype(np.uint32)
        lengths = pairs[:, 1] + 1
        if int(lengths.sum(dtype=np.uint64)) != number:  # before that many are made
            raise FormatError(_OTHER_NUMBER)
        starts = np.repeat(pairs[:, 0], lengths)
        within = np.arange(len(starts), dtype=np.uint32) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values = (starts + within).astype(np.uint32)
        position += 2 + 4 * count
    elif number <= _ARRAY_MAX:
        values = np.frombuffer(data, "<u2", number, position).astype(np.uint32)
        position += 2 * number
    else:
        bits = np.frombuffer(data, np.uint8, _BITMAP_BYTES, position)
        values = np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.uint32)
        position += _BITMAP_BYTES
    if len(values) != number or (number and int(values[-1]) > 0xFFFF):
        raise FormatError(_OTHER_NUMBER)
    return values, position
