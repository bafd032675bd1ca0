"""Decimals as whole numbers: the digits without the point, in Arrow's two 64-bit words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.aggregates.records import Flags, Indices

WORD_DIGITS = 18
"""Digits that always fit one word: Paimon computes decimals of up to this precision as long integers."""
_MASK = 2**64 - 1


def low_words(values: pa.Array) -> Indices:
    """Return the unscaled values of a decimal column without nulls, each of which fits 64 bits."""
    return _words(values)[:, 0]


def to_ints(values: pa.Array) -> list[int]:
    """Return the unscaled values of a decimal column; those of nulls are undefined."""
    words = _words(values)
    return [(high << 64) | (low & _MASK) for low, high in words.tolist()]


def from_words(low: Indices, data_type: pa.DataType, valid: Flags) -> pa.Array:
    """Return decimals, of any number of digits, from unscaled values."""
    return _from_words(np.stack([low, low >> 63], axis=1), data_type, valid)


def from_ints(values: Sequence[int | None], data_type: pa.DataType) -> pa.Array:
    """Return decimals from unscaled values of up to 128 bits."""
    low = np.array([(v or 0) & _MASK for v in values], np.uint64).view(np.int64)
    high = np.array([(v or 0) >> 64 for v in values], np.int64)
    return _from_words(np.stack([low, high], axis=1), data_type, np.array([v is not None for v in values], bool))


def _words(values: pa.Array) -> Indices:
    if not len(values):
        return np.empty((0, 2), np.int64)
    raw = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    return raw[values.offset : values.offset + len(values)]


def _from_words(words: Indices, data_type: pa.DataType, valid: Flags) -> pa.Array:
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(data_type, len(valid), [bits, pa.py_buffer(np.ascontiguousarray(words))])
