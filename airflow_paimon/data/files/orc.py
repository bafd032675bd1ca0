"""Reads ORC data files, and corrects timestamps that pyarrow misreads.

Paimon's Java writers store TIMESTAMP_LTZ in ORC files by their own time zone unless
``orc.timestamp-ltz.legacy.type=false``: the stored instant is the UTC date and time as if it were a local one. The time
zone of each stripe is in its footer, which pyarrow does not expose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, RowType, types_within
from airflow_paimon.core.format.unpack import BLOCK_BYTES, Unpacker

_NONE = 0
_CODECS = {1: "deflate", 2: "snappy_raw", 4: "lz4_raw", 5: "zstandard"}
_UTC_NAMES = frozenset(("", "UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Universal"))
_CHUNK_HEADER = 3


def stripe_zones(source: Any, path: str) -> list[str]:
    """Return the writer's time zone of each stripe, ``UTC`` for all its names. ``source`` is open for random reads.

    Raises:
        FormatError: not an ORC file, or truncated. UnsupportedFeatureError: an unknown compression.
    """
    try:
        return [_zone(source, *where) for where in _stripe_footers(source)]
    except (IndexError, ValueError, OSError, FormatError) as error:
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
        if shift > 63:
            raise ValueError("its metadata has a number of more than 10 bytes")


def _decompressed(data: bytes, kind: int, block: int) -> bytes:
    """Decode ORC's chunks: a header of 3 bytes with the length and an "uncompressed" bit, then the chunk."""
    if kind == _NONE:
        return data
    if kind not in _CODECS:
        raise UnsupportedFeatureError(
            f"ORC files with compression {kind} are not read; use Paimon's own Spark connector"
        )
    unpacker = Unpacker(_CODECS[kind], len(data), min(max(block, 1), BLOCK_BYTES))
    out = []
    at = 0
    while at + _CHUNK_HEADER <= len(data):
        header = int.from_bytes(data[at : at + _CHUNK_HEADER], "little")
        at += _CHUNK_HEADER
        chunk = data[at : at + (header >> 1)]
        at += header >> 1
        out.append(chunk if header & 1 else unpacker.block(chunk))
    return b"".join(out)


_DAY_NS = 86_400 * 10**9
_MILLI_NS = 10**6


def read_orc(source: Any, fields: Sequence[DataField], path: str, legacy_ltz: bool) -> Iterator[pa.RecordBatch]:
    """Return each stripe as a batch. ``legacy_ltz``: option ``orc.timestamp-ltz.legacy.type`` of the file's schema.

    Raises:
        UnsupportedFeatureError: timestamps that are ambiguous in the file.
    """
    file = orc.ORCFile(source)
    present = set(file.schema.names)
    wanted = [f for f in fields if f.name in present]
    names = [f.name for f in wanted] or file.schema.names[:1]
    stamped = [f for f in wanted if _roots(f.type) & {"TIMESTAMP", "TIMESTAMP_LTZ"}]
    zones = stripe_zones(source, path) if stamped else []
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=names)
        if stamped and zones[stripe] != "UTC":
            batch = _corrected(batch, stamped, zones[stripe], path, legacy_ltz)
        yield batch


def _corrected(
    batch: pa.RecordBatch, stamped: Sequence[DataField], zone: str, path: str, legacy_ltz: bool
) -> pa.RecordBatch:
    for field in stamped:
        at = batch.schema.get_field_index(field.name)
        where = f"Data file {path}: column {field.name!r}"
        if field.type.root == "TIMESTAMP":
            _check_epoch(batch.column(at), zone, where)
        elif field.type.root == "TIMESTAMP_LTZ" and pa.types.is_timestamp(batch.column(at).type) and legacy_ltz:
            batch = batch.set_column(at, field.name, _as_utc(batch.column(at), zone, where))
        elif not isinstance(field.type, RowType | ArrayType | MapType):
            continue  # an instant, as it should be
        elif legacy_ltz or "TIMESTAMP" in _roots(field.type):
            raise UnsupportedFeatureError(
                f"{where} has timestamps inside it and was written in time zone {zone}, which the built-in engine "
                f"reads from ORC files of UTC writers only; use Paimon's own Spark connector"
            )
    return batch


def _as_utc(column: pa.Array, zone: str, where: str) -> pa.Array:
    """The writer interpreted the UTC date and time in its own zone: reverse that."""
    try:
        local = pc.local_timestamp(column.cast(pa.timestamp("ns", tz=zone)))
    except pa.ArrowInvalid as error:
        raise UnsupportedFeatureError(
            f"{where} was written in time zone {zone}, which is unknown on this machine ({error}); "
            f"install tzdata, or use Paimon's own Spark connector"
        ) from None
    return local.cast(pa.timestamp("ns", tz="UTC"))


def _check_epoch(column: pa.Array, zone: str, where: str) -> None:
    """The second of a time with a fraction is off by one where UTC and the writer's zone disagree on "before 1970"."""
    nanos = column.drop_null().cast(pa.int64()).to_numpy()
    near = (np.abs(nanos) < _DAY_NS) & (nanos % 10**9 >= _MILLI_NS)
    if near.any():
        raise UnsupportedFeatureError(
            f"{where} was written in time zone {zone} and has times with a fraction of a second within a day of "
            f"1970-01-01, which Arrow misreads from ORC files; use Paimon's own Spark connector"
        )


def _roots(data_type: DataType) -> set[str]:
    return {t.root for t in types_within(data_type)}
