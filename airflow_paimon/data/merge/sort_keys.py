"""Keys as numpy arrays with Paimon's order, so that merging is sorting and searching.

A single fixed-width column is used directly. Several columns, wide decimals and strings become one integer per row if
the ranges of their values fit into 64 bits, else one fixed-width byte string (big-endian, sign flipped, strings padded
with zeros); strings with a zero byte, or long ones, become dense ranks over all compared rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import UnsupportedFeatureError

Keys = npt.NDArray[Any]
_WORD_BYTES, _WORD_BITS, _WORD_DIGITS = 8, 64, 18
_MAX_TEXT_BYTES = 128
"""Longer strings are ranked instead of padded: the padding would take too much memory."""


def sort_keys(runs: Sequence[Sequence[pa.Array]]) -> list[Keys]:
    """Return one comparable array per run; ``runs[r][c]`` is key column c of run r, without nulls.

    Arrays of one call compare with each other; those of different calls do not.
    """
    words = [word for c in range(len(runs[0])) for word in _column_words([run[c] for run in runs])]
    if len(words) == 1:
        return [_flat(w) for w in words[0]]
    return _narrowed(words) or [_packed([word[r] for word in words]) for r in range(len(runs))]


def are_stable(columns: Sequence[pa.Array]) -> bool:
    """Return whether keys of such columns are comparable between calls, as single numbers are."""
    (first, *others) = columns
    is_text = pa.types.is_string(first.type) or pa.types.is_binary(first.type)
    is_wide = pa.types.is_decimal(first.type) and first.type.precision > _WORD_DIGITS
    return not others and not is_text and not is_wide


def order_values(column: pa.Array, descending: bool) -> list[Keys]:
    """Return arrays, most significant first, that order a nullable column: null is lowest in both directions. The last
    one is int64; where a value is null, one before it says so.
    """
    if not column.null_count:
        return [_numbers(column, descending)]
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    numbers: Keys = np.zeros(len(column), np.int64)
    numbers[valid] = _numbers(column.drop_null(), descending)
    return [valid, numbers]


def _numbers(column: pa.Array, descending: bool) -> Keys:
    """Return int64 numbers that order a column without nulls."""
    keys = sort_keys([[column]])[0]
    if keys.dtype.kind == "S":
        numbers = np.unique(keys, return_inverse=True)[1]
    elif keys.dtype == np.uint64:
        numbers = (keys ^ np.uint64(1 << (_WORD_BITS - 1))).view(np.int64)
    else:
        numbers = keys.astype(np.int64)
    return ~numbers if descending else numbers


def _column_words(arrays: Sequence[pa.Array]) -> list[list[Keys]]:
    """Return the words of one column, most significant first; each word is a list with one array per run."""
    data_type = arrays[0].type
    if pa.types.is_decimal(data_type):
        if data_type.precision <= _WORD_DIGITS:
            return [[decimal_words(a)[:, 0] for a in arrays]]
        return [[decimal_words(a)[:, 1] for a in arrays], [decimal_words(a)[:, 0].view(np.uint64) for a in arrays]]
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return [_text(arrays)]
    return [[_fixed(a) for a in arrays]]


def _fixed(array: pa.Array) -> Keys:
    data_type = array.type
    if pa.types.is_boolean(data_type):
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.uint8)
    if pa.types.is_integer(data_type):
        return np.asarray(array.to_numpy())
    if pa.types.is_date32(data_type) or pa.types.is_time32(data_type):
        return np.asarray(array.view(pa.int32()).to_numpy())
    if pa.types.is_timestamp(data_type):
        return np.asarray(array.view(pa.int64()).to_numpy())
    if pa.types.is_floating(data_type):
        return _ordered_floats(np.asarray(array.to_numpy()))
    raise UnsupportedFeatureError(f"Keys and sequence fields of type {data_type} are not supported")


def _ordered_floats(values: Keys) -> Keys:
    """Map to integers in order of value. As in Paimon's merge -0.0 is 0.0 (measured); NaN is one value, the highest."""
    canonical = np.where(np.isnan(values), np.array(np.nan, values.dtype), values + values.dtype.type(0))
    bits = canonical.view(f"i{values.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def decimal_words(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the (low, high) words of a decimal128 column."""
    raw = np.frombuffer(array.buffers()[1], np.int64) if len(array) else np.empty(0, np.int64)
    return raw.reshape(-1, 2)[array.offset : array.offset + len(array)]


def _text(arrays: Sequence[pa.Array]) -> list[Keys]:
    spans = [_span(a) for a in arrays]
    widest = max((int(np.diff(offsets).max()) for offsets, _ in spans if len(offsets) > 1), default=0)
    if widest > _MAX_TEXT_BYTES or any((data == 0).any() for _, data in spans):
        return _ranks(arrays)
    width = max(widest, 1)
    matrices = [_padded(array, width) for array in arrays]
    shared = _shared_prefix(arrays) if width > _WORD_BYTES else 0
    if shared and width - shared <= _WORD_BYTES:
        return [m[:, min(shared, width - 1) :] for m in matrices]
    return matrices


def _shared_prefix(arrays: Sequence[pa.Array]) -> int:
    """Return the length of the common prefix, found from the ends of the sorted runs."""
    filled = [a.view(pa.binary()) for a in arrays if len(a)]
    ends = [end.as_py() for a in filled for end in (a[0], a[-1])]
    low, high = min(ends), max(ends)
    prefix = low[: next((at for at, byte in enumerate(low) if byte != high[at]), len(low))]
    held = (pc.all(pc.starts_with(a, pattern=prefix)).as_py() for a in filled)
    return len(prefix) if all(held) else 0


def _span(array: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return offsets that start at 0, and the bytes they refer to."""
    _, offset_buffer, data_buffer = array.buffers()
    if not len(array):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _padded(array: pa.Array, width: int) -> Keys:
    """Return rows of bytes, padded with zeros; Arrow's function for ASCII accepts any bytes."""
    if not len(array):
        return np.empty((0, width), np.uint8)
    filled = pc.ascii_rpad(array.view(pa.string()), width=width, padding="\0")
    _, data = _span(filled)
    return data.reshape(len(array), width)


def _ranks(arrays: Sequence[pa.Array]) -> list[Keys]:
    ranks = pc.rank(pa.chunked_array(arrays), sort_keys="ascending", tiebreaker="dense").to_numpy()
    bounds = np.cumsum([len(a) for a in arrays])[:-1]
    return [np.asarray(part) for part in np.split(ranks, bounds)]


def _flat(word: Keys) -> Keys:
    """Return a one-dimensional array of a word: itself, or byte rows as one value each."""
    return _joined(word) if word.ndim == 2 else word


def _narrowed(words: Sequence[Sequence[Keys]]) -> list[Keys] | None:
    """Pack the words of each row, minus their minimum, into one integer; None: they don't fit."""
    if any(run.ndim == 2 and run.shape[1] > _WORD_BYTES for word in words for run in word):
        return None
    rows = [np.zeros(len(run), np.uint64) for run in words[0]]
    left = _WORD_BITS
    for word in words:
        numbers = [_unsigned(_flat(run)).astype(np.uint64) for run in word]
        ends = [(n.min(), n.max()) for n in numbers if len(n)]
        lowest = min((low for low, _ in ends), default=np.uint64(0))
        bits = int(max((high for _, high in ends), default=lowest) - lowest).bit_length()
        left -= bits
        if left < 0:
            return None
        rows = [(row << np.uint64(bits)) | (n - lowest) for row, n in zip(rows, numbers, strict=True)]
    return rows


def _packed(words: Sequence[Keys]) -> Keys:
    """Concatenate the words of each row, each in bytes that compare as its values do.

    Written field by field into rows of bytes, which is several times as fast as concatenating columns of bytes.
    """
    width = sum(w.shape[1] if w.ndim == 2 else w.itemsize for w in words)
    fields: list[Any] = [("pad", np.uint8, (8 - width,))] if width < 8 else []
    for at, word in enumerate(words):
        fields.append((f"w{at}", np.uint8, (word.shape[1],)) if word.ndim == 2 else (f"w{at}", f">u{word.itemsize}"))
    rows = np.zeros(len(words[0]), np.dtype(fields))
    for at, word in enumerate(words):
        rows[f"w{at}"] = word if word.ndim == 2 else _unsigned(word)
    packed: Keys = rows.view(f"S{width}") if width > 8 else rows.view(">u8").astype(np.uint64)
    return packed


def _unsigned(word: Keys) -> Keys:
    if word.dtype.kind != "i":
        return word
    flipped: Keys = word.view(f"u{word.itemsize}") ^ np.array(1 << (8 * word.itemsize - 1), f"u{word.itemsize}")
    return flipped


def _joined(matrix: npt.NDArray[np.uint8]) -> Keys:
    """Turn each row of bytes into one value: an integer if 8 bytes are enough, else numpy's fixed-width bytes.

    Equal widths make numpy's stripping of trailing zeros harmless.
    """
    rows, width = matrix.shape
    if width > 8:
        return np.ascontiguousarray(matrix).view(f"S{width}").reshape(rows)
    wide = np.zeros((rows, 8), np.uint8)
    wide[:, 8 - width :] = matrix
    return wide.view(">u8").reshape(rows).astype(np.uint64)
