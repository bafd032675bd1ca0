"""Deletion vectors: Java's sample, bitmaps that CRoaring wrote, every kind of container, corruption."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.deletion_vectors import (
    MAGIC_32,
    MAGIC_64,
    read_deletion_vectors,
    write_bitmap,
    write_deletion_vectors,
)
from airflow_paimon.core.format.manifest import DeletionVectorRange
from airflow_paimon.core.format.manifest_io import read_index_manifest

JAVA_SAMPLE = bytes.fromhex("01 00000018 5e43f2d0 3a30000001000000000001001000000002000400 87d960fa")
PAIMONS_64_BITS = (
    "01 00000024 d1d33964 0100000000000000 00000000 3a300000 01000000 0000 0100 10000000 0200 0300 7a813847"
    "   00000022 d1d33964 0100000000000000 00000000 3a300000 01000000 0000 0000 10000000 0100 eebd85f4"
)
# Written by CRoaring: an array and a run container; a 64-bit bitmap with keys 0 and 3.
CROARING_RUNS = bytes.fromhex("3b3002000400000100010000000200c70002000400701101000000c700")
CROARING_64 = bytes.fromhex(
    "0200000000000000 00000000 3a300000010000000000010010000000 0100050003000000 3a300000010000000000000010000000 0900"
)


def _index_file(*bins: bytes) -> bytes:
    return b"\1" + b"".join(struct.pack(">i", len(b)) + b + struct.pack(">I", zlib.crc32(b)) for b in bins)


def _bin_32(bitmap: bytes) -> bytes:
    return struct.pack(">i", MAGIC_32) + bitmap


def _read_one(data: bytes, length: int, cardinality: int | None = None) -> list[int]:
    found = read_deletion_vectors(data, [DeletionVectorRange("data-1", 1, length, cardinality)], name="index-1")
    return [int(p) for p in found["data-1"]]


def _bitmap(values: list[int], runs: bool) -> bytes:
    """A portable roaring bitmap, written as its specification says."""
    keys = sorted({v >> 16 for v in values})
    containers = [sorted({v & 0xFFFF for v in values if v >> 16 == k}) for k in keys]
    headers = b"".join(struct.pack("<HH", k, len(c) - 1) for k, c in zip(keys, containers, strict=True))
    if runs and keys:
        flags = np.packbits(np.ones(len(keys), np.uint8), bitorder="little").tobytes()
        offsets = bytes(4 * len(keys)) if len(keys) >= 4 else b""
        start = struct.pack("<I", 12347 | len(keys) - 1 << 16) + flags
        return start + headers + offsets + b"".join(_run_container(c) for c in containers)
    start = struct.pack("<II", 12346, len(keys))
    return start + headers + bytes(4 * len(keys)) + b"".join(_plain_container(c) for c in containers)


def _plain_container(values: list[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    bits = np.zeros(65536, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _run_container(values: list[int]) -> bytes:
    runs: list[list[int]] = []
    for v in values:
        if runs and v == sum(runs[-1]) + 1:
            runs[-1][1] += 1
        else:
            runs.append([v, 0])
    return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *r) for r in runs)


def test_java_sample() -> None:
    assert _read_one(JAVA_SAMPLE, 24, 2) == [2, 4]


@pytest.mark.parametrize(
    ("data", "lengths"),
    [
        ("01 00000018 5e43f2d0 3a300000 01000000 0000 0100 10000000 0200 0300 c898f63d"
         "   00000016 5e43f2d0 3a300000 01000000 0000 0000 10000000 0100 fa2b5192", (24, 22)),
        (PAIMONS_64_BITS, (44, 42)),
    ],
    ids=["32 bits", "64 bits"],
)  # fmt: skip
def test_files_of_paimons_own_tests(data: str, lengths: tuple[int, int]) -> None:
    stored = bytes.fromhex(data)
    second = 1 + int.from_bytes(stored[1:5]) + 8
    ranges = [DeletionVectorRange("a", 1, lengths[0], 2), DeletionVectorRange("b", second, lengths[1], 1)]
    found = read_deletion_vectors(stored, ranges)
    assert {k: v.tolist() for k, v in found.items()} == {"a": [2, 3], "b": [1]}


def test_croaring_runs() -> None:
    data = _bin_32(CROARING_RUNS)
    assert _read_one(_index_file(data), len(data)) == [2, 4, 70000, *range(131072, 131272)]


def test_croaring_64() -> None:
    data = struct.pack("<i", MAGIC_64) + CROARING_64
    # With 64-bit keys the range counts size and checksum, too.
    assert _read_one(_index_file(data), len(data) + 8, 3) == [1, 5, (3 << 32) + 9]


_positions = st.lists(
    st.integers(0, 2**31 - 1) | st.integers(0, 3 * 65536), max_size=60, unique=True
) | st.tuples(st.integers(0, 200_000), st.integers(0, 9000)).map(lambda r: list(range(r[0], r[0] + r[1])))  # fmt: skip


@given(_positions, st.booleans())
def test_round_trip(values: list[int], runs: bool) -> None:
    data = _bin_32(_bitmap(values, runs))
    assert _read_one(_index_file(data), len(data), len(values)) == sorted(values)


@given(_positions, st.booleans())
def test_what_is_written_is_read(values: list[int], bits64: bool) -> None:
    wide = [v + (3 << 32) for v in values] if bits64 else []
    files = {"a": _ascending(values), "empty": _ascending([]), "b": _ascending([*values, *wide])}
    data, ranges = write_deletion_vectors(files, bits64=bits64)
    found = read_deletion_vectors(data, ranges)
    assert {name: p.tolist() for name, p in found.items()} == {name: p.tolist() for name, p in files.items()}
    if not bits64:  # the bytes are those of the format's other writer, the offsets of containers aside
        assert len(data) == len(_index_file(*(_bin_32(_bitmap(p.tolist(), runs=False)) for p in files.values())))


def _ascending(values: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(sorted(values), np.uint64)


def test_the_bytes_are_those_that_paimon_writes() -> None:
    assert write_deletion_vectors({"data-1": _ascending([2, 4])}, bits64=False)[0] == JAVA_SAMPLE
    stored, ranges = write_deletion_vectors({"a": _ascending([2, 3]), "b": _ascending([1])}, bits64=True)
    assert stored.hex() == PAIMONS_64_BITS.replace(" ", "")
    assert [(r.offset, r.length, r.cardinality) for r in ranges] == [(1, 44, 2), (45, 42, 1)]
    # an array and a bitmap container, whose offsets CRoaring checks
    many = _ascending([5, *range(1 << 16, (1 << 16) + 5000)])
    assert struct.unpack_from("<II", write_bitmap(many), 16) == (24, 26)


def test_bitmap_container() -> None:
    values = list(range(0, 65536, 3))
    data = _bin_32(_bitmap(values, runs=False))
    assert len(data) > 8192
    assert _read_one(_index_file(data), len(data)) == values


def test_several_files() -> None:
    first, second = _bin_32(_bitmap([1], runs=False)), _bin_32(_bitmap([], runs=False))
    ranges = [DeletionVectorRange("b", 9 + len(first), len(second)), DeletionVectorRange("a", 1, len(first))]
    found = read_deletion_vectors(_index_file(first, second), ranges)
    assert {k: v.tolist() for k, v in found.items()} == {"a": [1], "b": []}


def test_golden_vectors(golden: Callable[[str], Path]) -> None:
    read = 0
    for archive in ("paimon-2.0.0", "paimon-0.9.0"):
        for path in golden(archive).glob("wh/d.db/*/manifest/index-manifest-*"):
            for entry in read_index_manifest(path.read_bytes(), name=path.name):
                file = path.parent.parent / "index" / entry.file_name
                if entry.deletion_vector_ranges and file.is_file():
                    ranges = [r for r in entry.deletion_vector_ranges if r]
                    found = read_deletion_vectors(file.read_bytes(), ranges, name=file.name)
                    assert all(len(p) for p in found.values())
                    read += len(found)
    assert read == 6


def test_every_flipped_bit_is_noticed() -> None:
    for at in range(1, len(JAVA_SAMPLE)):
        spoilt = bytearray(JAVA_SAMPLE)
        spoilt[at] ^= 1
        with pytest.raises(FormatError, match="index-1: the deletion vector of data-1"):
            _read_one(bytes(spoilt), 24)


def test_every_truncation_is_noticed() -> None:
    for size in range(1, len(JAVA_SAMPLE)):
        with pytest.raises(FormatError):
            _read_one(JAVA_SAMPLE[:size], 24)
    with pytest.raises(FormatError, match="empty"):
        _read_one(b"", 24)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack(">i", 7) + CROARING_RUNS, "magic number 00000007 is unknown"),
        (_bin_32(CROARING_RUNS + b"\0"), "ends too early"),
        (_bin_32(CROARING_RUNS[:-1]), "truncated"),
        (_bin_32(struct.pack("<II", 99, 0)), "unknown roaring format"),
        (_bin_32(struct.pack("<II", 12346, 1 << 17)), "number of containers"),
        (_bin_32(struct.pack("<IIHHI", 12346, 1, 0, 4999, 0) + bytes(8192)), "does not have the number of values"),
        (_bin_32(struct.pack("<IBHHHHH", 12347, 1, 0, 9, 1, 65530, 9)), "does not have the number of values"),
        (struct.pack("<iq", MAGIC_64, -1), "number of bitmaps"),
    ],
)  # fmt: skip
def test_corrupt_bitmaps(content: bytes, message: str) -> None:
    length = len(content) + (8 if content[:4] == struct.pack("<i", MAGIC_64) else 0)
    with pytest.raises(FormatError, match=message):
        _read_one(_index_file(content), length)


def test_disagreement_with_the_index_manifest() -> None:
    with pytest.raises(FormatError, match="has 2 positions instead of the 3 in its index manifest"):
        _read_one(JAVA_SAMPLE, 24, 3)
    with pytest.raises(FormatError, match="it has 24 bytes instead of the 25 in the index manifest"):
        _read_one(JAVA_SAMPLE, 25)


def test_later_version() -> None:
    with pytest.raises(UnsupportedFeatureError, match="version 2"):
        _read_one(b"\2" + JAVA_SAMPLE[1:], 24)


def test_bitmaps_of_more_positions_than_a_file_has_are_refused_before_they_are_made() -> None:
    everything = struct.pack("<I", 12347 | (65535 << 16)) + b"\xff" * 8192
    everything += b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(65536)) + bytes(4 * 65536)
    everything += struct.pack("<HHH", 1, 0, 0xFFFF) * 65536
    repeated = struct.pack("<I", 12347) + b"\1" + struct.pack("<HH", 0, 9)
    repeated += struct.pack("<H", 0xFFFF) + struct.pack("<HH", 0, 0xFFFF) * 0xFFFF
    for bitmap, why in ((everything, "more than 268,435,456 positions"), (repeated, "number of values in its header")):
        stored = struct.pack(">i", MAGIC_32) + bitmap
        data = _index_file(stored)
        with pytest.raises(FormatError, match=why):
            read_deletion_vectors(data, [DeletionVectorRange("data-0", 1, len(stored), None)])
