"""Numbers that are equal exactly where values are equal, for values of every type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.records import Indices, explode, slots_of, validity


def element_codes(values: pa.Array) -> Indices:
    """Return a code per value; null is -1 and equals itself.

    Floats compare as Java's ``Double.equals``: NaN is one value, and -0.0 is not 0.0. Maps compare without order.
    """
    if pa.types.is_struct(values.type):
        return _joined([element_codes(child) for child in values.flatten()], values)
    if pa.types.is_map(values.type):
        return _map_codes(values)
    if pa.types.is_list(values.type):
        elements = explode(values)
        inner = pc.take(values.values, pa.array(elements.at))
        return _sequence_codes(values, elements.record, element_codes(inner))
    if pa.types.is_floating(values.type):
        values = _float_bits(values)
    codes = pc.dictionary_encode(values).indices
    return np.asarray(pc.fill_null(codes, -1).to_numpy()).astype(np.int64)


def _map_codes(values: pa.Array) -> Indices:
    elements = explode(values)
    at = pa.array(elements.at)
    keys, items = element_codes(pc.take(values.keys, at)), element_codes(pc.take(values.items, at))
    pairs = slots_of(keys + 1, items).slot
    order = np.lexsort([pairs, elements.record])
    return _sequence_codes(values, elements.record, pairs[order])


def _float_bits(values: pa.Array) -> pa.Array:
    numbers = np.asarray(pc.fill_null(values, 0.0).to_numpy())
    bits = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers).view(f"i{numbers.dtype.itemsize}")
    return pa.array(bits, mask=~validity(values))


def _sequence_codes(values: pa.Array, record: Indices, codes: Indices) -> Indices:
    """Return the codes of sequences of codes: each sequence is compared as its bytes."""
    ends = np.append(0, np.cumsum(np.bincount(record, minlength=len(values)))) * codes.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(np.ascontiguousarray(codes))]
    texts = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    return np.where(validity(values), _encoded(texts), -1)


def _joined(children: list[Indices], values: pa.Array) -> Indices:
    rows = np.ascontiguousarray(np.stack(children, axis=1)) if children else np.zeros((len(values), 1), np.int64)
    width = pa.binary(rows.shape[1] * rows.itemsize)
    texts = pa.Array.from_buffers(width, len(values), [None, pa.py_buffer(rows)])
    return np.where(validity(values), _encoded(texts), -1)


def _encoded(texts: pa.Array) -> Indices:
    return np.asarray(pc.dictionary_encode(texts).indices.to_numpy()).astype(np.int64)
