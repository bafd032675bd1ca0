"""Avro object container files: header, blocks and codecs. `decoder` and `encoder` handle the content of blocks."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.unpack import CODECS, Unpacker

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
_OTHER_FORMATS = (b"ORC", b"PAR1")
_ZSTD: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,  # every decoder checks it
}
_MAX_HEADER_FIELDS = 1000
_mine = threading.local()


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the blocks of a file. ``metadata``: of all keys. ``end``: where the first block begins."""

    schema: str
    metadata: Mapping[str, bytes]
    sync: bytes
    end: int
    codec: str


@dataclass(frozen=True, slots=True)
class Container:
    """A parsed file. ``blocks``: (number of records, decompressed bytes)."""

    schema: str
    blocks: Iterator[tuple[int, bytes]]


class BlockSize(NamedTuple):
    """A block of a file to be written: its records, and its bytes with the numbers before it and the sync marker."""

    records: int
    size: int


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag variable-length integer; return it and the next position.

    Raises:
        FormatError: it is longer than 10 bytes.
        IndexError: the data end within it.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise FormatError("an Avro number has more than 10 bytes")


def write_long(value: int) -> bytes:
    """Return the zigzag variable-length form.

    Raises:
        OverflowError: it has more than 64 bits.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{value} does not fit 64 bits")
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_container(data: bytes) -> Container:
    """Parse the header; blocks are checked and decompressed lazily, as they are read.

    Raises:
        FormatError, IndexError, UnsupportedFeatureError: as ``read_header``.
    """
    header = read_header(data)
    return Container(header.schema, read_blocks(data, header, header.end))


def read_header(data: bytes) -> Header:
    """Parse the header of a file, of which ``data`` is the beginning.

    Raises:
        FormatError: no Avro file, truncated, or an unknown codec. IndexError means truncated, too.
        UnsupportedFeatureError: a file of another format in which Paimon can write manifests.
    """
    if data.startswith(_OTHER_FORMATS):
        raise UnsupportedFeatureError(
            "it is an ORC or Parquet file (option manifest.format); only Avro, Paimon's default, is read here"
        )
    if not data.startswith(MAGIC):
        raise FormatError("it is not an Avro file (the first bytes are wrong)" if data else "it is empty")
    metadata, position = _read_metadata(data)
    codec = metadata.get("avro.codec", b"null").decode()
    if "avro.schema" not in metadata:
        raise FormatError("its Avro header has no schema")
    if codec not in CODECS:
        raise FormatError(f"its Avro codec {codec!r} is unknown")
    sync = data[position : position + SYNC_BYTES]
    if len(sync) < SYNC_BYTES:
        raise FormatError("it is truncated")
    return Header(metadata["avro.schema"].decode(), metadata, sync, position + SYNC_BYTES, codec)


def _read_metadata(data: bytes) -> tuple[dict[str, bytes], int]:
    metadata: dict[str, bytes] = {}
    count, position = read_long(data, len(MAGIC))
    while count:
        if count < 0:
            count = -count
            _, position = read_long(data, position)
        if count > _MAX_HEADER_FIELDS:
            raise FormatError("its Avro header is corrupt")
        for _ in range(count):
            key, position = _read_bytes(data, position)
            metadata[key.decode()], position = _read_bytes(data, position)
        count, position = read_long(data, position)
    return metadata, position


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = read_long(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise FormatError("it is truncated")
    return data[position:end], end


def read_blocks(
    data: bytes, header: Header, position: int, unpacker: Unpacker | None = None
) -> Iterator[tuple[int, bytes]]:
    """Read the blocks from a position to the end of ``data``. ``unpacker``: that of the file, for a part of it.

    Raises:
        FormatError: a sync marker is wrong, or a block can't be decompressed, or would be larger than any is.
            IndexError means truncated.
    """
    unpacker = unpacker or Unpacker(header.codec, len(data))
    while position < len(data):
        count, position = read_long(data, position)
        block, position = _read_bytes(data, position)
        if count < 0 or data[position : position + SYNC_BYTES] != header.sync:
            raise FormatError("it is truncated or corrupt (an Avro sync marker is wrong)")
        position += SYNC_BYTES
        plain = unpacker.block(block)
        if count > len(plain):  # a record has a byte at least
            raise FormatError("it is corrupt (an Avro block has more records than bytes)")
        yield count, plain


def no_keys(blocks: list[BlockSize]) -> Mapping[str, bytes]:
    """Add nothing to a header."""
    return {}


def write_container(
    schema: str,
    blocks: Iterable[tuple[int, bytes]],
    describe: Callable[[list[BlockSize]], Mapping[str, bytes]] = no_keys,
) -> bytes:
    """Return a zstandard-compressed file. The same input gives the same bytes: the sync marker is a digest.

    ``describe``: gives further keys of the header, which no reader needs.
    """
    text = schema.encode()
    digest = hashlib.blake2b(text, digest_size=SYNC_BYTES)
    packed: list[bytes] = []
    sizes: list[BlockSize] = []
    for count, block in blocks:
        compressed = _compressed(block)
        digest.update(compressed)
        packed += (write_long(count) + write_long(len(compressed)), compressed)
        sizes.append(BlockSize(count, len(packed[-2]) + len(compressed) + SYNC_BYTES))
    keys = {"avro.schema": text, "avro.codec": b"zstandard", **describe(sizes)}
    sync = digest.digest()
    out = bytearray(MAGIC)
    out += write_long(len(keys))
    for key, value in keys.items():
        out += write_long(len(key)) + key.encode() + write_long(len(value)) + value
    out += b"\0" + sync
    for numbers, compressed in zip(packed[::2], packed[1::2], strict=True):
        out += numbers + compressed + sync
    return bytes(out)


def _compressed(block: bytes) -> bytes:
    """Compress a block with this thread's compressor: a new one costs more than a small block."""
    compressor = _mine.__dict__.pop("compressor", None) or zstd.ZstdCompressor(options=_ZSTD)
    data = compressor.compress(block, zstd.ZstdCompressor.FLUSH_FRAME)
    _mine.compressor = compressor  # not after an error, which may leave half a frame in it
    return data
