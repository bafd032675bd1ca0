"""Unpacks compressed bytes of files, within bounds: a few bytes can stand for gigabytes, in a file made for that.

The bounds follow what is stored, and no real table comes near them: Paimon's writers fill blocks of 64 KB, and the
widest entries of manifests are packed to a hundredth of their size.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any

from airflow_paimon.core.errors import FormatError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK_BYTES = 64 << 20
"""What one block may be unpacked to."""
FILE_BYTES = 64 << 20
MOST_TIMES = 1000
"""What all blocks of a file may be unpacked to: ``FILE_BYTES``, and this many times what is stored."""
_LZMA_MEMORY = 256 << 20


class Unpacker:
    """Unpacks the blocks of one file, whose size is ``stored`` bytes."""

    def __init__(self, codec: str, stored: int, block_bytes: int = BLOCK_BYTES) -> None:
        """``codec``: by Avro's names, or ``snappy_raw`` and ``lz4_raw`` without Avro's checksum."""
        self._unpack = _UNPACK[codec]
        self._block_bytes = block_bytes
        self._left = FILE_BYTES + MOST_TIMES * stored

    def block(self, data: bytes) -> bytes:
        """Unpack a block.

        Raises:
            FormatError: it is corrupt, or it or all so far are larger than they can be.
        """
        limit = min(self._left, max(self._block_bytes, len(data)))
        try:
            out = self._unpack(data, limit)
        except (zstd.ZstdError, zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as e:
            raise FormatError(f"a block can't be decompressed: {e}") from None
        if len(out) > limit:
            raise _too_large(limit)
        self._left -= len(out)
        return out


def _too_large(limit: int) -> FormatError:
    return FormatError(f"a block of it would be unpacked to more than {limit:,} bytes, which no real file has")


def _stream(data: bytes, limit: int, new: Callable[[], Any]) -> bytes:
    """Unpack one frame after the other; one byte more than the limit tells that there would be more."""
    out: bytes = b""
    while data:
        one = new()
        out += one.decompress(data, limit + 1 - len(out))
        if len(out) > limit:
            return out
        if not one.eof:
            raise EOFError("it ends too early")
        data = one.unused_data
    return out


def _deflate(data: bytes, limit: int) -> bytes:
    one = zlib.decompressobj(-zlib.MAX_WBITS)
    out: bytes = one.decompress(data, limit + 1)
    if len(out) <= limit and not one.eof:
        raise EOFError("it ends too early")
    return out


def _arrow(codec: str, data: bytes, size: int, limit: int) -> bytes:
    import pyarrow  # slow to import, and seldom needed

    if not 0 <= size <= limit:
        raise _too_large(limit)
    try:
        return bytes(pyarrow.Codec(codec).decompress(data, size, asbytes=True))
    except pyarrow.ArrowException as e:
        raise ValueError(str(e)) from None


def _snappy(data: bytes, limit: int) -> bytes:
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return _arrow("snappy", data, size, limit)


def _snappy_with_checksum(data: bytes, limit: int) -> bytes:
    plain = _snappy(data[:-4], limit)
    if zlib.crc32(plain).to_bytes(4, "big") != data[-4:]:
        raise ValueError("the checksum is wrong")
    return plain


_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda data, limit: data,
    "deflate": _deflate,
    "snappy": _snappy_with_checksum,
    "snappy_raw": _snappy,
    "lz4_raw": lambda data, limit: _arrow("lz4_raw", data, limit, limit),
    "bzip2": lambda data, limit: _stream(data, limit, bz2.BZ2Decompressor),
    "xz": lambda data, limit: _stream(data, limit, lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)),
    "zstandard": lambda data, limit: _stream(data, limit, zstd.ZstdDecompressor),
}
CODECS = frozenset(_UNPACK) - {"snappy_raw", "lz4_raw"}
"""Those that Avro has names for."""
