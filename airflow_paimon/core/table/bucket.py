"""Which bucket each row of Arrow columns belongs to.

See docs/contributing/format.md, Buckets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.arrow_values import Column, canonical, to_values
from airflow_paimon.core.format.binary_row import header_bytes, is_compact
from airflow_paimon.core.format.types import DataType

DEFAULT = "default"

_MASK = 0xFFFFFFFF


def function_problem(function: str, types: Sequence[DataType]) -> str | None:
    """Say why rows with such a bucket key have no known bucket; None: they have one."""
    if function == "mod" and (len(types) != 1 or types[0].root not in ("INT", "BIGINT")):
        return "bucket-function.type=mod needs a bucket key of one INT or BIGINT column"
    if function == "hive":
        strange = [t.root for t in types if t.root not in _HASHES]
        return f"bucket-function.type=hive has no hash of {strange[0]}" if strange else None
    if function not in (DEFAULT, "mod"):
        return f"bucket-function.type={function} is not supported, only default, mod and hive are"
    return None


def hive_hashes(arrays: Sequence[Column], types: Sequence[DataType]) -> npt.NDArray[np.uint32]:
    """Hash every row as Hive does, null as 0."""
    out = np.zeros(len(arrays[0]), np.uint32)
    with np.errstate(over="ignore"):
        for array, data_type in zip(arrays, types, strict=True):
            out = out * np.uint32(31) + _column(canonical(array, data_type), data_type)
    return out


def _column(array: Column, data_type: DataType) -> npt.NDArray[np.uint32]:
    encoded = _one_array(array).dictionary_encode(null_encoding="encode")
    hashed = _HASHES[data_type.root]
    found = encoded.dictionary
    # days, which need not be a date of Python
    values = found.cast(pa.int32()).to_pylist() if data_type.root == "DATE" else to_values(found, data_type)
    each = [0 if v is None else hashed(v) & _MASK for v in values]
    return np.array(each or [0], np.uint32)[np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)]


def _of_long(value: int) -> int:
    bits = value & 0xFFFFFFFFFFFFFFFF
    return (bits ^ bits >> 32) & _MASK


def _of_float(value: float) -> int:
    return 0x7FC00000 if value != value else int(struct.unpack("<i", struct.pack("<f", value + 0.0))[0])


def _of_double(value: float) -> int:
    return _of_long(0x7FF8 << 48 if value != value else struct.unpack("<q", struct.pack("<d", value + 0.0))[0])


def _of_bytes(value: bytes) -> int:
    h = 0
    for byte in value:
        h = (31 * h + (byte - 256 if byte > 127 else byte)) & _MASK
    return h


def _of_decimal(value: Decimal) -> int:
    """Java's ``BigDecimal.hashCode`` of the value without trailing zeros."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled, scale = int("".join(map(str, digits))), -exponent
    while scale > 0 and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    if scale < 0:
        unscaled, scale = unscaled * 10**-scale, 0
    h = 0
    for word in struct.iter_unpack(">I", unscaled.to_bytes(32, "big")):
        h = (31 * h + word[0]) & _MASK
    return 31 * (-h if sign else h) + scale


_HASHES: dict[str, Callable[[Any], int]] = {
    "BOOLEAN": int,
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "DATE"), int),
    "BIGINT": _of_long,
    "FLOAT": _of_float,
    "DOUBLE": _of_double,
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), lambda text: _of_bytes(text.encode())),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), _of_bytes),
    "DECIMAL": _of_decimal,
}


U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_SEED = 42
_C1, _C2, _M5 = 0xCC9E2D51, 0x1B873593, 0xE6546B64
_CHUNK_ROWS = 1 << 16


def bucket_of_rows(
    arrays: Sequence[Column], types: Sequence[DataType], num_buckets: int, function: str = DEFAULT
) -> npt.NDArray[np.int32]:
    """Return the bucket of every row, from the columns of the bucket key. ``function``: ``bucket-function.type``.

    Raises:
        InvalidInputError: a column has another type than its field.
        UnsupportedFeatureError: another bucket function, or a type that can't be a key.
    """
    if problem := function_problem(function, types):
        raise UnsupportedFeatureError(problem)
    if num_buckets < 1:
        raise InvalidInputError(f"The number of buckets is {num_buckets}; only fixed buckets can be chosen")
    if function == "mod":
        keys = pc.fill_null(canonical(arrays[0], types[0]), 0).to_numpy()
        modulo: npt.NDArray[np.int32] = np.mod(keys.astype(np.int64), num_buckets).astype(np.int32)
        return modulo
    if function == "hive":
        hashed: npt.NDArray[np.int32] = (hive_hashes(arrays, types) & np.uint32(0x7FFFFFFF)).astype(np.int32)
        return hashed % np.int32(num_buckets)
    remainder = np.fmod(hash_rows(arrays, types).astype(np.int64), num_buckets)
    buckets: npt.NDArray[np.int32] = np.abs(remainder).astype(np.int32)
    return buckets


def hash_rows(arrays: Sequence[Column], types: Sequence[DataType]) -> npt.NDArray[np.int32]:
    """Hash every row as Java hashes the body of its BinaryRow, without encoding it."""
    if not arrays:
        raise InvalidInputError("A bucket key needs at least one column")
    columns = [canonical(a, t) for a, t in zip(arrays, types, strict=True)]
    rows = len(columns[0])
    if any(len(c) != rows for c in columns):
        raise InvalidInputError("The columns of a bucket key have different lengths")
    out = np.empty(rows, np.int32)
    # Chunks that fit into the processor's cache.
    for start in range(0, rows, _CHUNK_ROWS):
        parts = [_one_array(c.slice(start, _CHUNK_ROWS)) for c in columns]
        out[start : start + _CHUNK_ROWS] = _hash_chunk(parts, types).view(np.int32)
    return out


def _one_array(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class _Texts(NamedTuple):
    """Values of any length: each at ``data[start:start + size]``; 8 more bytes can be read after the last one."""

    data: npt.NDArray[np.uint8]
    starts: I64
    sizes: I64

    def words(self, rows: I64 | slice, offset: int) -> U64:
        """Return 8 bytes of the values from ``offset``, zero after their end."""
        # A view at every byte, not aligned.
        everywhere = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))
        kept = _LOW_BYTES[np.clip(self.sizes[rows] - offset, 0, 8)]
        words: U64 = everywhere[np.minimum(self.starts[rows] + offset, len(self.data) - 8)] & kept
        return words


_LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


class _Slots(NamedTuple):
    """A column of a chunk. ``slot`` lacks the offset of what ``words`` (the same number for all rows) or ``texts`` hold
    in the variable part."""

    slot: U64
    null: npt.NDArray[np.bool_] | None
    words: tuple[U64, ...] = ()
    texts: _Texts | None = None


def _hash_chunk(arrays: Sequence[pa.Array], types: Sequence[DataType]) -> U32:
    columns = [_slots(a, t) for a, t in zip(arrays, types, strict=True)]
    rows = len(arrays[0])
    header = np.zeros((header_bytes(len(columns)) // 8, rows), np.uint64)
    for i, column in enumerate(columns):
        if column.null is not None:
            at, bit = divmod(i + 8, 64)
            header[at] |= column.null.astype(np.uint64) << np.uint64(bit)
    h: U32 = np.full(rows, _SEED, np.uint32)
    for word in header:
        h = _mix_words(h, word)
    size: I64 = np.full(rows, header_bytes(len(columns)) + 8 * len(columns), np.int64)
    for column in columns:
        beside = _variable_bytes(column, rows)
        offset = np.where(beside > 0, size.astype(np.uint64) << np.uint64(32), np.uint64(0))
        h = _mix_words(h, column.slot | offset)
        size = size + beside
    for column in columns:
        for word in column.words:
            h = _mix_words(h, word)
        if column.texts is not None:
            h = _mix_texts(h, column.texts)
    h = h ^ size.astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def _variable_bytes(column: _Slots, rows: int) -> I64:
    """Return how many bytes each value takes beside its slot."""
    if column.texts is None:
        return np.full(rows, 8 * len(column.words), np.int64)
    sizes = column.texts.sizes
    rounded: I64 = (sizes + 7 & ~7) * (sizes > 7)
    return rounded


def _mix_texts(h: U32, texts: _Texts) -> U32:
    rows: I64 = np.flatnonzero(texts.sizes > 7)
    offset = 0
    while len(rows):
        h[rows] = _mix_words(h[rows], texts.words(rows, offset))
        offset += 8
        rows = rows[texts.sizes[rows] > offset]
    return h


def _mix_words(h: U32, words: U64) -> U32:
    pairs = np.ascontiguousarray(words).view(np.uint32).reshape(-1, 2)
    return _mix_half(_mix_half(h, pairs[:, 0]), pairs[:, 1])


def _mix_half(h: U32, word: U32) -> U32:
    k = word * np.uint32(_C1)
    k = k << np.uint32(15) | k >> np.uint32(17)
    k *= np.uint32(_C2)
    k ^= h
    k = k << np.uint32(13) | k >> np.uint32(19)
    k *= np.uint32(5)
    k += np.uint32(_M5)
    return k


def _slots(array: pa.Array, data_type: DataType) -> _Slots:
    null = pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None
    root = data_type.root
    if root in ("CHAR", "VARCHAR", "STRING", "BINARY", "VARBINARY", "BYTES"):
        return _text_slots(array, null)
    if root == "DECIMAL":
        return _decimal_slots(array, null, compact=is_compact(data_type))
    if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _stamp_slots(array, null, data_type)
    if root == "BOOLEAN":
        array = array.cast(pa.uint8())
    width = array.type.bit_width // 8
    values = _buffer(array, np.dtype(f"<u{width}")).astype(np.uint64)
    return _Slots(_zero_nulls(values, null), null)


def _buffer(array: pa.Array, dtype: np.dtype[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """View the values of a fixed-width array; the values at nulls are arbitrary."""
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _zero_nulls(values: U64, null: npt.NDArray[np.bool_] | None) -> U64:
    if null is not None:
        values[null] = 0
    return values


def _text_slots(array: pa.Array, null: npt.NDArray[np.bool_] | None) -> _Slots:
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, "<i8", len(array) + 1, 8 * array.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    sizes = np.diff(offsets)
    if null is not None:
        sizes[null] = 0
    texts = _Texts(data, offsets[:-1] - first, sizes)
    short = texts.words(slice(None), 0) | (sizes.astype(np.uint64) | np.uint64(0x80)) << np.uint64(56)
    slot = np.where(sizes > 7, sizes.astype(np.uint64), short)
    return _Slots(_zero_nulls(slot, null), null, texts=texts)


def _decimal_slots(array: pa.Array, null: npt.NDArray[np.bool_] | None, *, compact: bool) -> _Slots:
    raw = np.frombuffer(array.buffers()[1], "<u8", 2 * len(array), 16 * array.offset) if len(array) else ()
    halves = np.array(raw, np.uint64).reshape(-1, 2)
    if null is not None:
        halves[null] = 0
    low, high = halves[:, 0].copy(), halves[:, 1].copy()
    if compact:
        return _Slots(low, null)
    negative = high >> np.uint64(63) == 1
    # The bits to store besides the sign bit.
    top, bottom = np.where(negative, ~high, high), np.where(negative, ~low, low)
    size = np.ones(len(low), np.uint64)
    for n in range(1, 16):
        limit = np.uint64(1 << (8 * n - 1) % 64)
        size += (top >= limit) if n > 8 else ((top > 0) | (bottom >= limit))
    # Big-endian and left-aligned: shift out the unused bits, then swap bytes.
    shift = (np.uint64(16) - size) * np.uint64(8)
    far, near = shift >= 64, shift % np.uint64(64)
    carried = np.where(near > 0, low >> (np.uint64(64) - near) % np.uint64(64), 0)
    first = np.where(far, low << near, high << near | carried)
    second = np.where(far, 0, low << near).astype(np.uint64)
    return _Slots(_zero_nulls(size, null), null, words=(first.byteswap(), second.byteswap()))


def _stamp_slots(array: pa.Array, null: npt.NDArray[np.bool_] | None, data_type: DataType) -> _Slots:
    stored = _zero_nulls(_buffer(array, np.dtype("<u8")).astype(np.uint64), null).view(np.int64)
    unit = array.type.unit
    if unit in ("s", "ms"):
        millis, nanos = stored * (1000 if unit == "s" else 1), np.zeros(len(stored), np.int64)
    else:
        per_milli = 1000 if unit == "us" else 1_000_000
        millis = stored // per_milli
        nanos = (stored - millis * per_milli) * (1_000_000 // per_milli)
    words = millis.view(np.uint64)
    if not is_compact(data_type):
        return _Slots(nanos.view(np.uint64), null, words=(words,))
    if nanos.any():
        raise InvalidInputError(f"An Arrow column of type {array.type} has values that are too fine for {data_type}")
    return _Slots(words, null)
