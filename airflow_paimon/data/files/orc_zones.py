"""The time zone in which each stripe of an ORC file was written, which pyarrow does not expose.

Paimon's Java writers store TIMESTAMP_LTZ in ORC files by their own time zone unless
``orc.timestamp-ltz.legacy.type=false``: the stored instant is the UTC date and time as if it were a local one.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_NONE, _ZLIB, _SNAPPY, _LZ4, _ZSTD = 0, 1, 2, 4, 5
_UTC_NAMES = frozenset(("", "UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Universal"))
_CHUNK_HEADER = 3


def stripe_zones(source: Any, path: str) -> list[str]:
    """Return the writer's time zone of each stripe, ``UTC`` for all its names. ``source`` is open for random reads.

    Raises:
        FormatError: not an ORC file, or truncated. UnsupportedFeatureError: an unknown compression.
    """
    try:
        return [_zone(source, *where) for where in _stripe_footers(source)]
    except (IndexError, ValueError, zlib.error, zstd.ZstdError, pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"Data file {path} is truncated or corrupt: {error}; run check_table") from None


def _read(source: Any, start: int, length: int) -> bytes:
    source.seek(start)
    return bytes(source.read(length))


def _stripe_footers(source: Any) -> Iterator[tuple[int, int, int, int]]:
    """Return offset and length of every stripe's footer, with the file's compression and block size."""
    end = source.seek(0, 2)
    tail = _read(source, max(0, end - 256), 256)
    length = tail[-1]
    script = dict(_fields(tail[-1 - length : -1]))
    kind, block = int(script.get(2, _NONE)), int(script.get(3, 1 << 18))
    footer_length = int(script[1])
    stored = _read(source, end - 1 - length - footer_length, footer_length)
    for number, value in _fields(_decompressed(stored, kind, block)):
        if number == 3:
            stripe = dict(_fields(value))
            start = int(stripe.get(1, 0)) + int(stripe.get(2, 0)) + int(stripe.get(3, 0))
            yield start, int(stripe.get(4, 0)), kind, block


def _zone(source: Any, start: int, length: int, kind: int, block: int) -> str:
    footer = _decompressed(_read(source, start, length), kind, block)
    name = next((bytes(value).decode() for number, value in _fields(footer) if number == 3), "")
    return "UTC" if name in _UTC_NAMES else name


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Walk the fields of a protobuf message: numbers as ints, everything else as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            return  # padding after a block that was decompressed into a larger buffer
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            yield number, data[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError("its metadata is not readable")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _decompressed(data: bytes, kind: int, block: int) -> bytes:
    """Decode ORC's chunks: a header of 3 bytes with the length and an "uncompressed" bit, then the chunk."""
    if kind == _NONE:
        return data
    out = []
    at = 0
    while at + _CHUNK_HEADER <= len(data):
        header = int.from_bytes(data[at : at + _CHUNK_HEADER], "little")
        at += _CHUNK_HEADER
        chunk = data[at : at + (header >> 1)]
        at += header >> 1
        out.append(chunk if header & 1 else _chunk(chunk, kind, block))
    return b"".join(out)


def _chunk(chunk: bytes, kind: int, block: int) -> bytes:
    if kind == _ZLIB:
        return zlib.decompress(chunk, wbits=-zlib.MAX_WBITS)
    if kind == _ZSTD:
        return bytes(zstd.decompress(chunk))
    if kind == _SNAPPY:
        return bytes(pa.Codec("snappy").decompress(chunk, _varint(chunk, 0)[0], asbytes=True))
    if kind == _LZ4:
        return bytes(pa.Codec("lz4_raw").decompress(chunk, block, asbytes=True))
    raise UnsupportedFeatureError(f"ORC files with compression {kind} are not read; use Paimon's own Spark connector")
